"""Discrete diffusion with random tokens: D3PM uniform and Gaussian, multinomial, UDLM, SEDD uniform and GIDD."""

from collections.abc import Sequence
from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import PosteriorHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.networks.wrappers import LogisticHead
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.discretized_gaussian import DiscretizedGaussian
from logosphere.processes.discrete.mixing import (
    Hybrid,
    Uniform,
    Weighting,
    clipped_weight,
    dynamic_weight,
    gidd_clipped_weight,
    gidd_dynamic_weight,
)
from logosphere.processes.time_sampler import TimeSampler, TrainingTimes, uniform_density
from logosphere.schedules.signal import Schedule, cosine_betas, from_betas, mutual_information
from logosphere.schedules.signal import find_schedule as schedule_by_name
from logosphere.systems.discrete import (
    ContinuousTimeSettings,
    TimestepSettings,
    decode_from_network,
    diffusion_model,
    score_model,
    timestep_schedule,
    transformer,
)
from logosphere.systems.registry import SystemInfo, check_choice, register


@dataclass(frozen=True)
class D3PMUniformSettings(TimestepSettings):
    """Options of D3PM with uniform noise; hybrid=0, which the paper found better for text."""

    schedule: str | Sequence[float] = "cosine"
    """Schedule of the signal by name, or a table of β; offset-cosine has the β of the paper."""
    frequencies: Sequence[float] | None = None
    """Frequencies of the tokens: the schedule then loses information at a constant rate (D3PM, appendix A.4)."""
    reconstruction: str = "posterior"
    """Distribution of the last step: posterior, ∝ x̂ q(z_1 | x), or network, the network's softmax x̂, as in the
    authors' code."""


@register(
    SystemInfo(
        name="d3pm-uniform",
        title="D3PM with uniform noise",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        summary="replaces tokens by random ones in T = 1000 steps, so that every token can change until the end",
    ),
    D3PMUniformSettings,
)
def build_d3pm_uniform(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: D3PMUniformSettings
) -> Model:
    """D3PM with uniform transitions."""
    if settings.frequencies is None:
        schedule = timestep_schedule(settings.schedule, settings.timesteps)
    else:
        schedule = _information_schedule(settings.frequencies, vocab_size)
    process = DiscreteDiffusion(
        Uniform(vocab_size, schedule),
        timesteps=settings.timesteps,
        hybrid=settings.hybrid,
        decode_from_network=decode_from_network(settings.reconstruction),
        times=TrainingTimes(settings.times),
    )
    return diffusion_model(process, length, settings.block, network, time_conditional=True)


def _information_schedule(frequencies: Sequence[float], vocab_size: int) -> Schedule:
    if len(frequencies) != vocab_size:
        raise UserError(f"There must be {vocab_size} frequencies, one for each token, not {len(frequencies)}.")
    return mutual_information(frequencies)


@dataclass(frozen=True)
class D3PMGaussianSettings(TimestepSettings):
    """Options of D3PM with discretised Gaussian noise. `timesteps` scales the β of the paper's 1000 steps."""

    timesteps: int = 100
    hybrid: float = 0.001
    head: str = "softmax"
    """softmax: a logit for each value; logistic: the location and the width of a discretised logistic distribution, as
    in the paper for images."""
    widths: str = "variance"
    """Widths of the transitions: formula, as published, or variance, which widens those of few values to the variance
    that they have where there are many values."""
    reconstruction: str = "posterior"
    """Distribution of the last step: posterior, ∝ x̂ q(z_1 | x), or network, x̂ alone."""


@register(
    SystemInfo(
        name="d3pm-gaussian",
        title="D3PM with discretised Gaussian noise",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        summary="for ordered tokens such as grey values: noise moves to neighbouring values by V × V matrices",
    ),
    D3PMGaussianSettings,
)
def build_d3pm_gaussian(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: D3PMGaussianSettings
) -> Model:
    """D3PM for ordered tokens; L_λ with λ = 0.001, as for images.

    The network predicts x̂, a distribution given the context, to which the evidence of the observed value is added
    (D3PM, eq. 4, where p̃ is summed against q).
    """
    check_choice("head", settings.head, ("softmax", "logistic"))
    process = DiscretizedGaussian(
        vocab_size,
        timesteps=settings.timesteps,
        hybrid=settings.hybrid,
        widths=settings.widths,
        decode_from_network=decode_from_network(settings.reconstruction),
        times=TrainingTimes(settings.times),
    )
    if settings.head == "softmax" or network is None:
        return diffusion_model(process, length, settings.block, network, time_conditional=True)
    model = diffusion_model(process, length, settings.block, None, time_conditional=True)
    inner = transformer(process, length, model.block, network, time_conditional=True)
    inner.head = LinearHead(network.width, 2)
    model.denoiser = PosteriorHead(LogisticHead(inner, vocab_size), process.add_evidence)
    return model


@dataclass(frozen=True)
class MultinomialSettings(TimestepSettings):
    """Options of multinomial diffusion."""

    importance_sampling: bool = False
    """Draw steps in proportion to the root mean square of their loss, as published."""
    max_beta: float = 0.999
    """Largest β of the cosine schedule; the paper has 0.968."""


