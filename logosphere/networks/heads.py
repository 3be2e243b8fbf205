"""Output heads: the linear layer of every network, and wrappers that turn raw outputs into logits or score ratios."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.base import Denoiser, Wrapper
from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.processes.discrete.parameterization import Score
from logosphere.shapes import Float
from logosphere.types import Logits, Parts, Positions, State, Times


class LinearHead(nn.Linear):
    """Maps features to logits in float32; its weights start at zero, which is a uniform prediction."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__(width, vocab_size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        with torch.autocast(h.device.type, enabled=False):
            return super().forward(h.float())


class LogisticHead(Wrapper):
    """AnyOrder two outputs per position into a discretised logistic distribution over ordered tokens (D3PM, app. A.8).

        logit_k = log [σ((v_k + ½h - μ)/s) - σ((v_k - ½h - μ)/s)],   v from -1 to 1 in steps of h = 2/(V - 1)

    μ = tanh(input value + first output), between the smallest and the largest value; s = exp(second output - 2).
    """

    values: Tensor

    def __init__(self, inner: Denoiser, vocab_size: int):
        super().__init__(inner)
        self.register_buffer("values", torch.linspace(-1, 1, vocab_size), persistent=False)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        inputs = self.values[z if where is None else z[where]]
        return self._logits(self.inner(z, t, context, where), inputs)

    def _logits(self, outputs: Float[Tensor, "... 2"], inputs: Float[Tensor, "..."]) -> Logits:
        mean = (inputs + outputs[..., 0]).tanh()[..., None]
        scale = (outputs[..., 1] - 2).clamp(-7, 4).exp()[..., None]
        half = 1 / (len(self.values) - 1)
        low, high = ((self.values + side - mean) / scale for side in (-half, half))
        # log(σ(b) - σ(a)) = log σ(b) + log σ(-a) + log(1 - e^{a - b}), which is accurate in both tails.
        inside = torch.log(-torch.expm1((low - high).clamp_max(-1e-6)))
        return F.logsigmoid(high) + F.logsigmoid(-low) + inside

    def rewrap(self, inner: Denoiser) -> Denoiser:
        made = LogisticHead(inner, len(self.values))
        made.values = self.values  # keeps the device and the precision
        return made


class ScoreHead(Wrapper):
    """Scales raw outputs to log ratios log p_t(k)/p_t(z), as the `Score` parameterisation takes them (SEDD)."""

    def __init__(self, inner: Denoiser, mixing: MixingDistribution, scores: Score):
        super().__init__(inner)
        self.mixing, self.scores = mixing, scores

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where)
        if where is not None:
            z, t = z[where], t[where]
        return self.scores.scale_scores(self.mixing, out, z, t)

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        inner, z, t = self.inner.parts(z, t, context, where), z[where], t[where]
        return lambda rows: self.scores.scale_scores(self.mixing, inner(rows), z[rows], t[rows])

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return ScoreHead(inner, self.mixing, self.scores)
