"""Ctrl-C and SIGTERM as requests to stop: the step is finished and saved first; a second Ctrl-C does not wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether a signal has asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    @contextmanager
    def handled(self) -> Iterator["Interrupts"]:
        """Handle signals inside this block; only the main thread of a process may, and elsewhere none are heard."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self.request) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
