"""The queue of rows, and the batches that are made of it, one after another.

Rows with equal keys are sampled together, the longest waiting ones first. A batch runs as a job of the pool that the
studio uses too: whatever it raises, it ends, its rows are answered and its place is free again.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from logosphere.serving.batches import make_batch_job
from logosphere.serving.errors import APIError
from logosphere.serving.limits import ServeLimits
from logosphere.serving.metrics import Metrics
from logosphere.serving.models import Catalogue
from logosphere.serving.rows import Row
from logosphere.studio.jobs import Event, Job, JobPool, LimitReached

MAX_JOBS = 2
"""Threads: one batch is sampled at a time, and a second one begins if the first does not stop when asked to."""
STOP_SECONDS = 30.0
"""How long a batch may take to stop when nobody waits for it; a step of a large model takes seconds."""

CLOSING_SECONDS = 0.1
"""How often the engine looks whether it is to stop."""


class Ticket:
    """The rows of a request, and their events."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = list(rows)
        self.events = asyncio.Queue[tuple[Row, str, dict[str, Any]]]()
        self.unfinished = set(map(id, self.rows))
        """Rows whose end has not been taken from the stream."""
        self.emitted = set[int]()
        """Rows whose end is in `events`, or was."""

    async def stream(self) -> AsyncIterator[tuple[Row, str, dict[str, Any]]]:
        """Yield (row, name, content) of the events until all rows are done; raise APIError if they fail."""
        while self.unfinished:
            row, name, content = await self.events.get()
            if name == "failed":
                raise APIError(content["message"], content["status"], retry=content.get("retry", 0))
            if name == "done":
                self.unfinished.discard(id(row))
            yield row, name, content

    def cancel(self) -> None:
        """The client has gone: rows that wait are not sampled, and a batch of nothing else stops."""
        for row in self.rows:
            row.is_cancelled = True


