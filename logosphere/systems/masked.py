"""Masked (absorbing) diffusion: MDLM, MD4, GenMD4, ARDM, BD3-LM, D3PM absorbing and SEDD absorb."""

from collections.abc import Sequence
from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.networks.wrappers import CarryOver
from logosphere.processes.base import cosine_grid
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.masked import GenMD4
from logosphere.processes.discrete.mixing import Masking
from logosphere.processes.time_sampler import LOW_VARIANCE, TrainingTimes
from logosphere.schedules.signal import Squeezed
from logosphere.schedules.signal import find_schedule as schedule_by_name
from logosphere.systems.discrete import (
    ContinuousTimeSettings,
    DiscreteSettings,
    TimestepSettings,
    diffusion_model,
    is_unweighted,
    network_of,
    score_model,
    timestep_schedule,
)
from logosphere.systems.registry import SystemInfo, register


@dataclass(frozen=True)
class MDLMSettings(ContinuousTimeSettings):
    """Options of MDLM and of the systems that are trained like it."""

    loss: str = "cross-entropy"
    """cross-entropy, which drops the weight 1/t of the bound and learns faster, or bound, as published."""
    exact_count: bool = True
    """Mask exactly as many positions as the stratified time gives; False: mask each position independently. Networks
    with time_conditional=True and schedules that leave signal at t = 1 always have independent masks."""
    time_conditional: bool = False
    """Condition the network on the time."""
    all_masked: bool = False
    """Samples begin with masks alone, also where the schedule leaves signal at t = 1."""


@register(
    SystemInfo(
        name="mdlm",
        title="Masked diffusion language model",
        paper="Sahoo et al. 2024, arXiv:2406.07524",
        family="discrete",
        kind="bound",
        summary="masks in continuous time; revealed tokens are copied; trains on cross-entropy (or loss=bound)",
        tied=True,
    ),
    MDLMSettings,
)
def build_mdlm(vocab_size: int, length: int, network: NetworkConfig | None, settings: MDLMSettings) -> Model:
    """Masked diffusion in continuous time."""
    masking = Masking(vocab_size, schedule_by_name(settings.schedule))
    process = DiscreteDiffusion(
        masking,
        exact_count=settings.exact_count and not settings.time_conditional and masking.prior_kl() == 0,
        unweighted=is_unweighted(settings.loss),
        times=TrainingTimes(settings.times, settings.t_min),
        all_masked=settings.all_masked,
    )
    return diffusion_model(process, length, settings.block, network, time_conditional=settings.time_conditional)


@dataclass(frozen=True)
class MD4Settings(DiscreteSettings):
    """Options of MD4."""

    schedule: str | Sequence[float] = "linear"
    """Schedule of the signal a_t by name (linear, cosine, md4-cosine, …), or a table of β."""
    loss: str = "bound"
    """bound, or cross-entropy, which drops the weights of the bound."""
    eps: float = 0.0
    """Squeezes the schedule into [ε, 1 - ε], as published. The constants (1 - a_0) log V and a_1 log V are then part of
    the bound; at 0 the schedule begins at 1 and ends at 0, where both are 0."""
    all_masked: bool = False
    """Samples begin with masks alone, also where the schedule leaves signal at t = 1."""


@register(
    SystemInfo(
        name="md4",
        title="Simplified masked diffusion",
        paper="Shi et al. 2024, arXiv:2406.04329",
        family="discrete",
        kind="bound",
        summary="as mdlm, but the network is conditioned on time, trains on the bound and samples on a cosine grid",
    ),
    MD4Settings,
)
def build_md4(vocab_size: int, length: int, network: NetworkConfig | None, settings: MD4Settings) -> Model:
    """Masked diffusion with a network conditioned on time, trained on its bound, sampled on a cosine grid."""
    schedule = schedule_by_name(settings.schedule)
    process = DiscreteDiffusion(
        Masking(vocab_size, Squeezed(schedule, settings.eps) if settings.eps else schedule),
        unweighted=is_unweighted(settings.loss),
        times=TrainingTimes(settings.times),
        all_masked=settings.all_masked,
        grid=cosine_grid,
    )
    return diffusion_model(process, length, settings.block, network, time_conditional=True)


@dataclass(frozen=True)
class GenMD4Settings(DiscreteSettings):
    """Options of GenMD4."""

    t_min: float = 0.0
    """Time at which the path ends, in training and in bounds; tokens that are masked there are decoded from the powers
    w_k alone."""
    eps: float = 0.0
    """Probability that a token is not masked at t = 1."""
    posterior_head: bool = True
    """Add the likelihood t^{w_k} of a mask to the logit of token k, which the network otherwise has to learn."""
    all_masked: bool = False
    """Samples begin with masks alone, also where eps leaves signal at t = 1."""


@register(
    SystemInfo(
        name="genmd4",
        title="Masked diffusion with a schedule for every token",
        paper="Shi et al. 2024, arXiv:2406.04329",
        family="discrete",
        kind="bound",
        summary="as md4, but the masking rate of every token is learned: q(mask | x = k) = t^{w_k}",
    ),
    GenMD4Settings,
)
def build_genmd4(vocab_size: int, length: int, network: NetworkConfig | None, settings: GenMD4Settings) -> Model:
    """Masked diffusion with a learned masking rate for each token. Training evaluates each sequence twice (RLOO)."""
    low = settings.t_min if settings.times != LOW_VARIANCE.kind else 0.0
    process = GenMD4(
        vocab_size,
        first_time=settings.t_min,
        eps=settings.eps,
        times=TrainingTimes(settings.times, low),
        all_masked=settings.all_masked,
    )
    if settings.posterior_head or network is None:
        return diffusion_model(process, length, settings.block, network, time_conditional=True)
    model = diffusion_model(process, length, settings.block, None, time_conditional=True)
    model.denoiser = CarryOver(network_of(process, length, model.block, network, time_conditional=True), process.mask)
    return model


