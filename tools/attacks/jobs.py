"""Attacks on the jobs of the studio: what they raise, jobs that are left, and patterns of tokenizers."""

import asyncio
import threading
import time
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from attacks import attack
from logosphere.data import tokenizer_limits
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.errors import UserError
from logosphere.studio.jobs import Job, JobPool, LimitReached

PATIENCE = 10.0
"""Seconds after which a job counts as one that never ends; generous, because the machine may be busy."""


class Panic(BaseException):
    """As pyo3 raises it: no Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


RAISED = (
    Panic("panicked"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError(), RecursionError(),
    StopIteration(1), asyncio.CancelledError(), UserError("wrong"), UserError("\x1b[2J\ud800"),
    OSError(24, "too many"), Unprintable(), LimitReached(),
)  # fmt: skip


@attack(*[(problem, stopped) for problem in RAISED for stopped in (False, True)])
def raise_in_job(variant: tuple[BaseException, bool], world: Any) -> None:
    """A job raises what is no Exception, also after it was stopped, and never ends."""
    problem, stopped = variant

    def work(job: Job) -> None:
        if stopped:
            job.stop()
        raise problem

    async def run() -> None:
        pool = JobPool(max_jobs=1)
        for _ in range(3):  # the place is free again each time
            job = pool.submit(work)
            names = [event.name async for event in job.stream()]
            assert names == ([] if stopped or isinstance(problem, Unprintable) else ["failed"]), names
            pool.remove_viewer(job)
        assert pool.running == 0

    before, threading.excepthook = threading.excepthook, lambda arguments: None
    try:
        asyncio.run(asyncio.wait_for(run(), PATIENCE))
    finally:
        threading.excepthook = before


@attack(1, 4, 60)
def abandon_jobs(count: int, world: Any) -> None:
    """Jobs are started and left while their model is busy; each keeps a thread that nobody counts."""
    library_lock = threading.Lock()
    released = threading.Event()

    def work(job: Job) -> None:
        with library_lock:
            released.wait(PATIENCE)

    async def run() -> int:
        pool, refused = JobPool(max_jobs=2), 0
        for _ in range(count):
            try:
                pool.remove_viewer(pool.submit(work))
            except LimitReached:
                refused += 1
        assert pool.running == min(count, 2)
        released.set()
        while pool.running:
            await asyncio.sleep(0.01)
        return refused

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == max(0, count - 2)


# ---- tokenizers -----------------------------------------------------------------------------------------------------

PATTERNS = ("(a+)+$", "(a|a)*$", "(a|aa)+$", "(a*)*$", "([a-z]+)*$", "(.*a){12}$", "(?:a+)+(?:a+)+$")


def make_tokenizer(pattern: str, place: str) -> SubwordTokenizer:
    """Return a tokenizer whose pattern takes exponential time."""
    model = Tokenizer(models.WordLevel({"[U]": 0, "a": 1, "a" * 40 + "!": 2}, "[U]"))
    if place == "pre_tokenizer":
        model.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    elif place == "normalizer":
        model.normalizer = normalizers.Replace(Regex(pattern), "b")
    else:
        model.decoder = decoders.Replace(Regex(pattern), "b")
    return SubwordTokenizer.from_json(model.to_str(), "hostile")


@attack(*[(pattern, place) for pattern in PATTERNS for place in ("pre_tokenizer", "normalizer", "decoder")])
def repeat_pattern(variant: tuple[str, str], world: Any) -> None:
    """The pattern of a tokenizer takes exponential time: the studio freezes, or a panic ends the job without a word."""
    pattern, place = variant
    tokenizer = make_tokenizer(pattern, place)
    before, tokenizer_limits.SECONDS = tokenizer_limits.SECONDS, 0.3
    started, longest, stop = time.monotonic(), [0.0], threading.Event()

    def watch() -> None:
        last = time.monotonic()
        while not stop.wait(0.01):
            longest[0], last = max(longest[0], time.monotonic() - last), time.monotonic()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        if place == "decoder":
            tokenizer.decode([2])
        else:
            tokenizer.encode("a" * 40 + "!")
    except UserError:
        pass  # a sentence is the answer; some patterns are fast enough
    finally:
        stop.set()
        watcher.join()
        tokenizer_limits.SECONDS = before
    assert time.monotonic() - started < PATIENCE and longest[0] < 2, f"the interpreter was held for {longest[0]:.1f} s"
