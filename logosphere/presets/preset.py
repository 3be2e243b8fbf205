"""A preset: the configuration of a system under a name, and how it differs from the default, aspect by aspect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DEFAULT = "default"
"""The preset that works best here; every system has it."""

AspectName = Literal[
    "parameterisation", "weighting", "schedule", "time", "self-conditioning", "sampler", "optimiser", "network"
]
ASPECTS: tuple[AspectName, ...] = (
    "parameterisation", "weighting", "schedule", "time", "self-conditioning", "sampler", "optimiser", "network",
)  # fmt: skip


@dataclass(frozen=True)
class Aspect:
    """One aspect of a published system, beside the same aspect of the default."""

    name: AspectName
    paper: str
    """What was published."""
    default: str = ""
    """What the default does; empty where it does the same."""
    reason: str = ""
    """Why the default differs."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the system or of its network that select the published form."""


@dataclass(frozen=True)
class Preset:
    """A configuration of a system. Sizes, batches and steps belong to recipes and are not part of it."""

    system: str
    name: str
    source: str
    """Where the published settings come from."""
    aspects: tuple[Aspect, ...]
    checked: str
    """The tests that hold this preset against the published equations."""
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimiser (fields of `OptimizerConfig`)."""
    ema: float | None = None
    """Decay of the running average of the weights; None: that of the recipe."""
    sampler: str = ""
    """Name of the published sampler; empty: the sampler of the default."""
    missing: str = ""
    """What was published and is not reproduced, such as a backbone or a pretrained encoder."""

    @property
    def options(self) -> dict[str, Any]:
        """All options that select this preset."""
        return {name: value for aspect in self.aspects for name, value in aspect.options.items()}
