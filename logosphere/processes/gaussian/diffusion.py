"""Gaussian diffusion z_t = α_t u + σ_t ε with α² + σ² = 1 and SNR = α²/σ² = e^λ: what all its processes share.

The process of tokens (token.py) has the rows of an embedding table as states, the process of latents (latent.py) the
latents of an autoencoder. Time t = 0 is the clean state itself. The path runs from t = 1 to `T_DECODE`, where λ is
finite and the tokens are decoded:

    -log p(x) ≤ E[-log p(x | z_decode)] + ½ ∫ -SNR'(t) E|u - x̂(z_t)|² dt + KL(q(z_1 | x) || N(0, I))

(Kingma et al. 2021, VDM, eq. 18) is a bound for every network and every schedule. With the exact posterior mean the
integral is the mutual information of x and the path (Guo et al. 2005, I-MMSE).
"""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.errors import UserError
from logosphere.processes.base import ForwardSample, Process, StatePath
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.gaussian.updates import Parameterization, Spacing, Update, ancestral, spaced_times
from logosphere.processes.time_sampler import TimeSampler
from logosphere.rng import Noise
from logosphere.schedules.logsnr import LogSNR
from logosphere.types import Float, Int64, Positions, State, Times

T_DECODE = 1e-3
"""The time at which the path ends and tokens are decoded. It is a label: schedules run over the times from it to 1."""
AFTER_DECODE = float(torch.nextafter(torch.tensor(T_DECODE), torch.tensor(1.0)))
"""The smallest time of the path: float32 must not round one to T_DECODE."""
T_MAX = 1 - 1e-9
"""The largest schedule time at which the slope of λ is evaluated; it is infinite at 1 where no signal is left."""


