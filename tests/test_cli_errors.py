"""Errors of the command line: one line that says what to do, a non-zero exit code, no traceback, no lost files."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from cli_helpers import SMALL, error_line, train

import logosphere as ls
from logosphere.cli import main

pytestmark = pytest.mark.usefixtures("workplace")


def test_misspelt_names_are_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'train'" in error_line(capsys, ["trian"], code=2)
    assert "'mdlm'" in error_line(capsys, ["train", "--system", "mdml"])
    assert "'text8-tiny'" in error_line(capsys, ["train", "text8-tyni"])
    assert "'schedule'" in error_line(capsys, ["train", "--system", "mdlm", "--options", "shedule=cosine"])
    assert "'cosine'" in error_line(capsys, ["train", "--system", "mdlm", "--options", "schedule=cosin"])
    assert "'text8'" in error_line(capsys, ["train", "--data", "tex8"])
    assert "'infilling'" in error_line(capsys, ["train", "--task", "infiling"])
    assert main(["train", "--stepz", "3"]) == 2 and "--steps" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--steps", "abc"], "--steps must be None or a whole number, not 'abc'."),
        (["train", "--batch", "3.5"], "--batch must be a whole number, not '3.5'."),
        (["compare", "--minutes", "x"], "--minutes must be a number, not 'x'."),
        (["train", "--steps"], "--steps needs a value."),
        (["train", "--network.widht", "3"], "There is no option --network.widht. Did you mean --network.width?"),
        (["evaluate"], "RUN is missing: folder of the run."),
        (["evaluate", "run", "--split", "tset"], "--split must be one of train, valid, test, not 'tset'."),
        (["sample", "--bogus", "1"], "There is no option --bogus."),
        (["bench", "--runs", "x"], "There is no option --runs. Give RUNS as it is, without an option."),
        (["bench", "--run=x"], "There is no option --run. Give RUN as it is, without an option."),
        (["evaluate", "--run", "x"], "There is no option --run. Give RUN as it is, without an option."),
        (["systems", "--nam"], "There is no option --nam."),
    ],
)
def test_invalid_arguments_give_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_line(capsys, argv, code=2)
    assert error == f"logosphere: {message} See: logosphere {argv[0]} --help"


@pytest.mark.parametrize(
    "argv",
    [
        ["--minutes", "nan"], ["--optim.lr", "inf"], ["--ema", "2"], ["--withhold", "3"], ["--accumulate", "0"],
        ["--precision", "fp8"], ["--optim.beta1", "2"], ["--optim.weight-decay", "-1"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_invalid_numbers_create_no_folder(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "recipe.json" not in error_line(capsys, ["train", "--out", "run", *argv])
    assert not Path("run").exists()


def test_second_interrupt_prints_the_resume_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --out the folder gets a new number, so the same command would create another one."""

    def interrupted(*positional: object, **named: object) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logosphere.runs.loop.validate", interrupted)
        error = error_line(capsys, ["train", "--steps", "2", *SMALL], code=130)
    (folder,) = Path("runs").iterdir()
    command = f"logosphere train --out {folder} --resume"
    assert error.endswith(f"Continue with: {command}")
    assert main(command.split()[1:]) == 0 and list(Path("runs").iterdir()) == [folder]


