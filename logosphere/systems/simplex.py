"""Diffusion and flows on the simplex: BFN, Fisher-Flow, Dirichlet flow matching and DDSM.

Defaults are the settings that learn fastest at small scale; preset="paper" is the published system.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs.tokens import CoordinateStem, SimplexCodec
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import BeliefInput, Denoiser, PosteriorHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.own import registered_denoiser
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.networks.wrappers import InputTransform, TransformedInput, centre_probabilities, split_by_concentration
from logosphere.processes.simplex.bfn import BFNPath, default_accuracy
from logosphere.processes.simplex.dirichlet import MEAN_EXCESS, DirichletPath, default_alpha
from logosphere.processes.simplex.flow_matching import GeodesicPath, LinearPath, TangentFlow
from logosphere.processes.simplex.process import ConditionalPath, SimplexProcess
from logosphere.processes.simplex.stick_breaking import StickPath, StickScores
from logosphere.processes.simplex.wright_fisher import WrightFisherPath, default_count
from logosphere.processes.time_sampler import TimeSampler, uniform_density
from logosphere.systems.registry import SystemInfo, check_choice, check_subtraction, register

CELLS, FEW_CELLS, MANY_CELLS = 128, 64, 512
"""Cells of a path in continuous time; fewer where a cell's nats are rare and large, more for a density of times."""
NEVER = 1e-12
"""The probability of a cell that is never drawn; above 0, so that its weight is finite."""
MAX_STICKS = 512
"""Largest vocabulary of construction=sticks, whose cost grows with it."""
PRIORS = {"sphere": 0.5, "simplex": 1.0}
TIME_SAMPLERS = ("information", "even", "uniform")


@dataclass(frozen=True)
class FlowSettings:
    """Options of every system on the simplex."""

    posterior_head: bool = True
    """Add the evidence of a state about its own token to the logits."""
    subtract_input_embedding: bool = False
    """Subtract the embedding of a position's own state before the output head; needs the posterior head."""
    input: str = "belief"
    """Input of the network: belief (the posterior of each token given its own state, without the time) or state (with
    the time)."""
    loss: str = "cross-entropy"
    """cross-entropy, bound, or diffusion: the bound without its reconstruction term, as published."""
    time_sampler: str = "information"
    """Times of training: information (in proportion to the measured nats), even (the reconstruction term is drawn as
    often as any cell) or uniform (the reconstruction term is never drawn, as published)."""
    self_conditioning: float | int = 0.0
    """Probability with which training conditions the network on its own estimate; 0: never."""

    def __post_init__(self) -> None:
        check_subtraction(self.subtract_input_embedding, self.posterior_head)


@dataclass(frozen=True)
class BFNSettings(FlowSettings):
    """Options of Bayesian flow networks."""

    input: str = "belief"
    """Input of the network: belief (θ without the time), state (θ and the time) or scaled (2θ - 1 and the time, as
    published)."""
    accuracy: float | int | None = None
    """β₁, the accuracy of all messages together; None: chosen for the size of the vocabulary."""
    timesteps: int | None = None
    """Number of messages, with their exact bound; None: continuous time."""


@register(
    SystemInfo(
        name="bfn",
        title="Bayesian flow network",
        paper="Graves et al. 2023, arXiv:2308.07037",
        family="continuous",
        kind="bound",
        summary="states are beliefs updated by noisy messages, in continuous time or (timesteps=n) in n steps",
    ),
    BFNSettings,
)
def build_bfn(vocab_size: int, length: int, network: NetworkConfig | None, settings: BFNSettings) -> Model:
    """A Bayesian flow network."""
    _check(settings, inputs=("belief", "state", "scaled"))
    _check_positive("accuracy", settings.accuracy)
    _check_positive("timesteps", settings.timesteps)
    accuracy, chain = settings.accuracy or default_accuracy(vocab_size), settings.timesteps is not None
    path = BFNPath(vocab_size, accuracy, chain=chain)
    codec = SimplexCodec(vocab_size, width=path.width)
    sampler = _time_sampler(settings.time_sampler, settings.timesteps or CELLS)
    process = SimplexProcess(codec, path, sampler, loss=settings.loss)  # type: ignore[arg-type]
    return _model(process, length, network, settings, centre_probabilities(vocab_size))


