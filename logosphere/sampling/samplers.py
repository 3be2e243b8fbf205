"""Samplers by name: each is a stepper, a grid of times, perhaps blocks or a cache. The loop is always the same."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.processes.base import uniform_grid
from logosphere.processes.gaussian.updates import ancestral_large, ddim, q_sample
from logosphere.processes.simplex.flow_matching import TangentFlow
from logosphere.processes.simplex.process import SimplexProcess
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.sampling.catalogue import listing
from logosphere.sampling.plan import FinalStep, Grid, Loop, StandingEnd, cosine_grid
from logosphere.sampling.steppers import (
    Above,
    Cap,
    Doubtful,
    GreedyEnd,
    Leaping,
    Moved,
    Ordered,
    PublishedWalk,
    Remasking,
    Rescale,
    Rewriting,
    Rule,
    Scored,
    SelfCorrecting,
    Stepper,
    Windowed,
    WithinEntropy,
    ancestral,
    as_stepper,
    entropy_order,
    first_hitting,
    forward_backward,
    fresh,
    likelihood_order,
    margin_order,
    random_order,
)
from logosphere.sampling.steppers.base import masked
from logosphere.sampling.steppers.flows import Downstream, Euler, Messages
from logosphere.sampling.steppers.gaussian import (
    Directed,
    Heun,
    Multistep,
    Tempered,
    clipped,
    drawn,
    renormalised,
    rounded,
)
from logosphere.sampling.steppers.jumps import jumping
from logosphere.sampling.steppers.latent import EulerMaruyama, EvenTimes, latent_path


@dataclass(frozen=True)
class Sampler:
    """How to write: what the walk of `generate` needs to know beside the model."""

    stepper: Stepper | Rule = ancestral
    grid: Grid | str | None = None
    """Times of the steps, or the name of such a grid; by default the process's own."""
    blocks: int = 1
    """Parts written one after another, from left to right; blocks of the model itself count as well."""
    cached: bool = False
    """Keep predictions while a sequence does not change."""

    def check(self, model: Model) -> None:
        """Refuse a model that this sampler does not fit."""
        as_stepper(self.stepper).check(model.process)


STAR_FROM = 0.3
"""Star+ hides afresh below this time; 0.2 to 0.3 were found best (Meshchaninov et al. 2025)."""
HELD = 0.1
"""The share of masks while a loop stands still (Wang et al. 2025)."""

REMOVAL = 1e-5
"""The time at which MDLM and SEDD stop their steps and remove what noise is left."""


def _loop(inside: Stepper) -> Callable[[Model], Sampler]:
    def made(model: Model) -> Sampler:
        level = float(masked(model.process)[0].time(torch.tensor(HELD)))
        return Sampler(Windowed(inside, level, level), grid=Loop(level))

    return made


def _critic(model: Model) -> Sampler:
    if model.remasker is None:
        raise UserError(
            "The g-star sampler needs a remasker; build the system g-star, or train one with train_remasker(…)."
        )
    return Sampler(Windowed(Rewriting(model.remasker), STAR_FROM))


