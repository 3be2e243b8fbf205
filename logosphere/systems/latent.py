"""Latent diffusion in two stages, an autoencoder and Gaussian diffusion of its latents: LD4LG, PLANNER, TEncDM, COSMOS.

All of them are built from the same parts by `build_latent`. A system is a subclass of LatentSettings with its own
defaults.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import nn

from logosphere.autoencoders.decoders import CausalDecoder, Decoder, ParallelDecoder, Perceiver
from logosphere.autoencoders.encoders import FrozenEncoder, TokenEncoder, TransformerEncoder
from logosphere.autoencoders.pretrained import check_sha256
from logosphere.autoencoders.pretrained import load_encoder as encoder_by_name
from logosphere.autoencoders.text import AutoencoderLossConfig, Scale, TextAutoencoder
from logosphere.codecs.tokens import CoordinateStem
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.own import registered_denoiser
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.processes.gaussian.latent import LatentDiffusion, Weighting
from logosphere.processes.gaussian.updates import PARAMETERIZATIONS
from logosphere.processes.time_sampler import TimeSampler
from logosphere.schedules.logsnr import find_logsnr as schedule_by_name
from logosphere.systems.latent_defaults import SCRATCH, complete_encoder, wants_encoder
from logosphere.systems.registry import SystemInfo, check_choice, find_preset, register

INTERVALS = 128
"""The time sampler measures nats in this number of intervals of the path."""
COMPRESSION, LATENT_WIDTH = 4, 16
"""Default tokens for each latent and numbers in it: at the end of the path, at a log-SNR of 3, 16 numbers can carry
½ · 16 log(1 + e³) = 24 nats, 6 for each token. The papers have 64 numbers and more; the bound counts numbers that
carry no information as well, because the path must predict them (docs/results.md)."""
SCALES: dict[str, Scale] = {name: name for name in get_args(Scale)}
WEIGHTINGS: dict[str, Weighting] = {name: name for name in get_args(Weighting)}


@dataclass(frozen=True)
class LatentSettings:
    """Options of latent diffusion."""

    compressed: ClassVar[bool] = True
    """Fewer latents than tokens; else each token has its own."""
    pretrained: ClassVar[bool] = True
    """The published system has a pretrained encoder, which is the default on text where it is installed."""
    causal_decoder: ClassVar[bool] = False
    """The decoder is autoregressive; else it predicts all tokens at once."""

    latents: int | None = None
    """Number of latents; None: one for `compression` tokens."""
    compression: int = COMPRESSION
    """Tokens for each latent where latents is None."""
    latent_width: int | None = LATENT_WIDTH
    """Numbers in a latent; None: the width of the encoder."""
    scale: str = "standard"
    """Scale of latents: sphere (length √d), standard (mean 0, variance 1) or none (as the encoder makes them)."""
    layer_norm: bool = True
    """Layer-normalise latents first, so that a learned encoder cannot reduce the effect of noise by larger latents."""
    encoder: str | None = None
    """A frozen encoder: minilm, mpnet, hf:OWNER/NAME or a folder; None or scratch: an encoder that is trained. Where a
    model is made for a tokenizer of word pieces and this is not given, minilm if it is installed (not planner)."""
    encoder_sha256: str | None = None
    """Hash of the encoder's weights, filled in where it is known; other weights are refused."""
    layer: int = 6
    """Layer of the frozen encoder whose states are taken; -1: the last."""
    encoder_token_ids: list[int] | None = None
    """The encoder's id of each token, for vocabularies that are a part of the encoder's."""
    autoencoder_depth: int = 2
    """Blocks of the encoder and of the decoder that are trained."""
    autoencoder_width: int | None = None
    """Their width; None: that of the network."""
    autoencoder_heads: int | None = None
    """Their attention heads; None: those of the network."""
    local_skip: bool = False
    """A linear map of each latent's own tokens around the compressor, and back around the decompressor."""
    predicts: str = "x0"
    """Prediction of the denoiser: v, x0, eps or score."""
    schedule: str = "cosine"
    """Log-SNR over time by name."""
    tan: float = 1.0
    """d of a tan-d schedule, which adds -2 log d to the log-SNR."""
    max_logsnr: float = 3.0
    """Log-SNR at t = 0, where latents are decoded."""
    min_logsnr: float | None = None
    """Log-SNR at t = 1; None: that of the schedule."""
    min_decode_logsnr: float | None = None
    """Lowest log-SNR that the decoder is trained on; None: max_logsnr."""
    weighting: str = "uniform"
    """Weighting of the denoiser's loss: uniform (the squared error of what is predicted) or p2 (α² |u - x̂|²)."""
    self_conditioning: float = 0.5
    """Probability with which training conditions the denoiser on its own estimate; 0: never."""
    learned_null: bool = False
    """Where there is no estimate, condition on a learned vector instead of zeros."""
    autoencoder_fraction: float = 0.4
    """Fraction of training for the autoencoder."""
    joint: bool = False
    """Train the autoencoder and the denoiser together (LDLM)."""
    state_loss_weight: float = 0.0
    """Weight of the mean squared error of the encoder's states that the decoder reconstructs."""
    position_drop: float = 0.0
    """Fraction of states hidden from the compressor, in half of the sequences."""
    feature_noise: float = 0.0
    """Noise on the states of the other half (0.71 leaves a signal of 0.7)."""
    latent_dropout: float = 0.0
    """Fraction of latent features that are dropped."""
    zeroing: bool = False
    """Drop features by zeros before latents are standardised, without rescaling the others."""
    clean_statistics: bool = False
    """Standardise by the statistics of latents of undisturbed states."""
    substitution: float = 0.0
    """Fraction of tokens that are replaced in the input of the encoder."""
    kl_weight: float | None = None
    """Weight of KL(q(u | x) || N(0, 1)), averaged over elements; None: the encoder is deterministic."""
    kl_sum: bool = False
    """Apply kl_weight to the sum over elements and batch instead."""

    def __post_init__(self) -> None:
        check_choice("predicts", self.predicts, tuple(PARAMETERIZATIONS))
        check_choice("scale", self.scale, tuple(SCALES))
        check_choice("weighting", self.weighting, tuple(WEIGHTINGS))
        if self.compression < 1:
            raise UserError(f"compression is a number of tokens for each latent, at least 1, not {self.compression}.")
        if self.tan <= 0:
            raise UserError(f"tan, the d of a tan-d schedule, must be above 0, not {self.tan}.")
        if self.autoencoder_depth < 1 or (self.latent_width is not None and self.latent_width < 1):
            raise UserError("autoencoder_depth and latent_width must be at least 1.")
        if self.min_decode_logsnr is not None and self.min_decode_logsnr > self.max_logsnr:
            raise UserError(
                f"min_decode_logsnr must not be above max_logsnr, {self.max_logsnr}, but is {self.min_decode_logsnr}."
            )
        if not 0 < self.autoencoder_fraction < 1:
            raise UserError(f"autoencoder_fraction must be above 0 and below 1, not {self.autoencoder_fraction}.")
        if self.kl_sum and self.kl_weight is None:
            raise UserError("kl_sum=True needs a kl_weight, not None.")
        if self.state_loss_weight < 0 or (self.kl_weight is not None and self.kl_weight < 0):
            raise UserError("state_loss_weight and kl_weight must not be negative.")
        if not self.compressed and (self.latents, self.latent_width) != (None, None):
            raise UserError("Every token has a latent of the encoder's width here: leave out latents and latent_width.")
        if not self.compressed and (self.position_drop or self.kl_weight is not None):
            raise UserError("position_drop and kl_weight need compressed latents: use planner or cosmos.")
        if (self.causal_decoder or not self.compressed) and self.state_loss_weight:
            raise UserError("state_loss_weight needs few latents and a parallel decoder: use cosmos.")


