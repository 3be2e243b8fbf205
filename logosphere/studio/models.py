"""The models that the studio can open: their weights, descriptions, samplers, curves and held-out text."""

import threading
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from logosphere.data.batches import eval_batches
from logosphere.data.corpora import is_named, open_corpus
from logosphere.data.tokenizers import Tokenizer, WithEOS
from logosphere.errors import UserError, quote_path, shorten
from logosphere.io import RECIPE, WEIGHTS, json_safe
from logosphere.model import Model
from logosphere.parallel.process_group import find_device
from logosphere.pretrained import CARD, RECORD, sampling_defaults
from logosphere.runs.evaluate import read_record, sequences_of
from logosphere.runs.run import Run
from logosphere.sampling.registry import SAMPLERS, sampler
from logosphere.studio.figures import find_figure
from logosphere.types import Batch

MAX_CURVE_POINTS = 120
"""Points of a training curve that are sent."""
DESCRIBED = (RECIPE, "metrics.jsonl", WEIGHTS, "eval", CARD)
"""Files and folders that the description of a model depends on."""
MAX_ALPHABET = 64
"""Tokens that fit around the plot of the sphere."""


@dataclass
class StudioModel:
    """A run or a bundled checkpoint; its weights are loaded when they are first needed."""

    name: str
    """Its name on the command line."""
    folder: Run
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Taken while the model is in use: one job at a time."""
    _loaded: tuple[int, Model] | None = None
    _described: tuple[tuple[int, ...], dict[str, Any]] | None = None

    @property
    def model(self) -> Model:
        """The model with the last weights that were saved; a running training saves new ones."""
        weights = self.folder.weights_file()
        saved = weights.stat().st_mtime_ns
        if self._loaded is None or self._loaded[0] != saved:
            device = find_device(self.folder.config.device)
            self._loaded = saved, self.folder.model().place(device)
        return self._loaded[1]

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
        """Return at most `limit` sequences of the test split: those of the record, or else of the corpus."""
        if self.has_record:
            return sequences_of(read_record(self.folder.path).text, self.tokenizer, self.model.length, limit)
        if not self.folder.config.data:
            raise UserError(
                f"{self.name} was saved without a training run, so the studio has no held-out text for it; measure it "
                f"on a text of yours: logosphere evaluate {quote_path(self.name)} --data FILE"
            )
        if not self.folder.trusted and not is_named(self.folder.config.data):
            raise UserError(
                f"{self.name} was not written on this machine, so the data that it names, "
                f"{shorten(self.folder.config.data)}, are not opened; measure it on a text of yours: "
                f"logosphere evaluate {quote_path(self.name)} --data FILE"
            )
        corpus = open_corpus(self.folder.config.data, self.tokenizer, column=self.folder.config.column)
        return next(iter(eval_batches(corpus.test, self.model.length, limit, limit)))

    def describe(self) -> dict[str, Any]:
        """Describe the model for the page, without loading its weights.

        The page asks every few seconds, so files are read again only when they have changed.
        """
        seen = tuple(_changed_at(self.folder.path / name) for name in DESCRIBED)
        if self._described is None or self._described[0] != seen:
            self._described = seen, self._describe()
        return self._described[1]

    def _describe(self) -> dict[str, Any]:
        spec, tokenizer = self.folder.content["model"], self.tokenizer
        figure, size = find_figure(self.folder), spec["vocab_size"]
        return {
            "name": self.name,
            "system": spec["system"],
            "length": spec["length"],
            "vocabulary": size,
            "tokenizer": tokenizer.fingerprint,
            "alphabet": [tokenizer.symbol(token) for token in range(size)] if size <= MAX_ALPHABET else [],
            "end": tokenizer.eos if isinstance(tokenizer, WithEOS) else None,
            "figure": None if figure is None else json_safe(asdict(figure)),
            "unit": tokenizer.unit,
            "temperature": sampling_defaults(self.folder.path.name).temperature if self.has_record else 1.0,
            "trained": not self.has_record and "recipe" in self.folder.content,
            "saved": (self.folder.path / WEIGHTS).exists(),
        }

    def list_samplers(self) -> dict[str, Any]:
        """Return the default sampler (own) and all samplers that support the model (fit)."""
        with self.lock:
            model = self.model
        supported = [name for name in SAMPLERS if _supports(model, name)]
        return {"own": self.default_sampler, "fit": supported}

    def training_curves(self) -> dict[str, list[list[float]]]:
        """Return the curves for a plot, which grow while a run trains.

        Training is (step, bits), validation is (step, bits, standard error), with an error of 0 where none was logged.
        """
        errors = {line["step"]: line.get("val/error") or 0.0 for line in self.folder.metrics() if "val/kind" in line}
        validated = [[step, bits, errors.get(int(step), 0.0)] for step, bits in self.folder.bits("val")]
        return {"train": downsample([list(point) for point in self.folder.bits("train")]), "val": downsample(validated)}


def _changed_at(path: Path) -> int:
    """When a file was changed last, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


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
