"""Published configurations of the latent systems."""

from logosphere.presets.preset import Preset

PRESETS: list[Preset] = []
