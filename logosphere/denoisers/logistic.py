"""A head for ordered tokens: a place and a width instead of one logit for each value."""

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.shapes import Float
from logosphere.types import Logits, Positions, State, Times


class Logistic(Wrapper):
    """Reads two numbers of a network as a discretised logistic law, truncated to the values (D3PM, appendix A.8).

        logit_k = log [σ((v_k + ½h - μ)/s) - σ((v_k - ½h - μ)/s)],   v from -1 to 1 in steps of h = 2/(V - 1)

    μ = tanh(value seen + first number), which lies between the smallest and the largest value; s = exp(second - 2).
    """

    values: Tensor

    def __init__(self, inner: Denoiser, vocab_size: int):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.register_buffer("values", torch.linspace(-1, 1, vocab_size), persistent=False)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        seen = self.values[z if where is None else z[where]]
        return self._logits(self.inner(z, t, context, where), seen)

    def _logits(self, numbers: Float[Tensor, "... 2"], seen: Float[Tensor, "..."]) -> Logits:
        center, width = (seen + numbers[..., 0]).tanh()[..., None], (numbers[..., 1] - 2).clamp(-7, 4).exp()[..., None]
        half = 1 / (len(self.values) - 1)
        low, high = ((self.values + side - center) / width for side in (-half, half))
        # log(σ(b) - σ(a)) = log σ(b) + log σ(-a) + log(1 - e^{a - b}), which keeps its digits in both tails.
        inside = torch.log(-torch.expm1((low - high).clamp_max(-1e-6)))
        return torch.nn.functional.logsigmoid(high) + torch.nn.functional.logsigmoid(-low) + inside

    def around(self, inner: Denoiser) -> Denoiser:
        made = Logistic(inner, len(self.values))
        made.values = self.values  # on the device of this one
        return made
