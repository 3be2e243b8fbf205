"""Distributed training: one process, several processes, accumulated batches and resumed runs take the same steps."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from distributed_helpers import join_by_environment, run_in_processes
from run_helpers import LOW_RATE, metric_values, metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE

import logosphere as ls
from logosphere.cli import main
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.parallel import launch as launcher
from logosphere.parallel.launch import PeerLost, _wait, must_launch
from logosphere.parallel.lifetime import LAUNCHER, launcher_died
from logosphere.parallel.process_group import SINGLE, ProcessGroup, RemoteError
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training, validate
from logosphere.runs.run import Run
from logosphere.training.trainer import Trainer

SYSTEMS = {
    "mdlm": LOW_RATE,
    "rdlm": replace(LOW_RATE, system="rdlm", task="unconditional", options=("self_conditioning=true",)),
    "d3pm-uniform": replace(LOW_RATE, system="d3pm-uniform"),
}


def train_by_processes(recipe: TrainConfig, corpus: Corpus, path: Path, *, size: int = 1) -> Run:
    """A run by `size` processes, stopped after three steps and resumed by three processes."""
    run = create_run(recipe, corpus, path)
    if size == 1:
        list(run_training(run, corpus))
        return run

    def work(group: ProcessGroup) -> int:
        stop = stop_after(3) if group.rank == 1 else (lambda: False)  # a signal may reach any of the processes
        return len(list(run_training(Run(path), corpus, stop, group)))

    assert run_in_processes(size, work, path.with_name(f"{path.name}-begun")) == [4] * size
    run_in_processes(
        3, lambda group: len(list(run_training(Run(path), corpus, group=group))), path.with_name(f"{path.name}-ended")
    )
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("name", SYSTEMS)
def test_several_processes_take_the_steps_of_one(name: str, corpus: Corpus, tmp_path: Path) -> None:
    """Two processes start and three finish, with learned time samplers and infilling."""
    recipe = SYSTEMS[name]
    single = train_by_processes(recipe, corpus, tmp_path / "alone")
    group = train_by_processes(recipe, corpus, tmp_path / "team", size=2)
    for key in ("train/loss", "train/bpc", "val/bpc", "gradient"):
        assert metric_values(group, key) == pytest.approx(metric_values(single, key), rel=1e-5), key
    assert metric_values(group, "tokens") == metric_values(single, "tokens") and len(metric_values(group)) == 8
    expected = single.model("ema").state_dict()
    for key, tensor in group.model("ema").state_dict().items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_process_without_noised_tokens_does_not_block(sharded: bool, tmp_path: Path) -> None:
    """The second process has only known tokens: it contributes nothing, and the step equals that of one process."""
    tokens, known = torch.arange(16).view(2, 8) % 5, torch.zeros(2, 8, dtype=torch.bool)
    known[1] = True

    def take_step(group: ProcessGroup) -> list[float]:
        torch.manual_seed(0)
        model = ls.build("mdlm", vocab_size=5, length=8, width=16, depth=1, heads=1)
        trainer = Trainer(model, group=group, sharded=sharded)
        batch = ls.Batch.of(tokens, known).select(group.local_slice(2))
        return [(progress := trainer.train_step(batch, 0.5)).loss, progress.gradient]

    single = take_step(SINGLE)
    for rank in run_in_processes(2, take_step, tmp_path):
        assert rank == pytest.approx(single, rel=1e-5)


def test_two_processes_match_two_accumulated_parts_bit_for_bit(corpus: Corpus, tmp_path: Path) -> None:
    """A sum of two gradients has only one order. Sums of distributed validations may differ in rounding."""
    recipe = replace(LOW_RATE, steps=6, validations=1)
    parts = train_by_processes(replace(recipe, accumulate=2), corpus, tmp_path / "parts")
    shared = create_run(recipe, corpus, tmp_path / "shared")

    def work(group: ProcessGroup) -> float:
        list(run_training(Run(shared.path), corpus, group=group))
        trainer = Trainer(Run(shared.path).model("ema"), ema=None)
        return validate(recipe, trainer, corpus, group).bits

    reports = run_in_processes(2, work, tmp_path / "team")
    assert metric_values(shared) == metric_values(parts)
    for name in ("model.safetensors", "ema.safetensors"):
        assert tensor_bytes(shared.path / name) == tensor_bytes(parts.path / name)
    single = validate(recipe, Trainer(parts.model("ema"), ema=None), corpus).bits
    assert reports[0] == reports[1] == pytest.approx(single, rel=1e-6)


def test_an_error_on_the_main_process_stops_all(tmp_path: Path) -> None:
    def refuse() -> None:
        raise UserError("no")

    def work(group: ProcessGroup) -> list[object]:
        try:
            group.on_main(refuse)
        except RemoteError:
            where = "elsewhere"
        except UserError:
            where = "here"
        whole = group.all_gather(torch.arange(7)[group.local_slice(7)], 7).tolist()
        return [where, group.broadcast(f"from {group.rank}"), group.all_reduce(1, group.rank), whole]

    results = run_in_processes(3, work, tmp_path / "team")
    assert [result[0] for result in results] == ["here", "elsewhere", "elsewhere"]
    assert all(result[1:] == ["from 0", [3, 3], list(range(7))] for result in results)


def test_processes_wait_for_the_main_process_without_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising a large text takes hours; the default timeout of a group is half an hour, here one second."""
    monkeypatch.setattr(torch.distributed.distributed_c10d, "default_pg_timeout", timedelta(seconds=1))

    def work(group: ProcessGroup) -> str | None:
        return group.on_main(lambda: time.sleep(3))

    assert run_in_processes(2, work, tmp_path / "team", join_by_environment) == [None, None]


