"""What a domain measures of samples, and what its real data score; images and DNA. Used by domains.py."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import control
import guidance
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

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
"""Images in a picture."""


class Domain(ABC):
    """A corpus, and how samples of its kind are measured."""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        self.corpus, self.length, self.samples, self.steps, self.out = corpus, length, samples, steps, out
        self.asked: Batch = next(iter(sequential_batches(corpus.test, length, samples, samples)))  # type: ignore[arg-type]

    @abstractmethod
    def references(self) -> dict[str, Figures]:
        """Rows that need no training."""

    @abstractmethod
    def scores(self, model: ls.Model, row: str) -> Figures:
        """Samples of a model, measured."""

    def drawn(
        self,
        model: ls.Model,
        known: Tensor | None = None,
        n: int | None = None,
        guidance: float = 1.0,
        sampler: str | None = None,
    ) -> tuple[Tensor, Figures]:
        """Samples for the conditions of the test split, and what each costs in evaluations."""
        n = self.samples if n is None else min(n, self.samples)
        asked = self.asked.select(slice(n))
        given = {} if known is None else {"known": known[:n], "tokens": asked.tokens}
        rng = torch.Generator().manual_seed(0)
        chosen = None if sampler is None else ls.sampler(sampler, model)
        made = ls.generate(
            model, len(asked), self.steps, rng, condition=asked.condition, guidance=guidance, sampler=chosen, **given
        )
        return made.tokens, {"NFE": made.nfe}

    def texts(self, rows: Tensor) -> list[str]:
        return [self.corpus.tokenizer.decode(row) for row in rows.numpy()]

    def unigram(self, by_place: bool = False) -> float:
        """Bits of a test token under the frequencies of the training split (plus one each), at its place or at all."""
        train, test = (_rows(part, self.length) for part in (self.corpus.train, self.corpus.test))
        size = self.corpus.tokenizer.size
        if not by_place:
            train, test = train.reshape(-1, 1), test.reshape(-1, 1)
        counts = np.ones((train.shape[1], size))
        for place in range(train.shape[1]):
            counts[place] += np.bincount(train[:, place], minlength=size)
        p = counts / counts.sum(1, keepdims=True)
        return float(-np.log2(p[np.arange(test.shape[1]), test]).sum() / self._counted())

    def _counted(self) -> int:
        """Tokens of the test split that bits are counted for: of texts that end, up to their first end."""
        part = self.corpus.test
        assert isinstance(part, Examples)
        lengths = [len(row) for row in part.filter_by_length(self.length).sequences]
        return sum(lengths) if part.eos is None else sum(min(n + 1, self.length) for n in lengths)

    def baselines(self, by_place: bool) -> dict[str, Figures]:
        places = _rows(self.corpus.test, self.length).size
        uniform = math.log2(self.corpus.tokenizer.size) * places / self._counted()
        name = "frequencies at each place" if by_place else "frequencies"
        return {
            "uniform": {"bits": uniform, "kind": "exact"},
            name: {"bits": self.unigram(by_place), "kind": "exact"},
        }

    def keep(self, row: str, lines: Iterable[str]) -> None:
        """Samples for people to look at."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / f"{file_name(row)}.txt").write_text("\n".join(lines) + "\n")


class Digits(Domain):
    """Does a judge that knows other images see the digit that was asked for, and are the images as varied as real?"""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        self.machine, self.accuracy = guidance.judge(corpus)
        self.real = guidance.spread(*guidance.pixels(corpus.test))

    def references(self) -> dict[str, Figures]:
        real: dict[str, Figures] = {"real images": {"success": self.accuracy, "variety": 1.0}}
        return real | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model)
        _picture(self.out, row, made, (8, 8), self.corpus.tokenizer.size)
        written, kinds = made.numpy(), self.asked.condition.labels.numpy()  # type: ignore[union-attr]
        success = float((self.machine.predict(written) == kinds).mean())
        return {"success": success, "variety": guidance.spread(written, kinds) / self.real} | cost


