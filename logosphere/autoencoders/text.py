"""The autoencoder of all latent systems: an encoder, a compressor, a scale of latents, a decoder and its loss.

    x ─ encoder ─▶ h [B, L, D] ─ compressor ─▶ latents [B, N, d] ─ scale ─▶ u … z ─ decoder ─▶ p(x | z)

Stage one trains it on -log p(x | z) of corrupted latents and on the regularisation of its system; then it is fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.autoencoders.decoders import Decoder, LocalQueryInit, ParallelDecoder, Perceiver, Standardiser
from logosphere.autoencoders.encoders import TokenEncoder, TransformerEncoder
from logosphere.codecs.base import HIDDEN, Autoencoder, AutoencoderLoss
from logosphere.codecs.tokens import CoordinateStem
from logosphere.errors import UserError
from logosphere.rng import Noise
from logosphere.types import Batch, Bool, Float, State, Tokens

Scale = Literal["sphere", "standard", "none"]
"""Latents of length √d (LD4LG), with mean 0 and variance 1 over the training data (TEncDM, COSMOS), or as the encoder
makes them (PLANNER)."""

INITIAL_LOG_VARIANCE = -4.0
"""Initial log-variance of a variational encoder. At 0 the noise would exceed means that are hardly trained, and a
decoder that can ignore latents would learn to do so."""


@dataclass(frozen=True)
class AutoencoderLossConfig:
    """Regularisation of stage one, so that near latents are decoded to similar texts."""

    substitution: float = 0.0
    """Fraction of tokens that are replaced at the input of the encoder (PLANNER)."""
    position_drop: float = 0.0
    """In half of the sequences this fraction of states is masked from the compressor (COSMOS)."""
    feature_noise: float = 0.0
    """In the other half of the sequences states are √(1 - ν²) h + ν noise (COSMOS)."""
    latent_dropout: float = 0.0
    """Fraction of latent features that are dropped (COSMOS)."""
    zeroing: bool = False
    """Drop features by setting them to 0 before latents are standardised, without rescaling the others, as COSMOS does;
    else dropout of standardised latents, which keeps their mean."""
    clean_statistics: bool = False
    """Standardise by latents of clean states (COSMOS); else by the latents that the decoder is trained on."""
    match: float = 0.0
    """Weight of the mean squared error between states of the encoder and their reconstruction (COSMOS)."""
    divergence: float | None = None
    """Weight of KL(q(u | x) || N(0, 1)), averaged over elements (PLANNER); None: the encoder is deterministic."""
    divergence_sum: bool = False
    """Sum the divergence over elements and over the batch, as PLANNER's code does next to a mean over tokens of the
    cross-entropy: a weight w is then a weight of w · B · N · d on the average."""

    def __post_init__(self) -> None:
        fractions = (self.substitution, self.position_drop, self.feature_noise, self.latent_dropout)
        if not all(0 <= fraction < 1 for fraction in fractions):
            raise UserError(
                "substitution, position_drop, feature_noise and latent_dropout must lie from 0 to below 1, "
                f"not {fractions}."
            )
        if self.divergence_sum and self.divergence is None:
            raise UserError("divergence_sum needs the weight divergence, which is None.")
        if self.match < 0 or (self.divergence is not None and self.divergence < 0):
            raise UserError(f"The weights match and divergence must not be negative: {self.match}, {self.divergence}.")


class TextAutoencoder(Autoencoder):
    """N latents of d features for a whole sequence; without a `compressor` the encoder's states are the latents."""

    def __init__(
        self,
        vocab_size: int,
        length: int,
        encoder: TokenEncoder,
        compressor: Perceiver | None,
        decoder: Decoder,
        *,
        latents: int,
        features: int,
        scale: Scale,
        loss_config: AutoencoderLossConfig,
        layer_norm: bool = True,
        local_skip: bool = False,
    ):
        super().__init__()
        self.vocab_size, self.length, self.latents, self.features = vocab_size, length, latents, features
        self.reader, self.compressor, self.decoder = encoder, compressor, decoder
        self.scale, self.loss_config, self.layer_norm = scale, loss_config, layer_norm
        variational = loss_config.divergence is not None
        self.leave = None
        if compressor is not None:
            self.leave = nn.Linear(compressor.queries.shape[1], features * (2 if variational else 1))
            if variational:
                nn.init.constant_(self.leave.bias[features:], INITIAL_LOG_VARIANCE)
        self.skip = None
        if compressor is not None and local_skip:
            self.skip = LocalQueryInit(memory=length, memory_width=encoder.width, count=latents, width=features)
            self.skip.init_orthogonal()
            decoder.init_inverse(self.skip, encoder.stem.weight if isinstance(encoder, TransformerEncoder) else None)
        self.standard = Standardiser(1 if compressor is None else latents, features)

    # ---- tokens to latents ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, tokens: Tokens) -> State:
        return self._rescale(self._limit_scale(self._compress(self.reader(tokens), None)))

    def _compress(self, h: Float[Tensor, "B L D"], visible: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B N e"]:
        if self.compressor is None or self.leave is None:
            return h
        raw = self.leave(self.compressor(h, visible))
        if self.skip is None:
            return raw
        direct = self.skip(h if visible is None else h * visible[..., None])
        return raw + F.pad(direct, (0, raw.shape[-1] - self.features))

    def _limit_scale(self, raw: Float[Tensor, "B N e"]) -> Float[Tensor, "B N d"]:
        """Latents of limited size: tanh of a mean, or normalised; states of a frozen encoder have a fixed size."""
        if self.loss_config.divergence is not None:
            return raw[..., : self.features].tanh()
        if self.scale == "sphere":
            return self._project(raw)
        return F.layer_norm(raw, (self.features,)) if self.layer_norm else raw

    def _project(self, z: State) -> State:
        """The nearest point of the sphere of radius √d."""
        return F.normalize(z, dim=-1) * self.features**0.5

    def _rescale(self, latents: Float[Tensor, "B N d"]) -> State:
        return self.standard(latents) if self.scale == "standard" else latents

    # ---- latents to tokens ----------------------------------------------------------------------------------------

    def reconstruction_nll(self, z: State, tokens: Tokens) -> Float[Tensor, "B L"]:
        return self._cross_entropy(self.decoder(self.normalise(z), tokens).logits, tokens)

    def decode(self, z: State) -> Tokens:
        return self.decoder.decode(self.normalise(z))

    @property
    def decodes_in_parallel(self) -> bool:
        return isinstance(self.decoder, ParallelDecoder)

    @torch.no_grad()
    def token_logits(self, z: State) -> Float[Tensor, "B L V"]:
        unread = torch.zeros(len(z), self.length, dtype=torch.long, device=z.device)  # by such a decoder
        return self.decoder(self.normalise(z), unread).logits

    def normalise(self, z: State) -> State:
        """The input of the decoder, in training as in sampling: projected to the sphere if latents lie on it."""
        return self._project(z) if self.scale == "sphere" else z

    def _cross_entropy(self, logits: Float[Tensor, "B L V"], tokens: Tokens) -> Float[Tensor, "B L"]:
        return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")

    def decode_partial(self, z: State) -> Tokens:
        """No tokens: decoding at every step would cost more than the steps."""
        return torch.full((len(z), self.length), HIDDEN, device=z.device)

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.features, width)

    # ---- stage one ------------------------------------------------------------------------------------------------

    def autoencoder_loss(self, batch: Batch, noise: Noise, corrupt: Callable[[State], State]) -> AutoencoderLoss:
        tokens, config = batch.tokens, self.loss_config
        h = self.reader.encode_and_observe(self._substitute(tokens, noise))
        raw = self._compress(*self._augment_states(h, noise))
        extra = torch.zeros(len(tokens), device=tokens.device)
        latents = self._limit_scale(raw)
        if self.scale == "standard":
            self.standard.observe(self._clean_latents(tokens, h) if config.clean_statistics else latents)
        if config.divergence is not None:
            log_variance = raw[..., self.features :].clamp(-10, 2)
            kl = 0.5 * (latents.square() + log_variance.exp() - 1 - log_variance)
            # An average over elements, so that the effect of the weight does not depend on batch, length and width.
            total = len(tokens) * kl.sum((1, 2)) if config.divergence_sum else kl.mean((1, 2))
            extra = extra + config.divergence * self.length * total
            latents = latents + (0.5 * log_variance).exp() * noise.normal(*latents.shape)
        u = self._rescale(latents)
        z = self._drop_features(
            corrupt(u if not config.zeroing else self._rescale(self._zero_features(latents, noise))), noise
        )
        logits, states = self.decoder(self.normalise(z), tokens)
        if config.match and states is not None:
            # The target is detached: a trained encoder could otherwise reduce this term by constant states.
            extra = extra + config.match * self.length * (states - h.detach()).square().mean((1, 2))
        return AutoencoderLoss(u, self._cross_entropy(logits, tokens), extra)

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        self.reader.precompute(rows, corpus)

    def accumulators(self) -> list[Tensor]:
        own = [self.standard.pending] if self.scale == "standard" else []
        return self.reader.accumulators() + own

    def update_statistics(self) -> None:
        self.reader.update_statistics()
        if self.scale == "standard":
            self.standard.update_statistics()

    def _substitute(self, tokens: Tokens, noise: Noise) -> Tokens:
        if not self.loss_config.substitution:
            return tokens
        others = (noise.uniform(*tokens.shape) * self.vocab_size).long().clamp_max(self.vocab_size - 1)
        return torch.where(noise.uniform(*tokens.shape) < self.loss_config.substitution, others, tokens)

    def _augment_states(self, h: Float[Tensor, "B L D"], noise: Noise) -> tuple[Tensor, Bool[Tensor, "B L"] | None]:
        """Mask some states of one half of the sequences, and add noise to those of the other half."""
        config, visible = self.loss_config, None
        if config.position_drop or config.feature_noise:
            first = noise.uniform(len(h)) < 0.5
            if config.position_drop:
                kept = noise.uniform(*h.shape[:2]) >= config.position_drop
                kept[:, 0] = True  # at least one state must be visible
                visible = kept | ~first[:, None]
            if config.feature_noise:
                level = config.feature_noise
                noisy = (1 - level**2) ** 0.5 * h + level * noise.normal(*h.shape)
                h = torch.where(first[:, None, None], h, noisy)
        return h, visible

    @torch.no_grad()
    def _clean_latents(self, tokens: Tokens, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B N d"]:
        """The latents of a batch as in `encode`, before scaling; `h` are the states of the encoder's own input."""
        return self._limit_scale(self._compress(self.reader(tokens) if self.loss_config.substitution else h, None))

    def _zero_features(self, latents: Float[Tensor, "B N d"], noise: Noise) -> Float[Tensor, "B N d"]:
        return latents * (noise.uniform(*latents.shape) >= self.loss_config.latent_dropout)

    def _drop_features(self, z: State, noise: Noise) -> State:
        fraction = 0.0 if self.loss_config.zeroing else self.loss_config.latent_dropout
        return z * (noise.uniform(*z.shape) >= fraction) / (1 - fraction) if fraction else z