@dataclass(frozen=True)
class FisherFlowSettings(FlowSettings):
    """Options of Fisher-Flow."""

    loss: str = "cross-entropy"
    """cross-entropy of tokens, or velocity: the squared error of velocities, as published."""
    geometry: str = "sphere"
    """sphere: geodesics of square roots; flat: straight lines in the simplex (linear flow matching)."""
    prior: str | None = None
    """sphere: starts uniform on the orthant (Fisher-Flow); simplex: uniform distributions (statistical flow matching;
    always with geometry=flat). None: that of the geometry."""
    coupling: str = "independent"
    """Starts in training: independent, or optimal (mini-batch optimal transport; a batch cut into parts is coupled part
    by part). Metrics are always measured with independent starts."""
    predicts: str = "tokens"
    """tokens: a softmax, whose mean velocity is followed over the first half of the geodesics, after which the token is
    certain; velocity: a free tangent field over all of them, as published, with loss=velocity, posterior_head=False,
    input=state and time_sampler=uniform."""


@register(
    SystemInfo(
        name="fisher-flow",
        title="Fisher-Flow matching",
        paper="Davis et al. 2024, arXiv:2405.14664; prior=simplex: Cheng et al. 2024, arXiv:2405.16441",
        family="continuous",
        kind="surrogate",
        summary="geodesics of the positive orthant from random distributions to tokens; softmax over tokens or "
        "(preset=paper) a free tangent field",
    ),
    FisherFlowSettings,
)
def build_fisher_flow(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: FisherFlowSettings
) -> Model:
    """Flow matching along geodesics."""
    flat, optimal = settings.geometry == "flat", settings.coupling == "optimal"
    prior = settings.prior or ("simplex" if flat else "sphere")
    _check(settings, losses=("cross-entropy", "velocity"))
    check_choice("prior", prior, tuple(PRIORS))
    check_choice("geometry", settings.geometry, ("sphere", "flat"))
    check_choice("coupling", settings.coupling, ("independent", "optimal"))
    check_choice("predicts", settings.predicts, ("tokens", "velocity"))
    if optimal and (settings.posterior_head or settings.input != "state"):
        raise UserError(
            "coupling=optimal needs posterior_head=False and input=state: starts then depend on tokens, and the "
            "evidence of a state about its token has no closed form."
        )
    if flat and prior != "simplex":
        raise UserError(f"geometry=flat needs prior=simplex, not {prior}.")
    path: ConditionalPath = (
        LinearPath(vocab_size, ot_coupling=optimal)
        if flat
        else GeodesicPath(vocab_size, PRIORS[prior], ot_coupling=optimal)
    )
    codec = SimplexCodec(vocab_size, rooted=not flat)
    if settings.predicts == "velocity":
        if settings.loss != "velocity" or settings.time_sampler != "uniform":
            raise UserError(
                "predicts=velocity needs loss=velocity and time_sampler=uniform, not "
                f"{settings.loss} and {settings.time_sampler}."
            )
        if not isinstance(path, GeodesicPath):
            raise UserError("predicts=velocity needs geometry=sphere.")
        _check_free_field(settings, "velocity")
        return _model(TangentFlow(codec, path, FEW_CELLS), length, network, settings)
    loss = "squared-error" if settings.loss == "velocity" else "cross-entropy"
    sampler = _time_sampler(settings.time_sampler, FEW_CELLS)
    return _model(SimplexProcess(codec, path, sampler, loss=loss), length, network, settings)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DirichletFlowSettings(FlowSettings):
    """Options of Dirichlet flow matching."""

    input: str = "belief"
    """Input of the network: belief, state, or doubled ([(1 - w) z, w z] with w = 2 / (α + 1) and the time, as
    published)."""
    time_sampler: str = "information"
    """Times of training: information, even, uniform, unbounded (α - 1 ~ 2 Exp(1), as published) or exponential (the
    same up to the last α)."""
    alpha: float | int | None = None
    """α where the path ends; None: 8, or more for large vocabularies."""
    churn: float | int = 1.0
    """Noise of the sampler as a multiple of what suits the bound; 0: the flow, which has no bound."""