class Colours(Domain):
    """CIFAR-10: bits and a picture."""

    def references(self) -> dict[str, Figures]:
        return self.baselines(by_place=False)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model, n=4)
        _picture(self.out, row, made, (32, 32, 3), 256)
        return cost


class Promoters(Domain):
    """Is the kind of DNA that was asked for recognised, and are its words of four and six bases as frequent?

    The judge (benchmarks/control.py) has learnt from the validation split, which no generator has seen.
    """

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        valid, self.test = control.split(corpus.valid), control.split(corpus.test)
        self.judge = control.taught(_clear, control.BASES, valid, seed=5)

    def references(self) -> dict[str, Figures]:
        tokens, labels = control.split(self.corpus.train)
        kinds = self._kinds()
        some = torch.empty_like(self.asked.tokens)
        for kind in (0, 1):
            wanted = kinds == kind
            some[wanted] = tokens[labels == kind][: int(wanted.sum())]
        rows: dict[str, Figures] = {"real, of the training split": self._measured(some)}
        rows["bases at random"] = self._measured(
            torch.randint(4, some.shape, generator=torch.Generator().manual_seed(0))
        )
        return rows | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model)
        return self._measured(made) | cost

    def _kinds(self) -> Tensor:
        return self.asked.condition.labels  # type: ignore[union-attr,return-value]

    def _measured(self, made: Tensor) -> Figures:
        said, kinds = (self.judge(_clear(made)) > 0).long(), self._kinds()
        figures: Figures = {"as asked": float((said == kinds).double().mean())}
        for k in (4, 6):
            apart = [
                validators.kmer_divergence(
                    self.texts(made[kinds == kind]), self.texts(self.test[0][self.test[1] == kind]), k
                )
                for kind in (0, 1)
            ]
            figures[f"{k}-mers apart"] = float(np.mean(apart))
        return figures


class Synthetic(Domain):
    """Made-up promoters: what the language itself makes of samples, and their motifs beside those of real ones."""

    def __init__(self, corpus: Corpus, length: int, samples: int, steps: int, out: Path):
        super().__init__(corpus, length, samples, steps, out)
        signal = self.asked.condition.signal  # type: ignore[union-attr]
        self.strength = signal[:, promoters.START, 0].double().numpy()  # type: ignore[index]

    def references(self) -> dict[str, Figures]:
        rng = np.random.default_rng(7)
        again = torch.from_numpy(promoters.sample_sequences(self.strength, rng))
        unasked = torch.from_numpy(promoters.sample_sequences(rng.uniform(size=len(self.strength)), rng))
        bits: Figures = {"bits": promoters.entropy_rate(self.corpus.test), "kind": "exact"}  # type: ignore[arg-type]
        return {
            "the language itself": bits | self._measured(again),
            "the language, signals ignored": self._measured(unasked),
        } | self.baselines(by_place=True)

    def scores(self, model: ls.Model, row: str) -> Figures:
        made, cost = self.drawn(model)
        return self._measured(made) | cost

    def _measured(self, made: Tensor) -> Figures:
        """-log₂ p(sample | signal) a base, and E(motifs of the sample - motifs of the real one)², for one signal."""
        nats = -promoters.log_prob(made.numpy(), self.strength) / self.length
        apart = activity_error(_motifs, made, self.asked.tokens)
        return {
            "bits by the language": float(nats.mean() / math.log(2)),
            "motifs apart": apart.mean,
            "s.e. of that": apart.error,
        }


def file_name(row: str) -> str:
    return "".join(c if c.isalnum() or c == "-" else "_" for c in row)


def _rows(part: object, length: int) -> np.ndarray:
    assert isinstance(part, Examples)
    return part.padded_rows(length).numpy()


def _clear(tokens: Tensor) -> Tensor:
    return one_hot(tokens, control.BASES).float()


def _motifs(bases: Tensor) -> Tensor:
    return torch.from_numpy(promoters.motif_posterior(bases.numpy()).mean(1))


def _picture(out: Path, row: str, made: Tensor, axes: tuple[int, ...], levels: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{file_name(row)}.png").write_bytes(encode_png(make_image_grid(made[:SHOWN].numpy(), axes, levels)))
