"""The one sampling loop.

z₁ ~ prior;   z_s ~ step(denoiser(z_t, t), t → s) along a plan;   x = decode(z₀)
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.wrappers import Counting, Remembering, Sharpened
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.noise import Drawn, Noise
from logosphere.processes.base import Process
from logosphere.sampling.plan import Grid, Plan
from logosphere.sampling.steppers import Stepper, ancestral, first_hitting
from logosphere.shapes import Bool, Float, Int64
from logosphere.types import Batch, Predict, State, Tokens


@dataclass(frozen=True)
class Frame:
    """Where a walk stands: what can be shown while text condenses."""

    step: int
    steps: int
    t: Float[Tensor, "B M"]
    z: State
    tokens: Tokens
    """Tokens spelt so far; codecs.base.HIDDEN where there is none yet."""


def walk(
    process: Process,
    predict: Predict,
    plan: Plan,
    given: Batch,
    noise: Noise,
    stepper: Stepper = ancestral,
    *,
    renoise_known: bool = False,
) -> Iterator[Frame]:
    """Yield the states along the plan; the last frame is clean.

    Known positions have t = 0 throughout. With `renoise_known` they are shown as noisy as the rest instead, for
    networks that have never met a clean position beside noisy ones.
    """
    codec = process.codec
    u = codec.encode(given.tokens)
    free = codec.spread(given.free)
    shape = (*free.shape, *[1] * (u.dim() - 2))
    z = torch.where(free.view(shape), process.prior(len(free), free.shape[1], noise), u)
    rows = process.clocks(codec.spread(plan.times.to(free.device)), free, noise)
    for step, (t_row, s_row) in enumerate(pairwise(rows), start=1):
        t, s = torch.where(free, t_row, 0.0), torch.where(free, s_row, 0.0)
        seen, seen_t = z, t
        if renoise_known:
            seen_t = t_row.expand_as(t)
            seen = torch.where(free.view(shape), z, process.corrupt(u, seen_t, noise))
        where = process.wanted(z, t > s)
        if where.any():
            with torch.no_grad():
                out = predict(seen, seen_t, context=z, where=where)
                z = stepper(process, out, z, t, s, where, noise)
        yield Frame(step, len(rows) - 1, s, z, codec.read(z))


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
    rng: torch.Generator | None = None,
    denoiser: Denoiser | None = None,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
    *,
    stepper: Stepper = ancestral,
    grid: Grid | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    renoise_known: bool = False,
    watch: Callable[[Frame], None] | None = None,
) -> Generation:
    """Draw n sequences; where `known`, they are `tokens`, and the rest is written around them.

    The times are those of `grid`, by default the process's own. `cached` keeps predictions while a sequence does not
    change, `watch` is called with every frame.
    """
    network = model.denoiser if denoiser is None else denoiser
    if network is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    if stepper is first_hitting and network.reads_time:
        raise UserError("First-hitting sampling needs a model that does not read the time; use the ancestral sampler.")
    device = model.device
    rng = torch.Generator(device).manual_seed(0) if rng is None else rng
    given = _given(model, n, known, tokens, device)
    counter = Counting(network if cached else network.session())  # two memories would confuse each other
    predict: Denoiser = counter
    if temperature != 1 or top_p != 1:
        predict = Sharpened(predict, temperature, top_p)
    if cached:
        predict = Remembering(predict)
    steps = model.length if stepper is first_hitting else steps
    plan = model_plan(model, steps, grid)
    was_training = model.training, network.training
    started = time.perf_counter()
    try:
        model.eval(), network.eval()
        for frame in walk(model.process, predict, plan, given, Drawn(rng, n), stepper, renoise_known=renoise_known):
            if watch is not None:
                watch(frame)
    finally:
        model.train(was_training[0]), network.train(was_training[1])
    drawn = model.process.codec.decode(frame.z)
    return Generation(drawn, counter.sequences / n, time.perf_counter() - started)


def sample(
    model: Model,
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | None = None,
    denoiser: Denoiser | None = None,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
    *,
    stepper: Stepper = ancestral,
    grid: Grid | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Tokens:
    """The tokens of `generate`, [n, L]."""
    drawn = generate(
        model, n, steps, rng, denoiser, known, tokens,
        stepper=stepper, grid=grid, cached=cached, temperature=temperature, top_p=top_p,
    )  # fmt: skip
    return drawn.tokens


def model_plan(model: Model, steps: int, grid: Grid | None = None) -> Plan:
    """`steps` shared out over the blocks of a model, and no more than its process can use."""
    if steps < 1:
        raise UserError(f"Sampling needs at least 1 step, not {steps}.")
    per_block = max(1, steps * model.block // model.length)
    if model.process.most_steps is not None:
        per_block = min(per_block, model.process.most_steps)
    return Plan.blocks(model.length, model.block, per_block, grid or model.process.grid)


def _given(model: Model, n: int, known: Tensor | None, tokens: Tensor | None, device: torch.device) -> Batch:
    if n < 1:
        raise UserError(f"The number of samples must be at least 1, not {n}.")
    shape = (n, model.length)
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
