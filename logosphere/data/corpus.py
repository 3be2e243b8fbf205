"""A corpus: token ids of three splits, their tokenizer, and the counts that results are stated per."""

from dataclasses import dataclass
from pathlib import Path

from logosphere.data.datasets.examples import Examples
from logosphere.data.splits import Split
from logosphere.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Corpus:
    """Token ids of three splits, and the numbers of characters and bytes of each."""

    name: str
    tokenizer: Tokenizer
    train: Split
    valid: Split
    test: Split
    sha256: str
    """Hash of the source text; of the held-out text for a stream."""
    characters: dict[str, int]
    bytes: dict[str, int]
    folder: Path | None
    """Folder of the token cache; None for datasets and streams, which have none."""
    labels: tuple[str, ...] = ()
    """Names of the labels of examples, in the order of their ids."""

    def split(self, name: str) -> Split:
        """The split of this name: train, valid or test."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    @property
    def conditions(self) -> dict[str, int]:
        """Sizes that a network must be built with to read the conditions of all examples; empty for running text."""
        parts = [part.conditions for part in (self.train, self.valid, self.test) if isinstance(part, Examples)]
        return {name: max(part[name] for part in parts) for part in parts[:1] for name in part}
