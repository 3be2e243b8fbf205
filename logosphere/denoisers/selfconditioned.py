"""Self-conditioning (Chen et al. 2022, Bit Diffusion): the network reads its own last prediction beside the state."""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.errors import UserError
from logosphere.types import Logits, Positions, State, Times

Estimate = Callable[[Tensor, State, Times], Tensor]
"""(answer, state, times) -> what the network is shown of its answer, on the scale of states."""


def beliefs(out: Logits, z: State, t: Times) -> Tensor:
    """Probabilities of tokens."""
    return out.softmax(-1).to(z.dtype) * out.shape[-1] ** 0.5


class SelfConditioned(Wrapper):
    """Shows a network, whose inputs are twice as wide, the first `choices` coordinates and its own prediction.

    Training shows the prediction in a `share` of the steps, and zeros in the others. A bound belongs to a model that
    depends on the state alone, so outside of sampling the network is always asked twice: first without, then with its
    first answer. A sampler remembers the answer of the step before instead, at no cost.
    """

    def __init__(self, inner: Denoiser, choices: int, estimate: Estimate = beliefs, share: float = 0.5):
        super().__init__()
        if not 0 <= share <= 1:
            raise UserError(f"The share of self-conditioned steps must lie between 0 and 1, not {share}.")
        self.inner, self.block, self.reads_time, self.choices = inner, inner.block, inner.reads_time, choices
        self.estimate, self.share = estimate, share

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        first = None
        if not self.training or bool(torch.rand(()) < self.share):
            with torch.no_grad():
                first = self.estimate(self.shown(z, t, context, None, None), z, t)
        return self.shown(z, t, context, where, first)

    def shown(self, z: State, t: Times, context: State, where: Positions | None, last: Tensor | None) -> Logits:
        """Ask the network, showing it a prediction."""
        seen = z[..., : self.choices]
        last = torch.zeros_like(seen) if last is None else last
        return self.inner(torch.cat([seen, last], -1), t, context, where)

    def around(self, inner: Denoiser) -> Denoiser:
        return SelfConditioned(inner, self.choices, self.estimate, self.share)

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
        self.last = self.model.estimate(out, z, t)
        return out if where is None else out[where]
