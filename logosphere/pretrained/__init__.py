"""Bundled checkpoints: small models that come with the package, addressed as pretrained:NAME.

The folder of a bundled checkpoint holds recipe.json and tokenizer.json as a run does, model.safetensors in half
precision, card.md (data, cost, bound, samples) and record.json: a text and the bound measured on it when the checkpoint
was exported.
"""

from pathlib import Path
from typing import NamedTuple

from logosphere.errors import UserError, nearest

PREFIX = "pretrained:"
PREFIXES = (PREFIX, "box:")
"""Accepted prefixes; box: is the first name of pretrained: and stays valid."""
CARD, RECORD = "card.md", "record.json"
DISPLAY_ORDER = ("stories", "rdlm", "mdlm", "ar")
"""The order in which checkpoints are listed; the first one that is installed is the default."""


class SamplingDefaults(NamedTuple):
    """The sampler and temperature of a bundled checkpoint when the user sets neither."""

    sampler: str = "auto"
    temperature: float = 0.6


_SAMPLING_DEFAULTS = {"stories": SamplingDefaults("entropy", 0.8)}


def sampling_defaults(name: str) -> SamplingDefaults:
    """Return the sampling defaults of the bundled checkpoint with this name."""
    return _SAMPLING_DEFAULTS.get(name, SamplingDefaults())


def list_pretrained() -> list[str]:
    """Return the names of all bundled checkpoints, the default one first."""
    installed = sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{RECORD}"))
    ordered = [name for name in DISPLAY_ORDER if name in installed]
    return ordered + [name for name in installed if name not in DISPLAY_ORDER]


def resolve_folder(path: str | Path) -> Path:
    """Return the folder of a model: of a bundled checkpoint for pretrained:NAME or box:NAME, else the path itself."""
    prefix = next((prefix for prefix in PREFIXES if str(path).startswith(prefix)), None)
    if prefix is None:
        return Path(path)
    name, installed = str(path).removeprefix(prefix), list_pretrained()
    if name not in installed:
        none = " This installation has none; train a model with: logosphere train"
        raise UserError(f"There is no bundled checkpoint '{name}'.{nearest(name, installed) if installed else none}")
    return Path(__file__).parent / name


def is_bundled(folder: Path) -> bool:
    """Return whether a folder belongs to the package, so that nothing may be written to it."""
    return folder.parent == Path(__file__).parent


def default_pretrained() -> Path | None:
    """Return the folder of the default checkpoint, or None if the package has no checkpoints."""
    installed = list_pretrained()
    return resolve_folder(f"{PREFIX}{installed[0]}") if installed else None
