"""Published configurations of the gaussian systems."""

from logosphere.presets.preset import Preset

PRESETS: list[Preset] = []
