"""Runs that are trained longer, remarks about what is missing or moved, and costs that need no memory."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import EXPORT_OPTIONS, SMALL, error_line, read_json, train

import logosphere as ls
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.runs.budget import extend, is_finished
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import cost
from logosphere.runs.run import Run

pytestmark = pytest.mark.usefixtures("workplace")
SECRET = "zebra crossings are painted on the road by quiet men at night. "


def test_a_finished_run_is_trained_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """The budget is the total. A finished run says so, without reading its data, and gives the command to extend it."""
    Path("tale.txt").write_text("once upon a time there was a mouse " * 60)
    assert train("--data", "tale.txt", out="with space") == 0 and is_finished(Run("with space"))
    first = Run("with space").metrics()
    Path("tale.txt").rename("moved.txt")
    capsys.readouterr()
    for argv in ([], ["--steps", "4"]):
        assert main(["train", "--out", "with space", "--resume", *argv]) == 0
        printed = capsys.readouterr()
        assert "is finished: 4 steps" in printed.err and "bits per character" in printed.out
        assert "logosphere train --out 'with space' --resume --steps 8" in printed.err
    assert main(["train", "--out", "with space", "--resume", "--json"]) == 0 and read_json(capsys)["step"] == 4
    assert "4 steps" in error_line(capsys, ["train", "--out", "with space", "--resume", "--steps", "3"])
    error = error_line(capsys, ["train", "--out", "with space", "--resume", "--steps", "8"])
    assert "The data of the run in with space cannot be opened" in error and "tale.txt" in error
    Path("moved.txt").rename("tale.txt")
    assert main(["train", "--out", "with space", "--resume", "--steps", "8"]) == 0
    longer = Run("with space")
    assert longer.config.steps == 8 and is_finished(longer) and longer.trainings[-1].steps == 8
    assert [line for line in longer.metrics() if line["step"] <= 4] == first
    error = error_line(capsys, ["train", "--out", "with space", "--resume", "--minutes", "1e-4"])
    assert "has trained for 8 steps" in error and "--resume --minutes 0." in error


def test_python_extends_a_run() -> None:
    assert train() == 0
    run = ls.resume("run", steps=6)
    assert run.config.steps == 6 and run.metrics()[-1]["step"] == 6
    run = extend(run, TrainConfig(steps=None, minutes=500.0))
    assert (run.config.steps, run.config.minutes) == (None, 500.0) and not is_finished(run)
    with pytest.raises(UserError, match="budget is the total"):
        extend(run, TrainConfig(steps=5))


def test_weights_without_a_checkpoint_are_not_trained_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """An export, a bundled checkpoint, and a run without its states: resuming them would begin with random weights."""
    assert train(out="runs/one") == 0
    assert main(["export", "runs/one", "--out", "runs/small", *EXPORT_OPTIONS]) == 0
    before = {path: path.read_bytes() for path in Path("runs/small").iterdir()}
    for argv in (["--out", "runs/small"], ["--out", "runs/small", "--steps", "9"], ["--out", "pretrained:mdlm"]):
        error = error_line(capsys, ["train", "--resume", *argv])
        assert "holds weights without a checkpoint" in error and error.endswith(f"train --begin {argv[1]}")
    with pytest.raises(UserError, match="begin another run with its weights"):
        ls.resume("runs/small", steps=9)
    assert before == {path: path.read_bytes() for path in Path("runs/small").iterdir()}
    assert main(["train", "--resume", "--steps", "6"]) == 0 and Run("runs/one").config.steps == 6
    shutil.rmtree("runs/one/state")
    assert "holds weights without a checkpoint" in error_line(capsys, ["train", "--resume", "--out", "runs/one"])


def test_sample_without_a_run_says_which_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(out="runs/first") == 0 and train(out="runs/second") == 0
    capsys.readouterr()
    assert main(["sample", "-n", "1", "--steps", "2"]) == 0
    assert "From runs/second, the run trained last" in capsys.readouterr().err
    assert main(["sample", "runs/first", "-n", "1", "--steps", "2"]) == 0
    assert "the run trained last" not in capsys.readouterr().err


def test_plain_weights_are_not_reported_as_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    assert main(["evaluate", "run", "--sequences", "4", "--draws", "1", "--json"]) == 0
    assert read_json(capsys)["weights"] == "ema"
    Path("run/ema.safetensors").unlink()
    assert main(["evaluate", "run", "--sequences", "4", "--draws", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert '"weights": "model"' in printed.out and "ema.safetensors is missing" in " ".join(printed.err.split())
    assert main(["sample", "run", "-n", "1", "--steps", "2"]) == 0
    assert "ema.safetensors is missing" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("data", ["secret.txt", "lines:secret.txt"])
def test_an_export_holds_no_text_unless_asked(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = SECRET.split()
    lines = [" ".join(words[i % 11 :] + words[: i % 7]) for i in range(80)]
    Path("secret.txt").write_text("\n".join(lines) + "\n")
    assert train("--data", data, "--tokenizer", "characters", "--length", "80") == 0
    assert main(["export", "run", "--out", "plain", *EXPORT_OPTIONS]) == 0
    held = "".join(path.read_text(errors="replace") for path in Path("plain").iterdir())
    assert not any(word in held for word in words if len(word) > 3)
    assert main(["export", "run", "--out", "full", "--with-samples", *EXPORT_OPTIONS]) == 0
    assert "zebra crossings" in Path("full/record.json").read_text()
    assert "Samples, not selected" in Path("full/card.md").read_text()
    Path("elsewhere").mkdir()
    shutil.move("plain", "elsewhere/plain")
    Path("secret.txt").unlink()
    capsys.readouterr()
    assert main(["sample", "elsewhere/plain", "-n", "1", "--steps", "2"]) == 0
    error = error_line(capsys, ["evaluate", "elsewhere/plain"])
    assert "data of the run in elsewhere/plain cannot be opened" in error and "secret.txt" in error
    assert "--data" in error


def test_links_to_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("link").symlink_to("gone")
    for argv in (["evaluate", "link"], ["sample", "link"], ["train", "--data", "link"],
                 ["train", "--out", "link", "--steps", "1", *SMALL]):  # fmt: skip
        assert "link is a link to gone, which does not exist" in error_line(capsys, argv)
    with pytest.raises(UserError, match="link to gone"):
        ls.load("link")
    assert Path("link").is_symlink()
    Path("runs/broken").mkdir(parents=True)
    Path("runs/broken/model.safetensors").symlink_to("gone")
    assert "no run yet" in error_line(capsys, ["train", "--resume"])


def test_huge_numbers_of_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    error = error_line(capsys, ["sample", "run", "--steps", "100000000"])
    assert "at most 100,000 steps, not 100,000,000" in error and "6.4 GB" in error


def test_settings_of_the_training_are_no_options_of_a_system(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_line(capsys, ["train", "--steps", "1", *SMALL, "--options", "length=32"])
    assert "'length' is a setting of the training" in error and "--length" in error
    assert "'vocab_size'" in error_line(capsys, ["train", "--steps", "1", *SMALL, "--options", "vocab_size=3"])


def test_a_dry_run_allocates_no_large_network(capsys: pytest.CaptureFixture[str]) -> None:
    """48 blocks of width 4,096 have ten billion parameters; processor time does not depend on their size."""
    started = time.process_time()
    argv = ["--network.width", "4096", "--network.depth", "48", "--network.heads", "32", "--steps", "10"]
    assert main(["train", "--system", "mdlm", "--dry-run", "--json", *argv]) == 0
    assert time.process_time() - started < 5
    assert 9e9 < read_json(capsys)["parameters"] < 11e9


@pytest.mark.parametrize(
    ("system", "preset"),
    [("rdlm-heat", "default"), *(("rdlm", preset) for preset in ls.presets("rdlm"))],
)
def test_costs_need_no_table_of_bridges(system: str, preset: str, tmp_path: Path) -> None:
    """Tables of Brownian bridges take seconds for 30,000 tokens; the number of parameters does not depend on them."""
    program = (
        "import sys, time; from logosphere.runs.config import TrainConfig; "
        "from logosphere.runs.cost_model import cost; system, preset = sys.argv[1:]; started = time.process_time(); "
        "config = TrainConfig(system=system, preset=preset, length=64, steps=1); "
        "print(cost(config, 60_000).parameters, time.process_time() - started)"
    )  # in a process of its own, because time is measured
    environment = os.environ | {"LOGOSPHERE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program, system, preset]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
    assert int(printed[0]) > 1e6 and float(printed[1]) < 5 and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("system", ["mdlm", "ar", "rdlm", "ld4lg", "plaid"])
def test_parameters_are_counted_without_memory_as_with_it(system: str) -> None:
    """The same count as that of a model whose tensors are all allocated."""
    network = NetworkConfig(width=256, depth=2, heads=4)
    model = ls.build(system, vocab_size=27, length=16, **vars(network))
    assert cost(TrainConfig(system=system, length=16, network=network, steps=1), 27).parameters == sum(
        parameter.numel() for parameter in model.parameters()
    )