@register(
    SystemInfo(
        name="dirichlet-flow",
        title="Dirichlet flow matching",
        paper="Stark et al. 2024, arXiv:2402.05841",
        family="continuous",
        kind="bound",
        summary="Dirichlet distributions that concentrate on the token; with noise a bound, with churn=0 a flow",
    ),
    DirichletFlowSettings,
)
def build_dirichlet_flow(
    vocab_size: int, length: int, network: NetworkConfig | None, settings: DirichletFlowSettings
) -> Model:
    """Dirichlet flow matching."""
    name, alpha, churn = settings.time_sampler, settings.alpha, settings.churn
    _check(settings, inputs=("belief", "state", "doubled"), time_samplers=(*TIME_SAMPLERS, "exponential", "unbounded"))
    if alpha is not None and alpha <= 1:
        raise UserError(f"alpha must be above 1, where the path begins, not {alpha}.")
    if churn < 0:
        raise UserError(f"churn must not be negative, but it is {churn}.")
    if churn > 0 and not settings.posterior_head:
        raise UserError("posterior_head=False needs churn=0: the noisy sampler has no finite bound without it.")
    if churn == 0 and settings.loss != "cross-entropy":
        raise UserError(f"churn=0 needs loss=cross-entropy, not {settings.loss}: the flow has no bound to train on.")
    last = default_alpha(vocab_size) if alpha is None else float(alpha)
    path = DirichletPath(vocab_size, last, churn=float(churn), unbounded=name == "unbounded")
    if name == "exponential":
        sampler = _exponential_times(last, CELLS, least=0.02)
    else:
        sampler = _exponential_times(last, MANY_CELLS) if name == "unbounded" else _time_sampler(name, CELLS)
    process = SimplexProcess(SimplexCodec(vocab_size), path, sampler, loss=settings.loss)  # type: ignore[arg-type]
    doubled = split_by_concentration(lambda t: path.alpha(process.fraction(t)))
    return _model(process, length, network, settings, doubled)


@dataclass(frozen=True)
class DDSMSettings(FlowSettings):
    """Options of Dirichlet diffusion."""

    time_sampler: str = "information"
    """Times of training: information, even, uniform, or with predicts=score importance (in proportion to the root mean
    square of the score, as published)."""
    construction: str = "shares"
    """shares: all coordinates diffuse at once; sticks: stick breaking, token by token."""
    concentration: int | None = None
    """M: the data end is Dirichlet(1 + M e_x), or the like; None: chosen for the size of the vocabulary."""
    dilation: float | int = 1.0
    """Time dilation: the sampler diffuses this many times longer at each noise level, which favours likely
    sequences."""
    predicts: str = "tokens"
    """tokens: a softmax, whose mean score is followed; score: a free score of the sticks, as published, with
    construction=sticks, loss=diffusion, posterior_head=False and input=state; the token is then decoded from the state
    alone, which needs a larger concentration."""


@register(
    SystemInfo(
        name="ddsm",
        title="Dirichlet diffusion",
        paper="after Avdeyev et al. 2023, arXiv:2305.10699",
        family="continuous",
        kind="bound",
        summary="Wright-Fisher diffusion of all coordinates at once, or of one stick after another; tight bound",
    ),
    DDSMSettings,
)
def build_ddsm(vocab_size: int, length: int, network: NetworkConfig | None, settings: DDSMSettings) -> Model:
    """Dirichlet diffusion."""
    name, sticks, score = settings.time_sampler, settings.construction == "sticks", settings.predicts == "score"
    check_choice("construction", settings.construction, ("shares", "sticks"))
    check_choice("predicts", settings.predicts, ("tokens", "score"))
    _check(settings, time_samplers=(*TIME_SAMPLERS, "importance"))
    if score and (not sticks or settings.loss != "diffusion"):
        raise UserError(
            f"predicts=score needs construction=sticks and loss=diffusion, not {settings.construction} and "
            f"{settings.loss}."
        )
    if name == "importance" and not score:
        raise UserError(f"time_sampler=importance needs predicts=score, not {settings.predicts}.")
    _check_positive("concentration", settings.concentration)
    _check_positive("dilation", settings.dilation)
    if sticks and vocab_size > MAX_STICKS:
        raise UserError(
            f"construction=sticks allows at most {MAX_STICKS} tokens, not {vocab_size:,}; use construction=shares, "
            "which predicts=tokens and preset=default have."
        )
    last, dilation = settings.concentration or default_count(vocab_size), float(settings.dilation)
    kind = StickPath if sticks else WrightFisherPath
    path: ConditionalPath = kind(vocab_size, last, dilation=dilation)
    if score:
        _check_free_field(settings, "score")
        assert isinstance(path, StickPath)
        path = StickScores(path)
    importance = path.importance(CELLS) if isinstance(path, StickScores) and name == "importance" else None
    sampler = _time_sampler(name, CELLS) if importance is None else _without_reconstruction(importance)
    process = SimplexProcess(SimplexCodec(vocab_size), path, sampler, loss=settings.loss)  # type: ignore[arg-type]
    return _model(process, length, network, settings)


