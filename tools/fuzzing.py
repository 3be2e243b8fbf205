"""Coverage-guided fuzzing: python tools/fuzzing.py --cases 2000.

Inputs are mutations of valid ones. An input that covers a new transition between lines of the package is kept and
mutated further, so that mutations accumulate and pass successive checks. Every case must end soon, with a result or a
UserError. No other error may be raised, no program run, nothing fetched, and no file changed.
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
TIMEOUT = 20
"""CPU seconds of a case; not wall seconds, because the machine may be shared."""

Run = Callable[[bytes], object]


class Forbidden(BaseException):
    """A program was about to be run; a BaseException, so that no handler of the package catches it."""


class TimedOut(BaseException):
    """A case exceeded its time limit."""


# ---- coverage -------------------------------------------------------------------------------------------------------


class Coverage:
    """The transitions between lines of the files of a folder that were executed."""

    def __init__(self, folder: str = PACKAGE):
        self.folder = folder
        self.transitions: set[tuple[CodeType, int, int]] = set()
        self._last: dict[FrameType, int] = {}

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        self._last[frame] = 0
        return self._follow

    def _follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.transitions.add((frame.f_code, self._last.get(frame, 0), frame.f_lineno))
            self._last[frame] = frame.f_lineno
        elif event == "return":
            self._last.pop(frame, None)
        return self._follow

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Record transitions. sys.settrace, because Python 3.11 has no sys.monitoring; other folders are not traced."""
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
    """A function that reads input, valid inputs for it, and words that its input may contain."""

    name: str
    run: Run
    seeds: list[bytes]
    words: list[bytes] = field(default_factory=list)
    separator: bytes = b""
    guarded: Path | None = None
    """A folder whose files must not change."""


@dataclass
class Findings:
    """Results of fuzzing a target."""

    cases: int = 0
    refused: int = 0
    kept: int = 0
    """Inputs with new coverage."""
    transitions: int = 0
    """Covered transitions between lines."""
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


def fuzz(target: Target, cases: int, seed: int, folder: str = PACKAGE, *, guided: bool = True) -> Findings:
    """Run this number of cases; the first are the seeds, which must be accepted."""
    found, coverage, chance = Findings(), Coverage(folder), random.Random(f"{seed} {target.name}")
    queue, mutate = list(target.seeds), Mutator(chance, target.words, target.separator)
    before = _hash_files(target.guarded)
    while found.cases < cases:
        first = found.cases < len(target.seeds)
        # Recent inputs have the newest coverage and are mutated most often.
        place = found.cases if first else max(chance.randrange(len(queue)), chance.randrange(len(queue)))
        content = queue[place] if first else mutate(queue[place], queue)
        known, started = len(coverage.transitions), time.process_time()
        problem, refused = _run_case(target.run, content, coverage)
        found.slowest = max(found.slowest, time.process_time() - started)
        found.cases, found.refused = found.cases + 1, found.refused + refused
        if first and refused:
            problem = "a valid input was refused"
        if (after := _hash_files(target.guarded)) != before:
            problem, before = f"files changed: {sorted(set(before.items()) ^ set(after.items()))[:2]}", after
        if problem:
            found.problems.append(f"{target.name}: {problem} with {content[:300]!r}")
        if guided and not first and len(coverage.transitions) > known and not problem:
            queue.append(content)
            found.kept += 1
    found.transitions = len(coverage.transitions)
    return found


def _run_case(run: Run, content: bytes, coverage: Coverage) -> tuple[str, bool]:
    """Return the problem, if any, and whether the input was refused with a UserError."""
    try:
        with time_limit(TIMEOUT), forbid_side_effects(), coverage.record():
            run(content)
    except logosphere.UserError as problem:
        message = str(problem)
        return ("" if message.strip() and "Traceback" not in message else f"no message: {message!r}"), True
    except MemoryError:
        return "", True  # the command line has a message for this
    except RuntimeError as problem:
        if "can't allocate memory" in str(problem):
            return "", True
        return repr(problem), False
    except BaseException as problem:
        return repr(problem), False
    return "", False


def _hash_files(folder: Path | None) -> dict[str, int]:
    if folder is None:
        return {}
    return {str(path): hash(path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"after {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


FORBIDDEN_EVENTS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "os.fork")
NETWORK_EVENTS = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
_is_active = [False]


def _audit(event: str, arguments: Any) -> None:
    if _is_active[0] and event in FORBIDDEN_EVENTS:
        raise Forbidden(f"{event} {arguments!r}")
    if _is_active[0] and event in NETWORK_EVENTS:
        raise OSError("there is no network here")


@contextlib.contextmanager
def forbid_side_effects() -> Iterator[None]:
    """Forbid running programs, unpickling and network access."""
    if _audit not in _hooks:
        sys.addaudithook(_audit)  # hooks cannot be removed, so _is_active switches it
        _hooks.append(_audit)
    _is_active[0] = True
    try:
        yield
    finally:
        _is_active[0] = False


_hooks: list[Callable[[str, Any], None]] = []


@contextlib.contextmanager
def limit_memory(additional: int = 2 << 30) -> Iterator[None]:
    """Limit the address space to this number of additional bytes, so that huge allocations fail at once."""
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
    resource.setrlimit(resource.RLIMIT_AS, (used + additional, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> int:
    from fuzz_targets import make_targets

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="cases in total, divided among the targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="", help="only this target")
    args = parser.parse_args()
    results, started = {}, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")
        every = [target for target in make_targets(Path(folder)) if args.target in ("", target.name)]
        for target in every:
            with limit_memory(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = fuzz(target, args.cases // len(every), args.seed)
            results[target.name] = vars(found)
            line = f"{found.cases} cases, {found.refused} refused, {found.kept} kept, {found.transitions} transitions"
            print(f"{target.name:<12} {line}, {len(found.problems)} problems", file=sys.stderr, flush=True)
    cases = sum(result["cases"] for result in results.values())
    print(json.dumps({"cases": cases, "cpu_seconds": round(time.process_time() - started), "targets": results}))
    return 1 if any(result["problems"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