def test_resume_refuses_changed_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Changed options are refused; without --out the options select the run."""
    Path("lines.txt").write_text("four\nand\ntwenty\nblackbirds\n" * 40)
    for system in ("mdlm", "udlm"):
        assert main(["train", "--steps", "2", *SMALL, "--system", system, "--data", "lines:lines.txt"]) == 0
    first, last = Path("runs/mdlm-lines"), Path("runs/udlm-lines")
    assert first.exists() and last.exists()
    for argv in (["--out", str(first), "--system", "udlm"], ["--optim.lr", "9", "--system", "mdlm"]):
        error = error_line(capsys, ["train", "--resume", *argv])
        assert "was begun with --" in error and "--begin" in error
    capsys.readouterr()
    assert main(["train", "--resume", "--system", "mdlm"]) == 0 and str(first) in capsys.readouterr().err
    assert main(["train", "--resume"]) == 0 and str(last) in capsys.readouterr().err
    assert main(["train", "demo", "--steps", "2", *SMALL, "--out", "named"]) == 0
    assert main(["train", "demo", "--resume", "--out", "named"]) == 0  # the run keeps its overrides


@pytest.mark.parametrize(
    ("content", "argv", "hint"),
    [
        (None, [], "no"),
        (b"", [], "empty"),
        (b"short", [], "longer text"),
        (b"still too short " * 20, [], "--length"),
        (b"\x00\x01\x02" * 100, [], "not a text file"),
        (b"caf\xe9 " * 300, [], "UTF-8"),
        (b"Capital letters" * 50, ["--tokenizer", "text8"], "alphabet"),
        (b"fine text " * 100, ["--tokenizer", "bpe"], "size"),
    ],
)
def test_unreadable_files_are_refused(
    content: bytes | None, argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("text.txt").write_bytes(content)
    assert hint in error_line(capsys, ["train", "--data", "text.txt", "--out", "run", *argv])
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["--steps", "0"],
        ["--minutes", "-1"],
        ["--length", "0"],
        ["--batch", "0"],
        ["--ema", "2"],
        ["--network.width", "10"],
        ["--network.dropout", "1"],
        ["--optim.lr", "0"],
        ["--precision", "float8"],
        ["--device", "quantum"],
        ["--options", "block"],
        ["--options", "block=7"],
        ["--options", "width=7"],
        ["--validations", "0"],
    ],
)
def test_invalid_settings_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    budget = [] if argv[0] in ("--steps", "--minutes") else ["--steps", "1"]
    error_line(capsys, ["train", "--out", "run", *budget, *argv])
    assert not any(Path("run").glob("*.safetensors"))


def test_nonempty_output_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("ten years of work")
    assert "--resume" in error_line(capsys, ["train", "--steps", "1", "--out", "full"])
    assert Path("full/thesis.txt").read_text() == "ten years of work"
    assert "recipe.json" in error_line(capsys, ["train", "--out", "full", "--resume"])
    assert "no run" in error_line(capsys, ["train", "--out", "absent", "--resume"])
    assert "no run yet" in error_line(capsys, ["train", "--resume"])
    assert "train" in error_line(capsys, ["plot"])


def test_invalid_prompts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    assert "16" in error_line(capsys, ["sample", "run", "--prompt", "far too long for this model"])
    assert "'H'" in error_line(capsys, ["sample", "run", "--prompt", "Hello"])
    assert "shorten" in error_line(capsys, ["sample", "run", "--infill", "abc[20]"])
    assert "either" in error_line(capsys, ["sample", "run", "--prompt", "a", "--infill", "b[.]"])
    assert "temperature" in error_line(capsys, ["sample", "run", "--temperature", "0"])
    assert "top_p" in error_line(capsys, ["sample", "run", "--top-p", "1.5"])
    assert "step" in error_line(capsys, ["sample", "run", "--steps", "0"])
    assert "samples" in error_line(capsys, ["sample", "run", "-n", "0"])
    assert "draws" in error_line(capsys, ["evaluate", "run", "--draws", "0"])


def test_autoregressive_models_refuse_infilling(capsys: pytest.CaptureFixture[str]) -> None:
    train("--system", "ar")
    assert "left to right" in error_line(capsys, ["sample", "run", "--infill", "the [...] of"])


def test_incompatible_samplers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train("--system", "d3pm-uniform")
    assert "masked" in error_line(capsys, ["sample", "run", "--sampler", "confidence"])
    assert "time" in error_line(capsys, ["sample", "run", "--sampler", "cached"])
    assert "Did you mean 'star'" in error_line(capsys, ["sample", "run", "--sampler", "stra"])
    assert "top_k" in error_line(capsys, ["sample", "run", "--top-k", "0"])


def test_damaged_and_foreign_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    weights, recipe = Path("run/ema.safetensors"), Path("run/recipe.json")
    good, plan = weights.read_bytes(), json.loads(recipe.read_text())
    for bad in (b"", good[: len(good) // 2], b"\xff" * 64, b"PK\x03\x04" + good):
        weights.unlink()  # it is a link to the checkpoint, which must stay intact
        weights.write_bytes(bad)
        assert "damaged" in error_line(capsys, ["sample", "run"])
    weights.write_bytes(good)
    recipe.write_text(json.dumps(plan | {"version": 99}))
    assert "newer" in error_line(capsys, ["sample", "run"])
    recipe.write_text(json.dumps({"format": "something else"}))
    assert "Logosphere" in error_line(capsys, ["evaluate", "run"])
    recipe.write_text("{ half a reci")
    assert "damaged" in error_line(capsys, ["sample", "run"])
    changed = plan["model"] | {"options": plan["model"]["options"] | {"width": 32}}
    recipe.write_text(json.dumps(plan | {"model": changed}))
    assert "does not belong" in error_line(capsys, ["sample", "run"])
    recipe.write_text(json.dumps(plan | {"recipe": plan["recipe"] | {"batch": "many"}}))
    assert "'batch'" in error_line(capsys, ["evaluate", "run"])


def test_resume_detects_changed_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tale.txt").write_text("once upon a time there was a mouse " * 60)
    train("--data", "tale.txt")
    Path("tale.txt").write_text("once upon a time there was a whale " * 60)
    assert "changed" in error_line(capsys, ["train", "--out", "run", "--resume", "--steps", "8"])


def test_full_disk_keeps_the_last_checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after the first checkpoint, which stays intact, and the run can be resumed."""
    original_fsync = os.fsync

    def fsync(handle: int) -> None:
        if Path("run/state/latest.json").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original_fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert train(steps=8) == 1
    assert "disk is full" in capsys.readouterr().err
    assert json.loads(Path("run/state/latest.json").read_text()) == {"checkpoint": "step-00000004"}
    assert [path for path in Path("run").rglob(".*") if path.name != ".lock"] == []
    assert main(["train", "--out", "run", "--resume"]) == 0


