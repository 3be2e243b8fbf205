"""Gaussian diffusion of embeddings, bits and logits: Plaid, CDCD, Diffusion-LM, Bit Diffusion and others.

All of them are built from the same parts by `build_gaussian`. A system is a subclass of GaussianSettings with its own
defaults; the settings that it does not offer as options are named in its registration as fixed.

By default paths end where the two nearest tokens are about 8 standard deviations apart, log-SNR ≈ log(64/distance²),
because the state carries no more information after that. Diffusion-LM alone keeps the published end; preset="paper" has
the published ends of all systems.
"""

import math
from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.processes.gaussian.token import GaussianTokenDiffusion
from logosphere.processes.gaussian.updates import PARAMETERIZATIONS
from logosphere.systems.gaussian_parts import (
    CODECS,
    LEARNED,
    gaussian_codec,
    gaussian_network,
    gaussian_schedule,
    gaussian_time_sampler,
)
from logosphere.systems.registry import SystemInfo, check_choice, check_subtraction, register

CHOICES = {
    "codec": ("embeddings", *CODECS),
    "predicts": ("tokens", *PARAMETERIZATIONS),
    "loss": ("bound", "cross-entropy", "error"),
    "time_sampler": ("information", "entropy", "warp", "even", "split", "uniform"),
    "input": ("belief", "state", "scaled", "simplex"),
    "spacing": ("angle", "logsnr", "information", "time"),
    "self_conditioning_by": ("batches", "rows"),
    "embeddings_from": ("all", "plain"),
    "target": ("clean", "noisy"),
}


@dataclass(frozen=True)
class GaussianSettings:
    """Settings of a Gaussian diffusion."""

    codec: str = "embeddings"
    """Continuous form of the tokens: embeddings (learned), bits, one-hot or logits (±1)."""
    embedding: int = 16
    """Width of learned embeddings."""
    norm: float | None = 1.0
    """Length of learned embeddings; None: free."""
    schedule: str = "linear"
    """Log-SNR over time: cosine, sqrt, linear-beta, sigmoid, linear; with loss=bound also learned (a line and 32 units)
    and learned-network (1024 units, as in Plaid's code)."""
    shift: float = 0.0
    """Added to the log-SNR of the schedule (-2 log d for a tan-d schedule)."""
    max_logsnr: float | None = None
    """Log-SNR at t = 0; None: that of the schedule."""
    min_logsnr: float | None = None
    """Log-SNR at t = 1; None: that of the schedule."""
    timesteps: int | None = None
    """Training draws this number of times, those of the published sqrt schedule; None: continuous time."""
    predicts: str = "tokens"
    """Output of the network: tokens (a softmax), x0, eps, v or score."""
    target: str = "clean"
    """clean: the network predicts the embedding; noisy: the path begins at a draw around the embedding, which is
    predicted (in the first step the embedding itself) and decoded by the head, as published."""
    loss: str = "bound"
    """bound, cross-entropy, or error: the squared error of the prediction."""
    rounding_loss_weight: float = 0.0
    """Weight of the cross-entropy of tokens given their clean states, which keeps embeddings apart."""
    linear_head: bool = False
    """Decode tokens by a linear head tied to the embeddings."""
    time_sampler: str | None = "information"
    """Times of training: information (in proportion to the measured nats), entropy (CDCD's warp in 32 bins, and some
    even draws), warp (CDCD's alone, 100 bins), even (1/16 of the draws at the end of the path), split (Plaid's fraction
    by standard deviations there, 1/8 in a bound), uniform (none there). None: even for learned schedules, else
    information."""
    input: str = "state"
    """Input of the network: state; scaled (states of variance 1); belief (the posterior of each token given its own
    state); simplex (a softmax of logits)."""
    posterior_head: bool = True
    """Add the evidence of a state about its own token to the logits (Plaid's output prior)."""
    subtract_input_embedding: bool = False
    """Subtract the embedding of a position's own state before the output head; needs the posterior head."""
    head_warmup: float = 0.0
    """Fraction of training over which the posterior head is scaled from 0 to 1."""
    embeddings_from: str = "all"
    """Sequences that train embeddings and schedule: all, or plain (those without self-conditioning)."""
    self_conditioning: float = 0.0
    """Probability with which training conditions the network on its own estimate; 0: never."""
    self_conditioning_by: str = "batches"
    """Which sequences these are: whole batches at random, or every n-th sequence of each batch (rows)."""
    clip: bool = False
    """Clip the estimate that the network is conditioned on to ±1."""
    spacing: str = "angle"
    """Spacing of the sampler's steps: angle (arccos α), logsnr, information or time."""

    def __post_init__(self) -> None:
        check_subtraction(self.subtract_input_embedding, self.posterior_head and self.predicts == "tokens")
        for option, choices in CHOICES.items():
            if not (option == "time_sampler" and self.time_sampler is None):
                check_choice(option, getattr(self, option), choices)
        if self.schedule in LEARNED and self.loss != "bound":
            raise UserError(f"schedule={self.schedule} requires loss=bound, not {self.loss}.")
        if self.codec == "embeddings" and self.norm is None and self.loss == "cross-entropy":
            if not self.rounding_loss_weight:
                raise UserError(
                    "Cross-entropy alone makes free embeddings grow without bound; set a norm, or use loss=bound."
                )
        if not self.rounding_loss_weight >= 0:
            raise UserError(f"rounding_loss_weight must not be negative, but is {self.rounding_loss_weight}.")
        if self.input == "simplex" and self.codec not in ("logits", "one-hot"):
            raise UserError(f"input=simplex needs the codec logits or one-hot, not {self.codec}.")
        if self.input == "scaled" and (self.codec != "embeddings" or self.norm is None):
            raise UserError("input=scaled needs learned embeddings with a norm; use input=state, or set a norm.")
        ends = (self.max_logsnr, self.min_logsnr)
        if self.timesteps is not None and (self.schedule != "sqrt" or ends != (None, None)):
            raise UserError("timesteps needs schedule=sqrt, max_logsnr=None and min_logsnr=None.")
        if self.self_conditioning_by == "rows" and self.self_conditioning and self.self_conditioning_period < 2:
            raise UserError(
                "self_conditioning_by=rows conditions every n-th sequence of a batch: self_conditioning must be 1/2, "
                f"1/3, 1/4, …, not {self.self_conditioning}."
            )
        if self.embeddings_from == "plain" and self.self_conditioning_by != "rows":
            raise UserError(
                "embeddings_from=plain needs plain sequences in every batch; use self_conditioning_by=rows."
            )

    @property
    def self_conditioning_period(self) -> int:
        """n, where every n-th sequence of a training batch is conditioned on its own estimate; 0 otherwise."""
        if self.self_conditioning_by != "rows" or not self.self_conditioning:
            return 0
        period = round(1 / self.self_conditioning)
        return period if abs(period * self.self_conditioning - 1) < 1e-6 else 0


