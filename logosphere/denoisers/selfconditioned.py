"""Self-conditioning (Chen et al. 2022, Bit Diffusion): the network reads its own last estimate beside the state.

It serves every continuous process. What is shown is an `Estimate` of the clean state, made of what the network said.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.errors import UserError
from logosphere.types import Logits, Positions, State, Times

Estimate = Callable[[Tensor, State, Times], Tensor]
"""(what the network said, what it saw, times) -> what it is shown the next time, [B, M, width]."""


def likely_tokens(out: Logits, z: State, t: Times) -> Tensor:
    """p(token), scaled like a belief."""
    return out.softmax(-1) * out.shape[-1] ** 0.5


class SelfConditioned(Wrapper):
    """Shows a network the first `reads` coordinates of a state and an estimate of `width` more, or zeros at first.

    A learned vector `null` may stand in the place of the zeros (LD4LG).

    Training shows an estimate with some probability, whole batches at a time; the coin is drawn like dropout, from
    torch's generator, which training sets by the seed and the step. With `every` = n it is every n-th sequence of a
    batch instead (Plaid, CDCD), which denoisers.conditioned_rows takes apart from the others.

    A bound belongs to a model that depends on the state alone, so outside of sampling the network is always asked
    twice at the same state and time: first without, then with its first answer.
    A sampler remembers the answer of the step before instead, so that a step costs one evaluation.
    """

    def __init__(
        self,
        inner: Denoiser,
        reads: int,
        width: int,
        estimate: Estimate = likely_tokens,
        probability: float = 0.5,
        every: int = 0,
        null: nn.Parameter | None = None,
    ):
        super().__init__()
        if not 0 < probability <= 1:
            raise UserError(f"The probability of self-conditioning is above 0 and at most 1, not {probability}.")
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.reads, self.width, self.estimate, self.probability = reads, width, estimate, probability
        self.null = null
        self.every = every
        self.forced: bool | None = None
        """Whether training shows an estimate, where that is not left to chance."""

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        first = None
        chosen = self.forced if self.forced is not None else not self.training or self._chance()
        if chosen:
            with torch.no_grad():
                first = self.estimate(self.shown(z, t, context, None, None), z, t)
        return self.shown(z, t, context, where, first)

    def _chance(self) -> bool:
        return bool(torch.rand(()) < self.probability)

    def shown(self, z: State, t: Times, context: State, where: Positions | None, last: Tensor | None) -> Logits:
        """Ask the network, showing it an estimate."""
        seen = z[..., : self.reads]
        if last is None:
            last = seen.new_zeros(self.width) if self.null is None else self.null
        last = last.to(seen.dtype).expand(*seen.shape[:-1], self.width)
        return self.inner(torch.cat([seen, last], -1), t, context, where)

    def around(self, inner: Denoiser) -> Denoiser:
        return self._forced(inner, self.forced)

    def conditioned_rows(self) -> int:
        return self.every

    def conditioning(self, on: bool) -> Denoiser:
        return self._forced(self.inner, on).train(self.training)

    def _forced(self, inner: Denoiser, forced: bool | None) -> "SelfConditioned":
        again = SelfConditioned(inner, self.reads, self.width, self.estimate, self.probability, self.every, self.null)
        again.forced = forced
        return again

    def session(self) -> Denoiser:
        return Recalling(self)


class Recalling(Denoiser):
    """A self-conditioned network during one run of the sampler."""

    def __init__(self, model: SelfConditioned):
        super().__init__()
        self.model, self.block, self.reads_time = model, model.block, True  # even if the network itself does not
        self.last: Tensor | None = None

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.model.shown(z, t, context, None, self.last)
        self.last = self.model.estimate(out, z, t).detach()  # or every step would hold on to all before it
        return out if where is None else out[where]