def test_unexpected_exceptions_give_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(arguments: object, argv: list[str]) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("logosphere.cli.systems.systems", broken)
    assert "--debug" in error_line(capsys, ["systems"])
    with pytest.raises(ZeroDivisionError):
        main(["systems", "--debug"])


def test_a_file_in_the_place_of_a_folder_is_named(prose: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stays as it is, and nothing is trained before."""
    before = prose.read_bytes()
    expected = f"{prose} is a file, and a folder is needed here; name another folder."
    for argv in (
        ["train", "--out", str(prose)],
        ["train", "--resume", "--out", str(prose)],
        ["train", "--begin", str(prose)],
        ["evaluate", str(prose)],
        ["sample", str(prose)],
        ["studio", str(prose)],
        ["compare", "--systems", "ar", "--out", str(prose)],
        ["compare", str(prose)],
        ["export", "pretrained:ar", "--out", str(prose)],
    ):
        assert error_line(capsys, argv) == f"logosphere: {expected}", argv
    inside = error_line(capsys, ["train", "--out", str(prose / "run")])
    assert f"{prose} is a file, and {prose / 'run'} is needed here" in inside
    assert prose.read_bytes() == before


def test_a_model_without_a_training_run_says_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    ls.build("mdlm", tokenizer=ls.make_tokenizer("characters", ["ab"]), length=8, width=16, depth=1, heads=2).save(
        "my m"
    )
    for argv in (["train", "--resume", "--out", "my m"], ["export", "my m"], ["plot", "my m"], ["compare", "my m"]):
        error = error_line(capsys, argv)
        assert "my m holds a model but no training run" in error
        assert "logosphere sample 'my m', or logosphere evaluate 'my m' --data FILE" in error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sample", "RUN", "--seed", str(1 << 64)], "A seed must be a whole number from 0 to 2^63 - 1"),
        (["sample", "RUN", "-n", "1", "-n", "1.5"], "--n must be a whole number, not '1.5'."),
        (["sample", "RUN", "more"], "'more' is one argument too many."),
        (["sample", "RUN", "--save", "FILE/x.html"], "is a file, and a folder is needed here"),
        (["evaluate", "RUN", "--data", "lines:FILE"], "separate texts have a token for their end"),
        (["evaluate", "RUN", "--data", "FILE", "--options", "vocab_size=3"], "'vocab_size' is fixed in the model in"),
        (["evaluate", "RUN", "--data", "FILE", "--options", "length=3"], "'length' is fixed in the model in"),
        (["compare", "--systems", " ,"], "Name runs to compare, or systems to train"),
        (["compare", "--systems", "ar", "--flops", "nan"], "--flops must be above 0 and finite, not nan"),
        (["compare", "--systems", "ar", "--tokens", "inf"], "--tokens must be above 0 and finite, not inf"),
    ],
)
def test_options_that_nothing_can_be_done_with_are_explained(
    argv: list[str], message: str, prose: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = prose.read_text(encoding="utf-8")
    sizes = {"length": 8, "width": 16, "depth": 1, "heads": 2}
    ls.build("mdlm", tokenizer=ls.make_tokenizer("characters", [text]), **sizes).save("model")
    argv = [word.replace("RUN", "model").replace("FILE", str(prose)) for word in argv]
    assert message in error_line(capsys, argv, code=2 if "whole number, not" in message or "many" in message else 1)
