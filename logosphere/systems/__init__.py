"""The systems: for each its description, its settings, its build function and its published configurations.

A module holds the systems of one family. Its build functions are registered in `registry`, and the published
configurations are the YAML files in presets/. Importing this package does not import torch. The modules of the
families do; they are imported when a system is first looked up.
"""

from logosphere.systems.registry import (
    ASPECTS,
    DEFAULT,
    Aspect,
    Preset,
    SystemInfo,
    build,
    find_preset,
    infos,
    network_docs,
    option_docs,
    options,
    preset_label,
    presets,
    system,
    systems,
)

__all__ = [
    "ASPECTS",
    "DEFAULT",
    "Aspect",
    "Preset",
    "SystemInfo",
    "build",
    "infos",
    "network_docs",
    "option_docs",
    "options",
    "find_preset",
    "preset_label",
    "presets",
    "system",
    "systems",
]
