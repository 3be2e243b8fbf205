"""Discrete diffusion by interpolation: q(z_t | x) = a_t [z = x] + b_t(z).

A mixing distribution defines b_t (mixing.py): the mask, random tokens, or both. An output parameterisation defines what
the network predicts (parameterization.py). The posterior of a step has a closed form of cost O(K) (Austin et al. 2021,
D3PM):

    q(z_s | z_t, x) = q(z_t | z_s) q(z_s | x) / q(z_t | x)

With x̂, the prediction from the other positions alone, in place of x it is the exact posterior step of the model.
"""

from collections.abc import Callable
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.processes.base import Encoded, ForwardSample, Process, uniform_grid
from logosphere.processes.capabilities import DiscreteTransitions, OnlineStatistics, PublishedTimes, Unmasking
from logosphere.processes.discrete.mixing import MixingDistribution, Weighting
from logosphere.processes.discrete.parameterization import OutputParameterization, Posterior, cross_entropy
from logosphere.processes.time_sampler import LOW_VARIANCE, TimeSampler, TrainingTimes
from logosphere.rng import Noise, categorical
from logosphere.types import Batch, Float, Int64, Logits, Positions, State, Times

GIDD_FIRST = 1e-4
"""Where the published likelihoods of GIDD begin, and as much before t = 1 they end."""


