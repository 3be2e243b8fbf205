"""Builders of latent diffusion: which reader, compressor, decoder, loss_config and path make which system."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import nn

from logosphere.autoencoders.decoders import CausalDecoder, Decoder, ParallelDecoder, Perceiver
from logosphere.autoencoders.encoders import FrozenEncoder, TokenEncoder, TransformerEncoder
from logosphere.autoencoders.pretrained import load_encoder as encoder_by_name
from logosphere.autoencoders.text import AutoencoderLossConfig, Scale, TextAutoencoder
from logosphere.codecs.vertices import CoordinateStem
from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.processes.gaussian.latent import LatentDiffusion, Weighting
from logosphere.processes.gaussian.parameterization import PARAMETERIZATIONS
from logosphere.processes.time_sampler import TimeSampler
from logosphere.schedules.logsnr import find_logsnr as schedule_by_name

INTERVALS = 128
"""The clock measures nats in intervals of so much of the path."""
COMPRESSION, NUMBERS = 4, 16
"""Tokens to a latent and numbers in it, if nothing is said: at the end of the path, at a log-SNR of 3, 16 numbers can
say ½ · 16 log(1 + e³) = 24 nats, 6 a token. The papers have 64 and more; whatever they do not say is paid for all the
same, and must be learnt by the path (docs/results.md)."""

SCALES: dict[str, Scale] = {name: name for name in get_args(Scale)}
WEIGHTINGS: dict[str, Weighting] = {name: name for name in get_args(Weighting)}


@dataclass(frozen=True)
class Settings:
    """What the systems of this file differ in; each is a set of defaults."""

    compressed: bool
    """Fewer latents than tokens; else every token has its own."""
    from_left: bool
    """The decoder writes token after token; else all at once."""
    scale: str
    loss_config: AutoencoderLossConfig
    predicts: str
    latents: int | None = None
    compression: int = COMPRESSION
    latent_width: int | None = None
    layer_norm: bool = True
    encoder: str | None = None
    layer: int = 6
    pieces: list[int] | None = None
    autoencoder_depth: int = 2
    schedule: str = "cosine"
    tan: float = 1.0
    last: float = 3.0
    lowest: float | None = None
    blurred: float | None = None
    weighting: str = "uniform"
    self_conditioning: float = 0.5
    learned_null: bool = False
    stage_one: float = 0.4
    joint: bool = False

    def __post_init__(self) -> None:
        if self.predicts not in PARAMETERIZATIONS:
            raise UserError(
                f"'{self.predicts}' is not a choice for predicts.{suggest(self.predicts, PARAMETERIZATIONS)}"
            )
        for option, value, choices in (("scale", self.scale, SCALES), ("weighting", self.weighting, WEIGHTINGS)):
            if value not in choices:
                raise UserError(f"'{value}' is not a choice for {option}.{suggest(value, choices)}")
        if self.compression < 1:
            raise UserError(f"compression is a number of tokens to a latent, at least 1, not {self.compression}.")
        if self.tan <= 0:
            raise UserError(f"tan, the d of a tan-d schedule, must be above 0, not {self.tan}.")
        if self.autoencoder_depth < 1 or (self.latent_width is not None and self.latent_width < 1):
            raise UserError("autoencoder_depth and latent_width must be at least 1.")
        if self.blurred is not None and self.blurred > self.last:
            raise UserError(f"Blurred latents have a log-SNR below the last one, {self.last}, not {self.blurred}.")
        if not self.compressed and (self.latents, self.latent_width) != (None, None):
            raise UserError("Here every token has a latent of the encoder's width: leave out latents and latent_width.")
        if not self.compressed and (self.loss_config.position_drop or self.loss_config.divergence is not None):
            raise UserError("position_drop and divergence are for compressed latents: take planner or cosmos.")
        if (self.from_left or not self.compressed) and self.loss_config.match:
            raise UserError("match needs a decoder that rebuilds all states at once out of few latents: take cosmos.")


def _builder(system: Settings) -> Callable[..., Model]:
    """The builder of the system with these defaults."""
    loss_defaults = system.loss_config

    def build(
        vocab_size: int,
        length: int,
        network: NetworkConfig | None,
        *,
        latents: int | None = system.latents,
        compression: int = system.compression,
        latent_width: int | None = system.latent_width,
        scale: str = system.scale,
        layer_norm: bool = system.layer_norm,
        encoder: str | None = system.encoder,
        layer: int = system.layer,
        pieces: list[int] | None = system.pieces,
        autoencoder_depth: int = system.autoencoder_depth,
        predicts: str = system.predicts,
        schedule: str = system.schedule,
        tan: float = system.tan,
        last: float = system.last,
        lowest: float | None = system.lowest,
        blurred: float | None = system.blurred,
        weighting: str = system.weighting,
        self_conditioning: float = system.self_conditioning,
        learned_null: bool = system.learned_null,
        stage_one: float = system.stage_one,
        joint: bool = system.joint,
        match: float = loss_defaults.match,
        position_drop: float = loss_defaults.position_drop,
        feature_noise: float = loss_defaults.feature_noise,
        latent_dropout: float = loss_defaults.latent_dropout,
        zeroing: bool = loss_defaults.zeroing,
        clean_statistics: bool = loss_defaults.clean_statistics,
        substitution: float = loss_defaults.substitution,
        divergence: float | None = loss_defaults.divergence,
        divergence_sum: bool = loss_defaults.divergence_sum,
    ) -> Model:
        """Latent diffusion in two stages: an autoencoder, then Gaussian diffusion of its latents.

        latents, latent_width   how many and how wide; None: one for `compression` tokens, of the encoder's width
        compression             tokens to a latent where latents is None
        scale                   sphere (length √d), standard (mean 0, variance 1) or none (as the encoder makes them)
        layer_norm              layer-normalise latents first, so that a learned encoder cannot answer noise by size
        encoder, layer          minilm or hf:OWNER/NAME, and which of its layers (-1: the last); None: trained here
        pieces                  the encoder's number of each token, for vocabularies that are a part of the encoder's
        predicts                v, x0, eps or score; tan: the d of the tan-d schedule, λ - 2 log d
        last                    log-SNR at which latents are read; blurred: the lowest the decoder learns to read
        lowest                  log-SNR at the other end of the path, t = 1; None: that of the schedule
        weighting               uniform: the squared error of what is predicted; p2: α² |u - x̂|²
        self_conditioning       share of steps that show the network its own answer
        learned_null            without an answer to show, show a learned vector instead of zeros
        stage_one               share of the training for the autoencoder; joint: both learn together (LDLM)
        match                   weight of the mean squared error of the states rebuilt
        position_drop           share of states hidden from the compressor, in half of the sequences
        feature_noise           noise on the states of the other half (0.71 leaves a signal of 0.7)
        latent_dropout          share of latent features that are dropped
        zeroing                 drop by zeros before latents are standardised, without rescaling the others
        clean_statistics        standardise by latents of undisturbed states
        substitution            share of tokens the encoder sees replaced
        divergence              weight of KL(q(u | x) || N(0, 1)), averaged over elements; left out, nothing is drawn
        divergence_sum          the same weight on the sum over elements and batch
        """
        loss_config = AutoencoderLossConfig(
            match=match, position_drop=position_drop, feature_noise=feature_noise, latent_dropout=latent_dropout,
            zeroing=zeroing, clean_statistics=clean_statistics, substitution=substitution, divergence=divergence,
            divergence_sum=divergence_sum,
        )  # fmt: skip
        has = replace(
            system, loss_config=loss_config, latents=latents, compression=compression, latent_width=latent_width,
            scale=scale, layer_norm=layer_norm, encoder=encoder, layer=layer, pieces=pieces,
            autoencoder_depth=autoencoder_depth, predicts=predicts, schedule=schedule, tan=tan, last=last,
            lowest=lowest, blurred=blurred, weighting=weighting, self_conditioning=self_conditioning,
            learned_null=learned_null, stage_one=stage_one, joint=joint,
        )  # fmt: skip
        return _model(vocab_size, length, network, has)

    return build


ld4lg = _builder(
    Settings(
        compressed=True,
        latent_width=NUMBERS,
        from_left=True,
        scale="sphere",
        loss_config=AutoencoderLossConfig(),
        predicts="v",
    )
)
"""LD4LG: latents on the sphere of radius √d, a decoder from left to right, cross-entropy alone; then v-prediction."""

planner = _builder(
    Settings(
        compressed=True, latent_width=NUMBERS, from_left=True, scale="standard",
        loss_config=AutoencoderLossConfig(divergence=0.001, substitution=0.1), predicts="x0", self_conditioning=0.0,
    )
)  # fmt: skip
"""PLANNER: latents drawn by a variational encoder that reads noisy tokens, a decoder from left to right."""

tencdm = _builder(
    Settings(
        compressed=False, from_left=False, scale="standard", loss_config=AutoencoderLossConfig(), predicts="x0",
        layer=4, tan=9.0, blurred=-1.5, stage_one=0.3,
    )
)  # fmt: skip
"""TEncDM: standardised states of an encoder, one for each token; a decoder that learns to read noisy ones.

