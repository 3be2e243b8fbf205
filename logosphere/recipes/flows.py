"""Builders of the systems on the simplex: Bayesian flow networks, and flows and diffusions of distributions.

Defaults are what learns fastest here; preset="paper" is the published system (logosphere/presets/flows.py).
"""

import torch
from torch import Tensor

from logosphere.codecs.vertices import CoordinateStem, SimplexCodec
from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.networks.wrappers import (
    BeliefInput,
    InputTransform,
    PosteriorHead,
    TransformedInput,
    centre_probabilities,
    split_by_concentration,
)
from logosphere.processes.simplex.bfn import BFNPath, default_accuracy
from logosphere.processes.simplex.dirichlet import MEAN_EXCESS, DirichletPath, default_alpha
from logosphere.processes.simplex.flow_matching import GeodesicPath, LinearPath, TangentFlow
from logosphere.processes.simplex.process import ConditionalPath, SimplexProcess
from logosphere.processes.simplex.stick_breaking import StickPath, StickScores
from logosphere.processes.simplex.wright_fisher import WrightFisherPath, default_count
from logosphere.processes.time_sampler import TimeSampler, uniform_density

CELLS, FEW, MANY = 128, 64, 512
"""Cells of a path in continuous time; fewer where a cell's nats are rare and large, more for a density of times."""
NEVER = 1e-12
"""The probability of a step that is never drawn; above 0, so that its weight is finite."""
CHOICES = {
    "input": ("belief", "state"),
    "loss": ("cross-entropy", "bound", "diffusion"),
    "clock": ("information", "even", "uniform"),
}


