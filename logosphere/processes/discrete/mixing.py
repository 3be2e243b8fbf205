"""Noise laws of discrete diffusion: what takes the place of a token.

    q(z_t | x) = a_t [z = x] + b_t(z)

Every b_t here is flat: u_t on each of the V tokens and m_t on the mask, so that two numbers tell all and nothing costs
more than O(V). Masked diffusion has u = 0, uniform diffusion m = 0, GIDD both. Jumps between two times (s < t) have

    q(z_t | z_s) = (a_t/a_s) [z_t = z_s] + b_ts(z_t),   b_ts = b_t - (a_t/a_s) b_s

and in continuous time every state jumps to z at the rate r_t(z) = b'_t(z) - (a'_t/a_t) b_t(z), wherever it stands.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import MAX_LOGIT
from logosphere.schedules.signal import Polynomial, Schedule
from logosphere.types import Float, Int64

Number = Float[Tensor, "..."]
States = Int64[Tensor, "..."]


class MixingDistribution(ABC):
    """Where the mass 1 - a_t goes, and at which rate."""

    hides: bool
    """Is there a mask, the state V?"""
    spreads: bool
    """Can a token turn into another token?"""
    schedule: Schedule

    def __init__(self, vocab_size: int):
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        self.vocab_size = vocab_size

    @abstractmethod
    def token(self, t: Number) -> Number:
        """u_t = b_t(k), the same for every token k."""

    @abstractmethod
    def hidden(self, t: Number) -> Number:
        """m_t = b_t(mask)."""

    @abstractmethod
    def token_rate(self, t: Number) -> Number:
        """r_t(k): jumps per unit time to each token."""

    @abstractmethod
    def hidden_rate(self, t: Number) -> Number:
        """r_t(mask): jumps per unit time to the mask."""

    def signal(self, t: Number) -> Number:
        """a_t."""
        return self.schedule.signal(t)

    def is_mask(self, z: States) -> Tensor:
        """Which states are the mask."""
        return z == self.vocab_size

    def odds(self, t: Number) -> Number:
        """ρ_t = a_t / u_t, so that q(z_t = k | x̂) ∝ 1 + ρ x̂_k for tokens k."""
        return self.signal(t) / self.token(t)

    def gain(self, z: States, t: Number) -> Number:
        """log q(z | x = z) - log q(z | x ≠ z): how much louder z speaks for itself than for any other token."""
        return torch.where(self.is_mask(z), 0.0, self.odds(t).log1p().clamp_max(MAX_LOGIT))

    def weight(self, x: States, z: States, t: Number) -> Number:
        """r_t(z) / q(z_t | x): by it the divergence of the marginals counts (von Rütte et al. 2025, GIDD eq. 9)."""
        seen = torch.where(self.is_mask(z), self.hidden(t), self.token(t) + torch.where(z == x, self.signal(t), 0.0))
        rate = torch.where(self.is_mask(z), self.hidden_rate(t), self.token_rate(t))
        return torch.where(self.signal(t) > 0, rate / seen, 0.0)

    def marginal(self, x: Float[Tensor, "... V"], t: Number) -> Float[Tensor, "... K"]:
        """q(z_t | x) over all states, for x one-hot or any law over tokens (or over states, the mask included)."""
        t = t[..., None]
        level = torch.cat([self.token(t).expand(*t.shape[:-1], self.vocab_size), *[self.hidden(t)] * self.hides], -1)
        x = torch.nn.functional.pad(x, (0, level.shape[-1] - x.shape[-1]))
        return self.signal(t).to(x.dtype) * x + level.to(x.dtype)

    def jump(self, z: States, t: Number, s: Number) -> tuple[Number, Number]:
        """a_t/a_s and b_ts(z): the chances to have stayed, and to have jumped to z between s and t."""
        t, s = t.double(), s.double()  # b_ts is a small difference
        stayed = self.signal(t) / self.signal(s)
        late = torch.where(self.is_mask(z), self.hidden(t), self.token(t))
        early = torch.where(self.is_mask(z), self.hidden(s), self.token(s))
        return stayed, (late - stayed * early).clamp_min(0)

    def start_nats(self) -> float:
        """What reading a token off its state right after t = 0 costs, where the schedule begins with noise.

        E_q[-log p(x | z_0)] with p the posterior under equally likely tokens: (1 - a_0) log V for masks (Shi et al.
        2024, MD4), the entropy of q(z_0 | x) for random tokens; 0 where a_0 = 1.
        """
        lost, V = self.schedule.start, self.vocab_size
        if lost == 0:
            return 0.0
        if not self.spreads:
            return lost * math.log(V)
        if self.hides:
            raise UserError("Masks and random tokens together need a schedule that begins without noise.")
        kept, other = 1 - lost + lost / V, lost / V
        return -kept * math.log(kept) - (V - 1) * other * math.log(other)

    def prior_kl(self) -> float:
        """KL(q(z_1 | x) || p(z_1)) with p(z_1) the mean of q(z_1 | x) over all tokens: 0 where a_1 = 0.

        For masked diffusion this is a_1 log V (Shi et al. 2024, MD4).
        """
        one, V = torch.ones((), dtype=torch.float64), self.vocab_size
        a, u = float(self.signal(one)), float(self.token(one))
        if a == 0:
            return 0.0
        mean = a / V + u
        others = 0.0 if u == 0 else (V - 1) * u * math.log(u / mean)
        return max(0.0, (a + u) * math.log((a + u) / mean) + others)


class Masking(MixingDistribution):
    """All noise is the mask: b_t = (1 - a_t) [z = mask] (Austin et al. 2021, absorbing D3PM)."""

    hides, spreads = True, False

    def __init__(self, vocab_size: int, schedule: Schedule):
        super().__init__(vocab_size)
        self.schedule = schedule

    def token(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def hidden(self, t: Number) -> Number:
        return self.schedule.noise(t)

    def token_rate(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def hidden_rate(self, t: Number) -> Number:
        return self.schedule.slope(t) / self.schedule.signal(t)

    def odds(self, t: Number) -> Number:
        return torch.full_like(t, torch.inf)  # a token that is seen is certain, also where nothing should be seen


class Uniform(MixingDistribution):
    """All noise is a random token: b_t = (1 - a_t)/V (Hoogeboom et al. 2021; Schiff et al. 2024, UDLM)."""

    hides, spreads = False, True

    def __init__(self, vocab_size: int, schedule: Schedule):
        super().__init__(vocab_size)
        self.schedule = schedule

    def token(self, t: Number) -> Number:
        return self.schedule.noise(t) / self.vocab_size

    def hidden(self, t: Number) -> Number:
        return torch.zeros_like(t)

    def token_rate(self, t: Number) -> Number:
        return self.schedule.slope(t) / (self.schedule.signal(t) * self.vocab_size)

    def hidden_rate(self, t: Number) -> Number:
        return torch.zeros_like(t)


class Hybrid(MixingDistribution):
    """Masks and random tokens (von Rütte et al. 2025, GIDD, section 3.3). With τ the noise of a plain schedule:

        a = (1 - τ)/C,  m = τ/C,  u = c/(C V),   c = B √(τ (1 - τ)),  C = 1 + c,  B = 2 p_u/(1 - p_u)

    Half way a share p_u of all tokens is random; at both ends none is. p_u = 0 *is* masked diffusion.
    """

    hides = True

    def __init__(self, vocab_size: int, random: float, schedule: Schedule | None = None):
        super().__init__(vocab_size)
        if not 0 <= random < 1:
            raise UserError(f"The share of random tokens (p_u) must be at least 0 and below 1, not {random}.")
        self.base = schedule or Polynomial(1.0)
        self.spreads, self.strength = random > 0, 2 * random / (1 - random)
        self.schedule = HybridSchedule(self.base, self.strength)

    def _parts(self, t: Number) -> tuple[Number, Number]:
        tau = self.base.noise(t)
        return tau, self.strength * (tau * self.base.signal(t)).sqrt()

    def token(self, t: Number) -> Number:
        _, c = self._parts(t)
        return c / (1 + c) / self.vocab_size

    def hidden(self, t: Number) -> Number:
        tau, c = self._parts(t)
        return tau / (1 + c)

    def token_rate(self, t: Number) -> Number:
        """u/(2 τ (1 - τ)) for each unit of τ."""
        return self.token(t) * self.base.slope(t) / (2 * self.base.noise(t) * self.base.signal(t))

    def hidden_rate(self, t: Number) -> Number:
        """m/(τ (1 - τ)) for each unit of τ."""
        _, c = self._parts(t)
        return self.base.slope(t) / ((1 + c) * self.base.signal(t))

    def odds(self, t: Number) -> Number:
        _, c = self._parts(t)
        left = self.base.signal(t)
        # Where there are no random tokens, at t = 0 and for p_u = 0, a token that is seen is certain.
        return torch.where(c > 0, self.vocab_size * left / c, torch.where(left > 0, torch.inf, 0.0).to(t.dtype))


@dataclass(frozen=True)
class HybridSchedule(Schedule):
    """The signal of a hybrid law, a = (1 - τ)/(1 + B √(τ (1 - τ)))."""

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
        # c/τ at τ = 0 is infinite, and 0 when no token is random.
        return self.base.slope(t) * (1 + torch.where(c > 0, c / (2 * tau), 0.0)) / (1 + c) ** 2

    def time(self, noise: Number) -> Number:
        """The smaller root τ of (1 + a²B²) τ² - (2 (1 - a) + a²B²) τ + (1 - a)² = 0."""
        bend = ((1 - noise) * self.strength) ** 2
        half = noise + bend / 2
        root = (half**2 - (1 + bend) * noise**2).clamp_min(0).sqrt()
        return self.base.time(torch.where(noise > 0, noise**2 / (half + root), 0.0))
