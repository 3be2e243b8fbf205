"""Diffusion of latents (Lovelace et al. 2022, LD4LG): an autoencoder learns first, then a path over what it encodes.

Let f be the encoder, u = f(x), and p(x | z) the decoder. The Gaussian path around u ends at a finite log-SNR, in
z_first, and there the decoder reads the text. z_first is a latent variable with a density, although u has none, so that

    -log p(x) ≤ E[-log p(x | z_first)] + ½ ∫ -SNR'(t) E|u - x̂(z_t)|² dt + KL(q(z_1 | x) || N(0, I))

is the bound of Kingma et al. 2021 with u in the place of x: it holds for every encoder, every decoder and every
denoiser. It holds for each u by itself, and therefore also for encoders that draw u.

Both stages are one training. For the first share of it the loss is the autoencoder's own, and no latent is wanted of
the denoiser; then the autoencoder gets no gradient any more and the denoiser learns. Whatever has no gradient is left
alone by the optimiser, to the last bit.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from logosphere.codecs.autoencoder import Autoencoder
from logosphere.errors import UserError
from logosphere.processes.base import Encoded, ForwardSample, Process, StatePath
from logosphere.processes.capabilities import AutoencoderStage, OnlineStatistics
from logosphere.processes.gaussian.diffusion import FIRST, Gaussian
from logosphere.rng import Noise
from logosphere.types import Batch, Float, Kind, Logits, Positions, State, Times, Tokens

Weighting = Literal["uniform", "p2"]
"""The squared error of what the network predicts, alike at all times, or α² |u - x̂|²: the error of the noise with the
P2 weight 1/(1 + SNR) (Choi et al. 2022; PLANNER), whatever the network predicts."""

MEMORY = 0.98
"""Decay of the measured price of reading, per training step."""
STEEP, MIDDLE = 10.0, 0.8
"""In joint training the diffusion's gradient enters the encoder by the share 1/(1 + exp(-10 (done - 0.8)))."""


class Latent(Process, AutoencoderStage, OnlineStatistics):
    """A Gaussian path over the latents of an autoencoder, which it teaches in the first `stage_one` of the training.

    The decoder learns to read latents whose log-SNR lies anywhere from that at the end of the path down to `blurred`.
    `weighting` is that of the second stage. With `joint` both learn all the time, and the diffusion may shape the
    latents late in the training (LDLM).
    """

    kind: Kind = "bound"
    recon_time = FIRST
    done: Tensor
    price: Tensor
    """Nats per token that reading has cost lately, and how often it was measured."""
    pending: Tensor

    def __init__(
        self,
        path: Gaussian,
        *,
        stage_one: float,
        blurred: float,
        joint: bool = False,
        weighting: Weighting = "uniform",
    ):
        super().__init__()
        if not 0 < stage_one < 1:
            raise UserError(f"stage_one is a share of the training between 0 and 1, not {stage_one}.")
        self.path, self.stage_one, self.joint, self.weighting = path, stage_one, joint, weighting
        lowest = path.schedule.time(torch.tensor(blurred, dtype=torch.float64))
        self.reach = FIRST + (1 - FIRST) * float(lowest.clamp(0, 1))
        self.register_buffer("done", torch.zeros((), dtype=torch.float64))
        self.register_buffer("price", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(2, dtype=torch.float64), persistent=False)

    @property
    def state_path(self) -> StatePath | None:
        return self.path.state_path

    @property
    def codec(self) -> Autoencoder:  # type: ignore[override]  # the path has it already, and one place is enough
        assert isinstance(self.path.codec, Autoencoder)
        return self.path.codec

    @property
    def gaussian_path(self) -> Gaussian:
        return self.path

    @property
    def training_autoencoder(self) -> bool:
        """Whether the autoencoder is being trained."""
        return self.training and (self.joint or bool(self.done < self.stage_one))

    @property
    def denoiser_active(self) -> bool:
        """Is the path being learnt, or measured? Not while the autoencoder is taught by itself."""
        return not self.training or self.joint or not self.training_autoencoder

    # ---- tokens and latents ---------------------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Latents, and the reading of the text off the end of the path.

        The second stage does not read: it would learn nothing from it. Its figure is the last price that was measured.
        """
        tokens, free = batch.tokens, batch.free
        if self.training_autoencoder:
            u, nats, extra = self.codec.autoencoder_loss(batch, noise, lambda u: self._blurred(u, noise))
            nats = (nats * free).sum(1)
            self.pending += torch.stack([nats.detach().sum(), free.sum()])
            return Encoded(self._shared(u), nats, nats + extra)
        u = self.codec.encode(tokens)
        nothing = torch.zeros(len(tokens), device=tokens.device)
        if self.training:
            return Encoded(u, (self.price[0] * free.sum(1)).float(), nothing)
        z = self.path.corrupt(u, torch.full(u.shape[:2], FIRST, device=u.device), noise)
        return Encoded(u, (self.codec.reconstruction_nll(z, tokens) * free).sum(1), nothing)

    def _blurred(self, u: State, noise: Noise) -> State:
        t = FIRST + (self.reach - FIRST) * noise.uniform(len(u), 1).float()
        return self.path.corrupt(u, t.expand(u.shape[:2]), noise)

    def _shared(self, u: State) -> State:
        """Latents with as much of their gradient as the diffusion may send back into the encoder."""
        if not self.joint:
            return u.detach()
        share = torch.sigmoid(STEEP * (self.done - MIDDLE)).to(u.dtype)
        return u.detach() + share * (u - u.detach())

    def estimate(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        """The clean latents that an answer stands for, as the decoder would see them: for self-conditioning."""
        return self.codec.normalise(self.path.clean(out, z, t))

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        self.codec.precompute(rows, corpus)

    def accumulators(self) -> list[Tensor]:
        return [*self.codec.accumulators(), *self.path.accumulators(), self.pending]

    def update_statistics(self, progress: float = 0.0) -> None:
        if self.training_autoencoder:
            self.codec.update_statistics()
        if bool(self.pending[1] > 0):
            weight = (1 - MEMORY) / (1 - MEMORY ** (self.price[1] + 1))
            self.price[0] += weight * (self.pending[0] / self.pending[1] - self.price[0])
            self.price[1] += 1
            self.pending.zero_()
        self.path.update_statistics(progress)
        self.done.fill_(progress)

    # ---- the path ---------------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return noise.normal(batch, length, self.codec.features)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return self.path.corrupt(u, t, noise)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        return self.path.sample_zt(u, w, free, noise)

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving if self.denoiser_active else torch.zeros_like(moving)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        """0: a single latent has no information about a single token."""
        return torch.zeros(*t.shape, self.codec.num_classes, device=t.device)

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        return logits

    def elbo_rate(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Those of the path; what is read at its end is counted by `encode`."""
        return torch.where(t <= FIRST, 0.0, self.path.elbo_rate(out, u, z, t))

    def loss(self, nats: Tensor, out: Tensor, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """As if every token had its latent, so that losses of few latents are not small beside those of tokens."""
        own = self.path.loss(nats, out, u, z, t, weight)
        if self.weighting == "p2" and self.path.predicts is not None:
            alpha, sigma = self.path.levels(t)
            own = own * (alpha.square() / self.path.predicts.factor(alpha, sigma)).squeeze(-1)
        return own * (self.codec.length / self.codec.latents)

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        return self.path.prior_kl(u)

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        return self.path.grid(steps)

    def step(self, out: Tensor, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        return self.path.step(out, z, t, s, noise)