blurred=-1.5 is about where TEncDM's decoder stops, at t = 0.15 of tan-9; the published path begins at a log-SNR of 8.5.
"""

cosmos = _builder(
    Settings(
        compressed=True, latent_width=NUMBERS, from_left=False, scale="standard",
        loss_config=AutoencoderLossConfig(match=1.0, position_drop=0.3, feature_noise=0.71, latent_dropout=0.4),
        predicts="x0", tan=5.0,
    )
)  # fmt: skip
"""COSMOS: states compressed and rebuilt, all tokens at once; latents made smooth by what the encoder must endure."""


def _count(latents: int | None, compression: int, length: int) -> int:
    count = max(1, length // compression) if latents is None else latents
    if not 1 <= count < length:
        raise UserError(
            f"{count} latents do not compress {length} tokens; choose at least 1 and fewer than the length."
        )
    return count


def _model(vocab_size: int, length: int, network: NetworkConfig | None, has: Settings) -> Model:
    if network is not None and network.signal:
        raise UserError("Latents stand at no positions, so no signal can be given along them; use labels or a source.")
    codec = _codec(vocab_size, length, network or NetworkConfig(), has)
    process = LatentDiffusion(
        codec,
        schedule_by_name(has.schedule, shift=-2 * math.log(has.tan), highest=has.last, lowest=has.lowest),
        _clock(),
        parameterization=PARAMETERIZATIONS[has.predicts],
        stage_one=has.stage_one,
        min_decode_logsnr=has.last if has.blurred is None else has.blurred,
        joint=has.joint,
        weighting=WEIGHTINGS[has.weighting],
    )
    denoiser = None if network is None else _network(process, codec, network, has)
    return Model(process, denoiser, length=length, block=length)


def _codec(vocab_size: int, length: int, network: NetworkConfig, has: Settings) -> TextAutoencoder:
    size = replace(network, depth=has.autoencoder_depth, labels=0, source=0, signal=0, dropout=0.0)
    reader: TokenEncoder = TransformerEncoder(vocab_size, length, size)
    if has.encoder is not None:
        reader = FrozenEncoder(encoder_by_name(has.encoder, has.layer), vocab_size, length, has.pieces)
    latents = _count(has.latents, has.compression, length) if has.compressed else length
    features = reader.width if has.latent_width is None else has.latent_width
    compressor, decoder = None, _decoder(vocab_size, length, size, latents, features, reader.width, has.from_left)
    if has.compressed:
        compressor = Perceiver(size, memory=length, memory_width=reader.width, count=latents)
    return TextAutoencoder(
        vocab_size, length, reader, compressor, decoder,
        latents=latents, features=features, scale=SCALES[has.scale], loss_config=has.loss_config,
        layer_norm=has.layer_norm,
    )  # fmt: skip


def _decoder(
    vocab_size: int, length: int, size: NetworkConfig, latents: int, features: int, rebuilt: int, from_left: bool
) -> Decoder:
    if from_left:
        return CausalDecoder(vocab_size, length, size, latents=latents, features=features)
    return ParallelDecoder(vocab_size, length, size, latents=latents, features=features, state_width=rebuilt)


def _clock() -> TimeSampler:
    """Times are drawn evenly while training, as in all four papers; the end of the path is the decoder's business."""
    even = torch.full((INTERVALS + 1,), 1 / INTERVALS, dtype=torch.float64)
    even[-1] = 1e-6
    even = even / even.sum()
    return TimeSampler(even, even)


def _network(process: LatentDiffusion, codec: TextAutoencoder, network: NetworkConfig, has: Settings) -> Denoiser:
    inner = FullTransformer(codec, codec.latents, network, reads_time=True)
    if not has.self_conditioning:
        return inner
    width = codec.features
    inner.stem = CoordinateStem(2 * width, network.width)
    null = nn.Parameter(torch.zeros(width)) if has.learned_null else None
    return SelfConditioning(inner, width, width, process.estimate, has.self_conditioning, null=null)
