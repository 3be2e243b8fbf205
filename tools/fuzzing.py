"""Coverage-guided fuzzing: python tools/fuzzing.py --cases 2000.

Inputs are mutations of sound ones. An input that goes from line to line of the package as none has gone before is kept
and mutated further, so mutations add up and come past check after check. Every case must end soon, with a result or a
sentence (UserError); nothing else may be raised, nothing may be run or fetched, and no file may change.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mutations import Mutator

import logosphere

PACKAGE = str(Path(logosphere.__file__).parent)
PATIENCE = 20
"""Seconds after which a case hangs: processor time, for machines are shared."""

Run = Callable[[bytes], object]


class Forbidden(BaseException):
    """Something was about to be run or fetched; no handler of the package may take it for a problem of its own."""


class Hangs(BaseException):
    """A case has taken too long."""


# ---- what is reached ----------------------------------------------------------------------------------------------


class Reached:
    """The steps from line to line that were taken inside a folder."""

    def __init__(self, folder: str = PACKAGE):
        self.folder = folder
        self.steps: set[tuple[CodeType, int, int]] = set()
        self._last: dict[FrameType, int] = {}

    def _enter(self, frame: FrameType, event: str, given: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        self._last[frame] = 0
        return self._follow

    def _follow(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "line":
            self.steps.add((frame.f_code, self._last.get(frame, 0), frame.f_lineno))
            self._last[frame] = frame.f_lineno
        elif event == "return":
            self._last.pop(frame, None)
        return self._follow

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """settrace rather than sys.monitoring, which Python 3.11 lacks; frames outside of the folder cost nothing."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            self._last.clear()


# ---- one target ---------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """Something that reads input, sound inputs for it, and words that mean something to it."""

    name: str
    run: Run
    seeds: list[bytes]
    words: list[bytes] = field(default_factory=list)
    separator: bytes = b""
    guarded: Path | None = None
    """A folder whose files must stay as they are."""


@dataclass
class Findings:
    """What came of fuzzing a target."""

    cases: int = 0
    refused: int = 0
    kept: int = 0
    """Inputs that reached something new."""
    steps: int = 0
    """Steps from line to line that were reached."""
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


def fuzz(target: Target, cases: int, seed: int, folder: str = PACKAGE, *, guided: bool = True) -> Findings:
    """So many cases; the first are the seeds themselves, which must be accepted."""
    found, reached, chance = Findings(), Reached(folder), random.Random(f"{seed} {target.name}")
    queue, mutate = list(target.seeds), Mutator(chance, target.words, target.separator)
    before = _files(target.guarded)
    while found.cases < cases:
        first = found.cases < len(target.seeds)
        # What was found last is mutated most: it stands where nobody has been.
        place = found.cases if first else max(chance.randrange(len(queue)), chance.randrange(len(queue)))
        content = queue[place] if first else mutate(queue[place], queue)
        known, started = len(reached.steps), time.process_time()
        problem, refused = _met(target.run, content, reached)
        found.slowest = max(found.slowest, time.process_time() - started)
        found.cases, found.refused = found.cases + 1, found.refused + refused
        if first and refused:
            problem = "a sound input was refused"
        if (after := _files(target.guarded)) != before:
            problem, before = f"files changed: {sorted(set(before.items()) ^ set(after.items()))[:2]}", after
        if problem:
            found.problems.append(f"{target.name}: {problem} with {content[:300]!r}")
        if guided and not first and len(reached.steps) > known and not problem:
            queue.append(content)
            found.kept += 1
    found.steps = len(reached.steps)
    return found


def _met(run: Run, content: bytes, reached: Reached) -> tuple[str, bool]:
    """What is wrong, if anything, and whether the input was refused with a sentence."""
    try:
        with watchdog(PATIENCE), sealed_off(), reached.watching():
            run(content)
    except logosphere.UserError as problem:
        sentence = str(problem)
        return ("" if sentence.strip() and "Traceback" not in sentence else f"no sentence: {sentence!r}"), True
    except MemoryError:
        return "", True  # the command line has a sentence for this
    except RuntimeError as problem:
        if "can't allocate memory" in str(problem):
            return "", True
        return repr(problem), False
    except BaseException as problem:
        return repr(problem), False
    return "", False


def _files(folder: Path | None) -> dict[str, int]:
    if folder is None:
        return {}
    return {str(path): hash(path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    def bite(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"after {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, bite)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


RUN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "os.fork")
FETCH = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
_sealed = [False]


def _audit(event: str, given: Any) -> None:
    if _sealed[0] and event in RUN:
        raise Forbidden(f"{event} {given!r}")
    if _sealed[0] and event in FETCH:
        raise OSError("there is no network here")


@contextlib.contextmanager
def sealed_off() -> Iterator[None]:
    """Nothing is run, unpickled or fetched in here."""
    if _audit not in _hooks:
        sys.addaudithook(_audit)  # which cannot be taken back, so it looks whether it is wanted
        _hooks.append(_audit)
    _sealed[0] = True
    try:
        yield
    finally:
        _sealed[0] = False


_hooks: list[Callable[[str, Any], None]] = []


@contextlib.contextmanager
def little_memory(room: int = 2 << 30) -> Iterator[None]:
    """At most so many more bytes of addresses, so that a wish for terabytes fails like one for more than there is."""
    used = (
        int(
            next(
                line.split()[1]
                for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmSize")
            )
        )
        << 10
    )
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> int:
    from fuzz_targets import targets

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="in all, shared out over the targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="", help="only this one")
    chosen = parser.parse_args()
    results, started = {}, time.process_time()
    with tempfile.TemporaryDirectory() as place:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(place) / "cache")
        every = [target for target in targets(Path(place)) if chosen.target in ("", target.name)]
        for target in every:
            with little_memory(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = fuzz(target, chosen.cases // len(every), chosen.seed)
            results[target.name] = vars(found)
            line = f"{found.cases} cases, {found.refused} refused, {found.kept} kept, {found.steps} steps"
            print(f"{target.name:<12} {line}, {len(found.problems)} problems", file=sys.stderr, flush=True)
    cases = sum(result["cases"] for result in results.values())
    print(json.dumps({"cases": cases, "cpu_seconds": round(time.process_time() - started), "targets": results}))
    return 1 if any(result["problems"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
