"""Start one command as several processes on this machine, as torchrun does, and see them through.

The processes find each other by the variables that torchrun sets, so the command does not know who started it. Signals
are passed on: the processes save and end by themselves. When one of them fails the others are ended too.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from logosphere.errors import UserError

GRACE = 20.0
"""Seconds that processes get to end by themselves after one of them has failed."""
PULSE = 0.05
LAUNCHER = "LOGOSPHERE_LAUNCHER"
"""Names the process that has started a team; when it is gone, nobody waits for the team any more."""


class Deserted(UserError):
    """Another process of the team has ended before its work was done."""


def launched() -> bool:
    """Is this process one of several that were started together?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def must_launch(processes: int) -> bool:
    """Are more processes wanted than this one, and not yet there?"""
    if processes < 1:
        raise UserError(f"The number of processes must be at least 1, not {processes}.")
    return processes > 1 and not launched()


def rank() -> int:
    """The number of this process among those that were started together."""
    return int(os.environ.get("RANK", "0"))


def observed() -> bool:
    """Does a process of ours see this one through, and tell how it ended?"""
    return LAUNCHER in os.environ


def abandoned() -> bool:
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
                raise Deserted(
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
