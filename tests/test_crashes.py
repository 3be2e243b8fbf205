"""Whatever happens to the machine: nothing that was reported as saved is lost, and a sentence says what is wrong."""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kills import RECIPE, Death, Patient, doomed, harness
from test_parallel import corpus
from test_runs import RECIPE as PLAIN
from test_runs import bits, timeless

from logosphere.cli import main
from logosphere.data.corpora import Corpus
from logosphere.runs.folder import RunFolder
from logosphere.runs.train import start, train

__all__ = ["corpus"]  # a fixture


@pytest.mark.slow
def test_a_training_that_is_killed_again_and_again_ends_as_if_it_had_not(tmp_path: Path) -> None:
    assert harness(tmp_path, kills=8, seed=1)["kills"] == 8


def test_what_a_killed_training_leaves_is_swept_up(tmp_path: Path) -> None:
    """Death between writing latest.json beside its place and moving it there."""
    patient = Patient(tmp_path / "patient", replace(RECIPE, steps=2, validations=1))
    for moment in (4, 9, 14, 19, 24):
        assert doomed(patient, Death(moment=moment))
        patient.examine()
    (patient.place / "run" / ".kept").write_text("not ours")
    assert not doomed(patient, None)
    hidden = {path.name for path in patient.run.path.rglob(".*")}
    assert hidden - {".lock"} == {".kept"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte and a half."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_and_one_that_cannot_be_written(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    size = ["--length", "16", "--batch", "4", "--network.width", "32", "--network.depth", "1", "--network.heads", "2"]
    words = ["train", "--steps", "4", "--validations", "4", "--validation-sequences", "4", *size]
    run, filler = small_disk / "run", small_disk / "filler"
    assert main([*words, "--out", str(tmp_path / "alone")]) == 0
    filler.write_bytes(bytes(1_300_000))
    assert main([*words, "--out", str(run)]) == 1
    assert "disk is full" in capsys.readouterr().err
    before = RunFolder(run).state
    filler.unlink()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert timeless(RunFolder(run)) == timeless(RunFolder(tmp_path / "alone"))
    assert bits(run / "ema.safetensors") == bits(tmp_path / "alone" / "ema.safetensors") and before.exists()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (["train", "--out", str(run), "--resume"], [*words, "--out", str(small_disk / "other")]):
        capsys.readouterr()
        assert main(command) == 1
        assert "Read-only file system" in (said := capsys.readouterr().err) and "Traceback" not in said


def test_clocks_that_jump_change_nothing(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day may go back by years; only clocks that cannot jump are read."""
    straight = start(PLAIN, corpus, tmp_path / "straight")
    list(train(straight, corpus))
    jumps = iter([1e9, -1e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps)))
    jumping = start(PLAIN, corpus, tmp_path / "jumping")
    list(train(jumping, corpus))
    assert timeless(jumping) == timeless(straight)
    assert all(0 <= line["seconds"] < 600 for line in jumping.metrics() if "seconds" in line)
