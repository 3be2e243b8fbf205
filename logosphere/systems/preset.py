"""Presets: published configurations of the systems, read from the YAML files in presets/.

A file maps systems to presets by name. A preset with `extends: SYSTEM` takes every entry that it leaves out from the
preset `paper` of that system, aspect by aspect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

DEFAULT = "default"
"""The preset with the settings that work best at small scale; every system has it."""
PAPER = "paper"
"""The preset with the published settings."""

AspectName = Literal[
    "parameterisation", "weighting", "schedule", "time", "self-conditioning", "sampler", "optimiser", "network"
]
ASPECTS: tuple[AspectName, ...] = get_args(AspectName)


@dataclass(frozen=True)
class Aspect:
    """One aspect of a published system, and the same aspect of the default."""

    name: AspectName
    paper: str
    """The published form."""
    default: str = ""
    """The form of the default; empty where it is the same."""
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
    """The tests that compare this preset with the published equations."""
    optim: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimiser (fields of `OptimizerConfig`)."""
    ema: float | None = None
    """Decay of the moving average of the weights; None: that of the recipe."""
    sampler: str = ""
    """Name of the published sampler; empty: the sampler of the default."""
    missing: str = ""
    """What was published and is not reproduced, such as a backbone or a pretrained encoder."""

    @property
    def options(self) -> dict[str, Any]:
        """All options that select this preset."""
        return {name: value for aspect in self.aspects for name, value in aspect.options.items()}


@cache
def published_presets() -> dict[str, dict[str, Preset]]:
    """The published presets by system and name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(files("logosphere.systems").joinpath("presets").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            content |= _parse(loader, file.read_text(encoding="utf-8"))
    return {
        system: {name: _preset(system, name, entry, content) for name, entry in entries.items()}
        for system, entries in content.items()
    }


def _parse(loader: Any, text: str) -> Any:
    parser = loader(text)
    try:
        return parser.get_single_data()
    finally:
        parser.dispose()


def _preset(system: str, name: str, entry: dict[str, Any], content: dict[str, dict[str, dict[str, Any]]]) -> Preset:
    if "extends" in entry:
        base = content[entry["extends"]][PAPER]
        own = {key: value for key, value in entry.items() if key != "extends"}
        entry = base | own | {"aspects": base["aspects"] | entry["aspects"]}
    if unknown := entry.keys() - {f.name for f in fields(Preset)}:
        raise ValueError(f"preset {system}/{name} has the unknown entries {sorted(unknown)}")
    if unknown := entry["aspects"].keys() - set(ASPECTS):
        raise ValueError(f"preset {system}/{name} has the unknown aspects {sorted(unknown)}")
    aspects = tuple(Aspect(name=key, **entry["aspects"][key]) for key in ASPECTS if key in entry["aspects"])
    return Preset(system, name, **(entry | {"aspects": aspects}))
