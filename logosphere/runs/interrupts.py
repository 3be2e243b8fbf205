"""Ctrl-C and SIGTERM as wishes: the step is finished and saved first; a second Ctrl-C does not wait."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether somebody has asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    @contextmanager
    def heard(self) -> Iterator["Interrupts"]:
        """Listen for signals inside this block."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
