"""Systems under test, their options, and small models of them with and without a network."""

from dataclasses import dataclass, field
from typing import Any

import torch
from toy_languages import generator

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.model import Model
from logosphere.processes.capabilities import OnlineStatistics

SMALL = {"width": 16, "depth": 2, "heads": 2}
"""A network that runs in milliseconds."""


@dataclass(frozen=True)
class System:
    """A system with options; its string form is the test id."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *[f"{key}={value}" for key, value in self.options.items()]])

    def model(self, language: Language, **more: Any) -> Model:
        """The system for a language, without a network."""
        size = {"vocab_size": language.vocab_size, "length": language.length}
        return ls.build(self.name, **size, denoiser=None, **self.options, **more)


AR = System("ar")

MASKED = [
    System("mdlm"),
    System("mdlm", {"block": 2}),
    System("mdlm", {"schedule": "cosine"}),
    System("mdlm", {"schedule": "quadratic", "exact_count": False}),
    System("mdlm", {"exact_count": False}),
    System("d3pm-absorbing"),
    System("d3pm-absorbing", {"timesteps": None}),
    System("sedd-absorb"),
]

UNIFORM = [
    System("d3pm-uniform"),
    System("d3pm-uniform", {"timesteps": None}),
    System("d3pm-uniform", {"timesteps": None, "schedule": "linear"}),
    System("d3pm-uniform", {"block": 2}),
    System("multinomial"),
    System("sedd-uniform"),
    System("gidd"),
]

NEW_SYSTEMS: list[System] = []
"""Systems with token states that were added as docs/new-process.md describes."""

DIFFUSIONS = MASKED + UNIFORM + NEW_SYSTEMS

HEADED = [system for system in DIFFUSIONS if system.name.split("-")[0] in ("sedd", "gidd", "multinomial")]
"""Other output parameterizations and noise distributions of the same process: the slow tests use fewer languages."""

EQUAL_BOUNDS = [
    (System("md4"), System("mdlm", {"exact_count": False})),
    (System("ardm"), System("mdlm")),
    (System("bd3lm", {"block": 2}), System("mdlm", {"block": 2})),
    (System("gidd", {"p_u": 0.0}), System("mdlm", {"exact_count": False})),
    (System("udlm"), System("d3pm-uniform", {"timesteps": None, "schedule": "linear"})),
]
"""Pairs of systems with bit-identical bounds; they differ in networks, training or sampling."""

PLAIN = [System("ar"), System("mdlm"), System("d3pm-absorbing"), System("d3pm-uniform")]


def random_network(name: str, language: Language, seed: int = 0, **options: Any) -> Model:
    """A small untrained model with all weights random, including those of the output head."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ls.build(name, vocab_size=language.vocab_size, length=language.length, **SMALL | options)
        fill_zero_weights(model)
    return model


def calibrated_model(name: str, language: Language, **options: object) -> Model:
    """A model without a network whose time sampler has observed the language once."""
    size: dict[str, object] = {"vocab_size": language.vocab_size, "length": language.length}
    model = ls.build(name, denoiser=None, **(size | options))
    model.process.train()
    model.nelbo(language.sample(500, generator(1)), generator(2), denoiser=Oracle(model, language), draws=4)
    if isinstance(model.process, OnlineStatistics):
        model.process.update_statistics()
    model.process.eval()
    return model


def joint_sphere_model(name: str, language: Language, **options: object) -> Model:
    """A calibrated model on the joint path, without any-order sequences in training, unless `path` says otherwise."""
    joint = {} if options.get("path") == "any-order" else {"path": "joint", "any_order_fraction": 0.0}
    return calibrated_model(name, language, **(joint | options))


def calibrated_system(system: System, language: Language) -> Model:
    return calibrated_model(system.name, language, **system.options)


def fill_zero_weights(model: torch.nn.Module) -> None:
    """Replace weights initialised to zero, which would hide dependencies."""
    for weight in model.parameters():
        if not bool(weight.any()):
            torch.nn.init.normal_(weight, std=0.5)
