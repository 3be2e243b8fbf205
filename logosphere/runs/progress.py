"""How verbs report progress: through bars and remarks that the caller opens; silent by default."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Bar(Protocol):
    """A progress bar."""

    def update(self, done: float, text: str) -> None:
        """Show the fraction done and a line of figures."""


class _SilentBar:
    def update(self, done: float, text: str) -> None:
        pass


@contextmanager
def _silent_bar(title: str) -> Iterator[Bar]:
    yield _SilentBar()


@dataclass(frozen=True)
class Display:
    """Where progress and remarks go: the terminal for commands, nowhere by default."""

    bar: Callable[[str], AbstractContextManager[Bar]] = _silent_bar
    """Opens a bar with a title."""
    log: Callable[[str], None] = lambda message: None
    """Takes a remark of one line."""


SILENT = Display()
