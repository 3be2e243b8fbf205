"""Masked diffusion in which every token has its own speed (Shi et al. 2024, GenMD4, section 6).

    q(z_t = mask | x = k) = t^{w_k},   w_k > 0 learned

A hidden token k appears at the rate w_k/t, so that the mask itself tells something: tokens with small powers vanish
first, and what is hidden late is more likely one of them. At t = 1 everything is hidden, whatever the powers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.processes.base import MAX_LOGIT, Encoded, ForwardSample, Process
from logosphere.processes.capabilities import DiscreteTransitions, LearnedForward
from logosphere.processes.training_times import LOW_VARIANCE, TrainingTimes
from logosphere.rng import Noise, categorical
from logosphere.types import Batch, Float, Kind, Logits, Positions, State, Times


class GenMD4(Process, DiscreteTransitions, LearnedForward):
    """Masked diffusion with powers w = softplus(raw), all 1 at first, trained with the network.

    With `first_time` t₁ > 0 the path is cut there, and a token that is hidden at t₁ is read off its mask alone, by
    p(x | mask) ∝ t₁^{w_x}. With `eps` the chance of a mask is (1 - ε) t^{w_k} (both as in the authors' code); with
    `all_masked` samples begin with masks alone all the same.
    """

    kind: Kind = "bound"
    chunkable = True

    def __init__(
        self,
        vocab_size: int,
        *,
        first_time: float = 0.0,
        eps: float = 0.0,
        times: TrainingTimes = LOW_VARIANCE,
        all_masked: bool = False,
    ):
        super().__init__()
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        if not (0 <= first_time < 1 and 0 <= eps < 1):
            raise UserError(f"t_min and eps must be at least 0 and below 1, not {first_time} and {eps}.")
        self.codec: TokenCodec = TokenCodec(vocab_size, mask=True)
        self.mask, self.first_time, self.eps, self.times = vocab_size, first_time, eps, times
        self.all_masked = all_masked
        self.raw = nn.Parameter(torch.full((vocab_size,), math.log(math.e - 1)))

    @property
    def powers(self) -> Float[Tensor, " V"]:
        """w."""
        return F.softplus(self.raw)

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Tokens as they are, and what reading them off states at t₁ costs:

        E[-log p(x | z_{t₁})] = (1 - ε) t₁^{w_x} (log Σ_k t₁^{w_k} - w_x log t₁)
        """
        u, nats, loss = super().encode(batch, noise)
        if not self.first_time:
            return Encoded(u, nats, loss)
        log_hidden = self.powers * math.log(self.first_time)
        cost = (1 - self.eps) * log_hidden.exp() * (log_hidden.logsumexp(0) - log_hidden)
        read = torch.where(batch.free, cost[u], 0.0).sum(1)
        return Encoded(u, nats + read, loss + read)

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        masks = torch.full((batch, length), self.mask, device=noise.device)
        if not self.eps or self.all_masked:
            return masks
        token = (noise.uniform(batch, length) * self.mask).long().clamp_max(self.mask - 1)
        return torch.where(noise.uniform(batch, length) < self.eps, token, masks)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        hidden = t ** self.powers.detach()[u]
        return torch.where(noise.uniform(*u.shape) < ((1 - self.eps) * hidden if self.eps else hidden), self.mask, u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """t = w², so that the cost 1/t of rare masks near t = 0 has a variance; or times as training asks for them."""
        block, learning = u.shape[1] // w.shape[1], self.training and torch.is_grad_enabled()
        if learning:
            w = self.times.quantiles(w, noise)
        w = w.repeat_interleave(block, 1)
        if learning and self.times.plain:
            t = torch.where(free, self.times.at(w).float(), 0.0)
            return ForwardSample(self.corrupt(u, t, noise), t, torch.ones_like(t))
        span = 1 - self.first_time
        t = torch.where(free, (self.first_time + span * w**2).float(), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, (2 * span * w).float())

    def log_q(self, u: State, z: State, t: Times, free: Positions) -> Float[Tensor, " B"]:
        """log q(z_t | u), through which the powers hear what the states they draw will cost."""
        log_hidden = self.powers[u] * t.clamp_min(torch.finfo(t.dtype).tiny).log() + math.log1p(-self.eps)
        log_seen = torch.log(-torch.expm1(log_hidden.clamp_max(-torch.finfo(t.dtype).eps)))
        return torch.where(free, torch.where(z == self.mask, log_hidden, log_seen), 0.0).sum(1)

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving & (z == self.mask)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        hidden = (z == self.mask)[..., None]
        own = F.one_hot(z, self.mask + 1)[..., : self.mask] * MAX_LOGIT
        return torch.where(hidden, self.powers * t.clamp_min(torch.finfo(t.dtype).tiny).log()[..., None], own)

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """(1/t) [Σ_k w_k p_k - w_x - w_x log p_x]: the true rate w_x/t at x, the model's w_k p_k/t at all k."""
        log_p, powers = out.log_softmax(-1), self.powers
        of_x = log_p.gather(-1, u[..., None]).squeeze(-1)
        return (log_p.exp() @ powers.to(log_p.dtype) - powers[u] - powers[u] * of_x) / t

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """ε log V: a token seen at t = 1 is any with equal probability a priori."""
        return torch.full(u.shape, self.eps * math.log(self.mask), device=u.device)

    def log_transition(
        self, out: Logits, z: State, t: Float[Tensor, " N"], s: Float[Tensor, " N"]
    ) -> Float[Tensor, "N K"]:
        """p_k (1 - (s/t)^{w_k}) for tokens, and Σ_k p_k (s/t)^{w_k} for the mask; a token stays what it is."""
        p, stays = out.softmax(-1), self._stays(t, s)[:, None] ** self.powers.detach().to(out.dtype)
        law = torch.cat([p * (1 - stays), (p * stays).sum(-1, keepdim=True)], -1)
        return torch.where((z == self.mask)[:, None], law, F.one_hot(z, self.mask + 1).to(law.dtype)).log()

    @staticmethod
    def _stays(t: Tensor, s: Tensor) -> Tensor:
        return s / t.clamp_min(torch.finfo(t.dtype).tiny)

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """Which token it is, and then whether it has appeared by s: with probability 1 - (s/t)^{w_k}."""
        drawn = categorical(out, noise.uniform(*z.shape))
        stays = noise.uniform(*z.shape) < self._stays(t, s) ** self.powers.detach()[drawn]
        return torch.where((z == self.mask) & ~stays & (s < t), drawn, z)
