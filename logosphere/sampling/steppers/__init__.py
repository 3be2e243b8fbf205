"""Steppers: the transitions of the sampling loop (docs/samplers.md)."""

from logosphere.sampling.steppers.base import (
    Ancestral,
    Evaluate,
    GreedyLastStep,
    Requirement,
    Rule,
    RuleStepper,
    Stepper,
    TransitionGuide,
    Windowed,
    ancestral,
    as_stepper,
)
from logosphere.sampling.steppers.context import ContextGuidance
from logosphere.sampling.steppers.jumps import ScoreStepper, SelfCorrecting, TauLeaping
from logosphere.sampling.steppers.manifold import GeodesicRandomWalk, SphericalStepper
from logosphere.sampling.steppers.remasking import (
    Cap,
    ConfidenceRemasking,
    PlannedRemasking,
    Remasking,
    Rescale,
    forward_backward,
    full_remask,
)
from logosphere.sampling.steppers.unmasking import (
    EntropyBudget,
    FirstHitting,
    OrderedUnmasking,
    ThresholdCommit,
    entropy_order,
    first_hitting,
    likelihood_order,
    margin_order,
    random_order,
    scheduled,
)

__all__ = [
    "Ancestral", "Cap", "ConfidenceRemasking", "ContextGuidance", "EntropyBudget", "Evaluate", "FirstHitting",
    "GeodesicRandomWalk", "GreedyLastStep", "OrderedUnmasking", "PlannedRemasking", "Remasking", "Requirement",
    "Rescale", "Rule", "RuleStepper", "ScoreStepper", "SelfCorrecting", "SphericalStepper", "Stepper", "TauLeaping",
    "ThresholdCommit", "TransitionGuide", "Windowed", "ancestral", "as_stepper", "entropy_order", "first_hitting",
    "forward_backward", "full_remask", "likelihood_order", "margin_order", "random_order", "scheduled",
]  # fmt: skip
