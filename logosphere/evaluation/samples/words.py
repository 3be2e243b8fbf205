"""Whether samples are spelt: the share of their words that the training text knows."""

import torch

from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts


def spelling(text: str, vocabulary: frozenset[str]) -> float:
    """The share of a text's words that are in the vocabulary; the first and last are left out, which may be cut."""
    words = text.split()[1:-1]
    return sum(word in vocabulary for word in words) / len(words) if words else 0.0


def _measure(texts: Texts, reference: Reference) -> Figure:
    return Figure.mean(torch.tensor([spelling(text, reference.words) for text in texts.strings]))


METRICS = [
    Metric(
        "spelling", "spelling", "share", "higher",
        "words (between white space, without the first and the last) that occur in the training text", _measure,
    ),
]  # fmt: skip
