"""Whatever happens to the machine: nothing that was reported as saved is lost, and a sentence says what is wrong."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from crash_injection import RECIPE, Kill, TrainingProcess, inject_crashes, run_until_killed
from distributed_helpers import run_in_processes
from run_helpers import metrics_without_times, tensor_bytes
from tiny_run import RECIPE as PLAIN

from logosphere.cli import main
from logosphere.data.corpus import Corpus
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.create import create_run
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.run import Run


@pytest.mark.slow
def test_a_training_that_is_killed_again_and_again_ends_as_if_it_had_not(tmp_path: Path) -> None:
    assert inject_crashes(tmp_path, kills=8, seed=1)["kills"] == 8


def test_what_a_killed_training_leaves_is_swept_up(tmp_path: Path) -> None:
    """Death between writing latest.json beside its place and moving it there."""
    training = TrainingProcess(tmp_path / "training", replace(RECIPE, steps=2, validations=1))
    for call in (4, 9, 14, 19, 24):
        assert run_until_killed(training, Kill(call=call))
        training.check_files()
    (training.folder / "run" / ".kept").write_text("not ours")
    assert not run_until_killed(training, None)
    hidden = {path.name for path in training.run.path.rglob(".*")}
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
    before = Run(run).state
    filler.unlink()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert metrics_without_times(Run(run)) == metrics_without_times(Run(tmp_path / "alone"))
    assert (
        tensor_bytes(run / "ema.safetensors") == tensor_bytes(tmp_path / "alone" / "ema.safetensors")
        and before.exists()
    )
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (["train", "--out", str(run), "--resume"], [*words, "--out", str(small_disk / "other")]):
        capsys.readouterr()
        assert main(command) == 1
        assert "Read-only file system); choose another" in (said := capsys.readouterr().err) and "Traceback" not in said
    # What was measured is told all the same.
    assert main(["evaluate", str(run), "--sequences", "2", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["sequences"] == 2 and "choose another folder" in said.err


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2])
def test_a_full_disk_while_shares_are_written(size: int, small_disk: Path, corpus: Corpus, tmp_path: Path) -> None:
    """The library wraps this in a traceback, and would leave what is half written on the full disk."""
    recipe = replace(PLAIN, shard=True, steps=4, validations=1, network=replace(PLAIN.network, width=64, neighbours=0))
    run, filler = create_run(recipe, corpus, small_disk / "run"), small_disk / "filler"
    filler.write_bytes(bytes(1_100_000))

    def work(group: ProcessGroup) -> str:
        with pytest.raises(OSError, match="No space left"):
            list(run_training(Run(run.path), corpus, group=group))
        return "refused"

    assert run_in_processes(size, work, tmp_path / "team") == ["refused"] * size
    assert [path.name for path in run.state.iterdir()] == []
    filler.unlink()
    assert [type(event) for event in run_training(run, corpus)][-1] is Saved


def test_clocks_that_jump_change_nothing(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day may go back by years; only clocks that cannot jump are read."""
    straight = create_run(PLAIN, corpus, tmp_path / "straight")
    list(run_training(straight, corpus))
    jumps = iter([1e9, -1e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps)))
    jumping = create_run(PLAIN, corpus, tmp_path / "jumping")
    list(run_training(jumping, corpus))
    assert metrics_without_times(jumping) == metrics_without_times(straight)
    assert all(0 <= line["seconds"] < 600 for line in jumping.metrics() if "seconds" in line)


class Disk:
    """What a power cut would undo: folders with names that were not synced, files with bytes that were not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: Path):
        self.run, self.loose, self.safe = run, set[Path](), dict[Path, int]()
        fsync, replace_, rmtree = os.fsync, os.replace, shutil.rmtree

        def synced(handle: int) -> None:
            fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self.loose.discard(path)
            self.safe[path] = os.fstat(handle).st_size

        def moved(source: Path, target: Path) -> None:
            if Path(source).is_dir():
                self.check(Path(source))
            replace_(source, target)
            for path in [path for path in self.safe if path == source or source in path.parents]:
                self.safe[target / path.relative_to(source)] = self.safe.pop(path)
            self.loose.add(Path(target).parent)

        def removed(path: Path, ignore_errors: bool = False) -> None:
            if path.is_dir() and path.name.startswith("step-"):
                self.check(self.run)  # what is dropped now must never be needed again
            rmtree(path, ignore_errors=ignore_errors)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", moved)
        monkeypatch.setattr(shutil, "rmtree", removed)

    def check(self, folder: Path) -> None:
        """All files and names below a folder are safe, but for those that nobody was told of."""
        assert not [path for path in self.loose if path == folder or folder in path.parents]
        for path in folder.rglob("*"):
            if path.is_file() and path.name not in (".lock", "metrics.jsonl", "model.safetensors", "ema.safetensors"):
                assert self.safe.get(path) == path.stat().st_size, path
            if path.name == "shards":
                assert path in self.safe


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in the way of Linux")
@pytest.mark.parametrize("shard", [False, True])
def test_a_power_cut_undoes_nothing_that_was_reported(
    shard: bool, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a step is reported as saved, and before the one before it is dropped, all that it needs is synced."""
    disk = Disk(monkeypatch, tmp_path / "run")
    run = create_run(replace(PLAIN, shard=shard, steps=4, validations=4), corpus, tmp_path / "run")
    disk.check(run.path)
    assert tmp_path not in disk.loose
    saved = 0
    for event in run_training(run, corpus):
        if isinstance(event, Saved):
            saved += 1
            disk.check(run.path)
            metrics = run.path / "metrics.jsonl"
            assert disk.safe[metrics] == metrics.stat().st_size
            for name in ("model", "ema"):
                assert disk.safe[run.state / f"step-{event.step:08d}" / f"{name}.safetensors"] > 0
    assert saved == 4
