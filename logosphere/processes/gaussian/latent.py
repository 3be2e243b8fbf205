"""Diffusion of latents (Lovelace et al. 2022, LD4LG): an autoencoder is trained first, then a path over its latents.

Let f be the encoder, u = f(x), and p(x | z) the decoder. The Gaussian path around u ends at a finite log-SNR, in
z_decode, from which the text is decoded. z_decode is a latent variable with a density, although u has none, so that

    -log p(x) ≤ E[-log p(x | z_decode)] + ½ ∫ -SNR'(t) E|u - x̂(z_t)|² dt + KL(q(z_1 | x) || N(0, I))

is the bound of Kingma et al. 2021 with u in the place of x: it holds for every encoder, every decoder and every
denoiser. It holds for each u by itself, and therefore also for encoders that draw u.

Both stages are one training. During its first fraction the loss is that of the autoencoder, and the denoiser is not
evaluated. Then the autoencoder gets no gradient and the denoiser is trained. The optimiser does not change parameters
without a gradient.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from logosphere.codecs.base import Autoencoder
from logosphere.errors import UserError
from logosphere.processes.base import Encoded
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.processes.gaussian.diffusion import T_DECODE, GaussianDiffusion
from logosphere.processes.gaussian.updates import Parameterization
from logosphere.processes.time_sampler import TimeSampler
from logosphere.rng import Noise
from logosphere.schedules.logsnr import LogSNR
from logosphere.types import Batch, Float, Kind, Logits, Positions, State, Tokens

Weighting = Literal["uniform", "p2"]
"""The squared error of the network's output with equal weight at all times, or α² |u - x̂|²: the error of the noise with
the P2 weight 1/(1 + SNR) (Choi et al. 2022; PLANNER), for every parameterization."""

EMA_DECAY = 0.98
"""Decay of the mean reconstruction loss, per training step."""
GATE_SLOPE, GATE_MIDDLE = 10.0, 0.8
"""In joint training the diffusion's gradient enters the encoder with the factor 1/(1 + exp(-10 (progress - 0.8)))."""


