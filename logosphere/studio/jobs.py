"""Jobs of the studio: functions that run in a thread and emit events, and stop when they have no viewers.

A job keeps all its events, so that every viewer gets all of them from the first on, at its own speed, without
delaying the others. It takes one of the places of the pool until its thread ends, with or without viewers. The
functions that jobs run generate texts and measure the ELBO over time.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import TimeBin, elbo_over_time
from logosphere.evaluation.report import describe_kind
from logosphere.io import json_safe
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import Frame
from logosphere.sampling.registry import sampler
from logosphere.sampling.trajectory import Recorder, TrajectoryFrame
from logosphere.studio.models import StudioModel
from logosphere.studio.requests import GenerateRequest, resolve_holds, to_command, to_python
from logosphere.terminal import neutralise
from logosphere.types import Batch

MAX_JOBS, MAX_VIEWERS, KEPT_JOBS = 4, 100, 4
"""Jobs that run at once, viewers of each, and finished jobs that can still be watched."""
LOCK_SECONDS = 0.05
"""How often a job that waits for its model looks whether it has been stopped."""


class Event(NamedTuple):
    """An event and its server-sent form, which is encoded once for all viewers."""

    name: str
    content: dict[str, Any]
    line: bytes


class JobStopped(Exception):
    """The job has no viewers left."""


class LimitReached(Exception):
    """The limit of jobs or of viewers is reached."""


class Job(threading.Thread):
    """A running function and all its events so far."""

    def __init__(
        self,
        number: int,
        function: "JobFunction",
        loop: asyncio.AbstractEventLoop,
        on_finish: "Callable[[Job], None]" = lambda job: None,
    ):
        super().__init__(daemon=True, name=f"job {number}")
        self.number, self.function, self.loop, self.on_finish = number, function, loop, on_finish
        self.events = list[Event]()
        self.is_finished = False
        """Whether the last event has been emitted."""
        self.viewers = 1  # whoever submitted it
        self._stop_requested, self._more = threading.Event(), asyncio.Event()

    # ---- in the thread of the job -----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            sentence = self._find_failure()
            if sentence:
                with suppress(JobStopped):
                    self.emit("failed", {"sentence": neutralise(sentence)})
        finally:
            self._call_in_loop(self._finish)

    def _find_failure(self) -> str:
        """Run the function; return what failed. A panic of Rust, which is no Exception, ends only this job."""
        try:
            self.function(self)
        except JobStopped:
            return ""
        except UserError as problem:
            return str(problem)
        except BaseException as problem:
            return f"This should not happen ({type(problem).__name__}: {problem})."
        return ""

    def emit(self, name: str, content: dict[str, Any]) -> None:
        """Emit an event; raise JobStopped if the job has been stopped."""
        if self._stop_requested.is_set():
            raise JobStopped
        data = json.dumps(json_safe(content), separators=(",", ":"))
        self._call_in_loop(self._add, Event(name, content, f"event: {name}\ndata: {data}\n\n".encode()))

    def _call_in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the server has been shut down meanwhile
            self.stop()

    # ---- in the thread of the server --------------------------------------------------------------------------

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._wake()

    def _finish(self) -> None:
        self.is_finished = True
        self.on_finish(self)
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def stream(self) -> AsyncIterator[Event]:
        """Yield all events from the first to the last, waiting for those to come."""
        count = 0
        while True:
            while count < len(self.events):
                count += 1
                yield self.events[count - 1]
            if self.is_finished:
                return
            await self._more.wait()

    def stop(self) -> None:
        """Let the function end at its next event."""
        self._stop_requested.set()

    def give_up(self) -> None:
        """End the stream of a job that does not stop; its thread keeps its place in the pool until it ends."""
        self.stop()
        self.is_finished = True
        self._wake()

    @property
    def is_stopping(self) -> bool:
        return self._stop_requested.is_set()


JobFunction = Callable[[Job], None]


class JobPool:
    """Runs a limited number of jobs at once and keeps the last finished ones for later viewers."""

    def __init__(self, max_jobs: int = MAX_JOBS):
        self.max_jobs, self.count, self.jobs = max_jobs, 0, dict[int, Job]()
        self._unfinished = set[Job]()
        """All jobs whose threads have not ended, also those without viewers, which `jobs` no longer has."""

    @property
    def running(self) -> int:
        """The number of unfinished jobs."""
        return len(self._unfinished)

    def submit(self, function: JobFunction) -> Job:
        """Start a job, with one viewer."""
        if self.running >= self.max_jobs:
            raise LimitReached(f"{self.running} jobs are running already; wait for one of them or stop it.")
        job = Job(self.count + 1, function, asyncio.get_running_loop(), self._unfinished.discard)
        try:
            job.start()
        except RuntimeError as problem:  # the system starts no more threads
            raise LimitReached(f"This machine cannot start the job ({problem}); close other programs.") from None
        self.count = job.number
        self.jobs[job.number] = job
        self._unfinished.add(job)
        return job

    def add_viewer(self, number: int) -> Job:
        """Return the job with this number, with one more viewer."""
        job = self.jobs.get(number)
        if job is None or job.is_stopping:
            raise UserError("This job is no longer available; start a new one.")
        if job.viewers >= MAX_VIEWERS:
            raise LimitReached(f"This job has {job.viewers} viewers, which is the limit; wait until one leaves.")
        job.viewers += 1
        return job

    def remove_viewer(self, job: Job) -> None:
        """Remove a viewer of a job; stop the job if it was the last one, and drop old finished jobs."""
        job.viewers -= 1
        if job.viewers == 0 and not job.is_finished:
            job.stop()
            del self.jobs[job.number]
        idle = [number for number, one in self.jobs.items() if one.viewers == 0]
        for number in idle[: max(0, len(idle) - KEPT_JOBS)]:
            del self.jobs[number]


TIME_BINS, ELBO_SEQUENCES = 12, 32
"""Bins of time and sequences of held-out text for the ELBO over time."""


@contextmanager
def hold_model(job: Job, studio_model: StudioModel) -> Iterator[None]:
    """Take the lock of a model; a job that is stopped while it waits ends at once instead of keeping its place."""
    while not studio_model.lock.acquire(timeout=LOCK_SECONDS):
        if job.is_stopping:
            raise JobStopped
    try:
        if job.is_stopping:
            raise JobStopped
        yield
    finally:
        studio_model.lock.release()


def make_generate_job(studio_model: StudioModel, request: GenerateRequest) -> JobFunction:
    """Return a function that generates texts and emits `begun`, a `moment` after every step, and `done`."""

    def run(job: Job) -> None:
        with hold_model(job, studio_model):
            _generate(job, studio_model, request)

    return run


def _generate(job: Job, studio_model: StudioModel, request: GenerateRequest) -> None:
    model, tokenizer = studio_model.model, studio_model.tokenizer
    if request.sampler == "auto" and studio_model.default_sampler != model.sampler:
        request = replace(request, sampler=studio_model.default_sampler)  # so that the snippets name it
    filtered = model.process.predicts_tokens
    if not filtered:
        request = replace(request, temperature=1.0, top_p=1.0)
    held = resolve_holds(request, model, tokenizer)
    chosen = sampler(model.sampler if request.sampler == "auto" else request.sampler, model)
    approximate = held is not None and studio_model.folder.needs_renoise(model)
    begun = {
        "job": job.number,
        "system": request.system,
        "length": model.length,
        "n": request.n,
        "known": [] if held is None else held.places,
        "prompt": 0 if held is None else held.prompt,
        "prompt_text": request.prompt,
        "released": [] if held is None else list(held.released),
        "approximate": approximate,
        "filtered": filtered,
        "command": to_command(request, studio_model.name, held, tokenizer),
        "python": to_python(request, studio_model.name, held),
    }
    job.emit("begun", begun)
    recorder, sent = Recorder(model), set[int]()

    def watch(frame: Frame) -> None:
        job.emit("moment", describe_moment(recorder.record(frame), sent, tokenizer))

    drawn = generate(
        model,
        n=request.n,
        steps=request.steps,
        rng=torch.Generator(model.device).manual_seed(request.seed),
        known=None if held is None else held.known,
        tokens=None if held is None else held.tokens,
        sampler=chosen,
        temperature=request.temperature,
        top_p=request.top_p,
        renoise_known=approximate,
        watch=watch,
    )
    texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    job.emit("done", {"texts": texts, "nfe": round(drawn.nfe, 2), "seconds": round(drawn.seconds, 3)})


def describe_moment(frame: TrajectoryFrame, sent: set[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe a frame for the page, with the symbols of tokens that are not in `sent` yet; add them to it."""
    rows = frame.tokens + (frame.predicted or [])
    new = {token for row in rows for token in row if token >= 0} - sent
    sent |= new
    return asdict(frame) | {"symbols": {token: tokenizer.symbol(token) for token in sorted(new)}}


def make_elbo_job(studio_model: StudioModel) -> JobFunction:
    """Return a function that measures the ELBO over time and emits a `slice` for each bin of time, and `done`."""

    def run(job: Job) -> None:
        with hold_model(job, studio_model):
            model = studio_model.model
            if model.process.kind == "exact":
                raise UserError("This model has an exact likelihood; there is no bound to measure over time.")
            held_out = studio_model.held_out(ELBO_SEQUENCES)

            def watch(time_bin: TimeBin) -> None:
                job.emit("slice", asdict(time_bin))

            def batches() -> Sequence[Batch]:
                return [held_out]

            bins = elbo_over_time(model, batches, bins=TIME_BINS, watch=watch)
            bits = sum(time_bin.bits for time_bin in bins) / len(bins)
            # All bins use the same sequences; their errors add up at most, and this is what the page states.
            error = sum(time_bin.error for time_bin in bins) / len(bins)
            job.emit(
                "done",
                {
                    "bits": bits,
                    "error": error,
                    "kind": model.process.kind,
                    "kind_and_path": describe_kind(model.process.kind, model.process.path_name, 0),
                    "unit": studio_model.tokenizer.unit,
                    "sequences": len(held_out),
                },
            )

    return run
