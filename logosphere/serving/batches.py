"""Sampling a batch of rows in a job: spans of final text while it runs, and each row's end as soon as it is known."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from logosphere.codecs.base import HIDDEN
from logosphere.rng import RowSeeds
from logosphere.sampling.finished import count_finished, keeps_tokens
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import Frame
from logosphere.sampling.registry import choose_sampler
from logosphere.serving.cursor import TextCursor
from logosphere.serving.denoiser import RowDenoiser
from logosphere.serving.models import ServedModel
from logosphere.serving.rows import Row
from logosphere.studio.jobs import Job, JobFunction, JobStopped

Emit = Callable[[str, dict[str, Any]], None]
"""(name, content) of an event: span, draft or done, of the row with this number in the batch."""


def make_batch_job(served: ServedModel, rows: Sequence[Row]) -> JobFunction:
    """A function that samples rows with equal keys, and emits their events."""

    def run(job: Job) -> None:
        run_batch(served, rows, job.emit, lambda: job.is_stopping)

    return run


def run_batch(served: ServedModel, rows: Sequence[Row], emit: Emit, is_stopping: Callable[[], bool]) -> None:
    """Sample rows with equal keys; each gets the same text as alone."""
    model, key = served.model, rows[0].key
    settings, known = key.settings, torch.stack([row.known for row in rows])
    denoiser = RowDenoiser.of(model, rows)
    greedy = settings.temperature == 0
    followers = [Follower(served, row, number, denoiser, emit) for number, row in enumerate(rows)]
    sampler = choose_sampler(model, settings.sampler or "auto", key.decoding, key.prefix or 0)
    keeps = keeps_tokens(model, sampler)

    def see(frame: Frame) -> bool:
        if is_stopping():
            raise JobStopped
        active = [one for one in followers if one.is_active]
        if not active:
            return True
        finished = count_finished(frame, model, keeps=keeps).tolist()
        growing = [one for one in active if finished[one.number] > one.seen]
        if growing or any(one.row.drafts for one in active):
            tokens = frame.tokens.tolist()
            for one in growing:
                one.follow(tokens[one.number], finished[one.number])
            for one in active:
                if one.row.drafts and one.is_active:
                    one.draft(tokens[one.number], frame.step, frame.steps)
        return not any(one.is_active for one in followers)

    drawn = generate(
        model,
        n=len(rows),
        steps=settings.steps,
        rng=RowSeeds(tuple(row.seed for row in rows), tuple(row.number for row in rows)),
        denoiser=denoiser,
        constraint=rows[0].constraint,
        known=known if bool(known.any()) else None,
        tokens=torch.stack([row.tokens for row in rows]) if bool(known.any()) else None,
        sampler=settings.sampler,
        temperature=1.0 if greedy or settings.temperature is None else settings.temperature,
        top_p=settings.top_p,
        top_k=1 if greedy else None,
        renoise_known=key.renoised,
        precision=served.precision,
        decoding=key.decoding,
        until=see,
    )
    tokens = drawn.tokens.tolist()
    for one in followers:
        if one.is_active:
            one.follow(tokens[one.number], len(tokens[one.number]))


class Follower:
    """Follows one row while its batch is sampled."""

    def __init__(self, served: ServedModel, row: Row, number: int, denoiser: RowDenoiser, emit: Emit):
        self.row, self.number, self.emit = row, number, emit
        self.tokenizer, self.counts = served.tokenizer, denoiser.counts
        self.cursor = TextCursor(served.tokenizer, row.tokens[: row.start].tolist(), row.ends, row.stops)
        self.seen = 0
        """Final tokens that were read."""
        self.is_done = False

    @property
    def is_active(self) -> bool:
        return not self.is_done and not self.row.is_cancelled

    def follow(self, tokens: Sequence[int], finished: int) -> None:
        """Read the final tokens of the row, and emit what they add."""
        self.seen = finished
        end = min(finished, self.row.stop)
        if end < self.row.start:
            return
        self.cursor.advance(tokens[self.row.start : end])
        self.is_done = self.cursor.is_stopped or end == self.row.stop
        taken = self.cursor.take(is_last=self.is_done) if self.row.streams or self.is_done else ""
        if self.is_done:
            reason = "stop" if self.cursor.is_stopped or self.row.text_until else "length"
            known = int(self.row.known[self.row.start : self.row.start + self.cursor.tokens].sum())
            counted = {"tokens": self.cursor.tokens - known, "nfe": int(self.counts[self.number])}
            self.emit("done", {"row": self.number, "text": taken, "finish_reason": reason} | counted)
        elif taken:
            self.emit("span", {"row": self.number, "text": taken})

    def draft(self, tokens: Sequence[int], step: int, steps: int) -> None:
        """Emit the whole text as it is, with a place for each token that is not determined yet."""
        window, parts = tokens[self.row.start : self.row.stop], list[str]()
        known = [token for token in window if token != HIDDEN]
        if len(known) == len(window):
            parts = [self.tokenizer.decode(known)]
        else:
            start = 0
            while start < len(window):
                end = start
                while end < len(window) and (window[end] == HIDDEN) == (window[start] == HIDDEN):
                    end += 1
                hidden = window[start] == HIDDEN
                parts.append(MASK * (end - start) if hidden else self.tokenizer.decode(window[start:end]))
                start = end
        self.emit("draft", {"row": self.number, "text": "".join(parts), "step": step, "steps": steps})


MASK = "\u2591"
"""Stands for a token of a draft that is not determined yet."""
