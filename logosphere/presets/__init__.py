"""Presets by system and name: `default` is what works best here, `paper` is what was published.

Nothing here needs torch, so that listing presets is instant.
"""

from collections.abc import Mapping
from typing import Any

from logosphere.cards import CARDS
from logosphere.errors import UserError, suggest
from logosphere.presets import discrete, flows, gaussian, latent, spherical
from logosphere.presets.preset import ASPECTS, DEFAULT, Aspect, Preset

_PUBLISHED = [*discrete.PRESETS, *spherical.PRESETS, *gaussian.PRESETS, *flows.PRESETS, *latent.PRESETS]


def presets(system: str) -> dict[str, Preset]:
    """The presets of a system by name; the first is the default."""
    if system not in {card.name for card in CARDS}:
        raise UserError(f"There is no system '{system}'.{suggest(system, [card.name for card in CARDS])}")
    default = Preset(system, DEFAULT, source="", aspects=(), checked="")
    return {DEFAULT: default} | {preset.name: preset for preset in _PUBLISHED if preset.system == system}


def preset(system: str, name: str) -> Preset:
    """A preset of a system."""
    known = presets(system)
    if name not in known:
        if len(known) == 1:
            raise UserError(f"'{system}' has no preset '{name}': it follows no paper exactly; its only one is default.")
        raise UserError(f"'{system}' has no preset '{name}'; it has {', '.join(known)}.")
    return known[name]


def preset_label(system: str, name: str, options: Mapping[str, Any]) -> str:
    """A preset by name, and what was set in place of its own options: "paper with loss=cross-entropy"."""
    own = preset(system, name).options
    changed = [f"{key}={options[key]}" for key in own if key in options and options[key] != own[key]]
    return f"{name} with {', '.join(changed)}" if changed else name


__all__ = ["ASPECTS", "DEFAULT", "Aspect", "Preset", "preset", "preset_label", "presets"]
