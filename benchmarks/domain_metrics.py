"""Metrics of the samples of a domain and the same metrics of real data: images and DNA. Used by domains.py."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import control
import guidance
import numpy as np
import torch
from torch import Tensor

import logosphere as ls
from logosphere.data import promoters
from logosphere.data.batches import sequential_batches
from logosphere.data.corpus import Corpus, Examples
from logosphere.evaluation import validators
from logosphere.evaluation.validators import activity_error
from logosphere.report.images import encode_png, make_image_grid
from logosphere.types import Batch

Figures = dict[str, float | str]
SHOWN = 49
"""Images of a picture."""


class Domain(ABC):
    """A corpus and the metrics of its samples."""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        self.corpus, self.length, self.samples, self.steps, self.out = corpus, length, samples, steps, out
        self.targets: Batch = next(iter(sequential_batches(corpus.test, length, samples, samples)))  # type: ignore[arg-type]

    @abstractmethod
    def references(self) -> dict[str, Figures]:
        """Return the rows that need no training."""

    @abstractmethod
    def scores(self, model: ls.Model, row: str) -> Figures:
        """Draw samples of a model and return their metrics."""

    def sample(
        self,
        model: ls.Model,
        known: Tensor | None = None,
        n: int | None = None,
        guidance: float = 1.0,
        sampler: str | None = None,
    ) -> tuple[Tensor, Figures]:
        """Draw samples for the conditions of the test split; return them and the number of evaluations of each."""
        n = self.samples if n is None else min(n, self.samples)
        targets = self.targets.select(slice(n))
        prompt = {} if known is None else {"known": known[:n], "tokens": targets.tokens}
        rng = torch.Generator().manual_seed(0)
        chosen = None if sampler is None else ls.sampler(sampler, model)
        made = ls.generate(
            model,
            len(targets),
            self.steps,
            rng,
            condition=targets.condition,
            guidance=guidance,
            sampler=chosen,
            **prompt,
        )
        return made.tokens, {"NFE": made.nfe}

    def decode(self, rows: Tensor) -> list[str]:
        return [self.corpus.tokenizer.decode(row) for row in rows.numpy()]

    def unigram_bits(self, by_position: bool = False) -> float:
        """Return bits of a test token under the training frequencies (plus one each), at its position or overall."""
        train, test = (_rows(part, self.length) for part in (self.corpus.train, self.corpus.test))
        size = self.corpus.tokenizer.size
        if not by_position:
            train, test = train.reshape(-1, 1), test.reshape(-1, 1)
        counts = np.ones((train.shape[1], size))
        for position in range(train.shape[1]):
            counts[position] += np.bincount(train[:, position], minlength=size)
        p = counts / counts.sum(1, keepdims=True)
        return float(-np.log2(p[np.arange(test.shape[1]), test]).sum() / self._count_tokens())

    def _count_tokens(self) -> int:
        """Return the number of test tokens that bits are divided by; texts with an end count up to it."""
        part = self.corpus.test
        assert isinstance(part, Examples)
        lengths = [len(row) for row in part.filter_by_length(self.length).sequences]
        return sum(lengths) if part.eos is None else sum(min(n + 1, self.length) for n in lengths)

    def baselines(self, by_position: bool) -> dict[str, Figures]:
        positions = _rows(self.corpus.test, self.length).size
        uniform = math.log2(self.corpus.tokenizer.size) * positions / self._count_tokens()
        name = "frequencies at each position" if by_position else "frequencies"
        return {
            "uniform": {"bits": uniform, "kind": "exact"},
            name: {"bits": self.unigram_bits(by_position), "kind": "exact"},
        }

    def save_texts(self, row: str, lines: Iterable[str]) -> None:
        """Save samples for inspection."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / f"{file_name(row)}.txt").write_text("\n".join(lines) + "\n")


class Digits(Domain):
    """Success: the fraction of images classified as the requested digit. Variety: relative to that of real images."""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        self.machine, self.accuracy = guidance.fit_classifier(corpus)
        self.real = guidance.mean_distance(*guidance.load_pixels(corpus.test))

    def references(self) -> dict[str, Figures]:
        real: dict[str, Figures] = {"real images": {"success": self.accuracy, "variety": 1.0}}
        return real | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model)
        _save_picture(self.out, row, made, (8, 8), self.corpus.tokenizer.size)
        images, labels = made.numpy(), self.targets.condition.labels.numpy()  # type: ignore[union-attr]
        success = float((self.machine.predict(images) == labels).mean())
        return {"success": success, "variety": guidance.mean_distance(images, labels) / self.real} | cost


