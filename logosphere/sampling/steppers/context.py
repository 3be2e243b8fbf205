"""Guidance by context: what the other positions say about a token counts γ times.

A prediction is the product of what the other positions say and of what the state of the position itself says,

    p(x_i | z) ∝ c(x_i) q(z_i | x_i)

At the start states say nothing, and c is the distribution π of the token without its context. Guided samples use

    p'(x_i | z) ∝ [π(x_i) (c(x_i) / π(x_i))^γ]^(1/τ) q(z_i | x_i)

which is classifier-free guidance with the other positions as the condition. γ = τ = 1 is the model. A temperature τ
alone makes frequent tokens more frequent, since it sharpens π too; γ alone sharpens only what depends on the context,
and leaves independent tokens as they are.

π is the network's first prediction of each position, so guidance needs no further evaluations. With known positions, or
where blocks or staggered positions begin one after another, it already depends on what is known when the position
begins, and guidance acts on the rest.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import Evaluate, Requirement, Stepper, StepperWrapper, ancestral
from logosphere.sampling.steppers.manifold import SPHERE
from logosphere.sampling.steppers.unmasking import MASKED
from logosphere.types import Float, Logits, Positions, Predict, State, Times

GUIDABLE = Requirement(
    f"{MASKED.description}, or {SPHERE.description}",
    lambda process: MASKED.is_met(process) or SPHERE.is_met(process),
)
MIN_LOG_P = -100.0
"""Smaller log-probabilities count as this where they are subtracted."""


class ContextGuidance(StepperWrapper):
    """The steps of `inner` with guided predictions; `scale` is γ, and `temperature` is τ."""

    needs = GUIDABLE
    unfiltered = True

    def __init__(self, scale: float, temperature: float = 1.0, inner: Stepper = ancestral):
        if not 0 <= scale < float("inf"):
            raise UserError(f"The scale of guidance by context must be finite and at least 0, not {scale}.")
        if not 0 < temperature < float("inf"):
            raise UserError(f"The temperature must be finite and above 0, not {temperature}.")
        self.scale, self.temperature, self.inner = scale, temperature, inner
        self.time_free = inner.time_free
        self.base: Float[Tensor, "B M K"] | None = None
        """log π of each position, NaN where it has not been predicted yet."""

    def begin_sampling(self) -> Stepper:
        return ContextGuidance(self.scale, self.temperature, self.inner.begin_sampling())

    def with_constraint(self, constrain: Callable[[Stepper], Stepper]) -> Stepper:
        return ContextGuidance(self.scale, self.temperature, self.inner.with_constraint(constrain))

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        def evaluate_guided(z: State, t: Times, where: Positions, denoiser: Predict | None = None) -> Logits:
            out = evaluate(z, t, where, denoiser)
            return self._guide(process, out, z[where], t[where], where) if denoiser is None else out

        return self.inner(process, evaluate_guided, z, t, s, noise)

    def _guide(self, process: Process, out: Logits, z: State, t: Tensor, where: Positions) -> Logits:
        """The guided prediction, in the parameterisation of the network."""
        own = process.log_likelihood(z, t)
        context = (process.log_posterior(out, z, t) - own).log_softmax(-1)
        base = self._first_prediction(context, where)
        guided = (base + self.scale * (context - base.clamp_min(MIN_LOG_P))) / self.temperature
        guided = torch.where(context.isneginf() | base.isneginf(), -torch.inf, guided)  # tokens of probability 0
        return process.from_posterior((guided + own).log_softmax(-1), z, t)

    def _first_prediction(self, context: Float[Tensor, "N K"], where: Positions) -> Float[Tensor, "N K"]:
        """log π at the positions: their present prediction where it is the first one."""
        before = (
            torch.full((*where.shape, context.shape[-1]), torch.nan).to(context) if self.base is None else self.base
        )
        base = torch.where(before[where].isnan(), context, before[where])
        self.base = before.masked_scatter(where[..., None], base)
        return base
