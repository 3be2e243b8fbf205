"""The command line: every command, JSON results, and stopping and resuming runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import SMALL, read_json, train

from logosphere.cli import main
from logosphere.cli.train_options import parse_train, parse_train_options
from logosphere.errors import UserError
from logosphere.migration import migrate
from logosphere.runs.config import config_from_dict
from logosphere.runs.recipes import recipe

pytestmark = pytest.mark.usefixtures("workplace")


def test_run_folder_has_the_documented_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--json") == 0
    result = read_json(capsys)
    assert result["step"] == 4 and result["validation"]["kind"] == "bound"
    run = Path("run")
    for name in (
        "recipe.json",
        "env.json",
        "tokenizer.json",
        "model.safetensors",
        "ema.safetensors",
        "best.safetensors",
    ):
        assert (run / name).is_file(), name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2, 3, 4]
    assert sum("val/bpc" in line for line in lines) == 2
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["recipe"]["network"]["width"] == 16 and recipe["model"]["vocab_size"] == 27
    assert list((run / "samples").glob("*.txt")) and (run / "eval" / "valid.json").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["ar", "mdlm", "d3pm-absorbing", "d3pm-uniform"])
def test_every_system_trains_evaluates_and_samples(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--system", system) == 0
    assert main(["evaluate", "run", "--sequences", "8", "--draws", "2", "--json"]) == 0
    assert read_json(capsys)["bits"] > 0
    assert main(["sample", "run", "-n", "2", "--steps", "4", "--prompt", "the ", "--json"]) == 0
    result = read_json(capsys)
    assert [sample["text"][:4] for sample in result["samples"]] == ["the ", "the "]
    assert all(len(sample["tokens"]) == 16 for sample in result["samples"])
    assert result["nfe"] == (12 if system == "ar" else 4) and result["seconds"] > 0


@pytest.mark.slow
def test_evaluate_accepts_other_options(capsys: pytest.CaptureFixture[str]) -> None:
    train("--system", "rdlm-heat")
    found = []
    for options in ([], ["--options", "path=any-order"]):
        capsys.readouterr()
        assert main(["evaluate", "run", "--sequences", "8", "--json", *options]) == 0
        found.append(read_json(capsys)["bits"])
    assert found[0] != found[1]
    assert len([path for path in Path("run/eval").glob("*.json") if "-path=any-order" in path.name]) == 1
    assert main(["evaluate", "run", "--options", "pth=joint"]) != 0


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", ["cached", "first-hitting", "llada", "entropy-bounded", "star"])
def test_every_masked_sampler_infills(sampler: str, capsys: pytest.CaptureFixture[str]) -> None:
    train()
    capsys.readouterr()
    argv = ["--infill", "the [...] of[2]", "--sampler", sampler, "--grid", "cosine", "--top-p", "0.9", "--json"]
    assert main(["sample", "run", "-n", "3", "--steps", "8", *argv]) == 0
    for sample in read_json(capsys)["samples"]:
        assert sample["text"][:4] == "the " and sample["text"][7:10] == " of"


def test_the_same_seed_gives_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    texts = []
    for seed in ("1", "1", "2"):
        capsys.readouterr()
        main(["sample", "run", "--steps", "4", "--seed", seed])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_compare_trains_missing_runs_and_ranks_them(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path("small.yaml")
    network = "{width: 16, depth: 1, heads: 2}"
    recipe.write_text(f"length: 16\nbatch: 4\nvalidations: 1\nvalidation_sequences: 8\nnetwork: {network}\n")
    argv = ["compare", "--systems", "ar,mdlm", "--recipe", str(recipe), "--steps", "3", "--out", "both"]
    assert main([*argv, "--sequences", "16", "--json"]) == 0
    rows = read_json(capsys)["rows"]
    assert {row["name"] for row in rows} == {"ar", "mdlm"} and rows[0]["bits"] <= rows[1]["bits"]
    assert rows[0]["above_best"] == 0 and rows[1]["above_best"] == pytest.approx(rows[1]["bits"] - rows[0]["bits"])
    assert main(["compare", "both/ar", "both/mdlm", "--sequences", "16"]) == 0
    assert "= " in (table := capsys.readouterr().out) and "≤ " in table


def test_resuming_a_finished_run_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    before = Path("run/model.safetensors").read_bytes()
    assert main(["train", "--out", "run", "--resume"]) == 0
    assert Path("run/model.safetensors").read_bytes() == before


def test_every_kind_of_data_can_be_trained_on() -> None:
    text = "Grüße aus dem Wald, sagte der Igel. " * 60
    Path("tale.txt").write_text(text, encoding="utf-8")
    Path("tale.jsonl").write_text("\n".join(json.dumps({"text": text}) for _ in range(3)), encoding="utf-8")
    for number, argv in enumerate(
        (["tale.txt"], ["tale.jsonl", "--tokenizer", "byte"], ["tale.txt", "--tokenizer", "bpe:300"])
    ):
        assert train("--data", *argv, steps=1, out=f"run{number}") == 0
        assert main(["sample", f"run{number}", "-n", "1", "--steps", "2"]) == 0
    assert main(["evaluate", "run2", "--per", "character", "--sequences", "4"]) == 0
    deep = Path("a" * 120, "b" * 120)  # reports are named after their data, and file names have at most 255 bytes
    deep.mkdir(parents=True)
    Path("tale.txt").rename(deep / "tale.txt")
    assert main(["evaluate", "run0", "--data", str((deep / "tale.txt").resolve()), "--sequences", "1"]) == 0


@pytest.mark.slow
def test_an_interrupted_run_saves_and_resumes_to_the_last_bit(workplace: Path) -> None:
    """Ctrl-C in a real process at any step; after resuming, the metrics equal those of an uninterrupted run."""
    command = [sys.executable, "-m", "logosphere"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    argv = ["train", "--steps", "60", *SMALL, "--network.dropout", "0.1"]
    subprocess.run([*command, *argv, "--out", "uninterrupted"], env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        [*command, *argv, "--out", "stopped"], env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics = workplace / "stopped" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 5:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, remark = process.communicate(timeout=120)
    assert process.returncode == 130 and "--resume" in remark and "Traceback" not in remark
    subprocess.run(
        [*command, "train", "--out", "stopped", "--resume"], env=environment, check=True, capture_output=True
    )

    def without_times(folder: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in (workplace / folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]

    assert without_times("stopped") == without_times("uninterrupted")
    for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
        assert (workplace / "stopped" / name).read_bytes() == (workplace / "uninterrupted" / name).read_bytes()


@pytest.mark.parametrize("recipe, shards", [("text8-1b", True), ("demo", False)])
def test_boolean_options_override_the_recipe(recipe: str, shards: bool) -> None:
    assert parse_train([recipe]).config.shard == shards
    assert parse_train([recipe, "--shard"]).config.shard
    assert not parse_train([recipe, "--no-shard"]).config.shard


def test_old_names_of_settings_are_accepted() -> None:
    """On the command line and in recipes of earlier runs; other files get an error with the new name."""
    config = parse_train(["demo", "--withhold", "0.3", "--optim.final=0.2", "--optim.spike", "9"]).config
    assert (config.cond_dropout, config.optim.min_lr_ratio, config.optim.grad_spike_factor) == (0.3, 0.2, 9.0)
    former = {"system": "mdlm", "withhold": 0.3, "optim": {"final": 0.2, "spike": None}}
    recipe = migrate({"version": 2, "recipe": former}, "recipe.json")["recipe"]
    read = config_from_dict(recipe, "recipe.json")
    assert (read.cond_dropout, read.optim.min_lr_ratio, read.optim.grad_spike_factor) == (0.3, 0.2, None)
    with pytest.raises(UserError, match="'withhold' of recipe.json is now 'cond_dropout'"):
        config_from_dict(former, "recipe.json")


def test_help_of_train_shows_the_options_of_a_named_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    assert "Options of gidd" not in capsys.readouterr().out
    for words in (["--system", "gidd"], ["--system=gidd"]):
        assert main(["train", *words, "--help"]) == 0
        printed = capsys.readouterr().out
        assert "Options of gidd" in printed and all(option in printed for option in ("p_u", "schedule", "t_min"))


def test_help_does_not_import_torch() -> None:
    """`--help` is instant because it never loads torch."""
    for argv in (["--help"], ["train", "--help"], ["sample", "--help"], ["systems", "--help"], ["data", "list"]):
        program = f"import sys; from logosphere.cli import main; main({argv!r}); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip().endswith("False"), argv


def test_samples_can_be_longer_than_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    capsys.readouterr()
    argv = ["sample", "run", "-n", "2", "--steps", "4", "--length", "40", "--prompt", "the ", "--json"]
    assert main(argv) == 0
    result = read_json(capsys)
    assert [sample["text"][:4] for sample in result["samples"]] == ["the ", "the "]
    assert all(len(sample["tokens"]) == 40 for sample in result["samples"]) and result["nfe"] == 4 * 4
    assert main([*argv, "--overlap", "16"]) == 1


def test_samplers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samplers", "--json"]) == 0
    listed = {one["name"]: one for one in read_json(capsys)["samplers"]}
    assert listed["ancestral"]["samples_model"] and not listed["confidence"]["samples_model"]
    assert main(["samplers"]) == 0
    assert "does not sample from the model" in capsys.readouterr().out


def test_remasker_is_trained_and_saved_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    train("--system", "g-star")
    argv = ["sample", "run", "-n", "8", "--steps", "8", "--json"]
    texts = []
    for steps in (0, 3):
        if steps:
            assert main(["train-remasker", "run", "--steps", str(steps), "--batch", "4", "--lr", "0.1", "--json"]) == 0
            assert read_json(capsys)["loss"] > 0 and Path("run/remasker.safetensors").is_file()
        capsys.readouterr()
        assert main(argv) == 0
        texts.append(read_json(capsys))
    assert texts[0]["nfe"] == texts[1]["nfe"] == 8 + 1 and texts[0]["samples"] != texts[1]["samples"]
    train(out="plain")
    assert main(["train-remasker", "plain"]) == 1 and "g-star" in capsys.readouterr().err


def test_options_have_other_names() -> None:
    """Former names, and those that users of other packages know."""
    default = recipe("demo")
    assert parse_train_options(["--init-from", "pretrained:rdlm"], default).config.begin == "pretrained:rdlm"
    assert parse_train_options(["--withhold=0.3"], default).config.cond_dropout == 0.3