def build_latent(vocab_size: int, length: int, network: NetworkConfig | None, settings: LatentSettings) -> Model:
    """The latent diffusion with these settings."""
    if network is not None and network.signal:
        raise UserError("Latents have no positions, so no signal can be given along them; use labels or a source.")
    codec = _autoencoder(vocab_size, length, network or NetworkConfig(), settings)
    shift, highest = -2 * math.log(settings.tan), settings.max_logsnr
    process = LatentDiffusion(
        codec,
        schedule_by_name(settings.schedule, shift=shift, highest=highest, lowest=settings.min_logsnr),
        uniform_times(),
        parameterization=PARAMETERIZATIONS[settings.predicts],
        stage_one=settings.autoencoder_fraction,
        min_decode_logsnr=highest if settings.min_decode_logsnr is None else settings.min_decode_logsnr,
        joint=settings.joint,
        weighting=WEIGHTINGS[settings.weighting],
    )
    denoiser = None if network is None else _network(process, codec, network, settings)
    return Model(process, denoiser, length=length, block=length)


def _autoencoder(vocab_size: int, length: int, network: NetworkConfig, settings: LatentSettings) -> TextAutoencoder:
    size = replace(
        network, depth=settings.autoencoder_depth, decoder_depth=None, labels=0, source=0, signal=0, dropout=0.0,
        width=settings.autoencoder_width or network.width, heads=settings.autoencoder_heads or network.heads,
    )  # fmt: skip
    reader: TokenEncoder = TransformerEncoder(vocab_size, length, size)
    if settings.encoder not in (None, SCRATCH):
        encoder = encoder_by_name(str(settings.encoder), settings.layer)
        check_sha256(encoder, settings.encoder_sha256)
        reader = FrozenEncoder(encoder, vocab_size, length, settings.encoder_token_ids)
    latents = _count_latents(settings, length) if settings.compressed else length
    features = reader.width if settings.latent_width is None else settings.latent_width
    decoder: Decoder
    if settings.causal_decoder:
        decoder = CausalDecoder(vocab_size, length, size, latents=latents, features=features)
    else:
        decoder = ParallelDecoder(
            vocab_size, length, size, latents=latents, features=features, state_width=reader.width,
            local_skip=settings.local_skip,
        )  # fmt: skip
    compressor = None
    if settings.compressed:
        compressor = Perceiver(size, memory=length, memory_width=reader.width, count=latents)
    loss_config = AutoencoderLossConfig(
        match=settings.state_loss_weight,
        position_drop=settings.position_drop,
        feature_noise=settings.feature_noise,
        latent_dropout=settings.latent_dropout,
        zeroing=settings.zeroing,
        clean_statistics=settings.clean_statistics,
        substitution=settings.substitution,
        divergence=settings.kl_weight,
        divergence_sum=settings.kl_sum,
    )
    return TextAutoencoder(
        vocab_size, length, reader, compressor, decoder,
        latents=latents, features=features, scale=SCALES[settings.scale], loss_config=loss_config,
        layer_norm=settings.layer_norm, local_skip=settings.local_skip,
    )  # fmt: skip


