"""The models and the reports that the studio can open. Requests name them by number, never by path."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from logosphere.data.batches import eval_batches
from logosphere.data.corpora import open_corpus
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.io import WEIGHTS
from logosphere.model import Model
from logosphere.parallel.process_group import find_device
from logosphere.pretrained import PREFIX, RECORD, list_pretrained, sampling_defaults
from logosphere.runs.evaluate import read_record, sequences_of
from logosphere.runs.run import Run
from logosphere.sampling.registry import SAMPLERS, sampler
from logosphere.types import Batch

MAX_CURVE_POINTS = 120
"""Points of a training curve that are sent."""
MAX_ALPHABET = 64
"""Tokens that fit around the plot of the sphere."""
CURVES = ("train", "val")


@dataclass(frozen=True)
class StudioModel:
    """A run or a bundled checkpoint; its weights are loaded when they are first needed."""

    name: str
    """Its name on the command line."""
    folder: Run
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the model is in use: one job at a time."""

    @cached_property
    def model(self) -> Model:
        return self.folder.model().to(find_device(self.folder.config.device))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.folder.tokenizer

    @property
    def has_record(self) -> bool:
        """Whether it is an exported checkpoint, which has a record instead of a training."""
        return (self.folder.path / RECORD).exists()

    @property
    def default_sampler(self) -> str:
        """The sampler used unless one is chosen: that of the bundled checkpoint, or else of the system."""
        name = sampling_defaults(self.folder.path.name).sampler if self.has_record else "auto"
        return self.model.sampler if name == "auto" else name

    def load(self) -> None:
        """Load the weights in advance."""
        with self.lock:
            _ = self.model

    def held_out(self, limit: int) -> Batch:
        """Return at most `limit` sequences of held-out text: of the record, or else of the validation split."""
        if self.has_record:
            return sequences_of(read_record(self.folder.path).text, self.tokenizer, self.model.length, limit)
        corpus = open_corpus(self.folder.config.data, self.tokenizer)
        return next(iter(eval_batches(corpus.valid, self.model.length, limit, limit)))

    def describe(self) -> dict[str, Any]:
        """Describe the model for the page, without loading its weights."""
        spec, (bits, kind) = self.folder.content["model"], self.validation_bits()
        size = spec["vocab_size"]
        return {
            "name": self.name,
            "system": spec["system"],
            "length": spec["length"],
            "vocabulary": size,
            "tokenizer": self.tokenizer.fingerprint,
            "alphabet": [self.tokenizer.symbol(token) for token in range(size)] if size <= MAX_ALPHABET else [],
            "bits": bits,
            "kind": kind,
            "unit": self.tokenizer.unit,
            "temperature": sampling_defaults(self.folder.path.name).temperature if self.has_record else 1.0,
            "trained": not self.has_record,
        }

    def validation_bits(self) -> tuple[float | None, str | None]:
        """Return the latest bits per unit on held-out text, and their kind."""
        if self.has_record:
            record = read_record(self.folder.path)
            return record.bits, record.kind
        bits = self.folder.bits("val")
        kinds = [line["val/kind"] for line in self.folder.metrics() if "val/kind" in line]
        return (bits[-1][1], kinds[-1]) if bits and kinds else (None, None)

    def list_samplers(self) -> dict[str, Any]:
        """Return the default sampler (own) and all samplers that support the model (fit)."""
        with self.lock:
            model = self.model
        supported = [name for name in SAMPLERS if _supports(model, name)]
        return {"own": self.default_sampler, "fit": supported}

    def training_curves(self) -> dict[str, list[list[float]]]:
        """Return (step, bits) of training and validation, downsampled for a plot; they grow while a run trains."""
        return {part: downsample([list(point) for point in self.folder.bits(part)]) for part in CURVES}


def _supports(model: Model, name: str) -> bool:
    try:
        sampler(name, model)
    except UserError:
        return False
    return True


def downsample(points: list[list[float]], limit: int = MAX_CURVE_POINTS) -> list[list[float]]:
    """Reduce points to at most `limit`, each the mean of consecutive ones."""
    if len(points) <= limit:
        return points
    cuts = [i * len(points) // limit for i in range(limit + 1)]
    return [[sum(values) / len(values) for values in zip(*points[a:b], strict=True)] for a, b in pairwise(cuts)]


def list_models(names: Sequence[str]) -> list[StudioModel]:
    """The models with these names; without names, those of runs/ (the newest first) and the bundled checkpoints."""
    if names:
        return [StudioModel(name, Run(name)) for name in names]
    found = sorted(Path("runs").glob(f"*/{WEIGHTS}"), key=lambda path: -path.stat().st_mtime)
    every = [str(path.parent) for path in found] + [f"{PREFIX}{name}" for name in list_pretrained()]
    if not every:
        raise UserError("There is nothing to open yet; train a model with: logosphere train")
    return [StudioModel(name, Run(name)) for name in every]


@dataclass(frozen=True)
class ReportFile:
    """The HTML page of a comparison report."""

    name: str
    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()


def find_reports(names: Sequence[str]) -> list[ReportFile]:
    """Return the reports with these paths; without paths, those in this folder and in runs/, the newest first."""
    for name in names:
        if not _is_report(Path(name)):
            raise UserError(f"{name} is no report; make one with: logosphere compare --report out.html")
    found = [Path(name) for name in names]
    if not names:
        found = [path for folder in (".", "runs") for path in Path(folder).glob("*.html") if _is_report(path)]
        found.sort(key=lambda path: -path.stat().st_mtime)
    return [ReportFile(str(path), path) for path in found]


def _is_report(page: Path) -> bool:
    """Return whether a page has Markdown and JSON files in the same folder, as report/write.py writes them."""
    return page.suffix == ".html" and all(page.with_suffix(end).is_file() for end in (".html", ".md", ".json"))
