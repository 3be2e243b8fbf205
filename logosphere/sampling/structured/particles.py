"""Sequential Monte Carlo for sampling under a constraint: weighted particles, of which unlikely ones are replaced.

Predictions of positions that depend on each other are independent, so the restricted product q(x | z_t) looks ahead
with an error. A step of the model from z_t to z_s by way of q instead of p has the importance weight

    w = Z(z_t) / Z(z_s; z_t),      Z(z_t) = Σ_x Π_l p_l(x_l | z_t) [x ∈ language]

where Z(z_s; z_t) is the same sum for the predictions at z_t given z_s, that is p_l(x | z_t) q(z_s | x)/q(z_t | x),
normalised: Bayes' rule for a Markov path. At the end Z(x) = 1, so the product of all weights makes K particles, of
which one is kept, samples of the model given the language as K → ∞ (Del Moral et al. 2006; twisted proposals as in Wu
et al. 2023). The factors after the first are Z at new predictions over Z at the old ones with the new tokens: 1 for
independent tokens, where particles change nothing.
"""

import torch
from torch import Tensor

from logosphere.processes.base import MAX_LOGIT, Process
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Evaluate, StepperWrapper
from logosphere.sampling.structured.stepper import ConstrainedEvaluate, ConstrainedStepper
from logosphere.types import Float, Int64, State, Times


class ParticleStepper(StepperWrapper):
    """Constrained steps of groups of `count` particles, the rows of a batch one group after another."""

    def __init__(self, inner: ConstrainedStepper, count: int):
        self.inner: ConstrainedStepper = inner
        self.count = count
        self.time_free = inner.time_free
        self.log_weight: Float[Tensor, "n K"] | None = None
        self.expected: Float[Tensor, " B"] | None = None
        """log Z(z_s; z_t) of the last step."""

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        moved = self.inner(process, evaluate, z, t, s, noise)
        last = self.inner.last
        if last is None or last.text is None:
            return moved
        log_z = last.text.product.log_z
        gain = log_z if self.expected is None else log_z - self.expected
        gain = gain.view(-1, self.count)
        self.log_weight = gain if self.log_weight is None else self.log_weight + gain
        self.expected = self._expect(process, last, z, moved, t, s)
        rows = self._resample(noise)
        if rows is None:
            return moved
        self.expected, self.log_weight = self.expected[rows], torch.zeros_like(self.log_weight)
        self.inner.run.select(rows)
        return moved[rows]

    def _expect(
        self, process: Process, last: ConstrainedEvaluate, z: State, moved: State, t: Times, s: Times
    ) -> Float[Tensor, " B"]:
        """log Z of the last predictions, given the states after the step."""
        assert last.predicted is not None and last.log_p is not None
        where, log_p, tokens = (
            last.predicted,
            last.log_p,
            process.codec.decode(moved).clamp(0, process.codec.vocab_size - 1),
        )
        context = log_p - process.log_likelihood(z[where], t[where])
        found = (context + process.log_likelihood(moved[where], s[where])).log_softmax(-1)
        known = torch.full_like(log_p, -MAX_LOGIT).scatter(-1, tokens[where][:, None], 0.0)
        found = torch.where((s[where] == 0)[:, None], known, found)
        uncertain = process.needs_prediction(z, t > 0)
        return self.inner.run.restrict(found, where, ~(where | uncertain), tokens).product.log_z

    def _resample(self, noise: Noise) -> Int64[Tensor, " B"] | None:
        """The rows that continue, where the weights of a group are too unequal; None if no group's are.

        Systematic resampling below an effective sample size of half of the particles.
        """
        assert self.log_weight is not None
        p = self.log_weight.softmax(1)
        own = torch.arange(p.numel(), device=p.device).view_as(p)
        poor = 1 / p.square().sum(1) < self.count / 2
        if not bool(poor.any()):
            return None
        # Groups that are not poor are resampled as well: weights are then 1 everywhere.
        u = noise.uniform(p.numel(), 1).to(p.device).view_as(p)[:, :1]
        points = (u + torch.arange(self.count, device=p.device)) / self.count
        chosen = torch.searchsorted(p.cumsum(1).contiguous(), points).clamp_max(self.count - 1)
        return (own[:, :1] + chosen).flatten()


def choose_particles(log_weight: Float[Tensor, "n K"], noise: Noise) -> Int64[Tensor, " n"]:
    """One row of each group by its weight."""
    u = noise.uniform(log_weight.numel(), 1).to(log_weight.device).view_as(log_weight)[:, 0]
    first = torch.arange(len(log_weight), device=log_weight.device) * log_weight.shape[1]
    return first + categorical(log_weight, u)
