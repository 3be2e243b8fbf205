"""Discrete diffusion by interpolation: q(z_t | x) = a_t [z = x] + b_t(z).

What b_t is, a noise law tells (mixing.py): the mask, random tokens, or both. What the denoiser's numbers mean, a head
tells (heads.py). Between two times everything stays in closed form and costs O(K) (Austin et al. 2021, D3PM):

    q(z_s | z_t, x) = q(z_t | z_s) q(z_s | x) / q(z_t | x)

The token as the context sees it, x̂, may be put for x: that is the exact posterior step.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.processes.base import Encoded, ForwardSample, Process, uniform_grid
from logosphere.processes.capabilities import DiscreteTransitions, OnlineStatistics, Unmasking
from logosphere.processes.discrete.masking import masks_by_count, masks_within
from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.processes.discrete.parameterization import Head, Posterior, Score, cross_entropy
from logosphere.processes.time_sampler import TimeSampler
from logosphere.processes.training_times import LOW_VARIANCE, TrainingTimes
from logosphere.rng import Noise, categorical
from logosphere.types import Batch, Float, Logits, Positions, State, Times

Weighting = Callable[[MixingDistribution, State, State, Tensor], Tensor]
"""Another weight in training for the divergence of marginals, from (law, x, z, t): see weighting.py."""


class DiscreteDiffusion(Process, DiscreteTransitions, OnlineStatistics, Unmasking):
    """Diffusion of tokens with one noise law, in continuous time or in `timesteps` steps.

    Options of training, under which the bound stays the same:
    `hybrid`: the λ of D3PM's L_λ, see `loss`. `unweighted`: the cross-entropy of hidden tokens alone, whatever the
    time, which learns faster. `weighting`: other weights than the bound's. `times`: which times are drawn. `clip`: keep
    the fraction of hidden positions in an interval (BD3-LM).

    Options of the estimate: `exact_count` masks exactly ceil(w·n) of n positions instead of each by chance, the same
    bound with less variance, for models that do not read the time; with `random_mask_count` only where bounds are
    measured. A `clock` draws the steps of a chain where their costs scatter most.

    `decode_from_network`: the last step of a chain, and cross-entropies in the loss, take the network's own distribution x̂
    (D3PM's code) instead of the posterior ∝ x̂ q(z | x). `all_masked`: samples begin with masks alone, also where the
    schedule leaves signal at t = 1, so that p(z_1) of the bound has a few tokens (MDLM, SEDD, MD4). `truncate_ends`:
    likelihoods are integrated over the times of training alone (GIDD's evaluation), which is no bound.
    """

    def __init__(
        self,
        law: MixingDistribution,
        *,
        timesteps: int | None = None,
        head: Head | None = None,
        hybrid: float = 0.0,
        exact_count: bool = False,
        unweighted: bool = False,
        weighting: Weighting | None = None,
        clip: tuple[float, float] = (0.0, 1.0),
        clock: TimeSampler | None = None,
        times: TrainingTimes = LOW_VARIANCE,
        random_mask_count: bool = False,
        decode_from_network: bool = False,
        all_masked: bool = False,
        truncate_ends: bool = False,
        grid: Callable[[int], Tensor] = uniform_grid,
    ):
        super().__init__()
        self.truncate_ends, self.kind = truncate_ends, "surrogate" if truncate_ends else "bound"
        self.law, self.head, self.timesteps = law, head or Posterior(), timesteps
        self.vocab_size, self.schedule = law.vocab_size, law.schedule
        self.hybrid, self.exact_count, self.unweighted = hybrid, exact_count, unweighted
        self.weighting, self.clip, self.clock, self._grid = weighting, clip, clock, grid
        self.times, self.random_mask_count, self.decode_from_network = times, random_mask_count, decode_from_network
        self.start_nats, self.all_masked = law.start_nats(), all_masked
        self.chunkable = clock is None  # a clock hears of every row once
        self._check()
        self.codec: TokenCodec = TokenCodec(law.vocab_size, mask=law.hides)
        self.mask, self.max_steps, self.time_conditional = self.codec.mask, timesteps, law.spreads
        self.guides_transitions = law.spreads
        self.predicts_ratios = isinstance(self.head, Score)
        self.recon_time = 0.0 if timesteps is None else 1.5 / timesteps  # halfway from the first time to the second

    def _check(self) -> None:
        timesteps, law = self.timesteps, self.law
        if timesteps is not None and timesteps < 1:
            raise UserError(f"timesteps must be at least 1 (or None for continuous time), not {timesteps}.")
        if self.exact_count and (timesteps is not None or law.spreads or law.prior_kl() > 0):
            raise UserError(
                "exact_count needs masked diffusion in continuous time on a schedule that hides everything in the end."
            )
        if isinstance(self.head, Score) and (timesteps is not None or self.hybrid or (law.hides and law.spreads)):
            raise UserError("Score entropy needs continuous time, either masks or random tokens, and hybrid=0.")
        if law.spreads and timesteps is None and not float(law.schedule.noise(torch.tensor(1e-6).double())) > 0:
            raise UserError("Random tokens in continuous time need a schedule with noise from the very first moment.")
        if self.hybrid < 0:
            raise UserError(f"The share of cross-entropy (hybrid) must not be negative, but is {self.hybrid}.")
        if self.all_masked and not law.hides:
            raise UserError("Samples can begin with masks in masked diffusion only, not with random tokens alone.")
        if self.truncate_ends and (timesteps is not None or self.times.low == 0):
            raise UserError("protocol=published integrates from t_min on; set t_min above 0, such as 1e-4.")
        if self.decode_from_network and (timesteps is None or not law.spreads):
            raise UserError("reconstruction=network needs random tokens in a number of timesteps.")
        low, high = self.clip
        if not 0 <= low < high <= 1:
            raise UserError(f"clip must be an interval within [0, 1], such as [0.3, 0.8], not [{low}, {high}].")

    # ---- forward ---------------------------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Tokens as they are; noise that a schedule begins with is counted here."""
        u, nats, loss = super().encode(batch, noise)
        return Encoded(u, nats + self.start_nats * batch.free.sum(1) if self.start_nats else nats, loss)

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        """The mean of q(z_1 | x) over all tokens: nothing but noise when the schedule ends at signal 0."""
        V, one = self.vocab_size, torch.ones((), device=noise.device, dtype=torch.float64)
        hidden = float(self.law.hidden(one))
        if hidden == 1 or self.all_masked:
            return torch.full((batch, length), V, device=noise.device)
        token = (noise.uniform(batch, length) * V).long().clamp_max(V - 1)
        return token if hidden == 0 else torch.where(noise.uniform(batch, length) < hidden, V, token)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        lost = noise.uniform(*u.shape) < self.schedule.noise(t)
        return torch.where(lost, self._replacement(t, noise), u)

    def _replacement(self, t: Times, noise: Noise) -> State:
        """A draw from b_t, the mask or a token."""
        if not self.law.spreads:
            return torch.full(t.shape, self.vocab_size, device=t.device)
        token = (noise.uniform(*t.shape) * self.vocab_size).long().clamp_max(self.vocab_size - 1)
        if not self.law.hides:
            return token
        hidden = noise.uniform(*t.shape) * self.schedule.noise(t) < self.law.hidden(t)
        return torch.where(hidden, self.vocab_size, token)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        learning = self.training and torch.is_grad_enabled()
        if learning:
            w = self.times.quantiles(w, noise)
        clipped = learning and self.clip != (0.0, 1.0)
        if clipped:
            w = self.clip[0] + (self.clip[1] - self.clip[0]) * w
        if self.exact_count and not (learning and self.random_mask_count):
            return self._noised_by_count(u, w, free, noise)
        if self.clock is not None and self.timesteps is not None:
            step, inverse = self.clock.locate(w, u.shape[1] // w.shape[1])
            t, weight = (step + 1) / self.timesteps, inverse / self.timesteps
        elif self.timesteps is not None:
            t, weight = ((w * self.timesteps).floor() + 1) / self.timesteps, torch.ones_like(w)
        elif learning and (self.weighting is not None or self.times.plain):
            t, weight = self.times.at(w), torch.ones_like(w)  # what makes the bound scatter is not in this loss
        elif self.truncate_ends:
            t, weight = self.times.at(w), torch.full_like(w, self.times.high - self.times.low)
        else:
            t, weight = self.schedule.times_at(w)
        block, times = u.shape[1] // w.shape[1], t
        t, weight = t.repeat_interleave(block, 1).float(), weight.repeat_interleave(block, 1).float()
        t = torch.where(free, t, 0.0)
        if clipped and not self.law.spreads:
            hidden = masks_within(self.schedule.noise(times), free, self.clip, noise)
            return ForwardSample(torch.where(hidden, self.vocab_size, u), t, weight)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    def _noised_by_count(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """Mask exactly l = ceil(w·n) of the n free positions of each block, and count each by n/l.

        Bernoulli masks at a uniform rate hide each number l of positions equally often, so this is the same average:
        E Σ CE/t dt = E_l (n/l) Σ CE (Uria et al. 2014; Ou et al. 2024), with the number no longer left to chance.
        """
        blocks = (*w.shape, u.shape[1] // w.shape[1])
        free_count = free.view(blocks).sum(2, keepdim=True)
        hidden_count = (w[..., None] * free_count).ceil().long().clamp_min(1)
        hidden = masks_by_count(hidden_count.minimum(free_count), free, noise)
        rate = (hidden_count / free_count.clamp_min(1)).expand(blocks).reshape(u.shape)
        t = self.schedule.time(rate)
        z = torch.where(hidden, self.vocab_size, u)
        return ForwardSample(z, torch.where(free, t, 0.0).float(), (1 / self.schedule.slope(t)).float())

    @property
    def unmasks_tokens(self) -> bool:
        return self.law.hides and not self.law.spreads

    def masked_fraction(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.schedule.noise(t)

    # ---- what a state says ------------------------------------------------------------------------------------

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving if self.law.spreads else moving & (z == self.mask)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self.add_evidence(torch.zeros(*t.shape, self.vocab_size, device=t.device), z, t)

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        own = z.clamp_max(self.vocab_size - 1)[..., None]
        return logits.scatter_add(-1, own, self.law.gain(z, t).to(logits.dtype)[..., None])

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self.head.from_posterior(self.law, posterior, z, t)

    def log_posterior(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        if isinstance(self.head, Posterior):
            return out.log_softmax(-1)
        context = self.head.context(self.law, out, z, t).clamp_min(torch.finfo(out.dtype).tiny).log()
        return self.add_evidence(context, z, t).log_softmax(-1)

    # ---- the bound --------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.law.spreads:
            return self._revealed_per_time(t) * self.head.unmask_nll(self.law, out, u, t)
        if self.timesteps is None:
            return self._jump_divergence(out, u, z, t)
        read = cross_entropy(self._read(out, z, t), u)
        if self.timesteps == 1:
            return read
        last = t <= self.recon_time
        step = self._step_divergence(out, u, z, torch.where(last, 1.0, t))
        return self.timesteps * torch.where(last, read, step)

    def _read(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Logits of the distribution from which the last step of a chain draws the token."""
        return self.context(out, z, t).log() if self.decode_from_network else out

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
        """Continuous time, the limit of T·KL for every flat noise law (GIDD eq. 9; UDLM eq. 17; SEDD eq. 12):

            r(z)/q(z|x) Σ_k q(k|x) (e^{δ_k} - 1 - δ_k),   δ_k = log [ĝ_k / g_k],   g_k = q(k|x)/q(z|x)

        r(z) g_k is the true backward rate z -> k and r(z) ĝ_k the model's. Written by δ it keeps its digits where both
        agree, and as q(k|x) is flat but for k = x, one sum over the tokens is all there is to make.
        """
        law = self.law
        delta, of_mask = self.head.log_ratio_error(law, out, x, z, t)
        cost = delta.expm1() - delta  # 0 at k = z, since δ is
        known = cost.gather(-1, x[..., None]).squeeze(-1)
        total = law.token(t) * cost.sum(-1) + law.signal(t) * known
        if law.hides:
            total = total + law.hidden(t) * (of_mask.expm1() - of_mask)
        return law.weight(x, z, t) * total

    def _step_divergence(self, out: Logits, x: State, z: State, t: Tensor) -> Float[Tensor, "..."]:
        """KL(q(z_s | z_t, x) || p(z_s | z_t)) of one step to s > 0 (D3PM eq. 1).

        The factor q(z_t | z_s) is common to both, so only the marginals at s and t enter the log ratio δ, and
        Σ q (e^δ - 1 - δ) = KL because both sides sum to one.
        """
        s = self._step_before(t)
        context, one_hot = self.context(out, z, t), F.one_hot(x, self.vocab_size).to(out.dtype)
        log_q = self._log_transition(one_hot, z, t, s)
        delta = self._log_transition(context, z, t, s) - log_q
        return (log_q.exp() * (delta.expm1() - delta)).sum(-1)

    def context(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """x̂: what the others say of this token."""
        return self.head.context(self.law, out, z, t)

    def _log_transition(self, x: Float[Tensor, "... V"], z: State, t: Tensor, s: Tensor) -> Float[Tensor, "... K"]:
        """log q(z_s = k | z_t, x) for 0 <= s < t, for x one-hot or a distribution."""
        stayed, jumped = (chance.to(x.dtype)[..., None] for chance in self.law.jump(z, t, s))
        here = self.law.marginal(x, s)
        own = F.one_hot(z, here.shape[-1])
        seen = self.law.marginal(x, t).gather(-1, z[..., None])
        return (own * stayed + jumped).log() + here.log() - seen.log()

    def loss(self, nats: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """The bound plus a share of cross-entropy; the bound with other weights; or cross-entropy alone.

        D3PM minimises KL_t + λ CE at times t drawn uniformly (eq. 5). `nats` is T·KL_t, so that the same loss in its
        units is nats + T λ CE; in continuous time, where T has no value, nats + λ CE.
        """
        if self.clock is not None and self.training:
            step = (t * self.clock.steps).round().long() - 1
            self.clock.observe(step, nats, cross_entropy(out.detach(), u))
        if self.unweighted:
            return cross_entropy(out, u)
        if self.weighting is not None:
            due = self.law.weight(u, z, t)
            return weight * nats * torch.where(due > 0, self.weighting(self.law, u, z, t) / due, 0.0)
        if not self.hybrid:
            return weight * nats
        read = cross_entropy(self._read(out, z, t), u)
        return weight * (nats + self.hybrid * (self.timesteps or 1) * read)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """0 for a schedule that ends at signal 0, where q(z_1 | x) is the prior."""
        return torch.full(u.shape, self.law.prior_kl(), device=u.device)

    # ---- backward ---------------------------------------------------------------------------------------------

    def log_transition(
        self, out: Logits, z: State, t: Float[Tensor, "..."], s: Float[Tensor, "..."]
    ) -> Float[Tensor, "... K"]:
        context = self.context(out, z, t)
        step = self._log_transition(context, z, t, s)
        return torch.where(s[..., None] > 0, step, context.log()) if self.decode_from_network else step

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        if self.law.spreads:
            moved = categorical(self.log_transition(out, z, t, s), noise.uniform(*z.shape))
            return torch.where(s < t, moved, z)
        # Two stages, whether and then which: small probabilities are not multiplied into nothing.
        revealed = (z == self.mask) & (noise.uniform(*z.shape) < 1 - self.schedule.noise(s) / self.schedule.noise(t))
        z = z.clone()
        z[revealed] = categorical(out[revealed], noise.for_positions(revealed).uniform(int(revealed.sum())))
        return z

    def accumulators(self) -> list[Tensor]:
        return [] if self.clock is None else [self.clock.pending]

    def update_statistics(self, progress: float = 0.0) -> None:
        if self.clock is not None:
            self.clock.update_statistics()

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        return self._grid(steps)
