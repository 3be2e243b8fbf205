"""Published configurations of the spherical systems."""

from logosphere.presets.preset import Preset

PRESETS: list[Preset] = []