class Colours(Domain):
    """CIFAR-10: bits per dimension and a picture of samples."""

    def references(self) -> dict[str, Figures]:
        return self.baselines(by_position=False)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model, n=4)
        _save_picture(self.out, row, made, (32, 32, 3), 256)
        return cost


class Promoters(Domain):
    """The fraction of samples classified as the requested label, and divergences of 4-mers and 6-mers from real DNA.

    The classifier (benchmarks/control.py) is trained on the validation split, the generators on the training split.
    """

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        valid, self.test = control.load_split(corpus.valid), control.load_split(corpus.test)
        self.classifier = control.train_classifier(control.one_hot, control.BASES, valid, seed=5)

    def references(self) -> dict[str, Figures]:
        tokens, labels = control.load_split(self.corpus.train)
        requested = self._requested_labels()
        some = torch.empty_like(self.targets.tokens)
        for label in (0, 1):
            rows_of = requested == label
            some[rows_of] = tokens[labels == label][: int(rows_of.sum())]
        rows: dict[str, Figures] = {"real, training split": self._measure(some)}
        rows["random bases"] = self._measure(torch.randint(4, some.shape, generator=torch.Generator().manual_seed(0)))
        return rows | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model)
        return self._measure(made) | cost

    def _requested_labels(self) -> Tensor:
        return self.targets.condition.labels  # type: ignore[union-attr,return-value]

    def _measure(self, made: Tensor) -> Figures:
        predicted, labels = (self.classifier(control.one_hot(made)) > 0).long(), self._requested_labels()
        figures: Figures = {"requested label recognised": float((predicted == labels).double().mean())}
        for k in (4, 6):
            divergences = [
                validators.kmer_divergence(
                    self.decode(made[labels == label]), self.decode(self.test[0][self.test[1] == label]), k
                )
                for label in (0, 1)
            ]
            figures[f"{k}-mer divergence"] = float(np.mean(divergences))
        return figures


class Synthetic(Domain):
    """Synthetic promoters: bits of samples under the true language, and their motifs against real ones."""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        signal = self.targets.condition.signal  # type: ignore[union-attr]
        self.strength = signal[:, promoters.START, 0].double().numpy()  # type: ignore[index]

    def references(self) -> dict[str, Figures]:
        rng = np.random.default_rng(7)
        resampled = torch.from_numpy(promoters.sample_sequences(self.strength, rng))
        unconditional = torch.from_numpy(promoters.sample_sequences(rng.uniform(size=len(self.strength)), rng))
        bits: Figures = {"bits": promoters.entropy_rate(self.corpus.test), "kind": "exact"}  # type: ignore[arg-type]
        return {
            "the language itself": bits | self._measure(resampled),
            "the language, signals ignored": self._measure(unconditional),
        } | self.baselines(by_position=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.sample(model)
        return self._measure(made) | cost

    def _measure(self, made: Tensor) -> Figures:
        """-log₂ p(sample | signal) a base, and E(motifs of the sample - motifs of the real one)², for one signal."""
        nats = -promoters.log_prob(made.numpy(), self.strength) / self.length
        difference = activity_error(_motif_posterior, made, self.targets.tokens)
        return {
            "bits under the language": float(nats.mean() / math.log(2)),
            "squared motif difference": difference.mean,
            "s.e. of the difference": difference.error,
        }


def file_name(row: str) -> str:
    return "".join(c if c.isalnum() or c == "-" else "_" for c in row)


def _rows(part: object, length: int) -> np.ndarray:
    assert isinstance(part, Examples)
    return part.padded_rows(length).numpy()


def _motif_posterior(bases: Tensor) -> Tensor:
    return torch.from_numpy(promoters.motif_posterior(bases.numpy()).mean(1))


def _save_picture(out: Path, row: str, made: Tensor, axes: tuple[int, ...], levels: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{file_name(row)}.png").write_bytes(encode_png(make_image_grid(made[:SHOWN].numpy(), axes, levels)))
