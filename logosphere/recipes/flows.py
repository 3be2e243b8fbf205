"""Builders of the systems on the simplex: Bayesian flow networks, and flows and diffusions of distributions."""

import torch

from logosphere.codecs.simplex import SimplexCodec
from logosphere.codecs.vertices import Coordinates
from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
from logosphere.denoisers.selfconditioned import SelfConditioned
from logosphere.denoisers.transformer import FullTransformer
from logosphere.denoisers.wrappers import Believing, Informed
from logosphere.errors import UserError, nearest
from logosphere.model import Model
from logosphere.processes.belief import BeliefPath, clear_accuracy
from logosphere.processes.clock import Clock, even_law
from logosphere.processes.dirichlet import DirichletPath, clear_alpha
from logosphere.processes.flow import Flow, Path
from logosphere.processes.geodesic import GeodesicPath
from logosphere.processes.linear import LinearPath
from logosphere.processes.sticks import StickPath
from logosphere.processes.wrightfisher import WrightFisherPath, clear_count

CELLS, FEW = 128, 64
"""Cells of a path in continuous time; fewer where a cell's nats are rare and large."""
CHOICES = {
    "input": ("belief", "state"),
    "loss": ("cross-entropy", "bound"),
    "clock": ("information", "even"),
}


def bfn(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    accuracy: float | int | None = None,
    timesteps: int | None = None,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """A Bayesian flow network; posterior_head=False with loss=bound and clock=even is the published one.

    accuracy      β₁, what all messages tell together; by default chosen for the size of the vocabulary
    timesteps     so many messages, and their exact bound; none: infinitely many
    self_conditioning  the probability with which training shows the network its own estimate (so for all flows)
    """
    _check(input=input, loss=loss, clock=clock)
    _positive(accuracy=accuracy, timesteps=timesteps)
    path = BeliefPath(vocab_size, accuracy or clear_accuracy(vocab_size), chain=timesteps is not None)
    process = Flow(SimplexCodec(vocab_size, width=path.width), path, _clock(clock, timesteps or CELLS), loss=loss)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


PRIORS = {"sphere": 0.5, "simplex": 1.0}
STRAIGHT = {
    "loss": ("cross-entropy", "velocity"),
    "prior": tuple(PRIORS),
    "geometry": ("sphere", "flat"),
    "coupling": ("independent", "optimal"),
}


def fisher_flow(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    geometry: str = "sphere",
    prior: str | None = None,
    coupling: str = "independent",
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Flow matching along geodesics; posterior_head=False, input=state, loss=velocity, clock=even is the published one.

    geometry      sphere: geodesics of square roots; flat: straight lines in the simplex (linear flow matching)
    prior         sphere: starts uniform on the orthant (Fisher-Flow, the default); simplex: uniform distributions
                  (statistical flow matching, and always with geometry=flat)
    coupling      independent, or optimal: training exchanges starts within a batch so that all ways together are
                  shortest (mini-batch optimal transport); a batch cut into parts is then coupled part by part, and
                  figures are taken with independent starts all the same
    """
    _check(input=input, clock=clock)
    prior = prior or ("simplex" if geometry == "flat" else "sphere")
    for name, value in {"loss": loss, "prior": prior, "geometry": geometry, "coupling": coupling}.items():
        if value not in STRAIGHT[name]:
            raise UserError(f"There is no {name} '{value}'.{nearest(value, STRAIGHT[name])}")
    optimal = coupling == "optimal"
    if optimal and (posterior_head or input != "state"):
        raise UserError(
            "With coupling=optimal starts tell of tokens, and what a state says of its token has no closed form; "
            "use it with posterior_head=False and input=state."
        )
    if geometry == "flat" and prior != "simplex":
        raise UserError("Straight lines begin at uniform distributions; use geometry=flat with prior=simplex.")
    if geometry == "flat":
        path: Path = LinearPath(vocab_size, optimal=optimal)
    else:
        path = GeodesicPath(vocab_size, PRIORS[prior], optimal=optimal)
    codec = SimplexCodec(vocab_size, rooted=geometry == "sphere")
    minimised = "squared-error" if loss == "velocity" else "cross-entropy"
    process = Flow(codec, path, _clock(clock, FEW), loss=minimised)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


def dirichlet_flow(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    alpha: float | int | None = None,
    churn: float | int = 1.0,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Dirichlet flow matching; posterior_head=False, input=state, churn=0, clock=exponential is the published one.

    alpha         where the path ends; by default 8, or more for large vocabularies
    churn         how much noise the sampler adds, as a multiple of what suits the bound; 0: the flow, and no bound
    clock         also exponential: α - 1 ~ 2 Exp(1), as in the paper
    """
    clocks = (*CHOICES["clock"], "exponential")
    if clock not in clocks:
        raise UserError(f"There is no clock '{clock}'.{nearest(clock, clocks)}")
    _check(input=input, loss=loss)
    if alpha is not None and alpha <= 1:
        raise UserError(f"alpha must be above 1, where the path begins, not {alpha}.")
    if churn < 0:
        raise UserError(f"churn must not be negative, but it is {churn}.")
    if churn > 0 and not posterior_head:
        raise UserError("Without the posterior head the noisy sampler has no finite bound; take churn=0 with it.")
    if churn == 0 and loss == "bound":
        raise UserError("With churn=0 there is no bound to train on; use loss=cross-entropy.")
    last = clear_alpha(vocab_size) if alpha is None else float(alpha)
    path = DirichletPath(vocab_size, last, churn=float(churn))
    paced = _clock(clock, CELLS) if clock != "exponential" else _exponential(last, CELLS)
    process = Flow(SimplexCodec(vocab_size), path, paced, loss=loss)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


CONSTRUCTIONS: dict[str, type[WrightFisherPath] | type[StickPath]] = {"shares": WrightFisherPath, "sticks": StickPath}
MOST_STICKS = 512


def ddsm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    construction: str = "shares",
    concentration: int | None = None,
    dilation: float | int = 1.0,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
    self_conditioning: float | int = 0.0,
) -> Model:
    """Dirichlet diffusion; construction=sticks, posterior_head=False, input=state, loss=bound is nearest to the paper.

    construction  shares: all shares diffuse at once; sticks: each token takes its part of what earlier ones left
    concentration M: the data end is Dirichlet(1 + M e_x), or its like; by default chosen for the size of the vocabulary
    dilation      the sampler diffuses so many times longer at each noise level, which favours likely sequences
    """
    _check(input=input, loss=loss, clock=clock)
    _positive(concentration=concentration, dilation=dilation)
    if construction not in CONSTRUCTIONS:
        raise UserError(f"There is no construction '{construction}'.{nearest(construction, CONSTRUCTIONS)}")
    if construction == "sticks" and vocab_size > MOST_STICKS:
        raise UserError(
            f"{vocab_size:,} tokens are too many sticks to break one after another (at most {MOST_STICKS}); "
            "use construction=shares."
        )
    last = concentration or clear_count(vocab_size)
    path = CONSTRUCTIONS[construction](vocab_size, last, dilation=float(dilation))
    process = Flow(SimplexCodec(vocab_size), path, _clock(clock, CELLS), loss=loss)  # type: ignore[arg-type]
    return _model(process, length, network, posterior_head, input, self_conditioning)


def _exponential(last: float, cells: int) -> Clock:
    """Cells are drawn as α - 1 ~ 2 Exp(1) falls on them; the reading, as often as beyond the last α, at least 2%."""
    gone = (last - 1) * torch.arange(cells + 1, dtype=torch.float64) / cells
    beyond = (-gone / 2).exp()
    law = torch.cat([beyond[:-1] - beyond[1:], beyond[-1:].clamp_min(0.02)])
    return Clock(law / law.sum(), law / law.sum())


def _check(**given: str) -> None:
    for name, value in given.items():
        if value not in CHOICES[name]:
            raise UserError(f"There is no {name} '{value}'.{nearest(value, CHOICES[name])}")


def _positive(**given: int | float | None) -> None:
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UserError(f"{name} must be above 0, not {value}.")


def _clock(name: str, cells: int) -> Clock:
    even = even_law(cells + 1)
    return Clock(even, None if name == "information" else even)


def _model(
    process: Flow, length: int, network: Network | None, posterior_head: bool, input: str, self_conditioning: float
) -> Model:
    """`self_conditioning` is the probability with which training shows the network its own estimate; 0: never."""
    denoiser: Denoiser | None = None
    if network is not None:
        # Tokens depend on states through their likelihoods alone: to a network that reads those, time says nothing.
        denoiser = FullTransformer(process.codec, length, network, reads_time=input == "state")
        if self_conditioning:
            tokens = process.codec.vocab_size
            denoiser.stem = Coordinates(2 * tokens, network.width)
            denoiser = SelfConditioned(denoiser, tokens, tokens, probability=float(self_conditioning))
        if input == "belief":
            denoiser = Believing(denoiser, process)
        if posterior_head:
            denoiser = Informed(denoiser, process)
    return Model(process, denoiser, length=length, block=length)
