"""Gaussian diffusion over any continuous codec: z_t = α_t u + σ_t ε, α² + σ² = 1, SNR = α²/σ² = e^λ.

One process serves embeddings, bits, simplex corners and latents. Time t = 0 is the clean state itself; the path runs
from t = 1 to `FIRST`, where λ is finite and the token is read off:

    -log p(x) ≤ E[-log p(x | z_first)] + ½ ∫ -SNR'(t) E|u - x̂(z_t)|² dt + KL(q(z_1 | x) || N(0, I))

(Kingma et al. 2021, VDM, eq. 18) is a bound for every network, every schedule and every table whose rows differ. With
the exact posterior mean it is the entropy plus the prior term (Guo et al. 2005, I-MMSE), and at most the reconstruction
where tokens, read off one by one, are not clear yet at the end.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.codecs.embeddings import Embeddings
from logosphere.errors import UserError
from logosphere.logsnr.schedules import LogSNR
from logosphere.noise import Noise, categorical
from logosphere.processes.base import MAX_LOGIT, Encoded, ForwardSample, Process
from logosphere.processes.capabilities import LearnedCodec, OnlineStatistics, TrainingPhases
from logosphere.processes.gaussian.noisy_start import NoisyStart
from logosphere.processes.gaussian.parameterization import CleanState, Prediction
from logosphere.processes.gaussian.time_grid import Spacing, spaced_times
from logosphere.processes.gaussian.updates import Move, ancestral
from logosphere.processes.time_sampler import TimeSampler
from logosphere.shapes import Float, Int64
from logosphere.types import Batch, Kind, Logits, Positions, State, Times

Loss = Literal["bound", "cross-entropy", "error"]

FIRST = 1e-3
"""The time at which the path ends and the token is read off. A mark only: schedules run from here to 1."""
BRINK = 1 - 1e-9
"""Where a schedule ends without signal, its slope is infinite; it is not asked beyond this share of the path."""


class Gaussian(Process, LearnedCodec, OnlineStatistics, TrainingPhases):
    """Diffusion of a codec's states.

    `predicts` says how x̂ follows from the network's output; None if this is logits of tokens, x̂ = Σ_k p_k e_k.
    `loss`: the bound, plain cross-entropy, or the squared error of what the network predicts, at the clock's times.
    `anchor` adds that share of the cross-entropy of tokens read off their own noisy states, by a tied linear `head`
    (Diffusion-LM) or else by Bayes' rule. `spacing` is that of the sampler's steps.

    `noisy_start`: the path begins at a noisy state, from which the head reads tokens (processes.noisy_start).
    `discrete`: training draws the ends of the clock's intervals and no times in between. `head_warmup`: the posterior
    head is scaled from 0 to 1 over this fraction of the training (Plaid). `holds`: sequences that are conditioned on
    an estimate train neither the codec nor the schedule (Plaid).
    """

    recon_time = FIRST
    head_scale: Tensor

    def __init__(
        self,
        codec: Codec,
        schedule: LogSNR,
        time_sampler: TimeSampler,
        *,
        predicts: Prediction | None = None,
        loss: Loss = "bound",
        anchor: float = 0.0,
        head: bool = False,
        spacing: Spacing = "angle",
        noisy_start: bool = False,
        discrete: bool = False,
        head_warmup: float = 0.0,
        holds: bool = False,
    ):
        super().__init__()
        self.codec, self.schedule, self.time_sampler = codec, schedule, time_sampler
        self.predicts, self.loss_type, self.anchor, self.spacing = predicts, loss, anchor, spacing
        self.intervals = time_sampler.steps - 1
        self._told_apart: tuple[object, bool] | None = None
        if not isinstance(codec, Embeddings) and (predicts is None or loss == "cross-entropy"):
            raise UserError(
                "States that are not those of single tokens cannot be predicted as tokens; choose x0, v or eps."
            )
        if predicts is not None and loss == "cross-entropy":
            raise UserError("Cross-entropy needs a network that predicts tokens; train on the bound or on the error.")
        start = float(schedule.logsnr(torch.zeros(())).detach())
        if not math.isfinite(start):
            raise UserError(
                "This schedule has an infinite signal-to-noise ratio at t = 0, where a bound needs a finite one; "
                "say where it should begin, for example highest=6."
            )
        self.bias = nn.Parameter(torch.zeros(codec.vocab_size)) if head else None
        self.start: NoisyStart | None = None
        if noisy_start:
            if self.bias is None or not isinstance(predicts, CleanState) or loss != "error":
                raise UserError("A noisy start needs a head, predicts=x0 and the loss 'error'.")
            assert isinstance(codec, Embeddings)
            self.start = NoisyStart(1 / math.sqrt(1 + math.exp(start)), codec.width)
        if not 0 <= head_warmup <= 1:
            raise UserError(f"head_warmup is a fraction of the training from 0 to 1, not {head_warmup}.")
        self.discrete, self.head_warmup, self.holds = discrete, head_warmup, holds
        self.register_buffer("head_scale", torch.ones(()), persistent=False)

    # ---- levels -----------------------------------------------------------------------------------------------

    def _own(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The schedule's time."""
        return ((t.double() - FIRST) / (1 - FIRST)).clamp(0, 1)

    def logsnr(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """λ at times from FIRST to 1, float64."""
        return self.schedule.logsnr(self._own(t))

    def levels(self, t: Float[Tensor, "..."]) -> tuple[Float[Tensor, "... 1"], Float[Tensor, "... 1"]]:
        """α and σ; 1 and 0 where t = 0."""
        logsnr, noisy = self.logsnr(t)[..., None], t[..., None] > 0
        alpha, sigma = torch.sigmoid(logsnr).sqrt(), torch.sigmoid(-logsnr).sqrt()
        return torch.where(noisy, alpha, 1.0).float(), torch.where(noisy, sigma, 0.0).float()

    def _density(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-½ dSNR/dt: nats per unit time and per unit of squared error."""
        own = self._own(t).clamp_max(BRINK)
        return (0.5 * self.schedule.logsnr(own).exp() * self.schedule.slope(own) / (1 - FIRST)).float()

    def _place(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The clock's step: intervals from 1 down to FIRST, and the reading at the end."""
        step = ((1 - self._own(t)) * self.intervals).long().clamp_max(self.intervals - 1)
        return torch.where(t <= FIRST, self.intervals, step)

    def on_step_start(self, progress: float) -> None:
        if self.head_warmup:
            self.head_scale.fill_(min(1.0, progress / self.head_warmup))

    def held_parameters(self) -> list[nn.Parameter]:
        return [*self.codec.parameters(), *self.schedule.parameters()] if self.holds else []

    def schedule_parameters(self) -> list[nn.Parameter]:
        return list(self.schedule.parameters())

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Equal steps from 1 to FIRST (processes.gaussian_grid), then the reading."""
        if steps == 1:
            return torch.tensor([1.0, 0.0])
        share = torch.linspace(0, 1, steps, dtype=torch.float64)
        own = spaced_times(
            self.spacing, self.schedule, self.time_sampler, share.to(self.time_sampler.base.device)
        ).cpu()
        own[0], own[-1] = 1.0, 0.0
        return F.pad(FIRST + (1 - FIRST) * own, (0, 1)).float()

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        like = self.codec.encode(torch.zeros(1, 1, dtype=torch.long, device=noise.device))
        return noise.normal(batch, length, like.shape[-1])

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Rows of the table; with a noisy start also the states where the path begins, behind them."""
        clean = super().encode(batch, noise)
        if self.start is None:
            return clean
        return clean._replace(u=self.start.pair(clean.u, self.codec.spread(batch.free), noise))

    def _beginning(self, u: State) -> State:
        """Where the path begins."""
        return u if self.start is None else self.start.beginning(u)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        alpha, sigma = self.levels(t)
        begins = self._beginning(u)
        if self.start is not None and begins.shape == u.shape:  # of a row alone
            begins = self.start.blurred(u, t > 0, noise)
        return alpha * begins + sigma * noise.normal(*begins.shape)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        block = u.shape[1] // w.shape[1]
        step, share, weight = self.time_sampler.sample_interval(w, group_size=block)
        if self.discrete and self.training:
            share = torch.zeros_like(share)
        reading = step == self.intervals
        own = 1 - (step + share) / self.intervals
        lowest = torch.nextafter(torch.tensor(FIRST), torch.tensor(1.0))  # float32 must not round a time to FIRST
        t = torch.where(reading, FIRST, (FIRST + (1 - FIRST) * own).float().clamp_min(lowest.to(w.device)))
        weight = torch.where(reading, weight, weight * (1 - FIRST) / self.intervals).float()
        t, weight = t.repeat_interleave(block, 1), weight.repeat_interleave(block, 1)
        t = torch.where(free, t, 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """A bound where the last look names the token: rows that coincide have one name for several tokens.

        Where the state itself is read by Bayes' rule, such tokens share their probability, and any name will do. While
        there is a gradient to be taken, nobody measures.
        """
        if not isinstance(self.codec, Embeddings):
            return "surrogate"
        if torch.is_grad_enabled() or (self.predicts is not None and self.bias is None):
            return "bound"
        weight = self.codec.weight
        version = weight.data_ptr(), weight._version, weight.device
        if self._told_apart is None or self._told_apart[0] != version:
            self._told_apart = version, self.codec.tells_apart()
        return "bound" if self._told_apart[1] else "surrogate"

    # ---- what a state says ------------------------------------------------------------------------------------

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Adds log q(z | k) = (α/v) z·e_k - (α²/2v) |e_k|² + const: Plaid's output prior, for rows of any length.

        v = σ², and with a noisy start v = σ² + α² s₀².
        """
        return logits + self._said(z, t, self.scale())

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self._said(z, t, 1.0)

    def scale(self) -> Tensor | float:
        """The factor of the posterior head: less than 1 only early in the training."""
        return self.head_scale if self.training and self.head_warmup else 1.0

    def _said(self, z: State, t: Float[Tensor, "..."], scale: Tensor | float) -> Logits:
        assert isinstance(self.codec, Embeddings)
        snr = self.logsnr(t)[..., None].exp()
        wider = 1.0 if self.start is None else 1 + snr * self.start.variance
        along, across = ((snr * (1 + snr)).sqrt() / wider).float(), (snr / 2 / wider).float()
        products, squares = self.codec.compared(z)
        said = along * products - across * squares
        said = scale * (said - said.detach().amax(-1, keepdim=True))
        if bool((t > 0).all()):
            return said
        clean = MAX_LOGIT * (F.one_hot(self.codec.nearest(z), self.codec.vocab_size) - 1)
        return torch.where(t[..., None] > 0, said, clean.to(said.dtype))

    def clean(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        """x̂."""
        if self.predicts is not None:
            return self.predicts.clean(out, z, *self.levels(t))
        assert isinstance(self.codec, Embeddings)
        return self.codec.mean(out)

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """What a network that knows p(token | z) would say."""
        if self.predicts is None:
            return posterior
        assert isinstance(self.codec, Embeddings)
        (alpha, sigma), clean = self.levels(t), self.codec.mean(posterior)
        if self.start is not None:
            clean = self.start.expected(clean, z, alpha, sigma)
        return self.predicts.answer(clean, z, alpha, sigma)

    def log_posterior(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        if self.predicts is not None:
            raise UserError("This model predicts states and not tokens, so it has no posterior of each token.")
        return out.log_softmax(-1)

    def read_off(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        """log p(token | z_first): what the network says, or what the state itself does where that is no token."""
        if self.predicts is None:
            return out
        assert isinstance(self.codec, Embeddings)
        if self.bias is not None:
            return self.codec.products(z) + self.bias
        return self._said(z, t, 1.0)

    # ---- the bound --------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        begins = self._beginning(u)
        error = (begins - self.clean(out, z, t)).square().sum(-1)
        last, nats = t <= FIRST, self._density(t) * error
        doubt = error
        if isinstance(self.codec, Embeddings):
            doubt = self._cross_entropy(self.read_off(out, z if self.start is None else begins, t), u)
            nats = torch.where(last, doubt if self.start is None else doubt + self.start.first_step_nll(error), nats)
        if self.training:
            self.time_sampler.observe(self._place(t), nats, doubt)
        return nats

    def _cross_entropy(self, logits: Logits, u: State) -> Float[Tensor, " N"]:
        assert isinstance(self.codec, Embeddings)
        return F.cross_entropy(
            logits, self.codec.nearest(u if self.start is None else self.start.row(u)), reduction="none"
        )

    def loss(self, nats: Tensor, out: Tensor, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        if self.loss_type == "bound":
            return nats * weight
        if self.loss_type == "cross-entropy":
            return self._cross_entropy(out, u)
        if self.start is not None:  # Diffusion-LM: x_0 is predicted, but its mean in the first step
            aim = torch.where((t <= FIRST)[..., None], self.start.row(u), self.start.beginning(u))
            return (aim - self.clean(out, z, t)).square().mean(-1)
        # The error of whatever is predicted, per coordinate, is that of x̂ by a factor, and nats are by another.
        factor = 1.0 if self.predicts is None else self.predicts.factor(*self.levels(t)).squeeze(-1)
        own = nats / self._density(t) * factor / u.shape[-1]
        return torch.where(t <= FIRST, nats, own) if isinstance(self.codec, Embeddings) else own

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """½ Σ (α₁² u² + σ₁² - 1 - log σ₁²)."""
        u = self._beginning(u)
        end = self.schedule.logsnr(torch.ones((), device=u.device))
        alpha, flat = torch.sigmoid(end), -torch.sigmoid(end) - F.logsigmoid(-end)
        return 0.5 * (alpha * u.square() + flat).sum(-1).float()

    def auxiliary_loss(
        self, batch: Batch, u: State, t: Times, nats: Float[Tensor, " B"], noise: Noise
    ) -> Float[Tensor, " B"]:
        """The prior term with the bound or the error, the anchor, and what teaches a learned schedule its shape."""
        free = self.codec.spread(batch.free)
        terms = torch.zeros_like(nats)
        if self.loss_type != "cross-entropy":
            width = self._beginning(u).shape[-1]
            share = 1.0 if self.loss_type == "bound" else 2 / width  # Diffusion-LM's mean of α₁² u²
            terms = share * (self.prior_kl(u) * free).sum(1)
        if self.anchor:
            at = torch.full_like(t, FIRST)
            z = self.corrupt(u, at, noise) if self.start is None else self.start.beginning(u)
            read = self.read_off(z, z, at) if self.predicts is not None else self.log_likelihood(z, at)
            doubt = F.cross_entropy(read.flatten(0, 1), batch.tokens.flatten(), reduction="none").view_as(t)
            terms = terms + self.anchor * (doubt * free).sum(1)
        common = nats / (batch.free.sum(1).clamp_min(1) * math.log(self.codec.vocab_size))
        return terms + self.schedule.calm(self._own(t.amax(1)), common)

    def accumulators(self) -> list[Tensor]:
        return [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.time_sampler.update_statistics()

    def metrics(self) -> dict[str, float]:
        """How the embeddings are: they must neither collapse nor explode."""
        return {} if not isinstance(self.codec, Embeddings) else self.codec.metrics(*self._first_levels())

    @torch.no_grad()
    def _first_levels(self) -> tuple[float, float]:
        alpha, sigma = self.levels(torch.full((1,), FIRST, device=self.time_sampler.base.device))
        return float(alpha), float(sigma)

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Tensor, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        return self.moved(ancestral, self.clean(out, z, t), out, z, t, s, noise)

    def moved(
        self,
        move: Move,
        clean: State,
        out: Tensor,
        z: State,
        t: Tensor,
        s: Tensor,
        noise: Noise,
        *,
        greedy: bool = False,
    ) -> State:
        """A step by any of the moves, given x̂; the last one, to s = 0, reads the token off, or (greedy) the likeliest.

        A greedy end reads tokens off x̂ where the network predicts states, as the papers of such systems do.
        """
        now, then = self.logsnr(t)[..., None], self.logsnr(s)[..., None]
        moved = torch.where((s < t)[..., None], move(clean, z, now, then, noise), z)
        ends = (s == 0) & (t > 0)
        if not bool(ends.any()):
            return moved
        if not isinstance(self.codec, Embeddings):
            return torch.where(ends[..., None], clean, moved)
        tokens = self._likeliest(out, clean) if greedy else self._read(out, clean, z, moved, t, noise)
        return torch.where(ends[..., None], self.codec.rows(tokens), moved)

    def _likeliest(self, out: Tensor, clean: State) -> Int64[Tensor, " N"]:
        assert isinstance(self.codec, Embeddings)
        if self.predicts is None:
            return out.argmax(-1)
        return self.codec.nearest(clean) if self.bias is None else (self.codec.products(clean) + self.bias).argmax(-1)

    def _read(self, out: Tensor, clean: State, z: State, near: State, t: Tensor, noise: Noise) -> Int64[Tensor, " N"]:
        """Tokens drawn from p(x | z_t); a network that knows none is followed to FIRST before, or to x_0."""
        if self.predicts is not None:
            at, end = torch.full_like(t, FIRST), torch.where((t > FIRST)[..., None], near, z)
            out = self.read_off(out, end if self.start is None else self.start.drawn(clean, noise), at)
        return categorical(out, noise.uniform(len(out)))
