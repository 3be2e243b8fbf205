"""Discrete diffusion by interpolation: q(z_t | x) = a_t [z = x] + b_t(z).

Masked diffusion puts the mass b_t on one extra state, uniform diffusion spreads it over all tokens. Between two times
everything stays in closed form and costs O(K) (Austin et al. 2021, D3PM; Sahoo et al. 2024, MDLM):

    q(z_t | z_s)      = (a_t/a_s) [z_t = z_s] + b_ts(z_t),       b_ts = b_t - (a_t/a_s) b_s
    q(z_s | z_t, x)   = q(z_t | z_s) q(z_s | x) / q(z_t | x)

A model of the token given everything *but* z_t at its own position, x̂, may be put for x in the last line: that is the
exact posterior step. `out` holds p(x | z), so x̂ ∝ p(x | z) / q(z_t | x): one Bayes step back (`_context`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.noise import Noise, categorical
from logosphere.processes.base import CERTAIN, Noised, Process
from logosphere.schedules import Schedule
from logosphere.shapes import Float
from logosphere.types import Kind, Logits, Positions, State, Times


class Interpolating(Process):
    """Masked (`mask=True`) or uniform diffusion of tokens, in continuous time or in `timesteps` steps.

    `hybrid` adds that share of cross-entropy to the training loss (D3PM's L_λ); `unweighted` trains on the
    cross-entropy of hidden tokens alone, whatever the time, which learns faster (the bound is measured all the same).
    `exact_count` masks exactly
    ceil(w·n) of n positions instead of each by chance: the same bound with less variance, for models that do not
    read the time.
    """

    kind: Kind = "bound"

    def __init__(
        self,
        vocab_size: int,
        schedule: Schedule,
        *,
        mask: bool,
        timesteps: int | None = None,
        hybrid: float = 0.0,
        exact_count: bool = False,
        unweighted: bool = False,
    ):
        super().__init__()
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        if timesteps is not None and timesteps < 1:
            raise UserError(f"timesteps must be at least 1 (or None for continuous time), not {timesteps}.")
        if exact_count and (timesteps is not None or not mask):
            raise UserError("exact_count needs masked diffusion in continuous time (mask=True, timesteps=None).")
        self.codec: TokenCodec = TokenCodec(vocab_size, mask=mask)
        self.vocab_size, self.schedule, self.timesteps = vocab_size, schedule, timesteps
        self.hybrid, self.exact_count, self.unweighted = hybrid, exact_count, unweighted
        self.mask, self.most_steps, self.needs_time = self.codec.mask, timesteps, not mask
        self.first = 0.0 if timesteps is None else 1.5 / timesteps  # halfway from the first time to the second

    # ---- forward ---------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        if self.mask is not None:
            return torch.full((batch, length), self.mask, device=noise.device)
        return (noise.uniform(batch, length) * self.vocab_size).long().clamp_max(self.vocab_size - 1)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        lost = noise.uniform(*u.shape) < self.schedule.noise(t)
        return torch.where(lost, self.prior(len(u), u.shape[1], noise), u)

    def noised(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> Noised:
        if self.exact_count:
            return self._noised_by_count(u, w, free, noise)
        if self.timesteps is not None:
            t, weight = ((w * self.timesteps).floor() + 1) / self.timesteps, torch.ones_like(w)
        else:
            warp = self.schedule.warp
            t, weight = w**warp, warp * w ** (warp - 1)
        block = u.shape[1] // w.shape[1]
        t, weight = t.repeat_interleave(block, 1).float(), weight.repeat_interleave(block, 1).float()
        t = torch.where(free, t, 0.0)
        return Noised(self.corrupt(u, t, noise), t, weight)

    def _noised_by_count(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> Noised:
        """Mask exactly l = ceil(w·n) of the n free positions of each block, and count each by n/l.

        Bernoulli masks at a uniform rate hide each number l of positions equally often, so this is the same average:
        E Σ CE/t dt = E_l (n/l) Σ CE (Uria et al. 2014; Ou et al. 2024), with the number no longer left to chance.
        """
        B, J = w.shape
        scores = torch.where(free, noise.uniform(*u.shape), 2.0).view(B, J, -1)
        free_count = free.view(B, J, -1).sum(2, keepdim=True)
        hidden_count = (w[..., None] * free_count).ceil().long().clamp_min(1)
        threshold = scores.sort(2).values.gather(2, hidden_count - 1)
        hidden = ((scores <= threshold) & (free_count > 0)).view_as(u)
        rate = (hidden_count / free_count.clamp_min(1)).expand_as(scores).reshape(u.shape)
        t = self.schedule.time(rate)
        z = torch.where(hidden, self.prior(len(u), u.shape[1], noise), u)
        return Noised(z, torch.where(free, t, 0.0).float(), (1 / self.schedule.slope(t)).float())

    # ---- what a state says ------------------------------------------------------------------------------------

    def wanted(self, z: State, moving: Positions) -> Positions:
        return moving if self.mask is None else moving & (z == self.mask)

    def inform(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        own = z.clamp_max(self.vocab_size - 1)[..., None]
        return logits.scatter_add(-1, own, self._gain(z, t).to(logits.dtype)[..., None])

    def _gain(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log q(z | x = z) - log q(z | x ≠ z): how much louder z speaks for itself than for any other token."""
        if self.mask is not None:
            return torch.where(z == self.mask, 0.0, CERTAIN)
        return self._odds(t).log1p().clamp_max(CERTAIN)

    def _odds(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """ρ = V a_t / (1 - a_t), so that q(z_t = j | x̂) ∝ 1 + ρ x̂_j in uniform diffusion."""
        return self.vocab_size * self.schedule.signal(t) / self.schedule.noise(t)

    def _context(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """x̂: what the others say of this token, the posterior with its own evidence taken out again."""
        return out.scatter_add(-1, z[..., None], -self._gain(z, t).to(out.dtype)[..., None]).softmax(-1)

    # ---- the bound --------------------------------------------------------------------------------------------

    def nats(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if self.mask is not None:
            return self._revealed_per_time(t) * _cross_entropy(out, u)
        if self.timesteps is None:
            return self._jump_divergence(out, u, z, t)
        if self.timesteps == 1:
            return _cross_entropy(out, u)
        last = t <= self.first
        step = self._step_divergence(out, u, z, torch.where(last, 1.0, t))
        return self.timesteps * torch.where(last, _cross_entropy(out, u), step)

    def _revealed_per_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-a'/(1 - a), the rate at which a mask is lifted; in T steps T (a_s - a_t)/(1 - a_t) (MDLM eqs. 8, 10)."""
        if self.timesteps is None:
            return self.schedule.slope(t) / self.schedule.noise(t)
        s = self._step_before(t)
        return self.timesteps * (1 - self.schedule.noise(s) / self.schedule.noise(t))

    def _step_before(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        assert self.timesteps is not None
        return ((t * self.timesteps).round() - 1) / self.timesteps

    def _jump_divergence(self, out: Logits, x: State, z: State, t: Tensor) -> Float[Tensor, "..."]:
        """Uniform diffusion in continuous time, the limit of T·KL (Schiff et al. 2024, UDLM eq. 17):

            β Σ_{j≠z} g_j (e^{δ_j} - 1 - δ_j),   β = -a'/(a V),   g_j = q(j|x)/q(z|x),   δ_j = log ĝ_j/g_j

        β g_j is the true backward rate z -> j and β ĝ_j the model's. Written by δ it keeps its digits where both agree.
        """
        odds = self._odds(t)
        model = (odds[..., None] * self._context(out, z, t)).log1p()  # log q(j|x̂) + const
        truth = torch.zeros_like(model).scatter(-1, x[..., None], odds.log1p()[..., None])  # log q(j|x), likewise
        log_g = truth - truth.gather(-1, z[..., None])
        delta = model - model.gather(-1, z[..., None]) - log_g
        terms = log_g.exp() * (delta.expm1() - delta)  # 0 at j = z, since delta is
        signal = self.schedule.signal(t)
        return torch.where(signal > 0, self.schedule.slope(t) / (signal * self.vocab_size), 0.0) * terms.sum(-1)

    def _step_divergence(self, out: Logits, x: State, z: State, t: Tensor) -> Float[Tensor, "..."]:
        """KL(q(z_s | z_t, x) || p(z_s | z_t)) of one step of uniform diffusion to s > 0 (D3PM eq. 1).

        The factor q(z_t | z_s) is common to both, so only the marginals at s and t enter the log ratio δ, and
        Σ q (e^δ - 1 - δ) = KL because both sides sum to one.
        """
        s = self._step_before(t)
        context, one_hot = self._context(out, z, t), F.one_hot(x, self.vocab_size)
        log_q = self._log_step(one_hot, z, t, s)
        delta = self._log_step(context, z, t, s) - log_q
        return (log_q.exp() * (delta.expm1() - delta)).sum(-1)

    def _log_step(self, x: Float[Tensor, "... V"] | Tensor, z: State, t: Tensor, s: Tensor) -> Tensor:
        """log q(z_s = k | z_t, x) of uniform diffusion for 0 <= s < t, for x one-hot or a distribution."""
        signal_t, signal_s, noise_t, noise_s = self._levels(t, s)
        share = 1 / self.vocab_size
        fresh = (noise_t - noise_s) / signal_s * share  # b_ts: the chance to have jumped here in between
        own = F.one_hot(z, self.vocab_size)
        jump = (own * (signal_t / signal_s) + fresh).log()
        here = (signal_s * x + noise_s * share).log()
        seen = (signal_t * x.gather(-1, z[..., None]) + noise_t * share).log()
        return jump + here - seen

    def _levels(self, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t, s = t[..., None], s[..., None]
        return self.schedule.signal(t), self.schedule.signal(s), self.schedule.noise(t), self.schedule.noise(s)

    def loss(self, nats: Tensor, out: Logits, u: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """The bound, plus `hybrid` times the cross-entropy (D3PM eq. 5); or the plain cross-entropy alone."""
        if self.unweighted:
            return _cross_entropy(out, u)
        return weight * (nats + self.hybrid * _cross_entropy(out, u) if self.hybrid else nats)

    def prior_nats(self, u: State) -> Float[Tensor, "B M"]:
        """0: every schedule ends at signal exactly 0, where q(z_1 | x) is the prior."""
        return torch.zeros(u.shape, device=u.device)

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        if self.mask is None:
            moved = categorical(self._log_step(self._context(out, z, t), z, t, s), noise.uniform(*z.shape))
            return torch.where(s < t, moved, z)
        # Two stages, whether and then which: small probabilities are not multiplied into nothing.
        revealed = (z == self.mask) & (noise.uniform(*z.shape) < 1 - self.schedule.noise(s) / self.schedule.noise(t))
        z = z.clone()
        z[revealed] = categorical(out[revealed], noise.uniform(int(revealed.sum())))
        return z


def _cross_entropy(out: Logits, x: State) -> Float[Tensor, "..."]:
    return F.cross_entropy(out.flatten(0, -2), x.flatten(), reduction="none").view_as(x)