class DiscreteDiffusion(Process, DiscreteTransitions, OnlineStatistics, PublishedTimes, Unmasking):
    """Diffusion of tokens with one mixing distribution, in continuous time or in `timesteps` steps.

    Options of training, which leave the bound unchanged:
    `hybrid`: the λ of D3PM's L_λ, see `loss`. `unweighted`: the cross-entropy of masked tokens without the weight of
    the time, which trains faster. `weighting`: other weights than the bound's. `times`: which times are drawn. `clip`:
    keep the fraction of masked positions in an interval (BD3-LM).

    Options of the estimate: `exact_count` masks exactly ceil(w·n) of n positions instead of each independently, the
    same bound with less variance, for models that are not conditioned on the time; with `random_mask_count` only in
    evaluation. A `time_sampler` draws the steps of a chain where their costs vary most.

    `decode_from_network`: the last step of a chain, and cross-entropies in the loss, use the network's own
    distribution x̂ (D3PM's code) instead of the posterior ∝ x̂ q(z | x). `all_masked`: samples begin with masks alone,
    also where the schedule leaves signal at t = 1, so that p(z_1) of the bound has a few tokens (MDLM, SEDD, MD4).
    `truncate_ends`: likelihoods are integrated over the times of training alone (GIDD's evaluation), which is no bound.
    """

    shares_times = True
    mean_over_time = False
    """Whether likelihoods are the mean of the rate over the times of training, without any other term."""

    def __init__(
        self,
        mixing: MixingDistribution,
        *,
        timesteps: int | None = None,
        parameterization: OutputParameterization | None = None,
        hybrid: float = 0.0,
        exact_count: bool = False,
        unweighted: bool = False,
        weighting: Weighting | None = None,
        clip: tuple[float, float] = (0.0, 1.0),
        time_sampler: TimeSampler | None = None,
        times: TrainingTimes = LOW_VARIANCE,
        random_mask_count: bool = False,
        decode_from_network: bool = False,
        all_masked: bool = False,
        truncate_ends: bool = False,
        grid: Callable[[int], Tensor] = uniform_grid,
    ):
        super().__init__()
        self.truncate_ends, self.kind = truncate_ends, "surrogate" if truncate_ends else "bound"
        self.mixing, self.parameterization, self.timesteps = mixing, parameterization or Posterior(), timesteps
        self.vocab_size, self.schedule = mixing.vocab_size, mixing.schedule
        self.hybrid, self.exact_count, self.unweighted = hybrid, exact_count, unweighted
        self.weighting, self.clip, self.time_sampler, self._grid = weighting, clip, time_sampler, grid
        self.times, self.random_mask_count, self.decode_from_network = times, random_mask_count, decode_from_network
        self.initial_recon, self.all_masked = mixing.initial_recon(), all_masked
        self.chunkable = time_sampler is None  # a time sampler observes every row once
        self._check()
        self.codec: TokenCodec = TokenCodec(mixing.vocab_size, mask=mixing.has_mask)
        self.mask, self.max_steps, self.time_conditional = self.codec.mask, timesteps, mixing.has_uniform
        self.guides_transitions = mixing.has_uniform
        self.predicts_ratios = not self.parameterization.normalised
        self.recon_time = 0.0 if timesteps is None else 1.5 / timesteps  # between the first time and the second

    def _check(self) -> None:
        timesteps, mixing = self.timesteps, self.mixing
        if timesteps is not None and timesteps < 1:
            raise UserError(f"timesteps must be at least 1 (or None for continuous time), not {timesteps}.")
        if self.exact_count and (timesteps is not None or mixing.has_uniform or mixing.prior_kl() > 0):
            raise UserError(
                "exact_count needs masked diffusion in continuous time and a schedule that masks every token at t = 1."
            )
        continuous_single = timesteps is None and not self.hybrid and not (mixing.has_mask and mixing.has_uniform)
        if not self.parameterization.normalised and not continuous_single:
            raise UserError("Score entropy needs continuous time, either masks or random tokens, and hybrid=0.")
        if (
            mixing.has_uniform
            and timesteps is None
            and not float(mixing.schedule.noise(torch.tensor(1e-6).double())) > 0
        ):
            raise UserError("Random tokens in continuous time need a schedule with noise > 0 for every t > 0.")
        if self.hybrid < 0:
            raise UserError(f"The weight of the cross-entropy (hybrid) must be at least 0, not {self.hybrid}.")
        if self.all_masked and not mixing.has_mask:
            raise UserError("all_masked needs masked diffusion, not random tokens alone.")
        if self.truncate_ends and (timesteps is not None or self.times.low == 0):
            raise UserError("protocol=published integrates from t_min on; set t_min above 0, such as 1e-4.")
        if self.decode_from_network and (timesteps is None or not mixing.has_uniform):
            raise UserError("reconstruction=network needs random tokens in a number of timesteps.")
        low, high = self.clip
        if not 0 <= low < high <= 1:
            raise UserError(f"clip must be an interval within [0, 1], such as [0.3, 0.8], not [{low}, {high}].")

    # ---- forward ---------------------------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """The tokens themselves, and the reconstruction term of a schedule that begins with noise."""
        u, recon, loss = super().encode(batch, noise)
        return Encoded(u, recon + self.initial_recon * batch.free.sum(1) if self.initial_recon else recon, loss)

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        """The mean of q(z_1 | x) over all tokens: noise alone when the schedule ends at signal 0."""
        V, one = self.vocab_size, torch.ones((), device=noise.device, dtype=torch.float64)
        mask_mass = float(self.mixing.mask_mass(one))
        if mask_mass == 1 or self.all_masked:
            return torch.full((batch, length), V, device=noise.device)
        token = (noise.uniform(batch, length) * V).long().clamp_max(V - 1)
        return token if mask_mass == 0 else torch.where(noise.uniform(batch, length) < mask_mass, V, token)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        replaced = noise.uniform(*u.shape) < self.schedule.noise(t)
        return torch.where(replaced, self._sample_mixing(t, noise), u)

    def _sample_mixing(self, t: Times, noise: Noise) -> State:
        """A draw from b_t, the mask or a token."""
        if not self.mixing.has_uniform:
            return torch.full(t.shape, self.vocab_size, device=t.device)
        token = (noise.uniform(*t.shape) * self.vocab_size).long().clamp_max(self.vocab_size - 1)
        if not self.mixing.has_mask:
            return token
        masked = noise.uniform(*t.shape) * self.schedule.noise(t) < self.mixing.mask_mass(t)
        return torch.where(masked, self.vocab_size, token)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        learning = self.training and torch.is_grad_enabled()
        if learning:
            w = self.times.quantiles(w, noise)
        clipped = learning and self.clip != (0.0, 1.0)
        if clipped:
            w = self.clip[0] + (self.clip[1] - self.clip[0]) * w
        if self.exact_count and not (learning and self.random_mask_count):
            return self._sample_zt_by_count(u, w, free, noise)
        block = u.shape[1] // w.shape[1]
        if self.time_sampler is not None and self.timesteps is not None:
            step, inverse = self.time_sampler.sample_step(w, block)
            t, weight = (step + 1) / self.timesteps, inverse / self.timesteps
        elif self.timesteps is not None:
            t, weight = ((w * self.timesteps).floor() + 1) / self.timesteps, torch.ones_like(w)
        elif learning and (self.weighting is not None or self.times.is_uniform):
            t, weight = self.times.time(w), torch.ones_like(w)  # this loss has no large weights near t = 0
        elif self.truncate_ends:
            width = 1.0 if self.mean_over_time else self.times.high - self.times.low
            t, weight = self.times.time(w), torch.full_like(w, width)
        else:
            t, weight = self.schedule.times_at(w)
        block_times = t
        t, weight = t.repeat_interleave(block, 1).float(), weight.repeat_interleave(block, 1).float()
        t = torch.where(free, t, 0.0)
        if clipped and not self.mixing.has_uniform:
            masked = masks_in_interval(self.schedule.noise(block_times), free, self.clip, noise)
            return ForwardSample(torch.where(masked, self.vocab_size, u), t, weight)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    def _sample_zt_by_count(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """Mask exactly l = ceil(w·n) of the n free positions of each block, with the weight n/l.

        Independent masks at a uniform rate mask each number l of positions equally often, so this is the same average:
        E Σ CE/t dt = E_l (n/l) Σ CE (Uria et al. 2014; Ou et al. 2024), without the variance of the number.
        """
        blocks = (*w.shape, u.shape[1] // w.shape[1])
        free_count = free.view(blocks).sum(2, keepdim=True)
        mask_count = (w[..., None] * free_count).ceil().long().clamp_min(1)
        masked = masks_by_count(mask_count.minimum(free_count), free, noise)
        rate = (mask_count / free_count.clamp_min(1)).expand(blocks).reshape(u.shape)
        t = self.schedule.time(rate)
        z = torch.where(masked, self.vocab_size, u)
        return ForwardSample(z, torch.where(free, t, 0.0).float(), (1 / self.schedule.slope(t)).float())

    @property
    def unmasks_tokens(self) -> bool:
        return self.mixing.has_mask and not self.mixing.has_uniform

    @property
    def begins_masked(self) -> bool:
        return self.all_masked or float(self.mixing.mask_mass(torch.ones((), dtype=torch.float64))) == 1

    def masked_fraction(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.schedule.noise(t)

    # ---- the prediction ---------------------------------------------------------------------------------------

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving if self.mixing.has_uniform else moving & (z == self.mask)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self.add_evidence(torch.zeros(*t.shape, self.vocab_size, device=t.device), z, t)

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        own = z.clamp_max(self.vocab_size - 1)[..., None]
        return logits.scatter_add(-1, own, self.mixing.self_log_odds(z, t).to(logits.dtype)[..., None])

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self.parameterization.from_posterior(self.mixing, posterior, z, t)

    def log_posterior(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        if self.parameterization.normalised:
            return out.log_softmax(-1)
        context = self.context_probs(out, z, t).clamp_min(torch.finfo(out.dtype).tiny).log()
        return self.add_evidence(context, z, t).log_softmax(-1)

    def context_probs(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """x̂: the prediction from the other positions alone."""
        return self.parameterization.context_probs(self.mixing, out, z, t)

    # ---- the bound --------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.mixing.has_uniform:
            return self._unmask_rate(t) * self.parameterization.unmask_nll(self.mixing, out, u, t)
        if self.timesteps is None:
            return self._rate_divergence(out, u, z, t)
        recon = cross_entropy(self._decode_logits(out, z, t), u)
        if self.timesteps == 1:
            return recon
        last = t <= self.recon_time
        step = self._step_divergence(out, u, z, torch.where(last, 1.0, t))
        return self.timesteps * torch.where(last, recon, step)

    def _decode_logits(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Logits of the distribution from which the last step of a chain draws the token."""
        return self.context_probs(out, z, t).log() if self.decode_from_network else out

    def _unmask_rate(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-a'/(1 - a), the rate of unmasking; in T steps T (a_s - a_t)/(1 - a_t) (MDLM eqs. 8, 10)."""
        if self.timesteps is None:
            return self.schedule.slope(t) / self.schedule.noise(t)
        s = self._previous_time(t)
        return self.timesteps * (1 - self.schedule.noise(s) / self.schedule.noise(t))

    def _previous_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        assert self.timesteps is not None
        return ((t * self.timesteps).round() - 1) / self.timesteps

    def _rate_divergence(self, out: Logits, x: State, z: State, t: Tensor) -> Float[Tensor, "..."]:
        """Continuous time, the limit of T·KL for every flat mixing distribution (GIDD eq. 9; UDLM eq. 17; SEDD eq. 12):

            r(z)/q(z|x) Σ_k q(k|x) (e^{δ_k} - 1 - δ_k),   δ_k = log [ĝ_k / g_k],   g_k = q(k|x)/q(z|x)

        r(z) g_k is the true backward rate z -> k and r(z) ĝ_k the model's. In terms of δ it is accurate where both
        agree, and since q(k|x) is flat except at k = x, it needs one sum over the tokens.
        """
        mixing = self.mixing
        delta, mask_delta = self.parameterization.log_ratio_error(mixing, out, x, z, t)
        cost = delta.expm1() - delta  # 0 at k = z, since δ is
        at_x = cost.gather(-1, x[..., None]).squeeze(-1)
        total = mixing.uniform_mass(t) * cost.sum(-1) + mixing.signal(t) * at_x
        if mixing.has_mask:
            total = total + mixing.mask_mass(t) * (mask_delta.expm1() - mask_delta)
        return mixing.elbo_weight(x, z, t) * total

    def _step_divergence(self, out: Logits, x: State, z: State, t: Tensor) -> Float[Tensor, "..."]:
        """KL(q(z_s | z_t, x) || p(z_s | z_t)) of one step to s > 0 (D3PM eq. 1).

        Both have the factor q(z_t | z_s), so that only the marginals at s and t enter the log ratio δ, and
        Σ q (e^δ - 1 - δ) = KL because both sum to one.
        """
        s = self._previous_time(t)
        context, one_hot = self.context_probs(out, z, t), F.one_hot(x, self.vocab_size).to(out.dtype)
        log_q = self._log_step(one_hot, z, t, s)
        delta = self._log_step(context, z, t, s) - log_q
        return (log_q.exp() * (delta.expm1() - delta)).sum(-1)

    def _log_step(self, x: Float[Tensor, "... V"], z: State, t: Tensor, s: Tensor) -> Float[Tensor, "... K"]:
        """log q(z_s = k | z_t, x) for 0 <= s < t, for x one-hot or a distribution."""
        stayed, jumped = (probability.to(x.dtype)[..., None] for probability in self.mixing.transition(z, t, s))
        at_s = self.mixing.marginal(x, s)
        at_t = self.mixing.marginal(x, t).gather(-1, z[..., None])
        own = F.one_hot(z, at_s.shape[-1])
        return (own * stayed + jumped).log() + at_s.log() - at_t.log()

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """The bound plus a multiple of the cross-entropy; the bound with other weights; or cross-entropy alone.

        D3PM minimises KL_t + λ CE at times t drawn uniformly (eq. 5). `rate` is T·KL_t, so that the same loss in its
        units is rate + T λ CE; in continuous time, without a T, it is rate + λ CE.
        """
        if self.time_sampler is not None and self.training:
            step = (t * self.time_sampler.steps).round().long() - 1
            self.time_sampler.observe(step, rate, cross_entropy(out.detach(), u))
        if self.unweighted:
            return cross_entropy(out, u)
        if self.weighting is not None:
            elbo_weight = self.mixing.elbo_weight(u, z, t)
            return weight * rate * torch.where(elbo_weight > 0, self.weighting(self.mixing, u, z, t) / elbo_weight, 0.0)
        if not self.hybrid:
            return weight * rate
        recon = cross_entropy(self._decode_logits(out, z, t), u)
        return weight * (rate + self.hybrid * (self.timesteps or 1) * recon)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """0 for a schedule that ends at signal 0, where q(z_1 | x) is the prior."""
        return torch.full(u.shape, 0.0 if self.mean_over_time else self.mixing.prior_kl(), device=u.device)

    def with_published_times(self, first: float) -> "DiscreteDiffusion":
        """Likelihoods as published: a chain has its bound, and masks with random tokens leave out both ends (GIDD).

        Others have the mean of the rate over t = first + (1 - first) w (MDLM, SEDD, UDLM, BD3-LM), which lacks the
        factor 1 - first of an integral, and the terms of reconstruction and prior.
        """
        if self.timesteps is not None:
            return self
        published = copy(self)  # shares parameters and buffers
        published.truncate_ends, published.kind, published.exact_count = True, "surrogate", False
        if self.mixing.has_mask and self.mixing.has_uniform:
            published.times = TrainingTimes("uniform", GIDD_FIRST, 1 - GIDD_FIRST)
        else:
            published.times = TrainingTimes("uniform", first)
            published.mean_over_time, published.initial_recon = True, 0.0
        return published

    def accumulators(self) -> list[Tensor]:
        return [] if self.time_sampler is None else [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        if self.time_sampler is not None:
            self.time_sampler.update_statistics()

    # ---- backward ---------------------------------------------------------------------------------------------

    def log_transition(
        self, out: Logits, z: State, t: Float[Tensor, "..."], s: Float[Tensor, "..."]
    ) -> Float[Tensor, "... K"]:
        context = self.context_probs(out, z, t)
        step = self._log_step(context, z, t, s)
        return torch.where(s[..., None] > 0, step, context.log()) if self.decode_from_network else step

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        if self.mixing.has_uniform:
            moving = s < t  # the step of the others is 0 / 0 at the ends of time
            log_p = torch.where(moving[..., None], self.log_transition(out, z, t, s), 0.0)
            return torch.where(moving, categorical(log_p, noise.uniform(*z.shape)), z)
        # First whether a mask is lifted, then the token: products of small probabilities would underflow.
        unmasked = (z == self.mask) & (noise.uniform(*z.shape) < 1 - self.schedule.noise(s) / self.schedule.noise(t))
        z = z.clone()
        z[unmasked] = categorical(out[unmasked], noise.for_positions(unmasked).uniform(int(unmasked.sum())))
        return z

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        return self._grid(steps)


def masks_by_count(count: Int64[Tensor, "B J 1"], free: Positions, noise: Noise) -> Positions:
    """Masks at `count` of the free positions of each block, all subsets equally likely."""
    blocks = (*count.shape[:2], free.shape[1] // count.shape[1])
    scores = torch.where(free, noise.uniform(*free.shape), 2.0).view(blocks)
    threshold = scores.sort(2).values.gather(2, count.clamp_min(1) - 1)
    return ((scores <= threshold) & (count > 0)).view_as(free) & free


def masks_in_interval(
    rate: Float[Tensor, "B J"], free: Positions, interval: tuple[float, float], noise: Noise
) -> Positions:
    """Masks with probability `rate`, given that the masked fraction of each block lies in an interval.

    BD3-LM draws masks until that is so (Arriola et al. 2025, section 5.3). The number of masks then has the binomial
    distribution restricted to the interval, and all subsets of that size are equally likely. Where no number fits, all
    are allowed.
    """
    total = free.view(*rate.shape, -1).sum(2, keepdim=True).double()
    count = torch.arange(free.shape[1] // rate.shape[1] + 1, device=rate.device).double()
    p = rate.double().clamp(1e-12, 1 - 1e-12)[..., None]
    log_p = torch.lgamma(total + 1) - torch.lgamma(count + 1) - torch.lgamma((total - count).clamp_min(0) + 1)
    log_p = torch.where(count <= total, log_p + count * p.log() + (total - count) * (-p).log1p(), -torch.inf)
    fraction = count / total.clamp_min(1)
    fits = (interval[0] <= fraction) & (fraction <= interval[1]) & (count <= total)
    log_p = torch.where(fits | ~fits.any(2, keepdim=True), log_p, -torch.inf)
    return masks_by_count(categorical(log_p, noise.uniform(*rate.shape))[..., None], free, noise)
