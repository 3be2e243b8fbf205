"""The one sampling loop.

z₁ ~ prior;   z_s ~ step(denoiser(z_t, t), t → s) along a plan;   x = decode(z₀)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from logosphere.codecs.base import HIDDEN
from logosphere.processes.base import Process
from logosphere.rng import Noise
from logosphere.sampling.plan import Plan
from logosphere.sampling.steppers import Rule, Stepper, ancestral, as_stepper
from logosphere.types import Batch, Float, Int64, Logits, Positions, Predict, State, Times, Tokens


@dataclass(frozen=True)
class Frame:
    """Where a walk stands: what can be shown while text condenses."""

    step: int
    steps: int
    t: Float[Tensor, "B M"]
    z: State
    tokens: Tokens
    """Tokens spelt so far; codecs.base.HIDDEN where there is none yet."""
    sure: Float[Tensor, "B M"] | None = None
    """The largest probability of a token when the network last looked at each state: 1 where a state is known, 0 where
    it has not looked yet. None where nobody watches, and where networks do not answer with tokens."""
    likeliest: Int64[Tensor, "B M"] | None = None
    """That token, or HIDDEN where the network has not looked; None where `sure` is."""


def _tells_tokens(process: Process) -> bool:
    return process.predicts_tokens


def walk(
    process: Process,
    predict: Predict,
    plan: Plan,
    given: Batch,
    noise: Noise,
    stepper: Stepper | Rule = ancestral,
    *,
    renoise_known: bool = False,
    watched: bool = False,
) -> Iterator[Frame]:
    """Yield the states along the plan; the last frame is clean.

    Known positions have t = 0 throughout. With `renoise_known` they are shown as noisy as the rest instead, for
    networks that have never met a clean position beside noisy ones. Frames say how sure the network was if `watched`.
    """
    codec = process.codec
    u = codec.encode(given.tokens)
    free = codec.expand_to_states(given.free)
    shape = (*free.shape, *[1] * (u.dim() - 2))
    z = torch.where(free.view(shape), process.prior(len(free), free.shape[1], noise), u)
    stepper = as_stepper(stepper)
    stepper.check(process)
    rows = stepper.position_times(process, codec.expand_to_states(plan.times.to(free.device)), free, noise)
    sure = (~free).float() if watched else None
    likeliest = torch.full_like(free, HIDDEN, dtype=torch.long) if watched else None
    for step, (t_row, s_row) in enumerate(pairwise(rows), start=1):
        now = noise.for_step(step)

        def ask(
            z: State,
            t: Times,
            where: Positions,
            of: Predict | None = None,
            row: Float[Tensor, "#B M"] = t_row,
            now: Noise = now,
        ) -> Logits:
            nonlocal sure, likeliest
            seen, seen_t = z, t
            if renoise_known:
                seen_t = torch.where(free, t, row)
                seen = torch.where(free.view(shape), z, process.corrupt(u, seen_t, now))
            with torch.no_grad():
                out = (predict if of is None else of)(seen, seen_t, context=z, where=where)
            if sure is not None and likeliest is not None and of is None:
                share, token = out.float().softmax(-1).max(-1)
                tells = out.shape[-1] == codec.num_classes and _tells_tokens(process)
                sure = sure.masked_scatter(where, share) if tells else None
                likeliest = likeliest.masked_scatter(where, token) if tells else None
            return out

        t, s = torch.where(free, t_row, 0.0), torch.where(free, s_row, 0.0)
        z = stepper(process, ask, z, t, s, now)
        yield Frame(step, len(rows) - 1, s, z, codec.decode_partial(z), sure, likeliest)