@dataclass(frozen=True)
class ARDMSettings:
    """Options of ARDM."""

    times: str = "low-variance"
    """Times of training: low-variance or uniform (both stratified), or independent."""


@register(
    SystemInfo(
        name="ardm",
        title="Any-order autoregressive diffusion",
        paper="Hoogeboom et al. 2022, arXiv:2110.02037",
        family="discrete",
        kind="bound",
        summary="generates one token at a time in any order; its bound is that of mdlm, trained with its weight L/l",
        tied=True,
    ),
    ARDMSettings,
)
def build_ardm(vocab_size: int, length: int, network: NetworkConfig | None, settings: ARDMSettings) -> Model:
    """An any-order autoregressive model: L/l times the cross-entropy of l masked tokens, l uniform on 1 … L.

    That average over orders (Hoogeboom et al. 2022, eq. 3) is the bound of masked diffusion with exact counts of masks.
    """
    masking = Masking(vocab_size, schedule_by_name("linear"))
    process = DiscreteDiffusion(masking, exact_count=True, times=TrainingTimes(settings.times))
    return diffusion_model(process, length, None, network, time_conditional=False)


@dataclass(frozen=True)
class BD3LMSettings(DiscreteSettings):
    """Options of BD3-LM. `block` is by default 4, or the next smaller number that divides the length."""

    loss: str = "bound"
    """bound, or cross-entropy, which drops the weights of the bound."""
    clip: Sequence[float] = (0.0, 1.0)
    """Interval of the mask rate in training, for example [0.3, 0.8], which reduces the variance of the loss (the paper
    has [0.45, 0.95] for blocks of 4). Bounds are measured on [0, 1]."""
    exact_count: bool = True
    """Mask exactly as many positions as the rate gives; False: mask each position independently in training, and
    redraw until the fraction of masks lies within `clip`. Bounds always use exact counts."""


@register(
    SystemInfo(
        name="bd3lm",
        title="Block diffusion",
        paper="Arriola et al. 2025, arXiv:2503.09573",
        family="discrete",
        kind="bound",
        summary="masks in blocks of 4 (block=…), one after another; between ar (blocks of 1) and mdlm (one block)",
        tied=True,
    ),
    BD3LMSettings,
)
def build_bd3lm(vocab_size: int, length: int, network: NetworkConfig | None, settings: BD3LMSettings) -> Model:
    """Masked diffusion in blocks from left to right."""
    if len(settings.clip) != 2:
        raise UserError(f"clip must be an interval within [0, 1], such as [0.3, 0.8], not {list(settings.clip)}.")
    block = settings.block
    if block is None:
        block = max(size for size in (1, 2, 3, 4) if length % size == 0)
    process = DiscreteDiffusion(
        Masking(vocab_size, schedule_by_name("linear")),
        exact_count=True,
        random_mask_count=not settings.exact_count,
        unweighted=is_unweighted(settings.loss),
        clip=(settings.clip[0], settings.clip[1]),
        times=TrainingTimes(settings.times),
    )
    return diffusion_model(process, length, block, network, time_conditional=False)


@dataclass(frozen=True)
class D3PMAbsorbingSettings(TimestepSettings):
    """Options of D3PM with an absorbing state."""

    hybrid: float = 0.01
    schedule: str | Sequence[float] = "linear"
    """Schedule of the signal by name, or a table of β; linear is β_t = 1/(T - t + 1)."""


@register(
    SystemInfo(
        name="d3pm-absorbing",
        title="D3PM with an absorbing state",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        summary="masks in T = 1000 steps; conditioned on time; trains on KL_t plus 0.01 cross-entropy",
    ),
    D3PMAbsorbingSettings,
)
def build_d3pm_absorbing(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: D3PMAbsorbingSettings
) -> Model:
    """D3PM, absorbing: L_λ with λ = 0.01."""
    masking = Masking(vocab_size, timestep_schedule(settings.schedule, settings.timesteps))
    process = DiscreteDiffusion(
        masking, timesteps=settings.timesteps, hybrid=settings.hybrid, times=TrainingTimes(settings.times)
    )
    return diffusion_model(process, length, settings.block, network, time_conditional=True)


@dataclass(frozen=True)
class SEDDAbsorbSettings(ContinuousTimeSettings):
    """Options of SEDD with masks."""

    schedule: str | Sequence[float] = "log-linear"
    all_masked: bool = False
    """Samples begin with masks alone, although the schedule leaves signal at t = 1."""


@register(
    SystemInfo(
        name="sedd-absorb",
        title="Score entropy with masks",
        paper="Lou et al. 2024, arXiv:2310.16834",
        family="discrete",
        kind="bound",
        summary="the bound of mdlm, but the network predicts ratios of probabilities that need not be normalised",
    ),
    SEDDAbsorbSettings,
)
def build_sedd_absorb(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: SEDDAbsorbSettings
) -> Model:
    """Score entropy with masks: the network predicts ratios of probabilities."""
    masking = Masking(vocab_size, schedule_by_name(settings.schedule))
    return score_model(masking, settings, length, network, all_masked=settings.all_masked)
