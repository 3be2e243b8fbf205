"""Settings and parts that the discrete systems share, and the autoregressive system.

Defaults are the settings that work best at small scale; the published settings are the presets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser, PosteriorHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.encoder_decoder import BlockEncoderDecoder
from logosphere.networks.own import registered_denoiser
from logosphere.networks.transformer import BlockTransformer, CausalTransformer, FullTransformer
from logosphere.networks.wrappers import ScoreHead
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.masked import SingleStep
from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.processes.discrete.parameterization import Score
from logosphere.processes.time_sampler import TrainingTimes
from logosphere.schedules.signal import Schedule, cosine_betas, from_betas
from logosphere.schedules.signal import find_schedule as schedule_by_name
from logosphere.systems.registry import SystemInfo, check_choice, register

OFFSET_COSINE = "offset-cosine"
"""The schedule with the β of `cosine_betas`, one for each timestep."""


@dataclass(frozen=True)
class AR:
    """The autoregressive model has no options but those of its network."""


@register(
    SystemInfo(
        name="ar",
        title="Autoregressive transformer",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        family="autoregressive",
        kind="exact",
        summary="generates from left to right; the baseline",
    ),
    AR,
)
def build_ar(vocab_size: int, length: int, network: NetworkConfig | None, settings: AR) -> Model:
    """The single-step process in blocks of one position, with a causal network."""
    denoiser = None if network is None else CausalTransformer(vocab_size, length, network)
    return Model(SingleStep(vocab_size), denoiser, length=length, block=1)


@dataclass(frozen=True)
class DiscreteSettings:
    """Options of every discrete diffusion."""

    times: str = "low-variance"
    """Times of training: low-variance (stratified, more of them near 0, weighted by dt/dw), uniform (stratified) or
    independent. Bounds always use low-variance times."""
    block: int | None = None
    """Positions of a block; blocks are generated from left to right. None: one block."""


@dataclass(frozen=True)
class ContinuousTimeSettings(DiscreteSettings):
    """Options of discrete diffusion in continuous time."""

    schedule: str | Sequence[float] = "linear"
    """Schedule of the signal a_t by name (linear, cosine, quadratic, log-linear, …), or a table of β."""
    t_min: float = 0.0
    """Smallest time of training; above 0 it needs times=uniform or times=independent."""


@dataclass(frozen=True)
class TimestepSettings(DiscreteSettings):
    """Options of discrete diffusion in T steps."""

    timesteps: int | None = 1000
    """Number of steps T; None: continuous time, where the system has it."""
    hybrid: float = 0.0
    """Weight λ of the cross-entropy that is added to KL_t in training (D3PM, L_λ)."""


def is_unweighted(loss: str) -> bool:
    """Whether training drops the weights of the bound."""
    check_choice("loss", loss, ("bound", "cross-entropy"))
    return loss == "cross-entropy"


def decode_from_network(reconstruction: str) -> bool:
    """Whether the last step draws from the network's own distribution."""
    check_choice("reconstruction", reconstruction, ("posterior", "network"))
    return reconstruction == "network"


def timestep_schedule(schedule: str | Sequence[float], timesteps: int | None) -> Schedule:
    """A schedule for a number of steps; a table of β must have as many entries."""
    if not isinstance(schedule, str) and timesteps not in (None, len(schedule)):
        raise UserError(f"The table of β has {len(schedule)} entries; set timesteps={len(schedule)}.")
    if schedule != OFFSET_COSINE:
        return schedule_by_name(schedule)
    if timesteps is None or timesteps < 1:
        raise UserError(f"schedule={OFFSET_COSINE} needs a number of timesteps, at least 1, not {timesteps}.")
    return from_betas(cosine_betas(timesteps))


def score_model(
    mixing: MixingDistribution,
    settings: ContinuousTimeSettings,
    length: int,
    network: NetworkConfig | None,
    *,
    all_masked: bool = False,
) -> Model:
    """A model whose network predicts ratios of probabilities."""
    scores, times = Score(), TrainingTimes(settings.times, settings.t_min)
    process = DiscreteDiffusion(mixing, parameterization=scores, times=times, all_masked=all_masked)
    model = diffusion_model(process, length, settings.block, None, time_conditional=True)
    if network is not None:
        inner = network_of(process, length, model.block, network, time_conditional=True)
        model.denoiser = ScoreHead(inner, partial(scores.scale_scores, mixing))
    return model


def diffusion_model(
    process: Process,
    length: int,
    block: int | None,
    network: NetworkConfig | None,
    *,
    time_conditional: bool,
    subtract_input: bool = False,
) -> Model:
    """A model of a process, with a transformer whose logits get the evidence of each state, or without a network."""
    block = length if block is None else block
    denoiser: Denoiser | None = None
    if network is not None:
        inner = network_of(
            process, length, block, network, time_conditional=time_conditional, subtract_input=subtract_input
        )
        denoiser = PosteriorHead(inner, process.add_evidence)
    return Model(process, denoiser, length=length, block=block)


def network_of(
    process: Process,
    length: int,
    block: int,
    network: NetworkConfig,
    *,
    time_conditional: bool,
    subtract_input: bool = False,
) -> Denoiser:
    """The registered network that the configuration names, or else the transformer."""
    if block == length:
        own = registered_denoiser(process.codec, length, network, reads_time=time_conditional)
        if own is not None:
            return own
    return transformer(
        process, length, block, network, time_conditional=time_conditional, subtract_input=subtract_input
    )


def transformer(
    process: Process,
    length: int,
    block: int,
    network: NetworkConfig,
    *,
    time_conditional: bool,
    subtract_input: bool = False,
) -> FullTransformer | BlockTransformer | BlockEncoderDecoder:
    """The transformer of whole sequences, or of blocks from left to right."""
    codec = process.codec
    if block == length:
        return FullTransformer(codec, length, network, reads_time=time_conditional, subtract_input=subtract_input)
    network_of_blocks = BlockTransformer if network.decoder_depth is None else BlockEncoderDecoder
    return network_of_blocks(codec, length, block, network, reads_time=time_conditional, subtract_input=subtract_input)
