"""Self-conditioning (Chen et al. 2022, Bit Diffusion): the network has its last estimate as further input.

It serves every continuous process. The network is shown an estimate of the clean state, computed from its prediction.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.networks.base import CachePlan, Denoiser, Wrapper
from logosphere.processes.base import Process
from logosphere.processes.bound import bound
from logosphere.processes.capabilities import LearnedCodec
from logosphere.rng import Noise
from logosphere.types import Batch, Bound, Float, Logits, State, Times, Where

StateEstimator = Callable[[Tensor, State, Times], Tensor]
"""(prediction of the network, its input, times) -> estimate for the next evaluation, [B, M, width]."""


def token_probabilities(out: Logits, z: State, t: Times) -> Tensor:
    """Return p(token), with the scale of a belief."""
    return out.softmax(-1) * out.shape[-1] ** 0.5


def posterior_belief(out: Logits, seen: State, t: Times) -> Tensor:
    """Return p(token) for logits from the context and the belief `seen` of the position's own state, scaled like it."""
    return out.shape[-1] ** 0.5 * (out + seen.clamp_min(1e-30).log()).softmax(-1)


class SelfConditioning(Wrapper):
    """Concatenates the first `reads` coordinates of a state and an estimate of `width` more, zeros at first.

    A learned vector `null` may replace the zeros (LD4LG).

    Training shows an estimate with some probability, to whole batches; the choice is drawn from torch's generator, as
    dropout is, which training seeds by the seed and the step. With `every` = n it is every n-th sequence of a batch
    instead (Plaid, CDCD), see `bound_by_group`.

    A bound belongs to a model that depends on the state alone, so outside of sampling the network is always evaluated
    twice at the same state and time: first without an estimate, then with the estimate of the first evaluation.
    In sampling the estimate is that of the step before, so that a step costs one evaluation.
    """

    def __init__(
        self,
        inner: Denoiser,
        reads: int,
        width: int,
        estimate: StateEstimator = token_probabilities,
        probability: float = 0.5,
        every: int = 0,
        null: nn.Parameter | None = None,
    ):
        super().__init__(inner)
        if not 0 < probability <= 1:
            raise UserError(f"The probability of self-conditioning must be above 0 and at most 1, not {probability}.")
        self.reads, self.width, self.estimate, self.probability = reads, width, estimate, probability
        self.null = null
        self.every = every
        self.forced: bool | None = None
        """Whether an estimate is shown; None to draw it in training, and to show one in evaluation."""

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        estimate = None
        shows_estimate = self.forced if self.forced is not None else not self.training or self._draw()
        if shows_estimate:
            with torch.no_grad():
                estimate = self.estimate(self.predict(z, t, context, None, None), z, t)
        return self.predict(z, t, context, where, estimate)

    def _draw(self) -> bool:
        return bool(torch.rand(()) < self.probability)

    def predict(self, z: State, t: Times, context: State, where: Where, estimate: Tensor | None) -> Logits:
        """Return the network's prediction, given an estimate."""
        state = z[..., : self.reads]
        if estimate is None:
            estimate = state.new_zeros(self.width) if self.null is None else self.null
        estimate = estimate.to(state.dtype).expand(*state.shape[:-1], self.width)
        return self.inner(torch.cat([state, estimate], -1), t, context, where)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return self._copy(inner, self.forced)

    def self_conditioning_period(self) -> int:
        return self.every

    def with_self_conditioning(self, on: bool) -> Denoiser:
        return self._copy(self.inner, on).train(self.training)

    def _copy(self, inner: Denoiser, forced: bool | None) -> "SelfConditioning":
        copy = SelfConditioning(inner, self.reads, self.width, self.estimate, self.probability, self.every, self.null)
        copy.forced = forced
        return copy

    def begin_sampling(self) -> Denoiser:
        return SelfConditioningSession(self)

    def with_cache(self, plan: CachePlan) -> Denoiser:
        raise UserError("A self-conditioned network has no cache of keys and values; leave out cache.")


class SelfConditioningSession(Denoiser):
    """A self-conditioned network in one run of a sampler; it keeps the estimate of the last step."""

    def __init__(self, model: SelfConditioning):
        super().__init__()
        self.model, self.block, self.reads_time = model, model.block, True  # even if the network itself does not
        self.last: Tensor | None = None

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.model.predict(z, t, context, None, self.last)
        self.last = self.model.estimate(out, z, t).detach()  # or the graphs of all steps would be kept
        return out if where is None else out[where]


def bound_by_group(
    process: Process, denoiser: Denoiser, batch: Batch, w: Float[Tensor, "B J"], noise: Noise, every: int
) -> Bound:
    """Return one draw of the bound, in which every n-th sequence of the global batch is self-conditioned.

    The two groups are two bounds: their numbers of evaluations differ, and in Plaid the parameters that they train
    (Gulrajani and Hashimoto 2023: self-conditioned sequences give no gradient to the embeddings and the schedule).

    The offset is drawn from torch's generator, which training seeds by the seed and the step, so that all parts of a
    batch and all processes agree on it. They also agree on the number of evaluations, so empty groups are evaluated.
    """
    offset = int(torch.randint(every, ()))
    conditioned = batch.global_index % every == offset
    both = conditioned.byte().argsort(stable=True)
    others, chosen = both.split([(rest := len(both) - int(conditioned.sum())), len(both) - rest])
    bounds = []
    for rows, on in ((others, False), (chosen, True)):
        part = denoiser.select_rows(rows).with_self_conditioning(on)
        with _without_gradient(process.held_parameters() if on and isinstance(process, LearnedCodec) else []):
            bounds.append(bound(process, part, batch.select(rows), w[rows], noise.select(rows)))
    order = both.argsort()
    first, second = bounds
    return Bound(
        recon=torch.cat([first.recon, second.recon])[order],
        diffusion=torch.cat([first.diffusion, second.diffusion])[order],
        prior=torch.cat([first.prior, second.prior])[order],
        loss=torch.cat([first.loss, second.loss])[order],
        count=torch.cat([first.count, second.count])[order],
        kind=first.kind,
    )


@contextmanager
def _without_gradient(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Exclude parameters from the gradient of what is computed inside."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad in zip(parameters, before, strict=True):
            parameter.requires_grad_(requires_grad)
