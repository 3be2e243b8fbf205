"""Diffusion of ordered tokens: noise moves a value to its neighbours (Austin et al. 2021, D3PM, appendix A.2.3).

    Q_t(i, j) ∝ exp(-4 (i - j)² / ((V - 1)² β_t))  for i ≠ j;   the rest of each row is on the diagonal

The matrices are symmetric, so that their product Q̄_t = Q_1 ⋯ Q_t tends to the uniform distribution. They do not commute
and have no closed form, so this process stores V × V matrices, one for each of T steps.
"""

import math
from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError, suggest
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.capabilities import DiscreteTransitions
from logosphere.processes.discrete.parameterization import cross_entropy
from logosphere.processes.time_sampler import LOW_VARIANCE, TrainingTimes
from logosphere.rng import Noise, categorical
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times

MAX_ENTRIES = 1 << 28
"""The number of entries of all matrices together: one GiB in float32."""
MAX_INFORMATION = 0.9
"""The largest fraction of a value's information that may be left at the end of a chain."""
TINY = 1e-30
"""Lower limit of probabilities, so that their logarithms are finite."""
WIDTHS = ("variance", "formula")


def step_weights(vocab_size: int, steps: int, widths: str = "variance") -> Float[Tensor, "T D"]:
    """The probability of each difference -(V-1) … V-1 in each step: exp(-4 d²/((V - 1)² β)), normalised.

    D3PM has β from 1e-4 to 0.02 in 1000 steps; chains of fewer steps have proportionally larger ones. For many values
    that is a variance of (V - 1)² β/8. For few values most steps of the formula change nothing, so by default each
    step has this variance, and the width is found by bisection. widths="formula" is as published.
    """
    if widths not in WIDTHS:
        raise UserError(f"There are no widths '{widths}'.{suggest(widths, WIDTHS)}")
    difference = torch.arange(-(vocab_size - 1), vocab_size).double()
    betas = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * 1000 / steps
    if widths == "formula":
        return torch.softmax(-4 * difference**2 / ((vocab_size - 1) ** 2 * betas[:, None]), 1)
    wanted = (vocab_size - 1) ** 2 / 8 * betas
    widest = float(difference.square().mean())
    low, high = torch.full_like(wanted, -12.0), torch.full_like(wanted, 12.0)  # log of the width
    for _ in range(60):
        middle = (low + high) / 2
        weights = torch.softmax(-(difference**2) * torch.exp(-middle)[:, None], 1)
        enough = weights @ difference**2 > wanted.clamp_max(0.9 * widest)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return weights


def transition_matrix(weights: Float[Tensor, " D"]) -> Float[Tensor, "V V"]:
    """Q of one step: the weight of the difference, and on the diagonal the rest to 1."""
    vocab_size = (len(weights) + 1) // 2
    i = torch.arange(vocab_size, device=weights.device)
    matrix = weights[i[:, None] - i + vocab_size - 1].fill_diagonal_(0)
    return matrix + torch.diag(1 - matrix.sum(1))


