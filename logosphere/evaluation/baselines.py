"""What no model is needed for: a uniform guess among all tokens, and the frequencies of tokens in the training text."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from logosphere.data.corpus import Corpus, StreamedSplit, count_tokens
from logosphere.types import Batch


class TokenFrequencies:
    """The code that gives each token the length -log₂ of its frequency in the training text.

    Every token is counted once more than it occurs, so that tokens which do not occur have a code, too.
    """

    def __init__(self, corpus: Corpus):
        counts = corpus.token_counts + 1
        self.bits: npt.NDArray[np.float64] = -np.log2(counts / counts.sum())
        self.total, self.tokens = 0.0, 0

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, whose free tokens are counted as they pass."""
        for batch in batches:
            counted = batch.free.cpu().numpy().copy()
            if batch.token_count is not None:
                counted &= np.arange(counted.shape[1]) < batch.token_count.cpu().numpy()[:, None]
            self.total += float(self.bits[batch.tokens.cpu().numpy()][counted].sum())
            self.tokens += int(counted.sum())
            yield batch

    @property
    def per_token(self) -> float:
        """Bits per token of all batches so far; NaN before the first."""
        return self.total / self.tokens if self.tokens else math.nan


def token_frequencies(corpus: Corpus | None) -> TokenFrequencies | None:
    """The frequencies of a corpus; None where it is not at hand, a stream, or without a training text."""
    if corpus is None or isinstance(corpus.train, StreamedSplit) or not count_tokens(corpus.train):
        return None
    return TokenFrequencies(corpus)
