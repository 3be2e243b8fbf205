"""The inputs and outputs of sample metrics: texts with their tokens, reference texts, and values with errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from logosphere.data.tokenizers import TokenIds, Tokenizer, WithEOS
from logosphere.evaluation.samples.suffix_array import SuffixArray
from logosphere.types import Float, Tokens

TRAIN_TOKENS = 1_000_000
"""Number of tokens, from the beginning of the training text, that samples are compared with."""


@dataclass(frozen=True)
class MetricValue:
    """A value and its standard error over samples; NaN where the metric has none."""

    value: float
    error: float = math.nan

    @staticmethod
    def mean(values: Float[Tensor, " N"]) -> "MetricValue":
        """The mean over samples."""
        values = values.double()
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
        return MetricValue(float(values.mean()), error)


@dataclass(frozen=True)
class Texts:
    """Samples: their tokens [n, L] and their decoded strings."""

    tokens: Tokens
    strings: tuple[str, ...]

    @staticmethod
    def from_tokens(tokens: Tokens, tokenizer: Tokenizer) -> "Texts":
        return Texts(tokens.cpu(), tuple(tokenizer.decode(row) for row in tokens.cpu().numpy()))


@dataclass(frozen=True)
class Reference:
    """The texts that samples are compared with."""

    tokenizer: Tokenizer
    train: TokenIds
    """The training text, or its beginning."""
    real: Texts
    """Held-out text, of the same length as the samples."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The distinct words of the training text."""
        texts = [self.train]
        if isinstance(self.tokenizer, WithEOS):
            texts = np.split(self.train, np.flatnonzero(np.asarray(self.train) == self.tokenizer.eos) + 1)
        return frozenset(word for text in texts for word in self.tokenizer.decode(text).split())

    @cached_property
    def suffixes(self) -> SuffixArray:
        return SuffixArray.build(np.asarray(self.train, dtype=np.int64), self.real.tokens.shape[1])

    @property
    def train_tokens(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.train, dtype=np.int64))


@dataclass(frozen=True)
class Metric:
    """A metric of samples."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher", "as real text"]
    definition: str
    measure: Callable[[Texts, Reference], MetricValue]
    version: str = ""
    """Distinguishes metrics of the same name whose scorers differ."""
