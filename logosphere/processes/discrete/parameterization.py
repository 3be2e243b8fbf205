"""Output parameterisations: what the outputs of a network stand for.

`Posterior` takes them as logits of p(x | z). `Score` takes them as log ratios log p_t(k)/p_t(z), one for each token,
which need not belong to any distribution over tokens. Both define the model's backward rate from z to k,
r_t(z) p_t(k)/p_t(z), which the bound compares with the true one.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.types import Float, Logits, State

Times = Float[Tensor, "..."]
MAX_LOG_ODDS = 60.0
"""Log odds are clamped to this: e^60 stands for infinity and stays finite."""


class OutputParameterization(ABC):
    """Converts network outputs into what the bound and the steps need."""

    normalised: bool
    """Whether the softmax of the outputs is p(x | z)."""

    @abstractmethod
    def context_probs(self, mixing: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        """x̂: the prediction from the other positions alone, ∝ p(x | z) / q(z | x) at this position."""

    @abstractmethod
    def log_ratio_error(
        self, mixing: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        """δ_k = log of the model's ratio p_t(k)/p_t(z) over the true one, for every token k, and for the mask."""

    @abstractmethod
    def unmask_nll(self, mixing: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        """The divergence at a mask, in nats per unit of the true unmasking rate."""

    @abstractmethod
    def from_posterior(self, mixing: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        """Normalised posterior logits as outputs of this parameterisation."""


class Posterior(OutputParameterization):
    """Outputs are logits of p(x | z); Bayes' rule gives x̂ ∝ p(x | z) / q(z | x)."""

    normalised = True

    def context_probs(self, mixing: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        own = z.clamp_max(mixing.vocab_size - 1)[..., None]
        return out.scatter_add(-1, own, -mixing.self_log_odds(z, t).to(out.dtype)[..., None]).softmax(-1)

    def log_ratio_error(
        self, mixing: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        odds = mixing.odds(t).to(out.dtype)[..., None]
        ratio = (odds * self.context_probs(mixing, out, z, t)).log1p()  # log q(k | x̂) - log u
        ratio = ratio.scatter_add(-1, x[..., None], -odds.log1p())  # … - log q(k | x) + log u
        at_z = ratio.gather(-1, z.clamp_max(mixing.vocab_size - 1)[..., None])
        at_z = torch.where(mixing.is_mask(z)[..., None], 0.0, at_z)
        return ratio - at_z, -at_z[..., 0]

    def unmask_nll(self, mixing: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        return cross_entropy(out, x)

    def from_posterior(self, mixing: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        return posterior


class Score(OutputParameterization):
    """Outputs are log p_t(k)/p_t(z) for every token k ≠ z (Lou et al. 2024, SEDD); the entry of z itself is ignored.

    For mixing distributions with either masks or random tokens, not both.
    """

    normalised = False

    def context_probs(self, mixing: MixingDistribution, out: Logits, z: State, t: Times) -> Float[Tensor, "... V"]:
        """p_t ∝ ratios is a_t x̂ + u_t, solved for x̂; negative entries of an inexact network count as 0."""
        if not mixing.has_uniform:
            return out.softmax(-1)
        t = t[..., None]
        excess = out.scatter(-1, z[..., None], 0.0).softmax(-1) - mixing.uniform_mass(t).to(out.dtype)
        positive = excess.clamp_min(torch.finfo(out.dtype).tiny)
        return positive / positive.sum(-1, keepdim=True)

    def log_ratio_error(
        self, mixing: MixingDistribution, out: Logits, x: State, z: State, t: Times
    ) -> tuple[Logits, Float[Tensor, "..."]]:
        log_odds = mixing.odds(t).to(out.dtype).log1p()
        delta = out.scatter_add(-1, x[..., None], -log_odds[..., None]) + torch.where(z == x, log_odds, 0.0)[..., None]
        return delta.scatter(-1, z[..., None], 0.0), torch.zeros_like(log_odds)

    def unmask_nll(self, mixing: MixingDistribution, out: Logits, x: State, t: Times) -> Float[Tensor, "..."]:
        """Score entropy at a mask: M - 1 - log(M p_x), with M = Σ_k of the ratios over their true sum."""
        excess = torch.logsumexp(out, -1) - _log_odds(mixing, t)
        return cross_entropy(out, x) + (excess.expm1() - excess)

    def from_posterior(self, mixing: MixingDistribution, posterior: Logits, z: State, t: Times) -> Logits:
        if not mixing.has_uniform:
            return posterior + torch.where(mixing.is_mask(z), _log_odds(mixing, t), 0.0).to(posterior.dtype)[..., None]
        context = Posterior().context_probs(mixing, posterior, z, t)
        ratio = (mixing.odds(t).to(context.dtype)[..., None] * context).log1p()
        return ratio - ratio.gather(-1, z[..., None])

    def scale_scores(self, mixing: MixingDistribution, out: Logits, z: State, t: Times) -> Logits:
        """Raw outputs of a network as log ratios.

        At a mask the ratios are x̂ a_t/(1 - a_t), so outputs are multiplied by this factor over V: M = 1 at
        initialisation (SEDD's scaling by σ). At random tokens outputs stay as they are.
        """
        if mixing.has_uniform:
            return out
        return self.from_posterior(mixing, out - torch.log(torch.tensor(float(mixing.vocab_size))), z, t)


def _log_odds(mixing: MixingDistribution, t: Times) -> Float[Tensor, "..."]:
    """log a_t/(1 - a_t), the true sum of ratios at a mask."""
    return (mixing.signal(t).log() - mixing.mask_mass(t).log()).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)


def cross_entropy(out: Logits, x: State) -> Float[Tensor, "..."]:
    """-log p(x) of a distribution given by logits."""
    return F.cross_entropy(out.flatten(0, -2), x.flatten(), reduction="none").view_as(x)
