"""What sample metrics look at: texts with their tokens, the training text they may have come from, and real text."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from logosphere.data.special import Ended
from logosphere.data.tokenizers import Ids, Tokenizer
from logosphere.evaluation.samples.suffixes import Suffixes
from logosphere.shapes import Float
from logosphere.types import Tokens

TRAIN_TOKENS = 1_000_000
"""Tokens of the training text that samples are held against: its beginning."""


@dataclass(frozen=True)
class Figure:
    """A value and its standard error over samples; nan where the measure has none."""

    value: float
    error: float = math.nan

    @staticmethod
    def mean(values: Float[Tensor, "N"]) -> "Figure":
        """The mean over samples."""
        values = values.double()
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
        return Figure(float(values.mean()), error)


@dataclass(frozen=True)
class Texts:
    """Samples: their tokens, [n, L], and what they spell."""

    tokens: Tokens
    strings: tuple[str, ...]

    @staticmethod
    def spelt(tokens: Tokens, tokenizer: Tokenizer) -> "Texts":
        return Texts(tokens.cpu(), tuple(tokenizer.decode(row) for row in tokens.cpu().numpy()))


@dataclass(frozen=True)
class Reference:
    """What samples are held against."""

    tokenizer: Tokenizer
    train: Ids
    """The training text, or its beginning."""
    real: Texts
    """Held-out text, cut like the samples."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the training text, or of its texts."""
        texts = [self.train]
        if isinstance(self.tokenizer, Ended):
            texts = np.split(self.train, np.flatnonzero(np.asarray(self.train) == self.tokenizer.end) + 1)
        return frozenset(word for text in texts for word in self.tokenizer.decode(text).split())

    @cached_property
    def suffixes(self) -> Suffixes:
        return Suffixes.of(np.asarray(self.train, dtype=np.int64), self.real.tokens.shape[1])

    @property
    def train_tokens(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.train, dtype=np.int64))


@dataclass(frozen=True)
class Metric:
    """A measure of samples."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher", "as real text"]
    definition: str
    measure: Callable[[Texts, Reference], Figure]
    version: str = ""
    """Tells measures of the same name apart, where what they measure with may change."""