def _blocks(stepper: Stepper) -> Callable[[Model], Sampler]:
    """Four parts, or as many as neither the length nor blocks of the model forbid."""

    def made(model: Model) -> Sampler:
        def fits(parts: int) -> bool:
            return model.length % parts == 0 and model.block % min(model.block, model.length // parts) == 0

        return Sampler(stepper, blocks=next(parts for parts in (4, 3, 2, 1) if fits(parts)))

    return made


def _correcting(model: Model) -> Sampler:
    """GIDD's setting: corrections at a noise level of 0.01, here in half of the steps."""
    late = float(jumping(model.process).schedule.time(torch.tensor(0.01)))
    return Sampler(Windowed(SelfCorrecting(), late, late), grid=StandingEnd(late, 0.5))


def _heun(model: Model) -> Sampler:
    return Sampler(Downstream() if isinstance(model.process, SimplexProcess) else Heun())


def _evenly(stepper: Stepper, end: float = 0.0) -> Callable[[Model], Sampler]:
    """A stepper of latents along even times, down to the time `end`."""
    return lambda model: Sampler(stepper, grid=EvenTimes(latent_path(model.process), end))


def _euler_flow(model: Model) -> Sampler:
    """A tangent field's own step is Euler's already."""
    return Sampler(ancestral, grid=uniform_grid) if isinstance(model.process, TangentFlow) else Sampler(Euler())


def _always(sampler: Sampler) -> Callable[[Model], Sampler]:
    return lambda model: sampler


MAKERS: dict[str, Callable[[Model], Sampler]] = {
    "ancestral": _always(Sampler(ancestral)),
    "cached": _always(Sampler(ancestral, cached=True)),
    "euler": _always(Sampler(Scored(), grid=FinalStep(REMOVAL))),
    "analytic": _always(Sampler(Scored(analytic=True), grid=FinalStep(REMOVAL))),
    "mdlm": _always(Sampler(GreedyEnd(ancestral), grid=FinalStep(REMOVAL), cached=True)),
    "md4": _always(Sampler(GreedyEnd(ancestral), grid=FinalStep(REMOVAL, cosine_grid))),
    "first-hitting": _always(Sampler(first_hitting)),
    "tau-leaping": _always(Sampler(Leaping())),
    "tau-leaping-pc": _always(Sampler(Leaping(corrections=1))),
    "remdm-cap": _always(Sampler(Remasking(Cap()))),
    "remdm-rescale": _always(Sampler(Remasking(Rescale()))),
    "remdm-conf": _always(Sampler(Remasking(Doubtful()))),
    "remdm-loop": _loop(Remasking(Cap(0.02))),
    "forward-backward": _always(Sampler(Remasking(forward_backward))),
    "star": _always(Sampler(Windowed(Remasking(fresh), STAR_FROM))),
    "star-full": _always(Sampler(Remasking(fresh))),
    "star-loop": _loop(Remasking(fresh)),
    "conf-star": _always(Sampler(Rewriting())),
    "g-star": _critic,
    "p2": _always(Sampler(Rewriting(temperature=0.0, review=True))),
    "confidence": _always(Sampler(Ordered(likelihood_order))),
    "margin": _always(Sampler(Ordered(margin_order))),
    "entropy": _always(Sampler(Ordered(entropy_order))),
    "random": _always(Sampler(Ordered(random_order, temperature=1.0))),
    "llada": _blocks(Ordered(likelihood_order)),
    "llada-greedy": _blocks(Ordered(likelihood_order, greedy=True)),
    "threshold": _always(Sampler(Ordered(likelihood_order, Above()))),
    "entropy-bounded": _always(Sampler(Ordered(entropy_order, WithinEntropy()))),
    "self-correcting": _correcting,
    "bridge": _always(Sampler(Moved(SPHERICAL_STEPS["bridge"]))),
    "geodesic": _always(Sampler(Moved(SPHERICAL_STEPS["geodesic"]))),
    "matched": _always(Sampler(Moved(SPHERICAL_STEPS["matched"]))),
    "rdlm": _always(Sampler(PublishedWalk())),
    "ddim": _always(Sampler(Directed(ddim))),
    "dpm++": _always(Sampler(Multistep())),
    "heun": _heun,
    "euler-flow": _euler_flow,
    "messages": _always(Sampler(Messages())),
    "token-drawn": _always(Sampler(Directed(aim=drawn))),
    "q-sampling": _always(Sampler(Directed(q_sample))),
    "ssd": _always(Sampler(Directed(q_sample, drawn))),
    "clamped": _always(Sampler(Directed(aim=rounded))),
    "renormalised": _always(Sampler(Directed(ddim, renormalised))),
    "asymmetric": _always(Sampler(Directed(ddim, ahead=0.02))),
    "euler-tencdm": _evenly(EulerMaruyama(0.01), 0.01),
    "euler-cosmos": _evenly(EulerMaruyama(0.05), 0.05),
    "ddpm-ld4lg": _evenly(Directed(ancestral_large)),
    "ddim-planner": _evenly(Directed(ddim)),
    "plaid": _always(Sampler(Directed(aim=Tempered(0.9), greedy=True))),
    "diffusion-lm": _always(Sampler(Directed(ancestral_large, rounded, greedy=True))),
    "bit-diffusion": _always(Sampler(Directed(ancestral_large, clipped, greedy=True))),
}


def sampler(name: str, model: Model) -> Sampler:
    """A sampler by its name, checked to fit the model."""
    listing(name)
    found = MAKERS[name](model)
    found.check(model)
    return found


def sampler_of(model: Model) -> Sampler:
    """The sampler that belongs to the model's system."""
    return sampler(model.sampler, model)