class GaussianDiffusion(Process, OnlineStatistics):
    """The Gaussian path over states of `width` coordinates.

    `parameterization` maps the network's output to x̂; it is None where the network predicts logits of tokens.
    `spacing` is that of the sampler's steps. `discrete`: training draws the ends of the time sampler's intervals and no
    times in between.
    """

    shares_times = True
    recon_time = T_DECODE

    def __init__(
        self,
        codec: Codec,
        schedule: LogSNR,
        time_sampler: TimeSampler,
        *,
        width: int,
        parameterization: Parameterization | None,
        spacing: Spacing = "angle",
        discrete: bool = False,
    ):
        super().__init__()
        self.codec, self.schedule, self.time_sampler, self.width = codec, schedule, time_sampler, width
        self.parameterization, self.spacing, self.discrete = parameterization, spacing, discrete
        self.predicts_tokens, self.predicts_states = parameterization is None, parameterization is not None
        self.intervals = time_sampler.steps - 1
        self.max_logsnr = float(schedule.logsnr(torch.zeros(())).detach())
        if not math.isfinite(self.max_logsnr):
            raise UserError(
                "This schedule has an infinite signal-to-noise ratio at t = 0, where a bound needs a finite one; "
                "give the log-SNR at which it begins, for example highest=6."
            )

    # ---- the prediction: what the two processes differ in -------------------------------------------------------

    @abstractmethod
    def predict_x0(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        """x̂."""

    @abstractmethod
    def final_state(
        self, out: Tensor, x0: State, z: State, z_decode: State, t: Tensor, noise: Noise, *, greedy: bool
    ) -> State:
        """The clean state in which a sampler ends, given x̂, z_t and a state at `T_DECODE`."""

    @property
    def state_path(self) -> StatePath | None:
        return self if self.predicts_states else None

    def from_x0(self, x0: State, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """The output of a network that predicts x̂: the inverse of `predict_x0`."""
        if self.parameterization is None:
            raise UserError("This model predicts tokens and not states, so no output corresponds to a clean state.")
        return self.parameterization.from_x0(x0, z, *self.alpha_sigma(t))

    # ---- noise levels -------------------------------------------------------------------------------------------

    def schedule_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The schedule's time, from 0 at `T_DECODE` to 1, float64."""
        return ((t.double() - T_DECODE) / (1 - T_DECODE)).clamp(0, 1)

    def logsnr(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """λ at times from T_DECODE to 1, float64."""
        return self.schedule.logsnr(self.schedule_time(t))

    def alpha_sigma(self, t: Float[Tensor, "..."]) -> tuple[Float[Tensor, "... 1"], Float[Tensor, "... 1"]]:
        """α and σ; 1 and 0 where t = 0."""
        logsnr, noisy = self.logsnr(t)[..., None], t[..., None] > 0
        alpha, sigma = torch.sigmoid(logsnr).sqrt(), torch.sigmoid(-logsnr).sqrt()
        return torch.where(noisy, alpha, 1.0).float(), torch.where(noisy, sigma, 0.0).float()

    def bound_density(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-½ dSNR/dt: nats per unit time and per unit of squared error."""
        time = self.schedule_time(t).clamp_max(T_MAX)
        return (0.5 * self.schedule.logsnr(time).exp() * self.schedule.slope(time) / (1 - T_DECODE)).float()

    def interval_of(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The step of the time sampler: intervals from 1 down to T_DECODE, and the reconstruction as the last one."""
        step = ((1 - self.schedule_time(t)) * self.intervals).long().clamp_max(self.intervals - 1)
        return torch.where(t <= T_DECODE, self.intervals, step)

    # ---- forward ------------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return noise.normal(batch, length, self.width)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        alpha, sigma = self.alpha_sigma(t)
        return alpha * u + sigma * noise.normal(*u.shape)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        block = u.shape[1] // w.shape[1]
        step, fraction, weight = self.time_sampler.sample_interval(w, group_size=block)
        if self.discrete and self.training:
            fraction = torch.zeros_like(fraction)
        last = step == self.intervals
        time = 1 - (step + fraction) / self.intervals
        t = torch.where(last, T_DECODE, (T_DECODE + (1 - T_DECODE) * time).float().clamp_min(AFTER_DECODE))
        weight = torch.where(last, weight, weight * (1 - T_DECODE) / self.intervals).float()
        t, weight = t.repeat_interleave(block, 1), weight.repeat_interleave(block, 1)
        t = torch.where(free, t, 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """½ Σ (α₁² u² + σ₁² - 1 - log σ₁²)."""
        end = self.schedule.logsnr(torch.ones((), device=u.device))
        alpha, flat = torch.sigmoid(end), -torch.sigmoid(end) - F.logsigmoid(-end)
        return 0.5 * (alpha * u.square() + flat).sum(-1).float()

    def accumulators(self) -> list[Tensor]:
        return [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.time_sampler.update_statistics()

    # ---- backward -----------------------------------------------------------------------------------------------

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times from 1 to T_DECODE with this spacing, then 0, where tokens are decoded."""
        if steps == 1:
            return torch.tensor([1.0, 0.0])
        fraction = torch.linspace(0, 1, steps, dtype=torch.float64)
        time = spaced_times(
            self.spacing, self.schedule, self.time_sampler, fraction.to(self.time_sampler.base.device)
        ).cpu()
        time[0], time[-1] = 1.0, 0.0
        return F.pad(T_DECODE + (1 - T_DECODE) * time, (0, 1)).float()

    def step(self, out: Tensor, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        return self.apply_step(ancestral, self.predict_x0(out, z, t), out, z, t, s, noise)

    def apply_step(
        self,
        update: Update,
        x0: State,
        out: Tensor,
        z: State,
        t: Tensor,
        s: Tensor,
        noise: Noise,
        *,
        greedy: bool = False,
    ) -> State:
        """A step by one of the updates, given x̂. The last one, to s = 0, ends in a clean state (`final_state`)."""
        now, then = self.logsnr(t)[..., None], self.logsnr(s)[..., None]
        stepped = torch.where((s < t)[..., None], update(x0, z, now, then, noise), z)
        ends = (s == 0) & (t > 0)
        if not bool(ends.any()):
            return stepped
        return torch.where(ends[..., None], self.final_state(out, x0, z, stepped, t, noise, greedy=greedy), stepped)