def test_the_error_of_another_process_is_reported(tmp_path: Path) -> None:
    """Only the main process prints; it only sees a closed connection itself."""

    def work(group: ProcessGroup) -> float:
        if group.rank == 1:
            raise UserError("the reason")
        return group.all_reduce(1)[0]

    with pytest.raises(AssertionError, match=r"^Traceback[^$]*UserError: the reason"):
        run_in_processes(2, work, tmp_path / "alone", join_by_environment)

    def killed(group: ProcessGroup) -> float:
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return group.all_reduce(1)[0]

    with pytest.raises(AssertionError, match="PeerLost: Another process was killed"):
        run_in_processes(2, killed, tmp_path / "dies", join_by_environment)


def test_a_killed_process_is_reported() -> None:
    """A process killed by the operating system, for example when memory runs out, cannot report itself."""
    group = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    group[1].kill()
    with pytest.raises(PeerLost, match="Process 2 of 2 was killed by SIGKILL"):
        _wait(group, [])
    group[0].terminate()
    assert _wait(group, [signal.SIGTERM]) == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_end_with_a_killed_launcher_while_they_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logosphere", "train", "--nproc", "2", "--out", str(tmp_path / "run")]
    launched = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    started = Path(f"/proc/{launched.pid}/task/{launched.pid}/children")
    while len(started.read_text().split()) < 2:
        assert launched.poll() is None
        time.sleep(0.01)
    launched.kill()
    began = time.monotonic()
    launched.communicate(timeout=30)  # both hold the pipe until they end
    assert time.monotonic() - began < 2 and not (tmp_path / "run").exists()


def test_a_process_whose_launcher_has_ended_does_nothing() -> None:
    command = [sys.executable, "-m", "logosphere", "systems"]
    other = subprocess.run(command, env=os.environ | {LAUNCHER: "0"}, capture_output=True, text=True)
    assert (other.returncode, other.stdout, other.stderr) == (1, "", "")
    own = subprocess.run(command, env=os.environ | {LAUNCHER: str(os.getpid())}, capture_output=True, text=True)
    assert own.returncode == 0 and "rdlm" in own.stdout


def test_a_batch_smaller_than_the_number_of_processes_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(RECIPE, corpus, tmp_path / "run")
    with pytest.raises(UserError, match="larger --batch or fewer processes"):
        next(run_training(run, corpus, group=ProcessGroup(0, 5)))


@pytest.mark.parametrize("nproc", [0, -3])
def test_nproc_below_one_is_refused(nproc: int) -> None:
    with pytest.raises(UserError, match="at least 1"):
        must_launch(nproc)
    assert not must_launch(1) and must_launch(2) and not launcher_died()


@pytest.mark.parametrize("command", [["train"], ["evaluate", "run"], ["sample"]], ids=" ".join)
def test_too_many_processes_are_refused_before_the_first_is_started(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*args: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(launcher, "_count_gpus", lambda: 0)
    assert main([*command, "--nproc", "1000"]) == 1
    expected = "logosphere: At most 12 processes are started on this machine, which has 6 cores, not 1000.\n"
    assert capsys.readouterr().err == expected
    assert must_launch(12)
    with pytest.raises(UserError, match="At most 12 processes"):
        must_launch(13)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert must_launch(8)
    monkeypatch.setattr(launcher, "_count_gpus", lambda: 16)
    assert must_launch(16)
    monkeypatch.setenv("WORLD_SIZE", "512")  # started by torchrun, on several machines
    assert not must_launch(512)


def test_a_dry_run_for_another_machine_says_that_this_one_is_too_small(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(launcher, "_count_gpus", lambda: 0)
    argv = ["train", "--dry-run", "--nproc"]
    assert main([*argv, "64"]) == 0 and "At most 12 processes" in capsys.readouterr().err
    assert main([*argv, "12"]) == 0 and "At most" not in capsys.readouterr().err


SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "2", "--optim.lr", "1e-3"]


@pytest.mark.slow
def test_the_command_line_trains_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """A training stopped by a signal to its launcher and resumed under torchrun has the metrics of one process."""
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    argv = ["train", "--steps", "80", *SMALL]
    assert main([*argv, "--out", "alone"]) == 0
    capfd.readouterr()
    command = [sys.executable, "-m", "logosphere", *argv, "--nproc", "2", "--out", "team"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    metrics = Path("team/metrics.jsonl")
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    # The lock is tested directly, because the training takes only a second.
    with pytest.raises(UserError, match=r"Another training is running in team \(process "), Run("team").lock():
        pass
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "--resume" in stderr and "Traceback" not in stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    again = [*torchrun, "-m", "logosphere", "train", "--out", "team", "--resume", "--json"]
    done = subprocess.run(again, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) == 1 and json.loads(done.stdout)["step"] == 80
    # Muon orthogonalises, so that rounding of small gradients grows faster than with AdamW.
    assert metric_values(Run("team")) == pytest.approx(metric_values(Run("alone")), rel=3e-4)
    assert len(metrics_without_times(Run("team"))) == len(metrics_without_times(Run("alone")))
    measure = ["evaluate", "team", "--sequences", "7", "--json"]
    capfd.readouterr()
    assert main(measure) == main([*measure, "--nproc", "2"]) == 0
    single, shared = (json.loads(line) for line in capfd.readouterr().out.strip().splitlines())
    assert shared["bits"] == pytest.approx(single["bits"], rel=1e-6) and shared["sequences"] == 7
    assert shared["data_sha256"] == single["data_sha256"]


@pytest.mark.slow
def test_a_user_error_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "logosphere", "train", "--nproc", "2", "--data", "nowhere.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("nowhere.txt") == 1 and "Traceback" not in done.stderr
