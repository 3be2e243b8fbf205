"""The autoencoder of all latent systems: a reader, a compressor, a scale for latents, a decoder and a way of teaching.

    x ─ reader ─▶ h [B, L, D] ─ compressor ─▶ latents [B, N, d] ─ scale ─▶ u … z ─ decoder ─▶ p(x | z)

Stage one trains it on -log p(x | z) of disturbed latents and on what its system adds; then it stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.autoencoders.decoders import Decoder
from logosphere.autoencoders.perceiver import Perceiver
from logosphere.autoencoders.readers import Reader
from logosphere.autoencoders.standard import Standard
from logosphere.codecs.autoencoder import Autoencoder, Lesson
from logosphere.codecs.base import HIDDEN
from logosphere.codecs.vertices import CoordinateStem
from logosphere.errors import UserError
from logosphere.noise import Noise
from logosphere.shapes import Bool, Float
from logosphere.types import Batch, State, Tokens

Scale = Literal["sphere", "standard", "none"]
"""Latents of length √d (LD4LG), with mean 0 and variance 1 over the training data (TEncDM, COSMOS), or as the encoder
makes them (PLANNER)."""

QUIET = -4.0
"""Log-variance that a variational encoder begins with. At 0 its draws would drown means that have hardly been learnt,
and a decoder that can do without latents would find that it should."""


@dataclass(frozen=True)
class Teaching:
    """What makes stage one harder than copying, so that latents near each other mean texts near each other."""

    substitution: float = 0.0
    """Share of tokens that the reader sees replaced by others (PLANNER)."""
    position_drop: float = 0.0
    """In half of the sequences this share of states is hidden from the compressor (COSMOS)."""
    feature_noise: float = 0.0
    """In the other half states are √(1 - ν²) h + ν noise (COSMOS)."""
    latent_dropout: float = 0.0
    """Share of latent features that are dropped (COSMOS)."""
    zeroing: bool = False
    """Drop features by setting them to 0 before latents are standardised, without rescaling the others, as COSMOS does;
    else dropout of standardised latents, which keeps their mean."""
    clean_statistics: bool = False
    """Standardise by latents of undisturbed states (COSMOS); else by those that the decoder was trained on."""
    match: float = 0.0
    """Weight of the mean squared error between the reader's states and those the decoder rebuilds (COSMOS)."""
    divergence: float | None = None
    """Weight of KL(q(u | x) || N(0, 1)), averaged over elements (PLANNER); None: nothing is drawn."""
    divergence_sum: bool = False
    """Sum the divergence over elements and over the batch, as PLANNER's code does, beside a mean over tokens of the
    cross-entropy: a weight w is then a weight of w · B · N · d on the average."""

    def __post_init__(self) -> None:
        shares = (self.substitution, self.position_drop, self.feature_noise, self.latent_dropout)
        if not all(0 <= share < 1 for share in shares):
            raise UserError("substitution, position_drop, feature_noise and latent_dropout must lie from 0 to below 1.")
        if self.divergence_sum and self.divergence is None:
            raise UserError("divergence_sum needs the weight divergence, which is None.")
        if self.match < 0 or (self.divergence is not None and self.divergence < 0):
            raise UserError("The weights match and divergence must not be negative.")


