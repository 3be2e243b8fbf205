"""Steppers: how one step of the walk moves the positions. What each is and whether it draws from the model:
docs/samplers.md."""

from logosphere.sampling.steppers.ancestral import Ancestral, FirstHitting, ancestral, first_hitting
from logosphere.sampling.steppers.base import Ask, Rule, Ruled, Stepper, Tilt, as_stepper
from logosphere.sampling.steppers.correcting import SelfCorrecting
from logosphere.sampling.steppers.jumps import Leaping
from logosphere.sampling.steppers.ordered import (
    Above,
    Ordered,
    WithinEntropy,
    entropy_order,
    likelihood_order,
    margin_order,
    random_order,
    scheduled,
)
from logosphere.sampling.steppers.remasking import Cap, Doubtful, Remasking, Rescale, forward_backward, fresh
from logosphere.sampling.steppers.rewriting import Rewriting
from logosphere.sampling.steppers.scores import Scored
from logosphere.sampling.steppers.sphere import Moved, PublishedWalk
from logosphere.sampling.steppers.windows import GreedyEnd, Windowed

__all__ = [
    "Above",
    "Ancestral",
    "Ask",
    "Cap",
    "Doubtful",
    "FirstHitting",
    "GreedyEnd",
    "Leaping",
    "Moved",
    "Ordered",
    "PublishedWalk",
    "Remasking",
    "Rescale",
    "Rewriting",
    "Rule",
    "Ruled",
    "Scored",
    "SelfCorrecting",
    "Stepper",
    "Tilt",
    "Windowed",
    "WithinEntropy",
    "ancestral",
    "as_stepper",
    "entropy_order",
    "first_hitting",
    "forward_backward",
    "fresh",
    "likelihood_order",
    "margin_order",
    "random_order",
    "scheduled",
]
