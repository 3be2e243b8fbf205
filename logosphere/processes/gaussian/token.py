"""Gaussian diffusion of tokens: states are rows of an embedding table, bits, one-hot vectors or ±1 logits.

The network predicts logits of tokens, x̂ = Σ_k p_k e_k, or a state (parameterization.py). The bound holds for every
table whose rows differ. With the exact posterior mean it is the entropy plus the prior term, and at most the
reconstruction term where tokens, which are decoded one by one, are still uncertain at the end of the path.

The path begins at the row e, or at x_0 ~ N(e, s₀² I) (Li et al. 2022, Diffusion-LM). In the second case
z_t = α_t x_0 + σ_t ε, the network predicts x_0, and tokens are decoded from x_0 by p(x | x_0). The bound for x_0
instead of e, and q(x_0 | e) against p(x_0 | z_decode) = N(x̂, s² I), give

    -log p(x) ≤ E[-log p(x | x_0) + |x_0 - x̂(z_decode)|²/2s² + (d/2)(log s²/s₀² - 1)] + diffusion and prior of x_0

for every s. Here s² = s₀² σ²/(σ² + α² s₀²) at T_DECODE, the variance of x_0 given z_decode and e; s₀ = σ_decode.
States of training are pairs [e, x_0], because the first step of Diffusion-LM is trained to predict e.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.embeddings import Embeddings
from logosphere.errors import UserError
from logosphere.processes.base import MAX_LOGIT, Encoded
from logosphere.processes.capabilities import LearnedCodec, TrainingPhases
from logosphere.processes.gaussian.diffusion import T_DECODE, GaussianDiffusion
from logosphere.processes.gaussian.updates import CleanState, Parameterization, Spacing
from logosphere.processes.time_sampler import TimeSampler
from logosphere.rng import Noise, categorical
from logosphere.schedules.logsnr import LogSNR
from logosphere.types import Batch, Bool, Float, Int64, Kind, Logits, State, Times

Loss = Literal["bound", "cross-entropy", "error"]


@dataclass(frozen=True)
class NoisyStart:
    """x_0 ~ N(e, `deviation`²) in `width` coordinates, where the path begins with α_decode² = 1 - `deviation`²."""

    deviation: float
    width: int

    @property
    def variance(self) -> float:
        """s₀²."""
        return self.deviation**2

    @property
    def posterior_variance(self) -> float:
        """s²."""
        return self.variance / (2 - self.variance)

    def pair(self, row: State, where: Bool[Tensor, "..."], noise: Noise) -> State:
        """[e, x_0], the same state twice where there is no noise."""
        return torch.cat([row, self.sample_x0(row, where, noise)], -1)

    def sample_x0(self, row: State, where: Bool[Tensor, "..."], noise: Noise) -> State:
        """x_0."""
        return row + torch.where(where[..., None], self.deviation, 0.0) * noise.normal(*row.shape)

    def row(self, u: State) -> State:
        """e, of a pair or of a row."""
        return u[..., : self.width]

    def x0(self, u: State) -> State:
        """x_0 of a pair; of a row the row itself."""
        return u[..., -self.width :]

    def first_step_nll(self, error: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """E[log q(x_0 | e)] - log p(x_0 | z_decode), given |x_0 - x̂|²."""
        s2 = self.posterior_variance
        return error / (2 * s2) + self.width / 2 * (math.log(s2 / self.variance) - 1)

    def sample_posterior(self, x0: State, noise: Noise) -> State:
        """x_0 ~ p(x_0 | z_decode)."""
        return x0 + math.sqrt(self.posterior_variance) * noise.normal(*x0.shape)

    def posterior_mean(self, row: State, z: State, alpha: Tensor, sigma: Tensor) -> State:
        """E[x_0 | z, e] = e + α s₀²/(σ² + α² s₀²) (z - α e); e itself where there is no noise."""
        gain = alpha * self.variance / (sigma.square() + alpha.square() * self.variance)
        return torch.where(sigma > 0, row + gain * (z - alpha * row), row)


class GaussianTokenDiffusion(GaussianDiffusion, LearnedCodec, TrainingPhases):
    """Diffusion of the rows of an embedding table.

    `loss`: the bound, plain cross-entropy, or the squared error of the network's output, at the times of the sampler.
    `rounding_loss_weight` is the weight of the cross-entropy of tokens decoded from their own noisy states, by a linear
    head that shares its matrix with the embeddings (`rounding_head`; Diffusion-LM) or else by Bayes' rule.

    `noisy_start`: the path begins at a noisy state, from which the head decodes tokens. `head_warmup`: the posterior
    head is scaled from 0 to 1 over this fraction of the training (Plaid). `hold_self_conditioned`: sequences that are
    conditioned on an estimate train neither the codec nor the schedule (Plaid).
    """

    codec: Embeddings
    head_scale: Tensor

    def __init__(
        self,
        codec: Embeddings,
        schedule: LogSNR,
        time_sampler: TimeSampler,
        *,
        parameterization: Parameterization | None = None,
        loss: Loss = "bound",
        rounding_loss_weight: float = 0.0,
        rounding_head: bool = False,
        spacing: Spacing = "angle",
        noisy_start: bool = False,
        discrete: bool = False,
        head_warmup: float = 0.0,
        hold_self_conditioned: bool = False,
    ):
        if parameterization is not None and loss == "cross-entropy":
            raise UserError("Cross-entropy needs a network that predicts tokens; train on the bound or on the error.")
        super().__init__(
            codec,
            schedule,
            time_sampler,
            width=codec.width,
            parameterization=parameterization,
            spacing=spacing,
            discrete=discrete,
        )
        self.loss_type, self.rounding_loss_weight = loss, rounding_loss_weight
        self._separable: tuple[object, bool] | None = None
        self.bias = nn.Parameter(torch.zeros(codec.vocab_size)) if rounding_head else None
        self.noisy_start: NoisyStart | None = None
        if noisy_start:
            if self.bias is None or not isinstance(parameterization, CleanState) or loss != "error":
                raise UserError("A noisy start needs a head, predicts=x0 and the loss 'error'.")
            self.noisy_start = NoisyStart(1 / math.sqrt(1 + math.exp(self.max_logsnr)), codec.width)
        if not 0 <= head_warmup <= 1:
            raise UserError(f"head_warmup is a fraction of the training from 0 to 1, not {head_warmup}.")
        self.head_warmup, self.hold_self_conditioned = head_warmup, hold_self_conditioned
        self.register_buffer("head_scale", torch.ones(()), persistent=False)

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """A bound where the reconstruction identifies the token: coinciding rows would be one state of several tokens.

        Where the state itself is decoded by Bayes' rule, such tokens share their probability, and the value is a bound.
        The test is skipped while gradients are computed. Its result is cached for each version of the table.
        """
        if torch.is_grad_enabled() or (self.parameterization is not None and self.bias is None):
            return "bound"
        weight = self.codec.weight
        version = weight.data_ptr(), weight._version, weight.device
        if self._separable is None or self._separable[0] != version:
            self._separable = version, self.codec.is_separable()
        return "bound" if self._separable[1] else "surrogate"

    # ---- training -----------------------------------------------------------------------------------------------

    def on_step_start(self, progress: float) -> None:
        if self.head_warmup:
            self.head_scale.fill_(min(1.0, progress / self.head_warmup))

    def held_parameters(self) -> list[nn.Parameter]:
        return [*self.codec.parameters(), *self.schedule.parameters()] if self.hold_self_conditioned else []

    def schedule_parameters(self) -> list[nn.Parameter]:
        return list(self.schedule.parameters())

    def metrics(self) -> dict[str, float]:
        """Statistics of the embeddings, which must neither collapse nor grow without limit."""
        with torch.no_grad():
            alpha, sigma = self.alpha_sigma(torch.full((1,), T_DECODE, device=self.time_sampler.base.device))
        return self.codec.metrics(float(alpha), float(sigma))

    # ---- forward ------------------------------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Rows of the table; with a noisy start pairs [e, x_0]."""
        encoded = super().encode(batch, noise)
        if self.noisy_start is None:
            return encoded
        return encoded._replace(u=self.noisy_start.pair(encoded.u, self.codec.expand_to_states(batch.free), noise))

    def _path_start(self, u: State) -> State:
        """The state at which the path begins."""
        return u if self.noisy_start is None else self.noisy_start.x0(u)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        start = self._path_start(u)
        if self.noisy_start is not None and start.shape == u.shape:  # a row without its x_0
            start = self.noisy_start.sample_x0(u, t > 0, noise)
        return super().corrupt(start, t, noise)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        return super().prior_kl(self._path_start(u))

    # ---- the posterior of a token ---------------------------------------------------------------------------------

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Adds log q(z | k) = (α/v) z·e_k - (α²/2v) |e_k|² + const: Plaid's output prior, for rows of any length.

        v = σ², and with a noisy start v = σ² + α² s₀².
        """
        return logits + self._log_likelihood(z, t, self.evidence_scale())

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self._log_likelihood(z, t, 1.0)

    def evidence_scale(self) -> Tensor | float:
        """The factor of the posterior head: less than 1 only early in the training."""
        return self.head_scale if self.training and self.head_warmup else 1.0

    def _log_likelihood(self, z: State, t: Float[Tensor, "..."], scale: Tensor | float) -> Logits:
        snr = self.logsnr(t)[..., None].exp()
        wider = 1.0 if self.noisy_start is None else 1 + snr * self.noisy_start.variance
        linear, quadratic = ((snr * (1 + snr)).sqrt() / wider).float(), (snr / 2 / wider).float()
        products, squares = self.codec.compare_rows(z)
        log_q = linear * products - quadratic * squares
        log_q = scale * (log_q - log_q.detach().amax(-1, keepdim=True))
        if bool((t > 0).all()):
            return log_q
        clean = MAX_LOGIT * (F.one_hot(self.codec.nearest(z), self.codec.vocab_size) - 1)
        return torch.where(t[..., None] > 0, log_q, clean.to(log_q.dtype))

    def predict_x0(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        if self.parameterization is None:
            return self.codec.mean(out)
        return self.parameterization.predict_x0(out, z, *self.alpha_sigma(t))

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """The output of a network whose posterior is p(token | z)."""
        if self.parameterization is None:
            return posterior
        (alpha, sigma), x0 = self.alpha_sigma(t), self.codec.mean(posterior)
        if self.noisy_start is not None:
            x0 = self.noisy_start.posterior_mean(x0, z, alpha, sigma)
        return self.parameterization.from_x0(x0, z, alpha, sigma)

    def log_posterior(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        if self.parameterization is not None:
            raise UserError("This model predicts states and not tokens, so it has no posterior of each token.")
        return out.log_softmax(-1)

    def decode_logits(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        """log p(token | z_decode): the prediction of the network, or that of the state where the network has none."""
        if self.parameterization is None:
            return out
        if self.bias is not None:
            return self.codec.products(z) + self.bias
        return self._log_likelihood(z, t, 1.0)

    # ---- the bound ------------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        start = self._path_start(u)
        error = (start - self.predict_x0(out, z, t)).square().sum(-1)
        rate = self.bound_density(t) * error
        decoded = z if self.noisy_start is None else start
        cross_entropy = self._cross_entropy(self.decode_logits(out, decoded, t), u)
        recon = cross_entropy
        if self.noisy_start is not None:
            recon = cross_entropy + self.noisy_start.first_step_nll(error)
        rate = torch.where(t <= T_DECODE, recon, rate)
        if self.training:
            self.time_sampler.observe(self.interval_of(t), rate, cross_entropy)
        return rate

    def _cross_entropy(self, logits: Logits, u: State) -> Float[Tensor, " N"]:
        row = u if self.noisy_start is None else self.noisy_start.row(u)
        return F.cross_entropy(logits, self.codec.nearest(row), reduction="none")

    def loss(self, rate: Tensor, out: Tensor, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        if self.loss_type == "bound":
            return rate * weight
        if self.loss_type == "cross-entropy":
            return self._cross_entropy(out, u)
        if self.noisy_start is not None:  # Diffusion-LM predicts x_0, and in the first step its mean
            target = torch.where((t <= T_DECODE)[..., None], self.noisy_start.row(u), self.noisy_start.x0(u))
            return (target - self.predict_x0(out, z, t)).square().mean(-1)
        # Per coordinate; the rate of the bound and the error of the output are multiples of the error of x̂.
        scale: Tensor | float = 1.0
        if self.parameterization is not None:
            scale = self.parameterization.loss_scale(*self.alpha_sigma(t)).squeeze(-1)
        return torch.where(t <= T_DECODE, rate, rate / self.bound_density(t) * scale / u.shape[-1])

    def auxiliary_loss(
        self, batch: Batch, u: State, t: Times, nats: Float[Tensor, " B"], noise: Noise
    ) -> Float[Tensor, " B"]:
        """The prior term with the bound or the error, the rounding loss, and the loss of a learned schedule's shape."""
        free = self.codec.expand_to_states(batch.free)
        terms = torch.zeros_like(nats)
        if self.loss_type != "cross-entropy":
            scale = 1.0 if self.loss_type == "bound" else 2 / self.width  # Diffusion-LM's mean of α₁² u²
            terms = scale * (self.prior_kl(u) * free).sum(1)
        if self.rounding_loss_weight:
            at = torch.full_like(t, T_DECODE)
            z = self.corrupt(u, at, noise) if self.noisy_start is None else self.noisy_start.x0(u)
            logits = self.log_likelihood(z, at) if self.parameterization is None else self.decode_logits(z, z, at)
            nll = F.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten(), reduction="none").view_as(t)
            terms = terms + self.rounding_loss_weight * (nll * free).sum(1)
        relative = nats / (batch.free.sum(1).clamp_min(1) * math.log(self.codec.vocab_size))
        return terms + self.schedule.variance_loss(self.schedule_time(t.amax(1)), relative)

    # ---- decoding -------------------------------------------------------------------------------------------------

    def final_state(
        self, out: Tensor, x0: State, z: State, z_decode: State, t: Tensor, noise: Noise, *, greedy: bool
    ) -> State:
        """The row of a token drawn from p(x | z_t), or (greedy) of the likeliest one.

        A network that predicts states is followed to T_DECODE first, or to x_0. Greedy decoding takes tokens from x̂
        there, as the papers of such systems do.
        """
        if greedy:
            return self.codec.rows(self._likeliest_tokens(out, x0))
        if self.parameterization is not None:
            end = torch.where((t > T_DECODE)[..., None], z_decode, z)
            if self.noisy_start is not None:
                end = self.noisy_start.sample_posterior(x0, noise)
            out = self.decode_logits(out, end, torch.full_like(t, T_DECODE))
        return self.codec.rows(categorical(out, noise.uniform(len(out))))

    def _likeliest_tokens(self, out: Tensor, x0: State) -> Int64[Tensor, " N"]:
        if self.parameterization is None:
            return out.argmax(-1)
        return self.codec.nearest(x0) if self.bias is None else (self.codec.products(x0) + self.bias).argmax(-1)
