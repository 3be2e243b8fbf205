"""Crashes, full disks and power cuts: no checkpoint that was reported as saved is lost, and errors are one line."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from crash_injection import RECIPE, Kill, TrainingProcess, inject_crashes, inject_into_folders, run_until_killed
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
def test_repeatedly_killed_training_gives_the_same_result(tmp_path: Path) -> None:
    assert inject_crashes(tmp_path, kills=8, seed=1)["kills"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("activity", ["save", "export", "import", "serve"])
def test_killed_saves_exports_and_imports_leave_whole_folders(activity: str, tmp_path: Path) -> None:
    assert inject_into_folders(tmp_path, activity, kills=6, seed=1)["kills"] == 6


def test_temporary_files_of_a_killed_training_are_removed(tmp_path: Path) -> None:
    """The process dies between writing the temporary latest.json and renaming it."""
    training = TrainingProcess(tmp_path / "training", replace(RECIPE, steps=2, validations=1))
    for call in (4, 9, 14, 19, 24):
        assert run_until_killed(training, Kill(call=call))
        training.check_files()
    (training.folder / "run" / ".kept").write_text("not ours")
    assert not run_until_killed(training, None)
    hidden = {path.name for path in training.run.path.rglob(".*")}
    assert hidden - {".lock", ".holder"} == {".kept"}


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


def test_full_and_read_only_disks(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    size = ["--length", "16", "--batch", "4", "--network.width", "32", "--network.depth", "1", "--network.heads", "2"]
    argv = ["train", "--steps", "4", "--validations", "4", "--validation-sequences", "4", *size]
    run, filler = small_disk / "run", small_disk / "filler"
    assert main([*argv, "--out", str(tmp_path / "uninterrupted")]) == 0
    filler.write_bytes(bytes(1_300_000))
    assert main([*argv, "--out", str(run)]) == 1
    assert "disk is full" in capsys.readouterr().err
    before = Run(run).state
    filler.unlink()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert metrics_without_times(Run(run)) == metrics_without_times(Run(tmp_path / "uninterrupted"))
    assert (
        tensor_bytes(run / "ema.safetensors") == tensor_bytes(tmp_path / "uninterrupted" / "ema.safetensors")
        and before.exists()
    )
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (
        ["train", "--out", str(run), "--resume", "--steps", "8"],
        [*argv, "--out", str(small_disk / "other")],
    ):
        capsys.readouterr()
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "Read-only file system); choose another" in error and "Traceback" not in error
    # The results are printed although they cannot be saved.
    assert main(["evaluate", str(run), "--sequences", "2", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["sequences"] == 2 and "choose another folder" in captured.err


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2])
def test_full_disk_while_shards_are_saved(size: int, small_disk: Path, corpus: Corpus, tmp_path: Path) -> None:
    """The library wraps the error in a traceback, and would leave partial files on the full disk."""
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


def test_wall_clock_jumps_change_nothing(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock may go back by years; only the monotonic clock is used."""
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
    """Tracks what a power cut would undo: directory entries and file contents that were not synced."""

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
                self.check(self.run)  # the removed checkpoint must not be needed any more
            rmtree(path, ignore_errors=ignore_errors)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", moved)
        monkeypatch.setattr(shutil, "rmtree", removed)

    def check(self, folder: Path) -> None:
        """All files and names below a folder are synced, except those that were not reported."""
        assert not [path for path in self.loose if path == folder or folder in path.parents]
        for path in folder.rglob("*"):
            if path.is_file() and path.name not in (".lock", "metrics.jsonl", "model.safetensors", "ema.safetensors"):
                assert self.safe.get(path) == path.stat().st_size, path
            if path.name == "shards":
                assert path in self.safe


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")
@pytest.mark.parametrize("shard", [False, True])
def test_power_cut_keeps_every_reported_checkpoint(
    shard: bool, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is synced before it is reported and before the previous one is removed."""
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