# ---- checks, times and network --------------------------------------------------------------------------------------


def _check(
    settings: FlowSettings,
    inputs: tuple[str, ...] = ("belief", "state"),
    losses: tuple[str, ...] = ("cross-entropy", "bound", "diffusion"),
    time_samplers: tuple[str, ...] = TIME_SAMPLERS,
) -> None:
    check_choice("input", settings.input, inputs)
    check_choice("loss", settings.loss, losses)
    check_choice("time_sampler", settings.time_sampler, time_samplers)


def _check_positive(option: str, value: int | float | None) -> None:
    if value is not None and value <= 0:
        raise UserError(f"{option} must be above 0, not {value}.")


def _check_free_field(settings: FlowSettings, predicts: str) -> None:
    """A field that is no mean over tokens has no posterior to add evidence to or to be conditioned on."""
    if settings.posterior_head or settings.input != "state" or settings.self_conditioning:
        raise UserError(f"predicts={predicts} needs posterior_head=False, input=state and self_conditioning=0.")


def _exponential_times(last: float, cells: int, least: float = 0.0) -> TimeSampler:
    """Cells with the probabilities of α - 1 ~ 2 Exp(1); the reconstruction with that beyond the last α, or `least`."""
    distance = (last - 1) * torch.arange(cells + 1, dtype=torch.float64) / cells
    beyond = (-distance / MEAN_EXCESS).exp()
    density = torch.cat([beyond[:-1] - beyond[1:], beyond[-1:].clamp_min(least)])
    return TimeSampler(density / density.sum(), density / density.sum())


def _without_reconstruction(density: Tensor) -> TimeSampler:
    """A sampler that draws cells from a density, and the reconstruction never."""
    density = torch.cat([density.double(), torch.full((1,), NEVER, dtype=torch.float64)])
    return TimeSampler(density, density)


def _time_sampler(name: str, cells: int) -> TimeSampler:
    if name == "uniform":
        return _without_reconstruction(uniform_density(cells))
    even = uniform_density(cells + 1)
    return TimeSampler(even, None if name == "information" else even)


def _network(
    process: SimplexProcess | TangentFlow, length: int, network: NetworkConfig, settings: FlowSettings, width: int
) -> Denoiser:
    """The network without its wrappers; states are shown to it as `width` numbers."""
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time adds no information.
    codec, reads_time = process.codec, settings.input != "belief"
    inputs = width + (codec.vocab_size if settings.self_conditioning else 0)
    whole_state = settings.input == "state" and not settings.self_conditioning
    own = registered_denoiser(codec, length, network, reads_time=reads_time, inputs=None if whole_state else inputs)
    if own is not None:
        return own
    denoiser = FullTransformer(
        codec, length, network, reads_time=reads_time, subtract_input=settings.subtract_input_embedding
    )
    if width != codec.vocab_size:
        denoiser.stem = CoordinateStem(width, network.width)
    if settings.self_conditioning:
        denoiser.stem = CoordinateStem(inputs, network.width)
    return denoiser


def _model(
    process: SimplexProcess | TangentFlow,
    length: int,
    network: NetworkConfig | None,
    settings: FlowSettings,
    transform: InputTransform | None = None,
) -> Model:
    """A model of a process; `transform` is applied to the states where the input is scaled or doubled."""
    denoiser: Denoiser | None = None
    if network is not None:
        tokens = process.codec.vocab_size
        width = 2 * tokens if settings.input == "doubled" else tokens
        denoiser = _network(process, length, network, settings, width)
        if settings.self_conditioning:
            denoiser = SelfConditioning(denoiser, width, tokens, probability=float(settings.self_conditioning))
        if transform is not None and settings.input in ("scaled", "doubled"):
            denoiser = TransformedInput(denoiser, transform)
        if settings.input == "belief":
            denoiser = BeliefInput(denoiser, process.belief)
        if settings.posterior_head:
            denoiser = PosteriorHead(denoiser, process.add_evidence)
    return Model(process, denoiser, length=length, block=length)
