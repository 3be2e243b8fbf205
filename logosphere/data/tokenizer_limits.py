"""Limits of the work of the tokenizers library, whose patterns come from files of others.

A pattern such as (a+)+$ takes exponential time. The library then holds the interpreter, or panics; a panic is no
Exception but a BaseException. Work with patterns of a file runs in a thread, without holding the interpreter, and is
given up after a time limit. The library cannot be interrupted, so a tokenizer with work that was given up takes no more
until that has ended: at most one thread of each tokenizer is lost.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tokenizers import Tokenizer as SubwordModel

T = TypeVar("T")

SECONDS, SECONDS_PER_CHARACTER = 10.0, 1e-3
"""The time limit for a text; usual speeds are a million characters a second."""


class TokenizerFailure(Exception):
    """The library raised, panicked, or exceeded the time limit; the message says which."""


def call_library(function: Callable[[], T]) -> T:
    """Call a function of the library; whatever it raises becomes a TokenizerFailure, except a request to stop."""
    try:
        return function()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as problem:  # a panic of Rust is no Exception
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise TokenizerFailure(reason[:200]) from problem


def has_patterns(model: "SubwordModel") -> bool:
    """Whether a tokenizer has regular expressions of its own."""
    parts = (model.normalizer, model.pre_tokenizer, model.decoder)
    return any(b'"Regex"' in part.__getstate__() for part in parts if part is not None)


class LimitedCalls:
    """Calls of one tokenizer in a thread, one at a time, each given up after its time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._overdue = False
        """Whether a call that was given up has not ended."""

    def __call__(self, function: Callable[[], T], characters: int) -> T:
        """Return the result of a function of the library for a text of this many characters."""
        seconds = SECONDS + SECONDS_PER_CHARACTER * characters
        if self._overdue or not self._lock.acquire(timeout=seconds):
            raise TokenizerFailure("it is still busy with an earlier text that takes too long")
        done, results, problems = threading.Event(), list[T](), list[BaseException]()

        def work() -> None:
            try:
                results.append(call_library(function))
            except BaseException as problem:
                problems.append(problem)
            finally:
                self._lock.release()
                done.set()  # first, so that whoever gives up meanwhile sees it
                self._overdue = False

        try:
            threading.Thread(target=work, daemon=True, name="tokenizer").start()
        except RuntimeError as problem:  # no more threads
            self._lock.release()
            raise TokenizerFailure(str(problem)) from problem
        if not done.wait(seconds):
            self._overdue = True
            if done.is_set():
                self._overdue = False
            raise TokenizerFailure(f"its patterns take more than {seconds:.0f} seconds")
        if problems:
            raise problems[0]
        return results[0]

    def __reduce__(self) -> tuple[type["LimitedCalls"], tuple[()]]:
        return LimitedCalls, ()  # a copy, such as one in another process, has calls of its own
