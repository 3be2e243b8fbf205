"""What the builders of the discrete systems share: options as they are checked, and the network around a process."""

from collections.abc import Sequence
from functools import partial

from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.transformer import BlockTransformer, FullTransformer
from logosphere.networks.wrappers import PosteriorHead, ScoreHead
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.mixing import MixingDistribution
from logosphere.processes.discrete.parameterization import Score
from logosphere.processes.time_sampler import TrainingTimes
from logosphere.schedules.signal import Schedule, cosine_betas, from_betas, mutual_information
from logosphere.schedules.signal import find_schedule as schedule_by_name

LOSSES = ("bound", "cross-entropy")
RECONSTRUCTIONS = ("posterior", "network")
OFFSET_COSINE = "offset-cosine"
"""The β of cosine_betas, as many as there are steps."""


def is_unweighted(loss: str) -> bool:
    """Does training drop the weights of the bound?"""
    if loss not in LOSSES:
        raise UserError(f"There is no loss '{loss}'.{suggest(loss, LOSSES)}")
    return loss == "cross-entropy"


def as_interval(clip: Sequence[float]) -> tuple[float, float]:
    """Two numbers as an interval."""
    if len(clip) != 2:
        raise UserError(f"clip must be an interval within [0, 1], such as [0.3, 0.8], not {list(clip)}.")
    return clip[0], clip[1]


def chain_schedule(schedule: str | Sequence[float], timesteps: int | None) -> Schedule:
    """A schedule for so many steps; a table of β must have as many."""
    if not isinstance(schedule, str) and timesteps not in (None, len(schedule)):
        raise UserError(f"The table of β has {len(schedule)} entries; set timesteps={len(schedule)}.")
    if schedule != OFFSET_COSINE:
        return schedule_by_name(schedule)
    if timesteps is None or timesteps < 1:
        raise UserError(f"schedule={OFFSET_COSINE} needs a number of timesteps, at least 1, not {timesteps}.")
    return from_betas(cosine_betas(timesteps))


def decode_from_network(reconstruction: str) -> bool:
    """Does the last step draw from the network's own distribution?"""
    if reconstruction not in RECONSTRUCTIONS:
        raise UserError(f"There is no reconstruction '{reconstruction}'.{suggest(reconstruction, RECONSTRUCTIONS)}")
    return reconstruction == "network"


def even_loss(frequencies: Sequence[float], vocab_size: int) -> Schedule:
    """The schedule that loses information on tokens of these frequencies evenly."""
    if len(frequencies) != vocab_size:
        raise UserError(f"There must be {vocab_size} frequencies, one for each token, not {len(frequencies)}.")
    return mutual_information(frequencies)


def score_model(
    mixing: MixingDistribution,
    times: TrainingTimes,
    length: int,
    block: int | None,
    network: NetworkConfig | None,
    *,
    all_masked: bool = False,
) -> Model:
    """A model whose network predicts ratios of probabilities."""
    scores = Score()
    process = DiscreteDiffusion(mixing, parameterization=scores, times=times, all_masked=all_masked)
    model = diffusion_model(process, length, block, None, reads_time=True)
    if network is not None:
        inner = transformer(process, length, model.block, network, reads_time=True)
        model.denoiser = ScoreHead(inner, partial(scores.scale_scores, mixing))
    return model


def diffusion_model(
    process: Process,
    length: int,
    block: int | None,
    network: NetworkConfig | None,
    *,
    reads_time: bool,
    subtract_input: bool = False,
) -> Model:
    """A model around a process, with a transformer if it is to have one."""
    block = length if block is None else block
    denoiser: Denoiser | None = None
    if network is not None:
        denoiser = PosteriorHead(
            transformer(process, length, block, network, reads_time=reads_time, subtract_input=subtract_input),
            process.add_evidence,
        )
    return Model(process, denoiser, length=length, block=block)


def transformer(
    process: Process, length: int, block: int, network: NetworkConfig, *, reads_time: bool, subtract_input: bool = False
) -> FullTransformer | BlockTransformer:
    """The transformer that reads whole sequences, or block after block."""
    if block == length:
        return FullTransformer(process.codec, length, network, reads_time=reads_time, subtract_input=subtract_input)
    return BlockTransformer(process.codec, length, block, network, reads_time=reads_time, subtract_input=subtract_input)