@register(
    SystemInfo(
        name="multinomial",
        title="Multinomial diffusion",
        paper="Hoogeboom et al. 2021, arXiv:2102.05379",
        family="discrete",
        kind="bound",
        summary="random tokens in T = 1000 steps; the signal that its table of β leaves at the end is counted",
    ),
    MultinomialSettings,
)
def build_multinomial(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: MultinomialSettings
) -> Model:
    """Uniform noise in T steps with the β of a cosine; the prior term counts the signal that is left at the end."""
    timesteps = settings.timesteps
    if timesteps is None or timesteps < 1:
        raise UserError(f"timesteps must be at least 1, not {timesteps}; udlm is the same in continuous time.")
    if not 0 < settings.max_beta <= 1:
        raise UserError(f"max_beta must be above 0 and at most 1, not {settings.max_beta}.")
    uniform = Uniform(vocab_size, from_betas(cosine_betas(timesteps, settings.max_beta)))
    sampler = None
    if settings.importance_sampling and timesteps > 1:
        sampler = TimeSampler(uniform_density(timesteps), min_variance=True)
    process = DiscreteDiffusion(
        uniform, timesteps=timesteps, hybrid=settings.hybrid, time_sampler=sampler, times=TrainingTimes(settings.times)
    )
    return diffusion_model(process, length, settings.block, network, time_conditional=True)


@dataclass(frozen=True)
class UDLMSettings(ContinuousTimeSettings):
    """Options of UDLM."""

    subtract_input_embedding: bool = False
    """Subtract the embedding of a position's own token before the output head; the posterior head adds its evidence."""


@register(
    SystemInfo(
        name="udlm",
        title="Uniform diffusion language model",
        paper="Schiff et al. 2024, arXiv:2412.10193",
        family="discrete",
        kind="bound",
        summary="d3pm-uniform in continuous time: the limit of many steps, trained on its bound",
    ),
    UDLMSettings,
)
def build_udlm(vocab_size: int, length: int, network: NetworkConfig | None, settings: UDLMSettings) -> Model:
    """Uniform noise in continuous time, trained on its bound."""
    uniform = Uniform(vocab_size, schedule_by_name(settings.schedule))
    process = DiscreteDiffusion(uniform, times=TrainingTimes(settings.times, settings.t_min))
    return diffusion_model(
        process,
        length,
        settings.block,
        network,
        time_conditional=True,
        subtract_input=settings.subtract_input_embedding,
    )


@dataclass(frozen=True)
class SEDDUniformSettings(ContinuousTimeSettings):
    """Options of SEDD with random tokens."""

    schedule: str | Sequence[float] = "geometric"


@register(
    SystemInfo(
        name="sedd-uniform",
        title="Score entropy with random tokens",
        paper="Lou et al. 2024, arXiv:2310.16834",
        family="discrete",
        kind="bound",
        summary="the bound of udlm, but the network predicts ratios of probabilities; geometric schedule",
    ),
    SEDDUniformSettings,
)
def build_sedd_uniform(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: SEDDUniformSettings
) -> Model:
    """Score entropy with random tokens."""
    return score_model(Uniform(vocab_size, schedule_by_name(settings.schedule)), settings, length, network)


WEIGHTINGS: dict[str, Weighting | None] = {
    "bound": None,
    "clip": clipped_weight,
    "clip-2": gidd_clipped_weight,
    "dynamic": dynamic_weight,
    "dynamic-code": gidd_dynamic_weight,
}


@dataclass(frozen=True)
class GIDDSettings(ContinuousTimeSettings):
    """Options of GIDD. Training draws times from [t_min, 1 - t_min]."""

    p_u: float = 0.1
    """Fraction of random tokens at t = 1/2."""
    loss: str = "dynamic"
    """Weights of training, which bound those of the likelihood bound at both ends of time: dynamic (the equation of the
    paper), dynamic-code (the authors' code), clip and clip-2 (at most 1 and 2), or bound."""
    protocol: str = "bound"
    """bound, or published: likelihoods leave out t < t_min and t > 1 - t_min as in the authors' evaluation, which gives
    0.17 to 1.2 nats less per sequence and is a surrogate."""
    subtract_input_embedding: bool = True
    """Subtract the embedding of a position's own token before the output head. The same head predicts at masks, which
    carry no evidence, and at tokens, which carry most of it, and the embedding would impair the former."""


@register(
    SystemInfo(
        name="gidd",
        title="Generalized interpolating discrete diffusion",
        paper="von Rütte et al. 2025, arXiv:2503.04482",
        family="discrete",
        kind="bound",
        summary="masks and, in the middle, a fraction p_u of random tokens, so that wrong tokens can be corrected",
    ),
    GIDDSettings,
)
def build_gidd(vocab_size: int, length: int, network: NetworkConfig | None, settings: GIDDSettings) -> Model:
    """Masks and random tokens in continuous time."""
    check_choice("loss", settings.loss, tuple(WEIGHTINGS))
    check_choice("protocol", settings.protocol, ("bound", "published"))
    mixing = Hybrid(vocab_size, settings.p_u, schedule_by_name(settings.schedule))
    process = DiscreteDiffusion(
        mixing,
        weighting=WEIGHTINGS[settings.loss],
        times=TrainingTimes(settings.times, settings.t_min, 1 - settings.t_min),
        truncate_ends=settings.protocol == "published",
    )
    subtract = mixing.has_uniform and settings.subtract_input_embedding
    return diffusion_model(process, length, settings.block, network, time_conditional=True, subtract_input=subtract)
