"""Parts of the systems on the sphere: codec, start points, tables of the published schedule, time sampler, network."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import CoordinateStem, DigitCodec, VertexCodec
from logosphere.errors import UserError, suggest
from logosphere.geometry.bridge_tables import fit_normal, tabulate_bridges_at
from logosphere.geometry.bridges import Bridge
from logosphere.networks.base import BeliefInput, Denoiser, PosteriorHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.own import registered_denoiser
from logosphere.networks.self_conditioning import SelfConditioning, posterior_belief, token_probabilities
from logosphere.networks.transformer import DigitTransformer, FullTransformer
from logosphere.processes.spherical.diffusion import SphericalDiffusion, Start
from logosphere.processes.spherical.projected import ProjectedCodec, ProjectedSphericalDiffusion
from logosphere.processes.spherical.published import UniformProbability, table_times
from logosphere.processes.spherical.times import noise_left, rdlm_importance_density, rdlm_time, rdlm_time_density
from logosphere.processes.time_sampler import TimeSampler, uniform_density
from logosphere.systems.discrete import transformer

if TYPE_CHECKING:
    from logosphere.systems.spherical import RDLMSettings


def default_noise(d: int) -> float:
    """Total noise V such that noise has a squared norm of about 0.4 where tokens become certain.

    Tokens among d become certain at s ≈ 1.6 V (log d + 3), where the noise V s d has that norm; for d = 28 this is the
    0.0376 of the paper's schedule.
    """
    return math.sqrt(0.4 / (1.62 * d * (math.log(d) + 3)))


def sphere_codec(vocab_size: int, network: NetworkConfig | None, settings: "RDLMSettings") -> Codec:
    """Tokens as vertices, or as digits whose values are vertices."""
    if settings.projected:
        return ProjectedCodec(vocab_size, (network or NetworkConfig()).width)
    if settings.base is not None:
        return DigitCodec(vocab_size, settings.base, smallest_first=settings.codes == "published")
    if settings.codes != "valid":
        raise UserError(f"codes={settings.codes} needs a base.")
    return VertexCodec(vocab_size)


# ---- where bridges begin --------------------------------------------------------------------------------------------


MIXTURES = ("step", "linear", "sqrt")
"""Starts whose probabilities change with time."""


class SpherePoints(NamedTuple):
    """The points where bridges begin."""

    points: list[Tensor]
    uniform: UniformProbability | None
    """The probability of the uniform start over the paper's time; None where the probabilities are constant."""

    @property
    def cosines(self) -> list[float]:
        """The coordinate of each point on a token."""
        return [float(point[0]) for point in self.points]


def start_points(start: str | float, tokens: int) -> SpherePoints:
    """The start points of an option `start`.

    The paper's mixture paths begin at the uniform point with the probability 1 before the threshold and 0 after it
    (step), 1 - t (linear), or 1 - √t (sqrt), in its own time t.
    """
    both = [start_point("mask", tokens), start_point("uniform", tokens)]
    if start == "mask+uniform":
        return SpherePoints(both, None)
    kind, _, threshold = str(start).partition(":")
    if kind not in MIXTURES:
        return SpherePoints([start_point(start, tokens)], None)
    try:
        switch = float(threshold) if kind == "step" else 0.0
    except ValueError:
        raise UserError(f"start=step needs its time, for example step:0.35, not '{start}'.") from None

    def uniform(t: Tensor) -> Tensor:
        return {"step": (t < switch).double(), "linear": 1 - t, "sqrt": 1 - t.sqrt()}[kind]

    return SpherePoints(both, uniform)


def start_point(start: str | float, tokens: int) -> Tensor:
    """A start point: 'mask', 'uniform' (the centre of the orthant, mask included), or a weight λ of the tokens.

    λ puts √(λ/V) on every token and √(1 - λ) on the mask.
    """
    if isinstance(start, str):
        named = {"mask": 0.0, "uniform": tokens / (tokens + 1)}
        if start not in named:
            known = [*named, "mask+uniform", *MIXTURES]
            raise UserError(f"There is no start '{start}'.{suggest(start, known)}")
        start = named[start]
    if not 0 <= start <= 1:
        raise UserError(f"start must be a number from 0 (the mask) to 1 (the centre of the tokens), not {start}.")
    point = torch.full((tokens + 1,), math.sqrt(start / tokens))
    point[-1] = math.sqrt(1 - start)
    return point


def start_probabilities(uniform: UniformProbability, times: Tensor) -> Tensor:
    """The probabilities [N, 2] of the mask and of the uniform start at tabulated times of the bridge."""
    probability = uniform(rdlm_time("geometric", times.double()))
    return torch.stack([1 - probability, probability], 1)


# ---- times ----------------------------------------------------------------------------------------------------------


