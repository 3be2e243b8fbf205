"""A sampler: a stepper with a time grid, optional blocks and an optional cache; and its entry in the registry."""

from collections.abc import Callable
from dataclasses import dataclass

from logosphere.model import Model
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.loop import Grid
from logosphere.sampling.steppers.base import Requirement, Rule, Stepper, ancestral


@dataclass(frozen=True)
class Sampler:
    """The settings of the sampling loop that do not belong to the model."""

    stepper: Stepper | Rule = ancestral
    grid: Grid | str | None = None
    """Times of the steps, or the name of a grid; by default those of the process."""
    blocks: int = 1
    """Parts sampled one after another, from left to right; blocks of the model itself count as well."""
    cached: bool = False
    """Keep predictions while a sequence does not change."""
    block_length: int | None = None
    """Positions of a block after the prompt, in place of a number of blocks."""


Configure = Callable[[Model, DecodingConfig, int], Sampler]
"""(model, options of decoding, tokens of the prompt) -> sampler."""


@dataclass(frozen=True)
class SamplerInfo:
    """An entry of the registry."""

    name: str
    description: str
    supports: Requirement
    samples_model: bool
    """Whether it samples from the model distribution, at least with many steps."""
    build: Callable[[Model], Sampler]
    place: str = "logosphere"
    """The module and name of what builds it."""
    configure: Configure | None = None
    """Builds it with options of decoding, where it has any of its own."""

    def as_dict(self) -> dict[str, str | bool]:
        """For JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "supports": self.supports.description,
            "samples_model": self.samples_model,
        }