class LatentDiffusion(GaussianDiffusion, AutoencoderStage):
    """A Gaussian path over the latents of an autoencoder, which is trained in the first `stage_one` of the training.

    The decoder is trained on latents whose log-SNR lies between that at the end of the path and `min_decode_logsnr`.
    `weighting` is that of the second stage. With `joint` both are trained all the time, and the diffusion may change
    the latents late in the training (LDLM).
    """

    kind: Kind = "bound"
    codec: Autoencoder
    parameterization: Parameterization
    progress: Tensor
    """The completed fraction of the training."""
    recon_ema: Tensor
    """The running mean of the reconstruction loss in nats per token, and the number of its updates."""
    pending: Tensor

    def __init__(
        self,
        codec: Autoencoder,
        schedule: LogSNR,
        time_sampler: TimeSampler,
        *,
        parameterization: Parameterization,
        stage_one: float,
        min_decode_logsnr: float,
        joint: bool = False,
        weighting: Weighting = "uniform",
    ):
        super().__init__(codec, schedule, time_sampler, width=codec.features, parameterization=parameterization)
        if not 0 < stage_one < 1:
            raise UserError(f"stage_one is a fraction of the training between 0 and 1, not {stage_one}.")
        self.stage_one, self.joint, self.weighting = stage_one, joint, weighting
        latest = schedule.time(torch.tensor(min_decode_logsnr, dtype=torch.float64))
        self.max_decode_time = T_DECODE + (1 - T_DECODE) * float(latest.clamp(0, 1))
        self.register_buffer("progress", torch.zeros((), dtype=torch.float64))
        self._progress: tuple[tuple[int, int, torch.device], float] | None = None
        self.register_buffer("recon_ema", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(2, dtype=torch.float64), persistent=False)

    # ---- stages ---------------------------------------------------------------------------------------------------

    @property
    def training_autoencoder(self) -> bool:
        """Whether the autoencoder is trained in this step."""
        return self.training and (self.joint or self._completed() < self.stage_one)

    def _completed(self) -> float:
        """The value of `progress`, read from the device only after something else than `update_statistics` wrote it."""
        version = (self.progress.data_ptr(), self.progress._version, self.progress.device)
        if self._progress is None or self._progress[0] != version:
            self._progress = version, float(self.progress)
        return self._progress[1]

    @property
    def denoiser_active(self) -> bool:
        """Whether the path is trained or evaluated. It is not while only the autoencoder is trained."""
        return not self.training or self.joint or not self.training_autoencoder

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        self.codec.precompute(rows, corpus)

    def accumulators(self) -> list[Tensor]:
        return [*self.codec.accumulators(), *super().accumulators(), self.pending]

    def update_statistics(self, progress: float = 0.0) -> None:
        if self.training_autoencoder:
            self.codec.update_statistics()
        total, count = self.pending
        observed = count > 0
        weight = torch.where(observed, (1 - EMA_DECAY) / (1 - EMA_DECAY ** (self.recon_ema[1] + 1)), 0.0)
        self.recon_ema[0] += weight * (total / count.clamp_min(1) - self.recon_ema[0])
        self.recon_ema[1] += observed
        self.pending.zero_()
        super().update_statistics(progress)
        self.progress.fill_(progress)
        self._progress = (self.progress.data_ptr(), self.progress._version, self.progress.device), progress

    # ---- tokens and latents ---------------------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Latents, and the reconstruction term at the end of the path.

        The second stage does not evaluate the decoder, which is not trained there, and reports the last running mean.
        """
        tokens, free = batch.tokens, batch.free
        if self.training_autoencoder:
            u, nats, extra = self.codec.autoencoder_loss(batch, noise, lambda u: self._corrupt_for_decoder(u, noise))
            nats = (nats * free).sum(1)
            self.pending += torch.stack([nats.detach().sum(), free.sum()])
            return Encoded(self._scale_gradient(u), nats, nats + extra)
        u = self.codec.encode(tokens)
        zeros = torch.zeros(len(tokens), device=tokens.device)
        if self.training:
            return Encoded(u, (self.recon_ema[0] * free.sum(1)).float(), zeros)
        z = self.corrupt(u, torch.full(u.shape[:2], T_DECODE, device=u.device), noise)
        return Encoded(u, (self.codec.reconstruction_nll(z, tokens) * free).sum(1), zeros)

    def _corrupt_for_decoder(self, u: State, noise: Noise) -> State:
        t = T_DECODE + (self.max_decode_time - T_DECODE) * noise.uniform(len(u), 1).float()
        return self.corrupt(u, t.expand(u.shape[:2]), noise)

    def _scale_gradient(self, u: State) -> State:
        """Latents with the fraction of their gradient that the diffusion may send back into the encoder."""
        if not self.joint:
            return u.detach()
        gate = torch.sigmoid(GATE_SLOPE * (self.progress - GATE_MIDDLE)).to(u.dtype)
        return u.detach() + gate * (u - u.detach())

    # ---- the prediction -------------------------------------------------------------------------------------------

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving if self.denoiser_active else torch.zeros_like(moving)

    def predict_x0(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        return self.parameterization.predict_x0(out, z, *self.alpha_sigma(t))

    def estimate(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        """x̂ as the decoder reads it, for self-conditioning."""
        return self.codec.normalise(self.predict_x0(out, z, t))

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        """0: a single latent has no information about a single token."""
        return torch.zeros(*t.shape, self.codec.num_classes, device=t.device)

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        return logits

    # ---- the bound --------------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The rate of the path. The reconstruction term at its end is counted by `encode`."""
        error = (u - self.predict_x0(out, z, t)).square().sum(-1)
        rate = self.bound_density(t) * error
        if self.training:
            self.time_sampler.observe(self.interval_of(t), rate, error)
        return torch.where(t <= T_DECODE, 0.0, rate)

    def loss(self, rate: Tensor, out: Tensor, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """The squared error per coordinate, scaled to the number of tokens, so that a few latents weigh as much."""
        alpha, sigma = self.alpha_sigma(t)
        scale = self.parameterization.loss_scale(alpha, sigma)
        error = rate / self.bound_density(t) * scale.squeeze(-1) / u.shape[-1]
        if self.weighting == "p2":
            error = error * (alpha.square() / scale).squeeze(-1)
        return error * (self.codec.length / self.codec.latents)

    def final_state(
        self, out: Tensor, x0: State, z: State, z_decode: State, t: Tensor, noise: Noise, *, greedy: bool
    ) -> State:
        return x0
