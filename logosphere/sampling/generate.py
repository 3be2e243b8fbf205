"""Sequences out of a model: a sampler, filters, conditions and guides put together around the one loop of walk.py."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser, check_block
from logosphere.networks.conditioning import check_guidable
from logosphere.networks.wrappers import ActiveRows, CachedDenoiser, CountedDenoiser, LogitsFilter, NFECounter
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.processes.base import Process
from logosphere.rng import CounterNoise, as_generator
from logosphere.sampling.guidance import Guide, Guides
from logosphere.sampling.plan import Grid, Plan, find_grid
from logosphere.sampling.samplers import Sampler, sampler_of
from logosphere.sampling.samplers import sampler as sampler_by_name
from logosphere.sampling.steppers import GreedyEnd, Rule, Stepper, as_stepper
from logosphere.sampling.steppers.base import guides_transitions
from logosphere.sampling.walk import Frame, walk
from logosphere.types import Batch, Bool, Condition, Int64, Tokens


@dataclass(frozen=True)
class Generation:
    """Sequences, and what they cost."""

    tokens: Tokens
    nfe: float
    """Network evaluations per sequence."""
    seconds: float


def generate(
    model: Model,
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | int | None = None,
    denoiser: Denoiser | None = None,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
    *,
    sampler: Sampler | str | None = None,
    stepper: Stepper | Rule | None = None,
    grid: Grid | str | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    greedy_end: bool = False,
    renoise_known: bool = False,
    condition: Condition | None = None,
    guidance: float = 1.0,
    guide: Guide | None = None,
    watch: Callable[[Frame], object] | None = None,
    group: ProcessGroup = SINGLE,
) -> Generation:
    """Draw n sequences; where `known`, they are `tokens`, and the rest is written around them.

    With a `condition` they are written for it, the more so the larger `guidance` (1: as the model has learnt it); with
    a `guide` (sampling/guidance.py), for what a classifier of noisy states asks for.

    Without `sampler` it is the one that belongs to the model's system; it may be a name (`logosphere samplers`), and
    `rng` a seed. `stepper`, `grid` (or its name) and `cached` make a sampler of your own. `greedy_end` takes the
    likeliest tokens in the last step, `watch` is called with every frame. The processes of a `team` share out the
    sequences and all get them: what a sequence is depends on the seed and its number alone.
    """
    network = model.denoiser if denoiser is None else denoiser
    if network is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    sampler = _chosen(model, sampler, stepper)
    cached = cached or sampler.cached
    move = as_stepper(sampler.stepper).session()
    filtered = (temperature, top_p, top_k, min_p) != (1, 1, None, 0)
    _check_move(move, network, filtered)
    if filtered and not filters(model.process):
        raise UserError("This model predicts states and not tokens: it has no temperature, top-k, top-p or min-p.")
    if guide is not None:
        guide.check(model.process, n)
    if greedy_end and guidance != 1 and guides_transitions(model.process):
        raise UserError("A greedy end looks at predictions, but this model is guided in its steps: leave one out.")
    rng = as_generator(0 if rng is None else rng, model.device)
    seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
    share, counter = group.local_slice(n), NFECounter()
    given = _given(model, n, known, tokens).select(share)
    condition = None if condition is None else condition.map(lambda field: field[share].to(model.device))
    guide = None if guide is None or not guide.strength else guide.part(share).counted(counter)
    grid = find_grid(grid) or find_grid(sampler.grid) or partial(move.grid, model.process)
    plan = model_plan(model, move.steps(model.length, steps), grid, sampler.blocks)
    started = time.perf_counter()
    with _evaluating(model, network):
        # Two memories would confuse each other: what is cached, or asked about in part, has no session.
        told, untold = _asked(network, condition, guidance, counter, session=not (cached or move.adaptive))
        predict, move = Guides(guidance, untold, temperature, guide).applied(model.process, told, move)
        move = GreedyEnd(move) if greedy_end else move
        predict = ActiveRows(predict) if move.adaptive else predict
        predict = LogitsFilter(predict, temperature, top_p, top_k, min_p) if filtered else predict
        predict = CachedDenoiser(predict) if cached else predict
        drawn, noise = given.tokens, CounterNoise(seed, 0, given.ids, given.global_index, n)
        if len(given):  # of many processes some may have nothing to write
            for frame in walk(
                model.process, predict, plan, given, noise, move,
                renoise_known=renoise_known, watched=watch is not None,
            ):  # fmt: skip
                if watch is not None:
                    watch(frame)
            drawn = model.process.codec.decode(frame.z)
    (asked,) = group.all_reduce(counter.sequences + move.asked)
    return Generation(group.all_gather(drawn, n), asked / n, time.perf_counter() - started)


def sample(
    model: Model,
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | int | None = None,
    denoiser: Denoiser | None = None,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
    *,
    sampler: Sampler | str | None = None,
    stepper: Stepper | Rule | None = None,
    grid: Grid | str | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    condition: Condition | None = None,
    guidance: float = 1.0,
    guide: Guide | None = None,
) -> Tokens:
    """The tokens of `generate`, [n, L]."""
    drawn = generate(
        model, n, steps, rng, denoiser, known, tokens, sampler=sampler, stepper=stepper, grid=grid, cached=cached,
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, condition=condition, guidance=guidance,
        guide=guide,
    )  # fmt: skip
    return drawn.tokens


def _chosen(model: Model, sampler: Sampler | str | None, stepper: Stepper | Rule | None) -> Sampler:
    """The sampler that was asked for, or the one of the model's system."""
    if sampler is None:
        return sampler_of(model) if stepper is None else Sampler(stepper)
    if stepper is not None:
        raise UserError("Pass either sampler=… or stepper=…, not both.")
    return sampler_by_name(sampler, model) if isinstance(sampler, str) else sampler