class DiscretizedGaussian(Process, DiscreteTransitions):
    """A chain of T steps with discretised Gaussian noise and a uniform prior, whose KL divergence is part of the bound.

    `decode_from_network`: the last step, and the cross-entropy in the loss, use the network's own distribution x̂
    (D3PM's code) instead of the posterior ∝ x̂ q(z | x).
    """

    shares_times = True
    kind: Kind = "bound"
    guides_transitions = True
    products: Tensor
    """Q̄_0 … Q̄_T."""
    weights: Tensor

    def __init__(
        self,
        vocab_size: int,
        *,
        timesteps: int,
        hybrid: float = 0.0,
        widths: str = "variance",
        times: TrainingTimes = LOW_VARIANCE,
        decode_from_network: bool = False,
    ):
        super().__init__()
        if timesteps < 1:
            raise UserError(f"timesteps must be at least 1, not {timesteps}.")
        if hybrid < 0:
            raise UserError(f"The weight of the cross-entropy (hybrid) must be at least 0, not {hybrid}.")
        if timesteps * vocab_size**2 > MAX_ENTRIES:
            raise UserError(
                f"{timesteps} matrices of {vocab_size} × {vocab_size} have more than {MAX_ENTRIES} entries; "
                "use fewer timesteps or tokens."
            )
        self.codec: TokenCodec = TokenCodec(vocab_size, mask=False)
        self.vocab_size, self.timesteps, self.hybrid = vocab_size, timesteps, hybrid
        self.times, self.decode_from_network = times, decode_from_network
        self.max_steps, self.recon_time = timesteps, 1.5 / timesteps
        self.register_buffer("weights", step_weights(vocab_size, timesteps, widths), persistent=False)
        product, products = torch.eye(vocab_size).double(), torch.empty(timesteps + 1, vocab_size, vocab_size)
        products[0] = product
        for step, weights in enumerate(self.weights, start=1):
            product = product @ transition_matrix(weights)
            products[step] = product
        self.register_buffer("products", products, persistent=False)
        if widths == "formula" and float(self._prior_information().max()) > MAX_INFORMATION * math.log(vocab_size):
            raise UserError(
                f"The published steps of d3pm-gaussian (for 256 values) change almost nothing with {vocab_size}; "
                "use widths=variance, or at least 7 tokens."
            )

    def _step_of(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The index of a time; times between two steps belong to the later one."""
        return (t.double() * self.timesteps - 1e-4).ceil().long().clamp(0, self.timesteps)

    # ---- forward ---------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return (noise.uniform(batch, length) * self.vocab_size).long().clamp_max(self.vocab_size - 1)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return categorical(self.products[self._step_of(t), u].log(), noise.uniform(*u.shape))

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        if self.training and torch.is_grad_enabled():
            w = self.times.quantiles(w, noise)
        t = ((w * self.timesteps).floor() + 1) / self.timesteps
        t = torch.where(free, t.repeat_interleave(u.shape[1] // w.shape[1], 1).float(), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, torch.ones_like(t))

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """log q(z_t | x = k), at least -MAX_LOGIT: Q̄ is symmetric step by step, but not as a product."""
        return self.products.transpose(1, 2)[self._step_of(t), z].log().clamp_min(-MAX_LOGIT)

    # ---- the bound --------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """T·KL(q(z_s | z_t, x) || p(z_s | z_t)); the last step is the cross-entropy (D3PM eq. 1)."""
        step = self._step_of(t)
        last = step <= 1
        both = torch.stack([F.one_hot(u, self.vocab_size).to(out.dtype), self.context_probs(out, z, t)])
        log_q, log_p = self._log_step(both, z, step.clamp_min(2), (step - 1).clamp_min(1))
        kl = torch.where(log_q > -MAX_LOGIT, log_q.exp() * (log_q - log_p), 0.0).sum(-1)
        return self.timesteps * torch.where(last, cross_entropy(self._decode_logits(out, z, t), u), kl)

    def _decode_logits(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Logits of the distribution from which the last step draws the token."""
        return out - self.log_likelihood(z, t).to(out.dtype) if self.decode_from_network else out

    def context_probs(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """x̂ ∝ p(x | z) / q(z | x): the prediction from the other positions alone."""
        return (out - self.log_likelihood(z, t).to(out.dtype)).softmax(-1)

    def _log_step(self, x: Float[Tensor, "n ... V"], z: State, late: State, early: State) -> Float[Tensor, "n ... V"]:
        """log q(z_s = k | z_t, x) = log q(z_t | z_s = k) + log q(z_s = k | x), normalised, for n distributions x."""
        flat, states = x.flatten(1, -2), z.flatten()
        marginal, kernel = torch.empty_like(flat), torch.empty_like(flat[0])
        pairs = (late * (self.timesteps + 1) + early).flatten()
        order = pairs.argsort(stable=True)
        counts = sorted(Counter(pairs.tolist()).items())  # the only reading of a device; the rest is by index
        for (pair, _), rows in zip(counts, order.split([count for _, count in counts]), strict=True):
            t, s = divmod(pair, self.timesteps + 1)
            marginal[:, rows] = flat[:, rows] @ self.products[s].to(x.dtype)
            kernel[rows] = self._kernel(s, t).to(x.dtype).T[states[rows]]
        step = (marginal.clamp_min(TINY).log() + kernel.clamp_min(TINY).log()).log_softmax(-1)
        return step.view(x.shape)

    def _kernel(self, s: int, t: int) -> Float[Tensor, "V V"]:
        """q(z_t | z_s), the product of the steps between."""
        product = torch.eye(self.vocab_size, dtype=torch.float64, device=self.weights.device)
        for weights in self.weights[s:t]:
            product = product @ transition_matrix(weights)
        return product

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """T·KL_t + T λ CE, which is T times D3PM's KL_t + λ CE (eq. 5)."""
        if not self.hybrid:
            return rate
        return rate + self.timesteps * self.hybrid * cross_entropy(self._decode_logits(out, z, t), u)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """KL(q(z_1 | x) || uniform), which depends on x."""
        return self._prior_information().float().to(u.device)[u]

    def _prior_information(self) -> Float[Tensor, " V"]:
        """KL(q(z_1 | x) || uniform) of each value x, in nats."""
        end = self.products[-1].double().clamp_min(TINY)
        return (end * (end * self.vocab_size).log()).sum(1).clamp_min(0)

    # ---- backward ---------------------------------------------------------------------------------------------

    def log_transition(
        self, out: Logits, z: State, t: Float[Tensor, "..."], s: Float[Tensor, "..."]
    ) -> Float[Tensor, "... K"]:
        context = self.context_probs(out, z, t)
        step = self._log_step(context[None], z, self._step_of(t), self._step_of(s))[0]
        return torch.where(s[..., None] > 0, step, context.log()) if self.decode_from_network else step

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        return torch.where(s < t, categorical(self.log_transition(out, z, t, s), noise.uniform(*z.shape)), z)
