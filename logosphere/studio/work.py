"""What jobs do: write texts as a wish asks for them, and follow the bound of a model over time."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.elbo_over_time import TimeBin, elbo_over_time
from logosphere.sampling.generate import filters, generate
from logosphere.sampling.samplers import sampler
from logosphere.sampling.trajectory import Moment, Recorder
from logosphere.sampling.walk import Frame
from logosphere.studio.jobs import Job, Stopped, Work
from logosphere.studio.shelf import Book
from logosphere.studio.wishes import Wish, as_command, as_python, fixed
from logosphere.types import Batch

SLICES, SLICE_SEQUENCES = 12, 32
"""How finely the bound is followed over time, and on how many sequences."""


def writing(book: Book, wish: Wish) -> Work:
    """The work of writing the texts of a wish: `begun`, a `moment` for every step, `done`."""

    def work(job: Job) -> None:
        with book.turn:
            if job.stopping:
                raise Stopped
            _write(job, book, wish)

    return work


def _write(job: Job, book: Book, wish: Wish) -> None:
    model, tokenizer = book.model, book.tokenizer
    if wish.sampler == "auto" and book.own != model.sampler:
        wish = replace(wish, sampler=book.own)  # so that command and Python say so too
    filtered = filters(model.process)
    if not filtered:
        wish = replace(wish, temperature=1.0, top_p=1.0)
    held = fixed(wish, model, tokenizer)
    way = sampler(model.sampler if wish.sampler == "auto" else wish.sampler, model)
    approximate = held is not None and book.folder.needs_renoise(model)
    begun = {
        "job": job.number,
        "system": wish.system,
        "length": model.length,
        "n": wish.n,
        "known": [] if held is None else held.known[0].nonzero()[:, 0].tolist(),
        "approximate": approximate,
        "filtered": filtered,
        "command": as_command(wish, book.name, held, tokenizer),
        "python": as_python(wish, book.name, held),
    }
    job.tell("begun", begun)
    recorder, told = Recorder(model), set[int]()

    def watch(frame: Frame) -> None:
        moment = recorder.see(frame)
        job.tell("moment", shown(moment, told, tokenizer))

    drawn = generate(
        model,
        n=wish.n,
        steps=wish.steps,
        rng=torch.Generator(model.device).manual_seed(wish.seed),
        known=None if held is None else held.known,
        tokens=None if held is None else held.tokens,
        sampler=way,
        temperature=wish.temperature,
        top_p=wish.top_p,
        renoise_known=approximate,
        watch=watch,
    )
    texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    job.tell("done", {"texts": texts, "nfe": round(drawn.nfe, 2), "seconds": round(drawn.seconds, 3)})


def shown(moment: Moment, told: set[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """A moment for the page, with the symbols of tokens that it has not been told yet."""
    rows = moment.tokens + (moment.guessed or [])
    fresh = {token for row in rows for token in row if token >= 0} - told
    told |= fresh
    return asdict(moment) | {"symbols": {token: tokenizer.symbol(token) for token in sorted(fresh)}}


def spending(book: Book) -> Work:
    """The work of following the bound over time on held-out text: a `slice` for each stretch, `done`."""

    def work(job: Job) -> None:
        with book.turn:
            if job.stopping:
                raise Stopped
            model = book.model
            if model.process.kind == "exact":
                raise UserError("This model has an exact likelihood; there is no bound that time could be spent on.")
            held_out = book.held_out(SLICE_SEQUENCES)

            def told(slice: TimeBin) -> None:
                job.tell("slice", asdict(slice))

            def batches() -> Sequence[Batch]:
                return [held_out]

            found = elbo_over_time(model, batches, bins=SLICES, watch=told)
            bits = sum(slice.bits for slice in found) / len(found)
            job.tell("done", {"bits": bits, "kind": model.process.kind, "sequences": len(held_out)})

    return work