def time_sampler(name: str, window: list[float] | None, times: Tensor) -> TimeSampler:
    """The sampler of tabulated times."""
    even = uniform_density(len(times))
    if name in ("information", "even"):
        if window is not None:
            raise UserError(f"window needs time_sampler=geometric, linear or cosine, not {name}.")
        return TimeSampler(even, None if name == "information" else even)
    density = rdlm_time_density(name, times)
    if window is None:
        return TimeSampler(density, density)
    return TimeSampler(density, rdlm_importance_density(name, times, *check_window(window)))


def check_window(window: list[float]) -> tuple[float, float]:
    """A window as a pair of times."""
    if len(window) != 2 or not 0 <= window[0] < window[1] <= 1:
        raise UserError(f"window must be two times [left, right] between 0 and 1, not {window}.")
    return window[0], window[1]


def schedule_tables(
    bridge: Bridge, d: int, points: SpherePoints, settings: "RDLMSettings"
) -> tuple[list[Start], Tensor | None]:
    """The starts of protocol=published with their tables, and α and ρ of the Riemannian normal, if that is used."""
    tables = tabulate_bridges_at(bridge, d, points.cosines, 1 - noise_left(settings.time_sampler, table_times()))
    starts = [Start(point, table) for point, table in zip(points.points, tables, strict=True)]
    if settings.transitions == "exact":
        return starts, None
    published = settings.transitions == "published"
    # A last row at τ = 1, where the mean is the vertex and ρ = 0.
    rows = [
        torch.cat(
            [
                fit_normal(table, d, cosine, published=published, scale=settings.rho_scale),
                torch.tensor([[math.sqrt(1 - cosine**2)], [0.0]]),
            ],
            dim=1,
        )
        for table, cosine in zip(tables, points.cosines, strict=True)
    ]
    return starts, torch.stack(rows)


# ---- network --------------------------------------------------------------------------------------------------------


def sphere_network(
    process: SphericalDiffusion, length: int, network: NetworkConfig, settings: "RDLMSettings"
) -> Denoiser:
    """The network of a process on the sphere."""
    if isinstance(process, ProjectedSphericalDiffusion):
        denoiser = _projected_network(process, length, network)
    else:
        denoiser = _network(process, length, network, settings)
    if settings.adds_evidence:
        return PosteriorHead(denoiser, process.add_evidence)
    return denoiser


def _projected_network(process: ProjectedSphericalDiffusion, length: int, network: NetworkConfig) -> Denoiser:
    codec = process.codec
    if codec.vocab_size < network.width + 3:
        raise UserError(f"projected=True needs a vocabulary larger than the width of {network.width}.")
    return FullTransformer(codec, length, network, reads_time=True)


def _network_of_positions(
    process: SphericalDiffusion, states: int, network: NetworkConfig, settings: "RDLMSettings"
) -> Denoiser:
    """The network with one position for each state, and with an estimate as further input for self-conditioning."""
    codec, block, time_conditional = process.codec, settings.block or states, settings.input == "state"
    inputs = codec.num_classes if settings.input == "belief" else None
    if settings.self_conditioning:
        inputs = 2 * codec.num_classes
    if block == states:
        own = registered_denoiser(codec, states, network, reads_time=time_conditional, inputs=inputs)
        if own is not None:
            return own
    inner = transformer(
        process,
        states,
        block,
        network,
        time_conditional=time_conditional,
        subtract_input=settings.subtracts_input,
    )
    if settings.self_conditioning:
        inner.stem = CoordinateStem(2 * codec.num_classes, network.width)
    return inner


def _network(process: SphericalDiffusion, length: int, network: NetworkConfig, settings: "RDLMSettings") -> Denoiser:
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time adds no information.
    codec, time_conditional = process.codec, settings.input == "state"
    inner: Denoiser
    if isinstance(codec, DigitCodec) and settings.digits == "heads":
        if settings.self_conditioning:
            raise UserError("self_conditioning needs digits=positions, not heads.")
        inner = DigitTransformer(codec, length, network, reads_time=time_conditional)
    else:
        if isinstance(codec, DigitCodec) and network.signal:
            raise UserError("A signal is given along tokens and not along their digits; leave out base.")
        states = length * codec.digits if isinstance(codec, DigitCodec) else length
        inner = _network_of_positions(process, states, network, settings)
        if settings.self_conditioning:
            probability = 0.5 if settings.self_conditioning is True else settings.self_conditioning
            estimate = (
                posterior_belief if settings.adds_evidence and settings.input == "belief" else token_probabilities
            )
            inner = SelfConditioning(inner, codec.num_classes, codec.num_classes, estimate, probability)
    return BeliefInput(inner, process.belief) if settings.input == "belief" else inner
