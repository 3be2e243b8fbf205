"""Mixing distributions of discrete diffusion: what replaces a token.

    q(z_t | x) = a_t [z = x] + b_t(z)

Every b_t here is flat: u_t on each of the V tokens and m_t on the mask, so that all formulas cost O(V). Masked
diffusion has u = 0, uniform diffusion m = 0, GIDD both. The kernel between two times s < t is

    q(z_t | z_s) = (a_t/a_s) [z_t = z_s] + b_ts(z_t),   b_ts = b_t - (a_t/a_s) b_s

and in continuous time every state jumps to z at the rate r_t(z) = b'_t(z) - (a'_t/a_t) b_t(z), which
does not depend on the state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import MAX_LOGIT
from logosphere.schedules.signal import Polynomial, Schedule
from logosphere.types import Float, Int64

Number = Float[Tensor, "..."]
States = Int64[Tensor, "..."]


class MixingDistribution(ABC):
    """How the mass 1 - a_t is distributed over states, and the jump rates."""

    has_mask: bool
    """Whether there is a mask, the state V."""
    has_uniform: bool
    """Whether a token can be replaced by another token."""
    schedule: Schedule

    def __init__(self, vocab_size: int):
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        self.vocab_size = vocab_size

    @abstractmethod
    def uniform_mass(self, t: Number) -> Number:
        """u_t = b_t(k), the same for every token k."""

    @abstractmethod
    def mask_mass(self, t: Number) -> Number:
        """m_t = b_t(mask)."""

    @abstractmethod
    def uniform_rate(self, t: Number) -> Number:
        """r_t(k): jumps per unit time to each token."""

    @abstractmethod
    def mask_rate(self, t: Number) -> Number:
        """r_t(mask): jumps per unit time to the mask."""

    def signal(self, t: Number) -> Number:
        """a_t."""
        return self.schedule.signal(t)

    def is_mask(self, z: States) -> Tensor:
        """Which states are the mask."""
        return z == self.vocab_size

    def odds(self, t: Number) -> Number:
        """ρ_t = a_t / u_t, so that q(z_t = k | x̂) ∝ 1 + ρ x̂_k for tokens k."""
        return self.signal(t) / self.uniform_mass(t)

    def self_log_odds(self, z: States, t: Number) -> Number:
        """log q(z | x = z) - log q(z | x ≠ z), the evidence of a state for its own token: 0 at masks."""
        return torch.where(self.is_mask(z), 0.0, self.odds(t).log1p().clamp_max(MAX_LOGIT))

    def elbo_weight(self, x: States, z: States, t: Number) -> Number:
        """r_t(z) / q(z_t | x), the weight of the divergence of the marginals (von Rütte et al. 2025, GIDD eq. 9)."""
        probability = torch.where(
            self.is_mask(z), self.mask_mass(t), self.uniform_mass(t) + torch.where(z == x, self.signal(t), 0.0)
        )
        rate = torch.where(self.is_mask(z), self.mask_rate(t), self.uniform_rate(t))
        return torch.where(self.signal(t) > 0, rate / probability, 0.0)

    def marginal(self, x: Float[Tensor, "... V"], t: Number) -> Float[Tensor, "... K"]:
        """q(z_t | x) over all states, for x one-hot or a distribution over tokens (or over states with the mask)."""
        t = t[..., None]
        masses = [self.uniform_mass(t).expand(*t.shape[:-1], self.vocab_size), *[self.mask_mass(t)] * self.has_mask]
        level = torch.cat(masses, -1)
        x = F.pad(x, (0, level.shape[-1] - x.shape[-1]))
        return self.signal(t).to(x.dtype) * x + level.to(x.dtype)

    def transition(self, z: States, t: Number, s: Number) -> tuple[Number, Number]:
        """a_t/a_s and b_ts(z): the probabilities of no jump, and of a jump to z, between s and t."""
        t, s = t.double(), s.double()  # b_ts is a small difference
        stayed = self.signal(t) / self.signal(s)
        late = torch.where(self.is_mask(z), self.mask_mass(t), self.uniform_mass(t))
        early = torch.where(self.is_mask(z), self.mask_mass(s), self.uniform_mass(s))
        return stayed, (late - stayed * early).clamp_min(0)

    def initial_recon(self) -> float:
        """The reconstruction term at t = 0 of a schedule that begins with noise, in nats per token.

        E_q[-log p(x | z_0)] with p the posterior under equally likely tokens: (1 - a_0) log V for masks (Shi et al.
        2024, MD4), the entropy of q(z_0 | x) for random tokens; 0 where a_0 = 1.
        """
        lost, V = self.schedule.start, self.vocab_size
        if lost == 0:
            return 0.0
        if not self.has_uniform:
            return lost * math.log(V)
        if self.has_mask:
            raise UserError(
                f"The schedule begins with noise {lost:g}; masks together with random tokens need one that begins at 0."
            )
        kept, other = 1 - lost + lost / V, lost / V
        return -kept * math.log(kept) - (V - 1) * other * math.log(other)

    def prior_kl(self) -> float:
        """KL(q(z_1 | x) || p(z_1)) with p(z_1) the mean of q(z_1 | x) over all tokens: 0 where a_1 = 0.

        For masked diffusion this is a_1 log V (Shi et al. 2024, MD4).
        """
        one, V = torch.ones((), dtype=torch.float64), self.vocab_size
        a, u = float(self.signal(one)), float(self.uniform_mass(one))
        if a == 0:
            return 0.0
        mean = a / V + u
        others = 0.0 if u == 0 else (V - 1) * u * math.log(u / mean)
        return max(0.0, (a + u) * math.log((a + u) / mean) + others)


class Masking(MixingDistribution):
    """All noise is the mask: b_t = (1 - a_t) [z = mask] (Austin et al. 2021, absorbing D3PM)."""

    has_mask, has_uniform = True, False

    def __init__(self, vocab_size: int, schedule: Schedule):
        super().__init__(vocab_size)
        self.schedule = schedule

    def uniform_mass(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def mask_mass(self, t: Number) -> Number:
        return self.schedule.noise(t)

    def uniform_rate(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def mask_rate(self, t: Number) -> Number:
        return self.schedule.slope(t) / self.schedule.signal(t)

    def odds(self, t: Number) -> Number:
        return torch.full_like(t, torch.inf)  # an unmasked token is certain, also at t = 1


class Uniform(MixingDistribution):
    """All noise is a random token: b_t = (1 - a_t)/V (Hoogeboom et al. 2021; Schiff et al. 2024, UDLM)."""

    has_mask, has_uniform = False, True

    def __init__(self, vocab_size: int, schedule: Schedule):
        super().__init__(vocab_size)
        self.schedule = schedule

    def uniform_mass(self, t: Number) -> Number:
        return self.schedule.noise(t) / self.vocab_size

    def mask_mass(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def uniform_rate(self, t: Number) -> Number:
        return self.schedule.slope(t) / (self.schedule.signal(t) * self.vocab_size)

    def mask_rate(self, t: Number) -> Number:
        return torch.zeros_like(t)


class Hybrid(MixingDistribution):
    """Masks and random tokens (von Rütte et al. 2025, GIDD, section 3.3). With τ the noise of a base schedule:

        a = (1 - τ)/C,  m = τ/C,  u = c/(C V),   c = B √(τ (1 - τ)),  C = 1 + c,  B = 2 p_u/(1 - p_u)

    At τ = 1/2 the fraction p_u of all tokens is random; at both ends none is. p_u = 0 *is* masked diffusion.
    """

    has_mask = True

    def __init__(self, vocab_size: int, p_uniform: float, schedule: Schedule | None = None):
        super().__init__(vocab_size)
        if not 0 <= p_uniform < 1:
            raise UserError(f"The fraction of random tokens (p_u) must be at least 0 and below 1, not {p_uniform}.")
        self.base = schedule or Polynomial(1.0)
        self.has_uniform, self.strength = p_uniform > 0, 2 * p_uniform / (1 - p_uniform)
        self.schedule = HybridSchedule(self.base, self.strength)

    def _tau_and_c(self, t: Number) -> tuple[Number, Number]:
        tau = self.base.noise(t)
        return tau, self.strength * (tau * self.base.signal(t)).sqrt()

    def uniform_mass(self, t: Number) -> Number:
        _, c = self._tau_and_c(t)
        return c / (1 + c) / self.vocab_size

    def mask_mass(self, t: Number) -> Number:
        tau, c = self._tau_and_c(t)
        return tau / (1 + c)

    def uniform_rate(self, t: Number) -> Number:
        """u/(2 τ (1 - τ)) per unit of τ."""
        return self.uniform_mass(t) * self.base.slope(t) / (2 * self.base.noise(t) * self.base.signal(t))

    def mask_rate(self, t: Number) -> Number:
        """m/(τ (1 - τ)) per unit of τ."""
        _, c = self._tau_and_c(t)
        return self.base.slope(t) / ((1 + c) * self.base.signal(t))

    def odds(self, t: Number) -> Number:
        _, c = self._tau_and_c(t)
        left = self.base.signal(t)
        # Without random tokens, at t = 0 and for p_u = 0, an unmasked token is certain.
        return torch.where(c > 0, self.vocab_size * left / c, torch.where(left > 0, torch.inf, 0.0).to(t.dtype))


@dataclass(frozen=True)
class HybridSchedule(Schedule):
    """The signal of hybrid noise, a = (1 - τ)/(1 + B √(τ (1 - τ)))."""

    base: Schedule
    strength: float

    @property
    def start(self) -> float:
        return self.base.start

    @property
    def time_power(self) -> float:
        return self.base.time_power * (2 if self.strength else 1)  # the noise begins like the root of that of the base

    def noise(self, t: Number) -> Number:
        tau = self.base.noise(t)
        c = self.strength * (tau * self.base.signal(t)).sqrt()
        return (tau + c) / (1 + c)

    def signal(self, t: Number) -> Number:
        tau, left = self.base.noise(t), self.base.signal(t)
        return left / (1 + self.strength * (tau * left).sqrt())

    def slope(self, t: Number) -> Number:
        """-da/dt = τ' (1 + c/(2τ)) / C²."""
        tau = self.base.noise(t)
        c = self.strength * (tau * self.base.signal(t)).sqrt()
        # c/τ is infinite at τ = 0, and 0 without random tokens.
        return self.base.slope(t) * (1 + torch.where(c > 0, c / (2 * tau), 0.0)) / (1 + c) ** 2

    def time(self, noise: Number) -> Number:
        """The smaller root τ of (1 + a²B²) τ² - (2 (1 - a) + a²B²) τ + (1 - a)² = 0."""
        bend = ((1 - noise) * self.strength) ** 2
        half = noise + bend / 2
        root = (half**2 - (1 + bend) * noise**2).clamp_min(0).sqrt()
        return self.base.time(torch.where(noise > 0, noise**2 / (half + root), 0.0))