def filters(process: Process) -> bool:
    """Are there probabilities of tokens that a temperature, top-k, top-p or min-p could change?"""
    return process.predicts_tokens


def _check_move(move: Stepper, network: Denoiser, filtered: bool) -> None:
    if move.time_free and network.reads_time:
        raise UserError("This sampler needs a model that does not read the time; use the ancestral sampler.")
    if move.unfiltered and filtered:
        raise UserError("This sampler judges tokens by the model's own probabilities; use it without filters.")


@contextmanager
def _evaluating(*modules: nn.Module) -> Iterator[None]:
    """Modules as they are for evaluation, and afterwards as they were, each part by itself."""
    before = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training


def _asked(
    network: Denoiser, condition: Condition | None, guidance: float, counter: NFECounter, *, session: bool
) -> tuple[Denoiser, Denoiser | None]:
    """The denoiser of a run, told its condition and counted; and, to be guided by, the one without it."""

    def counted(denoiser: Denoiser) -> Denoiser:
        return CountedDenoiser(denoiser.begin_sampling() if session else denoiser, counter)

    if condition is None:
        if guidance != 1:
            raise UserError("Guidance needs a condition to guide by; pass condition=… or leave guidance at 1.")
        return counted(network), None
    told = network.with_condition(condition)
    if guidance == 1:
        return counted(told), None
    check_guidable(network)
    without = network.with_condition(condition.drop(torch.ones_like(condition.given)))
    return counted(told), counted(without)


def model_plan(model: Model, steps: int, grid: Grid | None = None, blocks: int = 1) -> Plan:
    """`steps` shared out over the blocks of a model or sampler, and no more than its process can use."""
    if steps < 1:
        raise UserError(f"Sampling needs at least 1 step, not {steps}.")
    check_block(model.length, model.length // blocks)
    block = min(model.block, model.length // blocks)
    if model.block % block:
        raise UserError(
            f"This model writes blocks of {model.block} positions, which parts of {block} would cut across; use a "
            "sampler without parts, such as confidence."
        )
    per_block = max(1, steps * block // model.length)
    if model.process.max_steps is not None:
        per_block = min(per_block, model.process.max_steps)
    return Plan.blocks(model.length, block, per_block, grid or model.process.grid)


def _given(model: Model, n: int, known: Tensor | None, tokens: Tensor | None) -> Batch:
    """What stands fixed in n sequences."""
    if n < 1:
        raise UserError(f"The number of samples must be at least 1, not {n}.")
    shape, device = (n, model.length), model.device
    if known is None or tokens is None:
        if known is not None or tokens is not None:
            raise UserError("To hold positions fixed pass both known=… (where) and tokens=… (what).")
        return Batch.of(torch.zeros(shape, dtype=torch.long, device=device))
    if known.shape[-1] != model.length or tokens.shape[-1] != model.length:
        raise UserError(f"known and tokens must have the model's length of {model.length} positions.")
    known, tokens = known.to(device).expand(shape), tokens.to(device).expand(shape)
    model.check_known(known)
    if bool(((tokens < 0) | (tokens >= model.vocab_size))[known].any()):
        raise UserError(f"Known tokens must be numbers from 0 to {model.vocab_size - 1}.")
    return Batch.of(torch.where(known, tokens, 0), known)