class Engine:
    """Samples the rows of all requests."""

    def __init__(self, catalogue: Catalogue, limits: ServeLimits, metrics: Metrics):
        self.catalogue, self.limits, self.metrics = catalogue, limits, metrics
        self.pool = JobPool(MAX_JOBS)
        self.waiting = list[tuple[Row, Ticket]]()
        self.running = list[tuple[Row, Ticket]]()
        self.is_closing = False
        """Set when the server is to stop, also from a handler of signals."""
        self._arrived = asyncio.Event()
        self._seconds = 1.0
        """Mean seconds of a batch, of the last ones mostly."""

    def submit(self, rows: Sequence[Row]) -> Ticket:
        """Let rows wait for a batch; raise APIError if there is no place for them."""
        self._drop_cancelled()
        if self.is_closing:
            raise APIError("The server is stopping.", 503, code="stopping", retry=5)
        if len(self.waiting) + len(rows) > self.limits.queue:
            self.metrics.rejected += 1
            raise APIError(
                f"{len(self.waiting)} texts wait, and the queue has {self.limits.queue} places; try again later.",
                429,
                code="queue_full",
                retry=self.estimate_wait(),
            )
        ticket = Ticket(rows)
        self.waiting += [(row, ticket) for row in rows]
        self._arrived.set()
        return ticket

    def estimate_wait(self) -> int:
        """Seconds until there may be a place in the queue."""
        return max(1, min(60, math.ceil(self._seconds)))

    def _drop_cancelled(self) -> None:
        self.waiting = [pair for pair in self.waiting if not pair[0].is_cancelled]

    def _take(self) -> list[tuple[Row, Ticket]]:
        """The longest waiting row, and those that can be sampled with it."""
        self._drop_cancelled()
        if not self.waiting:
            return []
        key = self.waiting[0][0].key
        model = self.catalogue.models[key.model].model
        most = self.limits.count_rows(model.length, model.vocab_size)
        taken = [pair for pair in self.waiting if pair[0].key == key][:most]
        chosen = {id(row) for row, _ in taken}
        self.waiting = [pair for pair in self.waiting if id(pair[0]) not in chosen]
        return taken

    async def run(self) -> None:
        """Sample batches until this is cancelled."""
        while True:
            if not self.waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await asyncio.sleep(self.limits.linger_seconds)
            if taken := self._take():
                self.running = taken
                try:
                    await self._sample(taken)
                except Exception as problem:  # no defect may stop all later requests
                    _fail(taken, f"This should not happen ({type(problem).__name__}: {problem}).", 500)
                finally:
                    self.running = []

    async def _sample(self, taken: Sequence[tuple[Row, Ticket]]) -> None:
        rows = [row for row, _ in taken]
        served, started = self.catalogue.models[rows[0].key.model], time.perf_counter()
        try:
            job = self.pool.submit(make_batch_job(served, rows))
        except LimitReached:
            _fail(taken, "Batches that were cancelled have not stopped yet; try again later.", 503, retry=30)
            return
        watch = asyncio.create_task(_stop_unwanted(job, rows))
        try:
            async for event in job.stream():
                self._route(event, taken)
        finally:
            watch.cancel()
            self.pool.remove_viewer(job)
            _fail(taken, "The server is stopping.", 503, retry=5)  # rows that are done are not affected
        seconds = time.perf_counter() - started
        self._seconds += 0.2 * (seconds - self._seconds)
        self.metrics.observe_batch(served.name, len(rows), seconds)

    def _route(self, event: Event, taken: Sequence[tuple[Row, Ticket]]) -> None:
        if event.name == "failed":
            sentence = event.content["sentence"]
            is_defect = sentence.startswith("This should not happen")
            _fail(taken, sentence, 500 if is_defect else 400)
            return
        row, ticket = taken[event.content["row"]]
        if event.name == "done":
            ticket.emitted.add(id(row))
            self.metrics.observe_row(row.key.model, event.content["tokens"], event.content["nfe"])
        ticket.events.put_nowait((row, event.name, event.content))

    async def close_when_asked(self) -> None:
        """Wait for `is_closing`; answer the rows that wait, and after a time those in work."""
        while not self.is_closing:
            await asyncio.sleep(CLOSING_SECONDS)
        self.close()
        await asyncio.sleep(self.limits.shutdown_seconds)
        self._cancel_running()

    def close(self) -> None:
        """Refuse new rows and those that wait; rows in work go on."""
        self.is_closing = True
        _fail(self.waiting, "The server is stopping.", 503, retry=5)
        self.waiting = []

    def _cancel_running(self) -> None:
        """Answer the rows in work by an error, and stop their job at its next step."""
        _fail(self.running, "The server is stopping.", 503, retry=5)
        for row, _ in self.running:
            row.is_cancelled = True
        for job in list(self.pool.jobs.values()):
            job.stop()

    async def stop(self, task: "asyncio.Task[None]") -> None:
        """Cancel what runs, and wait until its thread has ended."""
        self.close()
        self._cancel_running()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        end = time.monotonic() + STOP_SECONDS
        while self.pool.running and time.monotonic() < end:
            await asyncio.sleep(0.02)


async def _stop_unwanted(job: Job, rows: Sequence[Row]) -> None:
    """Stop a job when all clients of its rows have gone; give it up if it does not stop.

    Then the next batch begins, and the thread counts in the pool until it ends.
    """
    while not all(row.is_cancelled for row in rows):
        await asyncio.sleep(0.05)
    job.stop()
    await asyncio.sleep(STOP_SECONDS)
    job.give_up()


def _fail(pairs: Sequence[tuple[Row, Ticket]], message: str, status: int, retry: int = 0) -> None:
    """Answer the requests of these rows by an error."""
    for row, ticket in pairs:
        if id(row) not in ticket.emitted:
            ticket.emitted.add(id(row))
            content = {"message": message, "status": status, "retry": retry}
            ticket.events.put_nowait((row, "failed", content))
