"""The functions that jobs run: generate texts, and measure the ELBO over time."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import TimeBin, elbo_over_time
from logosphere.sampling.generate import filters, generate
from logosphere.sampling.samplers import sampler
from logosphere.sampling.trajectory import Moment, Recorder
from logosphere.sampling.walk import Frame
from logosphere.studio.jobs import Job, JobFunction, JobStopped
from logosphere.studio.models import StudioModel
from logosphere.studio.requests import GenerateRequest, resolve_pins, to_command, to_python
from logosphere.types import Batch

TIME_BINS, ELBO_SEQUENCES = 12, 32
"""Bins of time and sequences of held-out text for the ELBO over time."""


def make_generate_job(studio_model: StudioModel, request: GenerateRequest) -> JobFunction:
    """Return a function that generates texts and emits `begun`, a `moment` after every step, and `done`."""

    def run(job: Job) -> None:
        with studio_model.lock:
            if job.is_stopping:
                raise JobStopped
            _generate(job, studio_model, request)

    return run


def _generate(job: Job, studio_model: StudioModel, request: GenerateRequest) -> None:
    model, tokenizer = studio_model.model, studio_model.tokenizer
    if request.sampler == "auto" and studio_model.default_sampler != model.sampler:
        request = replace(request, sampler=studio_model.default_sampler)  # so that the snippets name it
    filtered = filters(model.process)
    if not filtered:
        request = replace(request, temperature=1.0, top_p=1.0)
    pinned = resolve_pins(request, model, tokenizer)
    chosen = sampler(model.sampler if request.sampler == "auto" else request.sampler, model)
    approximate = pinned is not None and studio_model.folder.needs_renoise(model)
    begun = {
        "job": job.number,
        "system": request.system,
        "length": model.length,
        "n": request.n,
        "known": [] if pinned is None else pinned.known[0].nonzero()[:, 0].tolist(),
        "approximate": approximate,
        "filtered": filtered,
        "command": to_command(request, studio_model.name, pinned, tokenizer),
        "python": to_python(request, studio_model.name, pinned),
    }
    job.emit("begun", begun)
    recorder, sent = Recorder(model), set[int]()

    def watch(frame: Frame) -> None:
        job.emit("moment", describe_moment(recorder.see(frame), sent, tokenizer))

    drawn = generate(
        model,
        n=request.n,
        steps=request.steps,
        rng=torch.Generator(model.device).manual_seed(request.seed),
        known=None if pinned is None else pinned.known,
        tokens=None if pinned is None else pinned.tokens,
        sampler=chosen,
        temperature=request.temperature,
        top_p=request.top_p,
        renoise_known=approximate,
        watch=watch,
    )
    texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    job.emit("done", {"texts": texts, "nfe": round(drawn.nfe, 2), "seconds": round(drawn.seconds, 3)})


def describe_moment(moment: Moment, sent: set[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe a moment for the page, with the symbols of tokens that are not in `sent` yet; add them to it."""
    rows = moment.tokens + (moment.guessed or [])
    new = {token for row in rows for token in row if token >= 0} - sent
    sent |= new
    return asdict(moment) | {"symbols": {token: tokenizer.symbol(token) for token in sorted(new)}}


def make_elbo_job(studio_model: StudioModel) -> JobFunction:
    """Return a function that measures the ELBO over time and emits a `slice` for each bin of time, and `done`."""

    def run(job: Job) -> None:
        with studio_model.lock:
            if job.is_stopping:
                raise JobStopped
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
            job.emit("done", {"bits": bits, "kind": model.process.kind, "sequences": len(held_out)})

    return run