def build_gaussian(vocab_size: int, length: int, network: NetworkConfig | None, settings: GaussianSettings) -> Model:
    """The Gaussian diffusion with these settings."""
    codec = gaussian_codec(vocab_size, settings)
    process = GaussianTokenDiffusion(
        codec,
        gaussian_schedule(settings),
        gaussian_time_sampler(settings),
        parameterization=PARAMETERIZATIONS.get(settings.predicts),
        loss=settings.loss,  # type: ignore[arg-type]
        rounding_loss_weight=settings.rounding_loss_weight,
        rounding_head=settings.linear_head,
        spacing=settings.spacing,  # type: ignore[arg-type]
        noisy_start=settings.target == "noisy",
        discrete=settings.timesteps is not None,
        head_warmup=settings.head_warmup,
        hold_self_conditioned=settings.embeddings_from == "plain",
    )
    denoiser = None if network is None else gaussian_network(process, codec, length, network, settings)
    return Model(process, denoiser, length=length, block=length)


@dataclass(frozen=True)
class PlaidSettings(GaussianSettings):
    """Options of Plaid: embeddings, both ends of the schedule and its shape are trained on the whole bound."""

    schedule: str = "learned"
    max_logsnr: float | None = 3.0
    min_logsnr: float | None = -6.0
    time_sampler: str | None = None


register(
    SystemInfo(
        name="plaid",
        title="Plaid",
        paper="Gulrajani and Hashimoto 2023, arXiv:2305.18619",
        family="continuous",
        kind="bound",
        summary="embeddings, both ends and the shape of the schedule are learned with the whole bound",
    ),
    PlaidSettings,
    fixed="codec shift timesteps predicts target loss rounding_loss_weight linear_head clip",
)(build_gaussian)


@dataclass(frozen=True)
class GaussianCESettings(GaussianSettings):
    """Options of Gaussian diffusion trained on cross-entropy.

    The posterior head is exact, yet a network that reads beliefs learns a little faster without it (docs/results.md).
    """

    schedule: str = "cosine"
    max_logsnr: float | None = 3.5
    loss: str = "cross-entropy"
    posterior_head: bool = False
    input: str = "belief"


register(
    SystemInfo(
        name="gaussian-ce",
        title="Gaussian diffusion trained on cross-entropy",
        paper="after Kingma et al. 2021, arXiv:2107.00630, and Dieleman et al. 2022, arXiv:2211.15089",
        family="continuous",
        kind="bound",
        summary="any codec and schedule; the network reads beliefs, trains on cross-entropy, is measured by its bound",
    ),
    GaussianCESettings,
    fixed="timesteps predicts target rounding_loss_weight linear_head head_warmup embeddings_from self_conditioning_by "
    "clip",
)(build_gaussian)


