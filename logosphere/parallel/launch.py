"""Start one command in several processes: on this machine, as torchrun does, or by a batch script for Slurm.

The processes find each other by the variables that torchrun sets, so a command does not depend on what started it.
Signals are forwarded: the processes save and exit by themselves. When one of them fails, the others are ended too.
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
from pathlib import Path
from types import FrameType

from logosphere.errors import UserError
from logosphere.parallel.lifetime import LAUNCHER, stop_signals

GRACE = 20.0
"""Seconds that processes have to exit by themselves after one of them has failed."""
POLL_SECONDS = 0.05
LEAST_LIMIT = 8
"""Processes that may be started on any machine; on a larger one two for each core, or one for each GPU."""


class PeerLost(UserError):
    """Another process of the group has ended before its work was done."""


def is_distributed() -> bool:
    """Is this process one of several that were started together?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def must_launch(processes: int) -> bool:
    """Are several processes requested, and not yet started?"""
    if processes < 1:
        raise UserError(f"The number of processes must be at least 1, not {processes}.")
    if processes == 1 or is_distributed():
        return False
    if excess := explain_excess(processes):
        raise UserError(excess)
    return True


def explain_excess(processes: int) -> str:
    """Why so many processes are not started on this machine; empty if they may be.

    Each process loads torch, some hundred megabytes, so a mistyped number exhausts the memory of the machine.
    """
    cores = os.cpu_count() or 1
    most = max(LEAST_LIMIT, 2 * cores, _count_gpus())
    if processes <= most:
        return ""
    return f"At most {most} processes are started on this machine, which has {cores} cores, not {processes}."


def _count_gpus() -> int:
    """The GPUs by their device files, since asking torch takes seconds; 0 where there are no such files."""
    return sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))


def rank() -> int:
    """The number of this process among those that were started together."""
    return int(os.environ.get("RANK", "0"))


def launch(argv: list[str], processes: int) -> int:
    """Run `logosphere ARGV` in so many processes; the exit code of the first that failed, or 0."""
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        LAUNCHER: str(os.getpid()),
        # The processes share the cores of the machine.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes)),
    }
    command = [sys.executable, "-m", "logosphere", *argv]
    group: list[subprocess.Popen[bytes]] = []
    with _forward_signals(group) as received:
        for number in range(processes):
            place = {"RANK": str(number), "LOCAL_RANK": str(number)}
            # In a session of its own, so that Ctrl-C reaches it once, through this process.
            group.append(subprocess.Popen(command, env=os.environ | shared | place, start_new_session=True))
        for number in list(received):  # some processes may have started after the signal
            _send(group, number)
        try:
            return _wait(group, received)
        finally:
            _end(group)


def _wait(group: list[subprocess.Popen[bytes]], received: list[int]) -> int:
    """Wait until all have ended or one has failed; the exit code is that of the main process, if it failed too.

    A process that is killed prints no error, so one is raised here, unless a forwarded signal has ended it.
    """
    while True:
        codes = [process.poll() for process in group]
        for number, code in enumerate(codes, start=1):
            if code is not None and code < 0 and not received:
                raise PeerLost(
                    f"Process {number} of {len(group)} was killed by {signal.Signals(-code).name}, perhaps because "
                    "memory ran out. Saved checkpoints are complete; run this again, a training with --resume."
                )
        failed = [code for code in codes if code]
        if failed:
            return _exit_code(group[0], failed[0])
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_SECONDS)


def _exit_code(main: subprocess.Popen[bytes], failed: int) -> int:
    try:
        code = main.wait(GRACE)
    except subprocess.TimeoutExpired:
        code = failed
    code = code or failed
    return 128 - code if code < 0 else code


def _end(group: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all processes, and kill those that do not end in time."""
    deadline = time.monotonic() + GRACE
    for process in group:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _forward_signals(group: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Inside this block signals are forwarded to the whole group; the list holds those received so far."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        _send(group, number)

    before = {number: signal.signal(number, forward) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(group: list[subprocess.Popen[bytes]], number: int) -> None:
    if os.name == "nt" and number == signal.SIGINT:
        return  # the console of Windows has sent it to every process already
    for process in group:
        process.send_signal(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- Slurm ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is requested of the cluster."""

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
            raise UserError(
                f"A job needs at least 1 node, 1 core and 0 GPUs, not {self.nodes}, {self.cpus} and {self.gpus}."
            )
        if self.hours <= 0 or self.warning < 30:
            raise UserError(
                f"A job needs a time limit above 0 hours and a warning of at least 30 seconds, not {self.hours:g} and "
                f"{self.warning}."
            )
        if any(character.isspace() for character in self.partition):
            raise UserError(f"The name of a partition must not contain spaces, as {self.partition!r} does.")


def batch_script(job: Job, out: str, argv: list[str]) -> str:
    """A batch script that survives its time limit: it saves, queues the job again, and resumes.

    `argv` are the arguments of `logosphere train`, whose run is in the folder `out`.
    """
    processes = max(1, job.gpus)
    minutes = max(1, round(60 * job.hours))
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_job_name(out)}",
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
        out=shlex.quote(out), argv=shlex.join(argv), processes=processes, threads=job.cpus,
        patience=job.warning - 10,
    )  # fmt: skip


BODY = """
set -uo pipefail

run={out}
resume=""
if [ -e "$run/recipe.json" ]; then resume="--resume"; fi
export OMP_NUM_THREADS={threads}
# By default torchrun kills after half a minute; a large checkpoint may need more.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={patience}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Shortly before the limit: the processes save and end, and the job goes back into the queue.
stopping=0
trap 'stopping=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {processes} \\
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \\
    -m logosphere train {argv} --out "$run" $resume &
job=$!
wait "$job"; code=$?
# A trapped signal ends the first wait; the second one waits for the processes.
if [ "$stopping" = 1 ]; then
    wait "$job"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def _job_name(text: str) -> str:
    """Only characters that a directive can hold."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)
