"""Models in the box: folders that come with the package, one for each name, and how they are found.

A box holds recipe.json and tokenizer.json as a run does, model.safetensors in half precision, card.md (data, cost,
bound, samples) and record.json: a piece of text with the bound that was measured on it when the box was packed.
"""

from pathlib import Path
from typing import NamedTuple

from logosphere.errors import UserError, nearest

PREFIX = "box:"
CARD, RECORD = "card.md", "record.json"
FIRST = ("stories", "rdlm", "mdlm", "ar")
"""Which box is opened when nobody says which, if it is there, and the order in which they are shown."""


class Reading(NamedTuple):
    """How a small model is sampled when nobody says how; chosen by reading."""

    sampler: str = "auto"
    temperature: float = 0.6


_READINGS = {"stories": Reading("entropy", 0.8)}


def reading(name: str) -> Reading:
    """How the box of this name reads best."""
    return _READINGS.get(name, Reading())


def boxes() -> list[str]:
    """The names of all boxes that came with the package, the first to be opened first."""
    there = sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{RECORD}"))
    return [name for name in FIRST if name in there] + [name for name in there if name not in FIRST]


def located(path: str | Path) -> Path:
    """The folder of a model: box:NAME is one of the package's own, anything else is a path."""
    if not str(path).startswith(PREFIX):
        return Path(path)
    name, there = str(path).removeprefix(PREFIX), boxes()
    if name not in there:
        known = nearest(name, there) if there else " This installation has none; train a model with: logosphere train"
        raise UserError(f"There is no model '{name}' in the box.{known}")
    return Path(__file__).parent / name


def packaged(folder: Path) -> bool:
    """Is it one of the package's own folders? Nothing may be written there."""
    return folder.parent == Path(__file__).parent


def first_box() -> Path | None:
    """The box that is opened when nobody says which; None if there is none."""
    there = boxes()
    return located(f"{PREFIX}{there[0]}") if there else None