def _count_latents(settings: LatentSettings, length: int) -> int:
    count = max(1, length // settings.compression) if settings.latents is None else settings.latents
    if not 1 <= count < length:
        raise UserError(
            f"{count} latents do not compress {length} tokens; choose at least 1 and fewer than the length."
        )
    return count


def uniform_times() -> TimeSampler:
    """Times are uniform in training, as in all four papers; the decoder is trained for the end of the path."""
    density = torch.full((INTERVALS + 1,), 1 / INTERVALS, dtype=torch.float64)
    density[-1] = 1e-6
    density = density / density.sum()
    return TimeSampler(density, density)


def _network(
    process: LatentDiffusion, codec: TextAutoencoder, network: NetworkConfig, settings: LatentSettings
) -> Denoiser:
    if network.tied:
        raise UserError("tied=True needs a network that reads tokens or beliefs; latents have no table.")
    width = codec.features
    inputs = 2 * width if settings.self_conditioning else width
    inner = registered_denoiser(codec, codec.latents, network, reads_time=True, inputs=inputs)
    if inner is None:
        inner = FullTransformer(codec, codec.latents, network, reads_time=True)
        if settings.self_conditioning:
            inner.stem = CoordinateStem(inputs, network.width)
    if not settings.self_conditioning:
        return inner
    null = nn.Parameter(torch.zeros(width)) if settings.learned_null else None
    return SelfConditioning(inner, width, width, process.estimate, settings.self_conditioning, null=null)


def complete_latent(
    settings: type[LatentSettings], options: dict[str, Any], tokenizer: Mapping[str, Any], published: bool
) -> tuple[dict[str, Any], str]:
    """Options with the encoder of a system on text, and a remark about it."""
    layer = int(options.get("layer", settings.layer))
    return complete_encoder(
        options, tokenizer, layer=layer, default=settings.pretrained, compressed=settings.compressed,
        published=published,
    )  # fmt: skip


SETTINGS: dict[str, type[LatentSettings]] = {}
"""The settings of the latent systems by name."""


def default_encoder(system: str, options: Mapping[str, Any], preset: str) -> str | None:
    """The pretrained encoder that a latent system would have with these options; None for other systems."""
    if system not in SETTINGS:
        return None
    return wants_encoder({**find_preset(system, preset).options, **options}, default=SETTINGS[system].pretrained)


# ---- systems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LD4LGSettings(LatentSettings):
    """LD4LG: latents on the sphere of radius √d, an autoregressive decoder, cross-entropy alone; then v-prediction."""

    causal_decoder: ClassVar[bool] = True
    scale: str = "sphere"
    predicts: str = "v"


register(
    SystemInfo(
        name="ld4lg",
        title="Latent diffusion for language generation",
        paper="Lovelace et al. 2022, arXiv:2212.09462",
        family="latent",
        kind="bound",
        summary="few latents on a sphere, predicted as velocities; an autoregressive decoder",
    ),
    LD4LGSettings,
    complete=partial(complete_latent, LD4LGSettings),
)(build_latent)


@dataclass(frozen=True)
class PlannerSettings(LatentSettings):
    """PLANNER: latents drawn by a variational encoder with noisy tokens as input, an autoregressive decoder."""

    pretrained: ClassVar[bool] = False
    causal_decoder: ClassVar[bool] = True
    self_conditioning: float = 0.0
    substitution: float = 0.1
    kl_weight: float | None = 0.001


register(
    SystemInfo(
        name="planner",
        title="PLANNER: latent diffusion over variational codes",
        paper="Zhang et al. 2023, arXiv:2306.02531",
        family="latent",
        kind="bound",
        summary="codes drawn by a variational encoder from noisy text; an autoregressive decoder",
    ),
    PlannerSettings,
    complete=partial(complete_latent, PlannerSettings),
)(build_latent)


@dataclass(frozen=True)
class TEncDMSettings(LatentSettings):
    """TEncDM: standardised states of an encoder, one for each token; a decoder that is trained on noisy ones.

    min_decode_logsnr=-1.5 is about where TEncDM's decoder stops, at t = 0.15 of tan-9; the published path begins at a
    log-SNR of 8.5.
    """

    compressed: ClassVar[bool] = False
    latent_width: int | None = None
    layer: int = 4
    tan: float = 9.0
    min_decode_logsnr: float | None = -1.5
    autoencoder_fraction: float = 0.3


register(
    SystemInfo(
        name="tencdm",
        title="Text encoding diffusion model",
        paper="Shabalin et al. 2024, arXiv:2402.19097",
        family="latent",
        kind="bound",
        summary="states of an encoder, one for each token, with much noise (tan-9); decoded all at once",
    ),
    TEncDMSettings,
    complete=partial(complete_latent, TEncDMSettings),
)(build_latent)


@dataclass(frozen=True)
class CosmosSettings(LatentSettings):
    """COSMOS: states compressed and reconstructed, all tokens at once; noise, drops and dropout make latents smooth."""

    tan: float = 5.0
    state_loss_weight: float = 1.0
    position_drop: float = 0.3
    feature_noise: float = 0.71
    latent_dropout: float = 0.4


register(
    SystemInfo(
        name="cosmos",
        title="COSMOS: compressed and smooth latents",
        paper="Meshchaninov et al. 2025, arXiv:2506.21170",
        family="latent",
        kind="bound",
        summary="few latents, made smooth by noise, drops and dropout; reconstructed states are decoded all at once",
    ),
    CosmosSettings,
    complete=partial(complete_latent, CosmosSettings),
)(build_latent)

SETTINGS |= {
    "ld4lg": LD4LGSettings,
    "planner": PlannerSettings,
    "tencdm": TEncDMSettings,
    "cosmos": CosmosSettings,
}