# ---- weights of hybrid diffusion in training, in place of elbo_weight, which diverges at both ends of time (GIDD, 4.2)

Weighting = Callable[[MixingDistribution, States, States, Tensor], Tensor]
"""A training weight of the divergence of the marginals, from (mixing, x, z, t)."""


def clipped_weight(mixing: MixingDistribution, x: States, z: States, t: Tensor) -> Tensor:
    """min(w, 1)."""
    return mixing.elbo_weight(x, z, t).clamp_max(1.0)


def dynamic_weight(mixing: MixingDistribution, x: States, z: States, t: Tensor) -> Tensor:
    """2 at masks, 1 at random tokens, u_t/a_t at clean ones, at most 2.

    u_t/a_t = B/V e^{-λ/2}, with λ the log signal-to-noise ratio, is the probability of a random token relative to that
    of the clean one.
    """
    clean = torch.where(z == x, (1 / mixing.odds(t)).clamp_max(2.0), 1.0)
    return torch.where(mixing.is_mask(z), 2.0, clean)


def gidd_clipped_weight(mixing: MixingDistribution, x: States, z: States, t: Tensor) -> Tensor:
    """min(w, 2), the limit in the configuration of GIDD's code."""
    return mixing.elbo_weight(x, z, t).clamp_max(2.0)


def gidd_dynamic_weight(mixing: MixingDistribution, x: States, z: States, t: Tensor) -> Tensor:
    """2 at masks, 1 at random tokens, B/K exp(sigmoid(-t)/2) at clean ones, at most 2, for K = V + 1 states.

    GIDD's code uses sigmoid(-t) in place of the log signal-to-noise ratio of `dynamic_weight`: nearly constant in t.
    """
    assert isinstance(mixing, Hybrid)
    clean = (mixing.strength / (mixing.vocab_size + 1) * (torch.sigmoid(-t) / 2).exp()).clamp_max(2.0)
    return torch.where(mixing.is_mask(z), 2.0, torch.where(z == x, clean, 1.0))
