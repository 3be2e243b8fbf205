"""Jobs: work done in a thread, told event by event to whoever listens, and stopped when nobody does.

A job keeps what it has said, so that any number of viewers hear all of it, each from the beginning and at its own pace:
none can make another wait, and none misses anything.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from logosphere.errors import UserError

MOST_JOBS, MOST_VIEWERS, KEPT = 4, 100, 4
"""Jobs at work at once, viewers of each, and finished jobs that can still be watched."""


class Event(NamedTuple):
    """Its name, what it says, and how it is sent: written once, however many listen."""

    name: str
    content: dict[str, Any]
    line: bytes


class Stopped(Exception):
    """Nobody listens any more."""


class Busy(Exception):
    """There are as many jobs, or viewers, as may be."""


class Job(threading.Thread):
    """Some work, and all that it has said so far."""

    def __init__(self, number: int, work: "Work", loop: asyncio.AbstractEventLoop):
        super().__init__(daemon=True)
        self.number, self.work, self.loop = number, work, loop
        self.events = list[Event]()
        self.over = False
        """Has the last event been said?"""
        self.viewers = 1  # whoever asked for it
        self._stop_wanted, self._more = threading.Event(), asyncio.Event()

    # ---- in its own thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self.work(self)
        except Stopped:
            pass
        except UserError as problem:
            self.tell("failed", {"sentence": str(problem)})
        except Exception as problem:
            self.tell("failed", {"sentence": f"This should not happen ({type(problem).__name__}: {problem})."})
        self._pass_on(self._end)

    def tell(self, name: str, content: dict[str, Any]) -> None:
        """Say something, unless nobody listens: then the work ends here."""
        if self._stop_wanted.is_set():
            raise Stopped
        said = json.dumps(content, separators=(",", ":"))
        self._pass_on(self._add, Event(name, content, f"event: {name}\ndata: {said}\n\n".encode()))

    def _pass_on(self, call: Callable[..., None], *given: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *given)
        except RuntimeError:  # the server has been shut down meanwhile
            self.stop()

    # ---- in the thread of the server ----------------------------------------------------------------------------

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._wake()

    def _end(self) -> None:
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def listen(self) -> AsyncIterator[Event]:
        """All events from the first to the last; each listener has its own place among them."""
        heard = 0
        while True:
            while heard < len(self.events):
                heard += 1
                yield self.events[heard - 1]
            if self.over:
                return
            await self._more.wait()

    def stop(self) -> None:
        """Nobody wants to know the rest: the work ends with its next word."""
        self._stop_wanted.set()

    @property
    def stopping(self) -> bool:
        return self._stop_wanted.is_set()


Work = Callable[[Job], None]


class Desk:
    """Takes as many jobs as may run at once, and keeps the last of them for whoever comes later."""

    def __init__(self, most: int = MOST_JOBS):
        self.most, self.count, self.jobs = most, 0, dict[int, Job]()

    @property
    def running(self) -> int:
        """Jobs that somebody waits for."""
        return sum(job.viewers > 0 and not job.over for job in self.jobs.values())

    def take(self, work: Work) -> Job:
        """Begin a job, with one viewer."""
        if self.running >= self.most:
            raise Busy(f"{self.running} texts are being written already; wait for one of them or stop it.")
        self.count += 1
        job = self.jobs[self.count] = Job(self.count, work, asyncio.get_running_loop())
        job.start()
        return job

    def join(self, number: int) -> Job:
        """Watch a job of somebody else: one more viewer."""
        job = self.jobs.get(number)
        if job is None or job.stopping:
            raise UserError("This text is no longer there to be watched; write a new one.")
        if job.viewers >= MOST_VIEWERS:
            raise Busy(f"{job.viewers} are watching this text already; wait until somebody leaves.")
        job.viewers += 1
        return job

    def leave(self, job: Job) -> None:
        """A viewer has gone, or has heard all. Work that nobody waits for is stopped, and old jobs are forgotten."""
        job.viewers -= 1
        if job.viewers == 0 and not job.over:
            job.stop()
            del self.jobs[job.number]
        idle = [number for number, one in self.jobs.items() if one.viewers == 0]
        for number in idle[: max(0, len(idle) - KEPT)]:
            del self.jobs[number]
