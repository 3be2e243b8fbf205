"""Heads: what the numbers a denoiser answers with mean.

A `Posterior` head reads them as logits of p(x | z), a law over tokens. A `Score` head reads them as log ratios
log p_t(k)/p_t(z), one free number for each token, which need not come from any law over tokens. Both end in the same
place: the backward rate from z to k is r_t(z) p_t(k)/p_t(z), and the bound compares it with the true one.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.types import Float, Logits, State

Times = Float[Tensor, "..."]
FAR = 60.0
"""Log odds beyond this are cut: e^60 is as good as infinite, and still a number."""


class Head(ABC):
    """A reading of the denoiser's answer."""

    @abstractmethod
    def context(self, law: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        """x̂: what the others say of this token, the posterior with its own evidence taken out again."""

    @abstractmethod
    def log_ratio_error(
        self, law: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        """δ_k = log of the model's ratio p_t(k)/p_t(z) over the true one, for every token k, and for the mask."""

    @abstractmethod
    def unmask_nll(self, law: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        """What lifting a mask costs, in nats for each unit of the true rate."""

    @abstractmethod
    def from_posterior(self, law: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        """Normalised posterior logits in the words of this head."""


class Posterior(Head):
    """The answer is p(x | z), as logits; one Bayes step back gives x̂ ∝ p(x | z) / q(z | x)."""

    def context(self, law: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        own = z.clamp_max(law.vocab_size - 1)[..., None]
        return out.scatter_add(-1, own, -law.gain(z, t).to(out.dtype)[..., None]).softmax(-1)

    def log_ratio_error(
        self, law: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        odds = law.odds(t).to(out.dtype)[..., None]
        ratio = (odds * self.context(law, out, z, t)).log1p()  # log q(k | x̂) - log u
        ratio = ratio.scatter_add(-1, x[..., None], -odds.log1p())  # … - log q(k | x) + log u
        here = ratio.gather(-1, z.clamp_max(law.vocab_size - 1)[..., None])
        here = torch.where(law.is_mask(z)[..., None], 0.0, here)
        return ratio - here, -here[..., 0]

    def unmask_nll(self, law: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        return cross_entropy(out, x)

    def from_posterior(self, law: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        return posterior


class Score(Head):
    """The answer is log p_t(k)/p_t(z) for every token k ≠ z (Lou et al. 2024, SEDD); the entry of z itself is not read.

    For laws that either mask or spread, not both.
    """

    def context(self, law: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        """p_t ∝ ratios is a_t x̂ + u_t, which is solved for x̂; what a wrong network makes negative counts as 0."""
        if not law.spreads:
            return out.softmax(-1)
        t = t[..., None]
        excess = out.scatter(-1, z[..., None], 0.0).softmax(-1) - law.token(t).to(out.dtype)
        positive = excess.clamp_min(torch.finfo(out.dtype).tiny)
        return positive / positive.sum(-1, keepdim=True)

    def log_ratio_error(
        self, law: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        gain = law.odds(t).to(out.dtype).log1p()
        delta = out.scatter_add(-1, x[..., None], -gain[..., None]) + torch.where(z == x, gain, 0.0)[..., None]
        return delta.scatter(-1, z[..., None], 0.0), torch.zeros_like(gain)

    def unmask_nll(self, law: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        """Score entropy at a mask: M - 1 - log(M p_x), with M = Σ_k of the ratios over their true sum."""
        excess = torch.logsumexp(out, -1) - _log_odds(law, t)
        return cross_entropy(out, x) + (excess.expm1() - excess)

    def from_posterior(self, law: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        if not law.spreads:
            return posterior + torch.where(law.is_mask(z), _log_odds(law, t), 0.0).to(posterior.dtype)[..., None]
        context = Posterior().context(law, posterior, z, t)
        ratio = (law.odds(t).to(context.dtype)[..., None] * context).log1p()
        return ratio - ratio.gather(-1, z[..., None])

    def rated(self, law: MixingDistribution, out: Logits, z: State, t: Times) -> Logits:
        """The raw numbers of a network as log ratios.

        At a mask the ratios are x̂ a_t/(1 - a_t), so that factor is put in, together with 1/V: a new network then
        begins where M = 1 (SEDD's scaling by σ). Where z is a random token the numbers are left as they are.
        """
        if law.spreads:
            return out
        return self.from_posterior(law, out - torch.log(torch.tensor(float(law.vocab_size))), z, t)


def _log_odds(law: MixingDistribution, t: Times) -> Float[Tensor, "..."]:
    """log a_t/(1 - a_t), the true sum of ratios at a mask."""
    return (law.signal(t).log() - law.hidden(t).log()).clamp(-FAR, FAR)


def cross_entropy(out: Logits, x: State) -> Float[Tensor, "..."]:
    """-log p(x) of a law given by logits."""
    return F.cross_entropy(out.flatten(0, -2), x.flatten(), reduction="none").view_as(x)