def bfn(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    accuracy: float | int | None = None,
    timesteps: int | None = None,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """A Bayesian flow network.

    accuracy      β₁, the accuracy of all messages together; by default chosen for the size of the vocabulary
    timesteps     so many messages, and their exact bound; none: infinitely many
    input         belief: θ without the time; state: θ and the time; scaled: 2θ - 1 and the time, as published
    loss          cross-entropy; bound; or diffusion: the bound without its reconstruction term, as published (so for
                  all flows)
    clock         information: times are drawn where there is something to learn; even: the reconstruction term is drawn
                  as often as any other cell; uniform: never, as published (so for all flows)
    self_conditioning  the probability with which training shows the network its own estimate (so for all flows)
    """
    _check("scaled", input=input, loss=loss, clock=clock)
    _positive(accuracy=accuracy, timesteps=timesteps)
    path = BFNPath(vocab_size, accuracy or default_accuracy(vocab_size), chain=timesteps is not None)
    codec, sampler = SimplexCodec(vocab_size, width=path.width), _clock(clock, timesteps or CELLS)
    process = SimplexProcess(codec, path, sampler, loss=loss)  # type: ignore[arg-type]
    shown = centre_probabilities(vocab_size) if input == "scaled" else None
    return _model(process, length, network, posterior_head, input, self_conditioning, shown)


PRIORS = {"sphere": 0.5, "simplex": 1.0}
STRAIGHT = {
    "loss": ("cross-entropy", "velocity"),
    "prior": tuple(PRIORS),
    "geometry": ("sphere", "flat"),
    "coupling": ("independent", "optimal"),
    "predicts": ("tokens", "velocity"),
}


def fisher_flow(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    geometry: str = "sphere",
    prior: str | None = None,
    coupling: str = "independent",
    predicts: str = "tokens",
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Flow matching along geodesics.

    geometry      sphere: geodesics of square roots; flat: straight lines in the simplex (linear flow matching)
    prior         sphere: starts uniform on the orthant (Fisher-Flow, the default); simplex: uniform distributions
                  (statistical flow matching, and always with geometry=flat)
    coupling      independent, or optimal: training exchanges starts within a batch so that all ways together are
                  shortest (mini-batch optimal transport); a batch cut into parts is then coupled part by part, and
                  figures are taken with independent starts all the same
    predicts      tokens: a softmax, whose mean velocity is followed over the first half of the geodesics, after which
                  the token is certain; velocity: a free tangent field over all of them, as published, with
                  loss=velocity, posterior_head=False, input=state and clock=uniform
    """
    _check(input=input, clock=clock)
    prior = prior or ("simplex" if geometry == "flat" else "sphere")
    given = {"loss": loss, "prior": prior, "geometry": geometry, "coupling": coupling, "predicts": predicts}
    for name, value in given.items():
        if value not in STRAIGHT[name]:
            raise UserError(f"There is no {name} '{value}'.{suggest(value, STRAIGHT[name])}")
    optimal = coupling == "optimal"
    if optimal and (posterior_head or input != "state"):
        raise UserError(
            "With coupling=optimal starts tell of tokens, and what a state says of its token has no closed form; "
            "use it with posterior_head=False and input=state."
        )
    if geometry == "flat" and prior != "simplex":
        raise UserError("Straight lines begin at uniform distributions; use geometry=flat with prior=simplex.")
    if geometry == "flat":
        path: ConditionalPath = LinearPath(vocab_size, ot_coupling=optimal)
    else:
        path = GeodesicPath(vocab_size, PRIORS[prior], ot_coupling=optimal)
    codec = SimplexCodec(vocab_size, rooted=geometry == "sphere")
    if predicts == "velocity":
        if loss != "velocity" or clock != "uniform":
            raise UserError(f"predicts=velocity needs loss=velocity and clock=uniform, not {loss} and {clock}.")
        if not isinstance(path, GeodesicPath):
            raise UserError("predicts=velocity needs geometry=sphere.")
        _free_field("velocity", posterior_head, input, self_conditioning)
        return _model(TangentFlow(codec, path, FEW), length, network, posterior_head, input, self_conditioning)
    minimised = "squared-error" if loss == "velocity" else "cross-entropy"
    process = SimplexProcess(codec, path, _clock(clock, FEW), loss=minimised)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


def dirichlet_flow(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    alpha: float | int | None = None,
    churn: float | int = 1.0,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Dirichlet flow matching.

    alpha         where the path ends; by default 8, or more for large vocabularies
    churn         how much noise the sampler adds, as a multiple of what suits the bound; 0: the flow, and no bound
    input         also doubled: [(1 - w) z, w z] with w = 2 / (α + 1) and the time, as published
    clock         also unbounded: α - 1 ~ 2 Exp(1), as published; exponential: the same up to the last α
    """
    clocks = (*CHOICES["clock"], "exponential", "unbounded")
    if clock not in clocks:
        raise UserError(f"There is no clock '{clock}'.{suggest(clock, clocks)}")
    _check("doubled", input=input, loss=loss)
    if alpha is not None and alpha <= 1:
        raise UserError(f"alpha must be above 1, where the path begins, not {alpha}.")
    if churn < 0:
        raise UserError(f"churn must not be negative, but it is {churn}.")
    if churn > 0 and not posterior_head:
        raise UserError("Without the posterior head the noisy sampler has no finite bound; take churn=0 with it.")
    if churn == 0 and loss != "cross-entropy":
        raise UserError("With churn=0 there is no bound to train on; use loss=cross-entropy.")
    last = default_alpha(vocab_size) if alpha is None else float(alpha)
    path = DirichletPath(vocab_size, last, churn=float(churn), unbounded=clock == "unbounded")
    if clock == "exponential":
        paced = _exponential(last, CELLS, least=0.02)
    else:
        paced = _exponential(last, MANY) if clock == "unbounded" else _clock(clock, CELLS)
    process = SimplexProcess(SimplexCodec(vocab_size), path, paced, loss=loss)  # type: ignore[arg-type]
    shown = split_by_concentration(lambda t: path.alpha(process.fraction(t))) if input == "doubled" else None
    return _model(process, length, network, posterior_head, input, self_conditioning, shown)


CONSTRUCTIONS: dict[str, type[WrightFisherPath] | type[StickPath]] = {"shares": WrightFisherPath, "sticks": StickPath}
MOST_STICKS = 512


def ddsm(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    construction: str = "shares",
    concentration: int | None = None,
    dilation: float | int = 1.0,
    predicts: str = "tokens",
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Dirichlet diffusion.

    construction  shares: all shares diffuse at once; sticks: each token takes its part of what earlier ones left
    concentration M: the data end is Dirichlet(1 + M e_x), or its like; by default chosen for the size of the vocabulary
    dilation      the sampler diffuses so many times longer at each noise level, which favours likely sequences
    predicts      tokens: a softmax, whose mean score is followed; score: a free score of the sticks, as published, with
                  construction=sticks, loss=diffusion, posterior_head=False and input=state; the token is then read off
                  the state alone, which needs a larger concentration
    clock         also importance, for predicts=score: times in proportion to the root mean square of the score, as
                  published
    """
    _check(input=input, loss=loss)
    _check_ddsm(construction, predicts, loss, clock)
    _positive(concentration=concentration, dilation=dilation)
    if construction == "sticks" and vocab_size > MOST_STICKS:
        raise UserError(
            f"{vocab_size:,} tokens are too many sticks to break one after another (at most {MOST_STICKS}); "
            "use construction=shares, which predicts=tokens and preset=default have."
        )
    last = concentration or default_count(vocab_size)
    path: ConditionalPath = CONSTRUCTIONS[construction](vocab_size, last, dilation=float(dilation))
    paced = _clock(clock, CELLS) if clock != "importance" else None
    if predicts == "score":
        _free_field("score", posterior_head, input, self_conditioning)
        assert isinstance(path, StickPath)
        path = StickScores(path)
        paced = paced or _never_read(path.importance(CELLS))
    assert paced is not None
    process = SimplexProcess(SimplexCodec(vocab_size), path, paced, loss=loss)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


def _check_ddsm(construction: str, predicts: str, loss: str, clock: str) -> None:
    if construction not in CONSTRUCTIONS:
        raise UserError(f"There is no construction '{construction}'.{suggest(construction, CONSTRUCTIONS)}")
    if predicts not in ("tokens", "score"):
        raise UserError(f"predicts must be tokens or score, not '{predicts}'.")
    clocks = (*CHOICES["clock"], "importance")
    if clock not in clocks:
        raise UserError(f"There is no clock '{clock}'.{suggest(clock, clocks)}")
    if predicts == "score" and (construction != "sticks" or loss != "diffusion"):
        raise UserError(
            f"predicts=score needs construction=sticks and loss=diffusion, not {construction} and {loss}: the token is "
            "read off the state, and no cross-entropy trains a score."
        )
    if clock == "importance" and predicts != "score":
        raise UserError("clock=importance follows the score and needs predicts=score.")


def _free_field(name: str, posterior_head: bool, input: str, self_conditioning: float) -> None:
    """A field that is no mean over tokens has no posterior to add evidence to, and none to show."""
    if posterior_head or input != "state" or self_conditioning:
        raise UserError(f"predicts={name} needs posterior_head=False, input=state and self_conditioning=0.")


def _exponential(last: float, cells: int, least: float = 0.0) -> TimeSampler:
    """Cells are drawn as α - 1 ~ 2 Exp(1) falls on them; the reading as often as beyond the last α, or `least`."""
    gone = (last - 1) * torch.arange(cells + 1, dtype=torch.float64) / cells
    beyond = (-gone / MEAN_EXCESS).exp()
    law = torch.cat([beyond[:-1] - beyond[1:], beyond[-1:].clamp_min(least)])
    return TimeSampler(law / law.sum(), law / law.sum())


def _check(*more: str, **given: str) -> None:
    """Refuse unknown values; `more` are inputs of this system alone."""
    for name, value in given.items():
        known = (*CHOICES[name], *more) if name == "input" else CHOICES[name]
        if value not in known:
            raise UserError(f"There is no {name} '{value}'.{suggest(value, known)}")


def _positive(**given: int | float | None) -> None:
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UserError(f"{name} must be above 0, not {value}.")


def _never_read(law: Tensor) -> TimeSampler:
    """A clock that draws cells by a distribution, and the reading never."""
    law = torch.cat([law.double(), torch.full((1,), NEVER, dtype=torch.float64)])
    return TimeSampler(law, law)


def _clock(name: str, cells: int) -> TimeSampler:
    if name == "uniform":
        return _never_read(uniform_density(cells))
    even = uniform_density(cells + 1)
    return TimeSampler(even, None if name == "information" else even)


def _model(
    process: SimplexProcess | TangentFlow,
    length: int,
    network: NetworkConfig | None,
    posterior_head: bool,
    input: str,
    self_conditioning: float,
    shown: InputTransform | None = None,
) -> Model:
    """`self_conditioning` is the probability with which training shows the network its own estimate; 0: never."""
    denoiser: Denoiser | None = None
    if network is not None:
        # Tokens depend on states through their likelihoods alone: to a network that reads those, time says nothing.
        denoiser = FullTransformer(process.codec, length, network, reads_time=input != "belief")
        tokens = process.codec.vocab_size
        reads = 2 * tokens if input == "doubled" else tokens
        if reads != tokens:
            denoiser.stem = CoordinateStem(reads, network.width)
        if self_conditioning:
            denoiser.stem = CoordinateStem(reads + tokens, network.width)
            denoiser = SelfConditioning(denoiser, reads, tokens, probability=float(self_conditioning))
        if shown is not None:
            denoiser = TransformedInput(denoiser, shown)
        if input == "belief":
            denoiser = BeliefInput(denoiser, process.log_likelihood)
        if posterior_head:
            denoiser = PosteriorHead(denoiser, process.add_evidence)
    return Model(process, denoiser, length=length, block=length)