@dataclass(frozen=True)
class CDCDSettings(GaussianSettings):
    """Options of CDCD: score interpolation by cross-entropy, embeddings of length √d, times warped to even entropy.

    Its z = x + t ε with inputs scaled by 1/√(1 + t²) is the process here, with λ = -2 log t.
    """

    embedding: int = 32
    max_snr: float = 32.0
    """|e|²/t² at the smallest noise level t; the largest t is 300 times as large. The paper has 256, at t = 1, for tens
    of thousands of tokens. Two tokens are 8 standard deviations apart at 32, and a network without a posterior head
    has a larger bound for precision beyond that."""
    time_sampler: str | None = "entropy"
    posterior_head: bool = False
    self_conditioning: float = 0.5
    spacing: str = "logsnr"
    norm: float | None = None
    loss: str = "cross-entropy"

    def __post_init__(self) -> None:
        if not 0 < self.max_snr < math.inf:
            raise UserError(f"max_snr is a ratio of squared lengths and must be above 0, not {self.max_snr}.")
        highest = math.log(self.max_snr / self.embedding) if self.embedding > 0 else 0.0
        object.__setattr__(self, "norm", math.sqrt(max(self.embedding, 1)))
        object.__setattr__(self, "max_logsnr", highest)
        object.__setattr__(self, "min_logsnr", highest - 2 * math.log(300.0))
        super().__post_init__()


register(
    SystemInfo(
        name="cdcd",
        title="Continuous diffusion for categorical data",
        paper="Dieleman et al. 2022, arXiv:2211.15089",
        family="continuous",
        kind="bound",
        summary="score interpolation by cross-entropy alone, embeddings of one length, learned time warp",
    ),
    CDCDSettings,
    fixed="codec norm schedule shift max_logsnr min_logsnr timesteps predicts target loss rounding_loss_weight "
    "linear_head head_warmup embeddings_from clip",
)(build_gaussian)


@dataclass(frozen=True)
class DiffusionLMSettings(GaussianSettings):
    """Options of Diffusion-LM: squared error of x̂, cross-entropy of a tied linear head on the noisy end, prior term.

    Its decoder reads tokens from the end of the path, so that the whole is a bound, though another loss is trained.
    """

    predicts: str = "x0"
    schedule: str = "sqrt"
    max_logsnr: float | None = 4.209
    """Log-SNR at t = 0. The default is that of the sqrt schedule after the first of 2000 steps, where the path ends:
    σ = 0.121. None: that of the schedule."""
    min_logsnr: float | None = -15.41
    """Log-SNR at t = 1. The default is that after the last step, whose β is cut at 0.999: ᾱ = 2·10⁻⁷, by which the
    prior term weighs squared embeddings. None: that of the schedule."""
    rounding_loss_weight: float = 1.0
    norm: float | None = None
    loss: str = "error"
    linear_head: bool = True
    time_sampler: str | None = "even"


register(
    SystemInfo(
        name="diffusion-lm",
        title="Diffusion-LM",
        paper="Li et al. 2022, arXiv:2205.14217",
        family="continuous",
        kind="bound",
        summary="predicts free embeddings by squared error; a rounding loss keeps them apart; sqrt schedule",
    ),
    DiffusionLMSettings,
    fixed="codec norm shift loss linear_head time_sampler input posterior_head head_warmup embeddings_from "
    "subtract_input_embedding self_conditioning_by clip",
)(build_gaussian)


@dataclass(frozen=True)
class BitDiffusionSettings(GaussianSettings):
    """Options of Bit Diffusion: ⌈log₂ V⌉ analog bits, squared error, self-conditioning; decoded by Bayes' rule."""

    predicts: str = "x0"
    schedule: str = "cosine"
    max_logsnr: float | None = 2.8
    loss: str = "error"
    time_sampler: str | None = "even"
    self_conditioning: float = 0.5
    codec: str = "bits"
    norm: float | None = None


register(
    SystemInfo(
        name="bit-diffusion",
        title="Bit Diffusion",
        paper="Chen et al. 2022, arXiv:2208.04202",
        family="continuous",
        kind="bound",
        summary="tokens as analog bits; squared error and self-conditioning; no softmax over tokens",
    ),
    BitDiffusionSettings,
    fixed="codec embedding norm timesteps target rounding_loss_weight linear_head input posterior_head head_warmup "
    "subtract_input_embedding embeddings_from self_conditioning_by",
)(build_gaussian)


@dataclass(frozen=True)
class SimplexSettings(GaussianSettings):
    """Options of the logit simplex of SSD-LM, for all positions at once."""

    schedule: str = "cosine"
    max_logsnr: float | None = 2.1
    time_sampler: str | None = "even"
    posterior_head: bool = False
    input: str = "simplex"
    codec: str = "logits"
    norm: float | None = None
    loss: str = "cross-entropy"


register(
    SystemInfo(
        name="simplex",
        title="Logit-simplex diffusion",
        paper="after Han et al. 2023, arXiv:2210.17432 (SSD-LM)",
        family="continuous",
        kind="bound",
        summary="tokens as ±K logits, read through a softmax and trained on cross-entropy, all positions at once",
    ),
    SimplexSettings,
    fixed="codec embedding norm min_logsnr timesteps predicts target loss rounding_loss_weight linear_head head_warmup "
    "embeddings_from self_conditioning_by clip",
)(build_gaussian)
