"""Start one command as several processes on this machine, as torchrun does, and see them through.

The processes find each other by the variables that torchrun sets, so the command does not know who started it. Signals
are passed on: the processes save and end by themselves. When one of them fails the others are ended too.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from logosphere.errors import UserError

GRACE = 20.0
"""Seconds that processes get to end by themselves after one of them has failed."""
PULSE = 0.05
LAUNCHER = "LOGOSPHERE_LAUNCHER"
"""Names the process that has started a team; when it is gone, nobody waits for the team any more."""


class PeerLost(UserError):
    """Another process of the team has ended before its work was done."""


def is_distributed() -> bool:
    """Is this process one of several that were started together?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def must_launch(processes: int) -> bool:
    """Are more processes wanted than this one, and not yet there?"""
    if processes < 1:
        raise UserError(f"The number of processes must be at least 1, not {processes}.")
    return processes > 1 and not is_distributed()


def rank() -> int:
    """The number of this process among those that were started together."""
    return int(os.environ.get("RANK", "0"))


def has_launcher() -> bool:
    """Does a process of ours see this one through, and tell how it ended?"""
    return LAUNCHER in os.environ


def launcher_died() -> bool:
    """Has the process that started this one gone without a word?"""
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and os.getppid() != int(launcher)


def launch(words: list[str], processes: int) -> int:
    """Run `logosphere WORDS` in so many processes; the exit code of the first that failed, or 0."""
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        LAUNCHER: str(os.getpid()),
        # The processes share the machine; threads of one would only be in the way of the others.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes)),
    }
    command = [sys.executable, "-m", "logosphere", *words]
    team: list[subprocess.Popen[bytes]] = []
    with _passing_on(team) as heard:
        for number in range(processes):
            place = {"RANK": str(number), "LOCAL_RANK": str(number)}
            # A session of their own, so that Ctrl-C reaches them once, through this process.
            team.append(subprocess.Popen(command, env=os.environ | shared | place, start_new_session=True))
        for signal_ in list(heard):  # which not all of them were there to hear
            _tell(team, signal_)
        try:
            return _seen_through(team, heard)
        finally:
            _end(team)


def _seen_through(team: list[subprocess.Popen[bytes]], heard: list[int]) -> int:
    """Wait until all have ended or one has failed; what failed first decides, but the first process speaks for all.

    Who is killed cannot speak, so we do, unless it was our own signal that ended it.
    """
    while True:
        codes = [process.poll() for process in team]
        for number, code in enumerate(codes, start=1):
            if code is not None and code < 0 and not heard:
                raise PeerLost(
                    f"Process {number} of {len(team)} was killed by {signal.Signals(-code).name}, perhaps because "
                    "memory ran out. What was saved is whole; run this again, a training with --resume."
                )
        failed = [code for code in codes if code]
        if failed:
            return _code(team[0], failed[0])
        if all(code == 0 for code in codes):
            return 0
        time.sleep(PULSE)


def _code(spokesman: subprocess.Popen[bytes], failed: int) -> int:
    try:
        code = spokesman.wait(GRACE)
    except subprocess.TimeoutExpired:
        code = failed
    code = code or failed
    return 128 - code if code < 0 else code


def _end(team: list[subprocess.Popen[bytes]]) -> None:
    """Nobody is left behind."""
    deadline = time.monotonic() + GRACE
    for process in team:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _passing_on(team: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Inside this block signals reach the whole team; the list grows by those that were heard."""
    heard: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        _tell(team, number)

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(team: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in team:
        process.send_signal(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Job:
    """What is asked of the cluster."""

    nodes: int = 1
    """Machines."""
    gpus: int = 8
    """GPUs on each of them, with a process each; 0 for processors only."""
    hours: float = 24.0
    """Time limit; the job is queued again until the training is done."""
    cpus: int = 8
    """Processor cores for each process."""
    partition: str = ""
    """Partition of the cluster, if it needs one."""
    warning: int = 180
    """Seconds before the limit at which the run is saved."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 0 or self.cpus < 1:
            raise UserError("A job needs at least 1 node, 1 core and no negative number of GPUs.")
        if self.hours <= 0 or self.warning < 30:
            raise UserError("The time limit must be above 0 hours and the warning at least 30 seconds.")
        if any(character.isspace() for character in self.partition):
            raise UserError(f"'{self.partition}' is no name of a partition.")


def batch_script(job: Job, out: str, words: list[str]) -> str:
    """The script; `words` are those of `logosphere train`, whose run is in the folder `out`."""
    processes = max(1, job.gpus)
    minutes = max(1, round(60 * job.hours))
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_plain(out)}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={processes * job.cpus}",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        *([f"#SBATCH --partition={job.partition}"] if job.partition else []),
        f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{job.warning}",
    ]
    return "\n".join(head) + BODY.format(
        out=shlex.quote(out), words=shlex.join(words), processes=processes, threads=job.cpus,
        patience=job.warning - 10,
    )  # fmt: skip


BODY = """
set -uo pipefail

run={out}
resume=""
if [ -e "$run/recipe.json" ]; then resume="--resume"; fi
export OMP_NUM_THREADS={threads}
# torchrun kills after half a minute otherwise, which a large checkpoint may need more than.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={patience}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Shortly before the limit: the processes save and end, and the job goes back into the queue.
asked=0
trap 'asked=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {processes} \\
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \\
    -m logosphere train {words} --out "$run" $resume &
job=$!
wait "$job"; code=$?
# A trapped signal ends the first wait; the second one waits for the processes.
if [ "$asked" = 1 ]; then
    wait "$job"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def _plain(text: str) -> str:
    """Letters that a directive can hold."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)
