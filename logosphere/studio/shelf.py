"""The models that a studio can open. A page names them by number, never by path."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from logosphere.data.batches import sequences
from logosphere.data.corpora import open_corpus
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.pretrained import PREFIX, RECORD, list_pretrained, sampling_defaults
from logosphere.runs.folder import RunFolder
from logosphere.runs.packing import read_record, sequences_of
from logosphere.runs.train import device_of
from logosphere.sampling.catalogue import LISTINGS
from logosphere.sampling.samplers import sampler
from logosphere.types import Batch
from logosphere.weights import WEIGHTS

MOST_POINTS = 120
"""Points of a training curve that are sent."""
MOST_LETTERS = 64
"""Tokens that fit around the picture of the sphere."""


@dataclass(frozen=True)
class Book:
    """A run or a model in the box; opened when it is first wanted."""

    name: str
    """What the command line calls it."""
    folder: RunFolder
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held while the model writes: one text at a time."""

    @cached_property
    def model(self) -> Model:
        return self.folder.model().to(device_of(self.folder.recipe.device))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.folder.tokenizer

    @property
    def boxed(self) -> bool:
        """Did it come with the package? Then it has a record instead of a training."""
        return (self.folder.path / RECORD).exists()

    @property
    def own(self) -> str:
        """The sampler by which it writes when nobody says how: its system's, or the one a box reads best with."""
        best = sampling_defaults(self.folder.path.name).sampler if self.boxed else "auto"
        return self.model.sampler if best == "auto" else best

    def open(self) -> None:
        """Load the model before it is wanted, so that the first text begins at once."""
        with self.turn:
            _ = self.model

    def held_out(self, most: int) -> Batch:
        """Text that the model was not trained on: of its corpus, or of its record if it came in a box."""
        if self.boxed:
            return sequences_of(read_record(self.folder.path).text, self.tokenizer, self.model.length, most)
        corpus = open_corpus(self.folder.recipe.data, self.tokenizer)
        return next(iter(sequences(corpus.valid, self.model.length, most, most)))

    def described(self) -> dict[str, Any]:
        """What the page shows in its list; the model is not opened for it."""
        spec, (bits, kind) = self.folder.content["model"], self.measured()
        size = spec["vocab_size"]
        return {
            "name": self.name,
            "system": spec["system"],
            "length": spec["length"],
            "vocabulary": size,
            "tokenizer": self.tokenizer.fingerprint,
            "alphabet": [self.tokenizer.symbol(token) for token in range(size)] if size <= MOST_LETTERS else [],
            "bits": bits,
            "kind": kind,
            "unit": self.tokenizer.unit,
            "temperature": sampling_defaults(self.folder.path.name).temperature if self.boxed else 1.0,
            "trained": not self.boxed,
        }

    def measured(self) -> tuple[float | None, str | None]:
        """The bits per unit last measured on held-out text, and of what kind they are."""
        if self.boxed:
            record = read_record(self.folder.path)
            return record.bits, record.kind
        bits = self.folder.bits("val")
        kinds = [line["val/kind"] for line in self.folder.metrics() if "val/kind" in line]
        return (bits[-1][1], kinds[-1]) if bits and kinds else (None, None)

    def ways(self) -> dict[str, Any]:
        """The sampler that belongs to the model, and all that fit it."""
        with self.turn:
            model = self.model
        return {"own": self.own, "fit": [listing.name for listing in LISTINGS if _fits(listing.name, model)]}

    def curves(self) -> dict[str, list[list[float]]]:
        """(step, bits) of training and validation, thinned for a plot; a running training adds to them."""
        return {part: thinned([list(point) for point in self.folder.bits(part)]) for part in CURVES}


CURVES = ("train", "val")


def _fits(name: str, model: Model) -> bool:
    try:
        sampler(name, model)
    except UserError:
        return False
    return True


@dataclass(frozen=True)
class Leaflet:
    """A comparison report: a page that needs nothing but itself."""

    name: str
    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()


def leaflets(named: Sequence[str]) -> list[Leaflet]:
    """The reports named; without any, those that `logosphere compare` has left here and in runs/, the newest first."""
    for name in named:
        if not _is_report(Path(name)):
            raise UserError(f"{name} is no report; make one with: logosphere compare --report out.html")
    found = [Path(name) for name in named]
    if not named:
        found = [path for folder in (".", "runs") for path in Path(folder).glob("*.html") if _is_report(path)]
        found.sort(key=lambda path: -path.stat().st_mtime)
    return [Leaflet(str(path), path) for path in found]


def _is_report(page: Path) -> bool:
    """Was it written by report/write.py, which puts the same as Markdown and JSON beside it?"""
    return page.suffix == ".html" and all(page.with_suffix(end).is_file() for end in (".html", ".md", ".json"))


def thinned(points: list[list[float]], most: int = MOST_POINTS) -> list[list[float]]:
    """No more than so many points: each is the mean of its stretch of them, for single steps of a training scatter."""
    if len(points) <= most:
        return points
    cuts = [i * len(points) // most for i in range(most + 1)]
    return [[sum(values) / len(values) for values in zip(*points[a:b], strict=True)] for a, b in pairwise(cuts)]


def shelf(runs: Sequence[str]) -> list[Book]:
    """The runs named; without any, those of runs/ (the newest first) and the models in the box."""
    if runs:
        return [Book(name, RunFolder(name)) for name in runs]
    found = sorted(Path("runs").glob(f"*/{WEIGHTS}"), key=lambda path: -path.stat().st_mtime)
    names = [str(path.parent) for path in found] + [f"{PREFIX}{name}" for name in list_pretrained()]
    if not names:
        raise UserError("There is nothing to open yet; train a model with: logosphere train")
    return [Book(name, RunFolder(name)) for name in names]
