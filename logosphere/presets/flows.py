"""Published configurations of the systems on the simplex."""

from logosphere.presets.preset import Preset

PRESETS: list[Preset] = []