class TextAutoencoder(Autoencoder):
    """N latents of d features for a whole sequence; without a `compressor` the reader's states are the latents."""

    def __init__(
        self,
        vocab_size: int,
        length: int,
        reader: Reader,
        compressor: Perceiver | None,
        decoder: Decoder,
        *,
        latents: int,
        features: int,
        scale: Scale,
        teaching: Teaching,
        layer_norm: bool = True,
    ):
        super().__init__()
        self.vocab_size, self.length, self.latents, self.features = vocab_size, length, latents, features
        self.reader, self.compressor, self.decoder = reader, compressor, decoder
        self.scale, self.teaching, self.layer_norm = scale, teaching, layer_norm
        variational = teaching.divergence is not None
        self.leave = None
        if compressor is not None:
            self.leave = nn.Linear(compressor.queries.shape[1], features * (2 if variational else 1))
            if variational:
                nn.init.constant_(self.leave.bias[features:], QUIET)
        self.standard = Standard(1 if compressor is None else latents, features)

    # ---- tokens to latents ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, tokens: Tokens) -> State:
        return self._scaled(self._centre(self._compressed(self.reader(tokens), None)))

    def _compressed(self, h: Float[Tensor, "B L D"], shown: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B N e"]:
        if self.compressor is None or self.leave is None:
            return h
        return self.leave(self.compressor(h, shown))

    def _centre(self, raw: Float[Tensor, "B N e"]) -> Float[Tensor, "B N d"]:
        """Latents whose size cannot grow: tanh of a mean, or normalised. States of a frozen encoder cannot anyway."""
        if self.teaching.divergence is not None:
            return raw[..., : self.features].tanh()
        if self.scale == "sphere":
            return self._projected(raw)
        return F.layer_norm(raw, (self.features,)) if self.layer_norm else raw

    def _projected(self, z: State) -> State:
        """The nearest point of the sphere of radius √d."""
        return F.normalize(z, dim=-1) * self.features**0.5

    def _scaled(self, latents: Float[Tensor, "B N d"]) -> State:
        return self.standard(latents) if self.scale == "standard" else latents

    # ---- latents to tokens ----------------------------------------------------------------------------------------

    def reconstruction_nll(self, z: State, tokens: Tokens) -> Float[Tensor, "B L"]:
        return self._cross_entropy(self.decoder(self.seen(z), tokens).logits, tokens)

    def decode(self, z: State) -> Tokens:
        return self.decoder.write(self.seen(z))

    def seen(self, z: State) -> State:
        """What the decoder sees, in training as in sampling: a point of the sphere where latents are such points."""
        return self._projected(z) if self.scale == "sphere" else z

    def _cross_entropy(self, logits: Float[Tensor, "B L V"], tokens: Tokens) -> Float[Tensor, "B L"]:
        return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")

    def decode_partial(self, z: State) -> Tokens:
        """Nothing: to decode at every step would cost more than the steps."""
        return torch.full((len(z), self.length), HIDDEN, device=z.device)

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.features, width)

    # ---- stage one ------------------------------------------------------------------------------------------------

    def lesson(self, batch: Batch, noise: Noise, disturb: Callable[[State], State]) -> Lesson:
        tokens, teaching = batch.tokens, self.teaching
        h = self.reader.study(self._substituted(tokens, noise))
        raw = self._compressed(*self._smoothed(h, noise))
        extra = torch.zeros(len(tokens), device=tokens.device)
        latents = self._centre(raw)
        if self.scale == "standard":
            self.standard.observe(self._undisturbed(tokens, h) if teaching.clean_statistics else latents)
        if teaching.divergence is not None:
            log_variance = raw[..., self.features :].clamp(-10, 2)
            kl = 0.5 * (latents.square() + log_variance.exp() - 1 - log_variance)
            # An average over elements, so that the weight means the same for every batch, length and width.
            total = len(tokens) * kl.sum((1, 2)) if teaching.divergence_sum else kl.mean((1, 2))
            extra = extra + teaching.divergence * self.length * total
            latents = latents + (0.5 * log_variance).exp() * noise.normal(*latents.shape)
        u = self._scaled(latents)
        z = self._dropped(disturb(u if not teaching.zeroing else self._scaled(self._zeroed(latents, noise))), noise)
        logits, rebuilt = self.decoder(self.seen(z), tokens)
        if teaching.match and rebuilt is not None:
            # The target stands still: a reader that learns would otherwise meet it by saying nothing.
            extra = extra + teaching.match * self.length * (rebuilt - h.detach()).square().mean((1, 2))
        return Lesson(u, self._cross_entropy(logits, tokens), extra)

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        self.reader.precompute(rows, corpus)

    def accumulators(self) -> list[Tensor]:
        own = [self.standard.pending] if self.scale == "standard" else []
        return self.reader.accumulators() + own

    def update_statistics(self) -> None:
        self.reader.update_statistics()
        if self.scale == "standard":
            self.standard.update_statistics()

    def _substituted(self, tokens: Tokens, noise: Noise) -> Tokens:
        if not self.teaching.substitution:
            return tokens
        others = (noise.uniform(*tokens.shape) * self.vocab_size).long().clamp_max(self.vocab_size - 1)
        return torch.where(noise.uniform(*tokens.shape) < self.teaching.substitution, others, tokens)

    def _smoothed(self, h: Float[Tensor, "B L D"], noise: Noise) -> tuple[Tensor, Bool[Tensor, "B L"] | None]:
        """Of one half of the sequences some states are hidden, those of the other half are noisy."""
        teaching, shown = self.teaching, None
        if teaching.position_drop or teaching.feature_noise:
            first = noise.uniform(len(h)) < 0.5
            if teaching.position_drop:
                kept = noise.uniform(*h.shape[:2]) >= teaching.position_drop
                kept[:, 0] = True  # something must be left to look at
                shown = kept | ~first[:, None]
            if teaching.feature_noise:
                level = teaching.feature_noise
                noisy = (1 - level**2) ** 0.5 * h + level * noise.normal(*h.shape)
                h = torch.where(first[:, None, None], h, noisy)
        return h, shown

    @torch.no_grad()
    def _undisturbed(self, tokens: Tokens, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B N d"]:
        """The latents of a batch as `encode` makes them, before any scale; `h` are states of what the reader saw."""
        return self._centre(self._compressed(self.reader(tokens) if self.teaching.substitution else h, None))

    def _zeroed(self, latents: Float[Tensor, "B N d"], noise: Noise) -> Float[Tensor, "B N d"]:
        return latents * (noise.uniform(*latents.shape) >= self.teaching.latent_dropout)

    def _dropped(self, z: State, noise: Noise) -> State:
        share = 0.0 if self.teaching.zeroing else self.teaching.latent_dropout
        return z * (noise.uniform(*z.shape) >= share) / (1 - share) if share else z
