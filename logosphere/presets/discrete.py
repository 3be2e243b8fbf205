"""Published configurations of the discrete systems."""

from logosphere.presets.preset import Preset

PRESETS: list[Preset] = []
