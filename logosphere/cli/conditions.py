"""What a user wants text to be written for: a label, a source or a signal, by the words of the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logosphere.errors import UserError, nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logosphere.data.tokenizers import TokenIds
    from logosphere.model import Model
    from logosphere.runs.folder import RunFolder
    from logosphere.sampling.guidance import Guide
    from logosphere.types import Condition


def condition_of(folder: "RunFolder", label: str, source: str, signal: Path | None, n: int) -> "Condition | None":
    """The condition of n texts, or None when nothing is asked for."""
    if not label and not source and signal is None:
        return None
    import torch

    from logosphere.types import Condition

    labels = sources = signals = None
    if label:
        labels = torch.full((n,), _number(label, folder))
    if source:
        sources = torch.from_numpy(_tokens(source, folder)).expand(n, -1)
    if signal is not None:
        signals = torch.from_numpy(_along(signal, folder, n))
    return Condition.of(labels=labels, source=sources, signal=signals)


def _tokens(source: str, folder: "RunFolder") -> "TokenIds":
    """A source in its own alphabet: that of the texts, unless both are numbers and those of sources are more."""
    from logosphere.data.tokenizers import IntegerTokenizer

    size = folder.conditions["source"]
    if not size:
        raise UserError(f"The model in {folder.path} was trained without sources; leave out --source.")
    tokenizer = folder.tokenizer
    return (IntegerTokenizer(size) if isinstance(tokenizer, IntegerTokenizer) else tokenizer).encode(source)


def _along(path: Path, folder: "RunFolder", n: int) -> "npt.NDArray[np.float32]":
    """The signals [n, L, C] of n texts, from a file that has one for all of them or one for each."""
    import numpy as np

    channels, length = folder.conditions["signal"], int(folder.recipe.length)
    if not channels:
        raise UserError(f"The model in {folder.path} was trained without a signal; leave out --signal.")
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(f"{path} cannot be read as a .npy file ({problem}).") from None
    if found.shape == (length,) and channels == 1:
        found = found[:, None]
    if found.shape not in ((length, channels), (n, length, channels)) or found.dtype.kind not in "fiu":
        raise UserError(
            f"{path} must hold {length} × {channels} numbers, or as many for each of {n} texts, not {found.shape}."
        )
    if not np.isfinite(found).all():
        raise UserError(f"{path} holds numbers that are not finite.")
    return np.broadcast_to(found, (n, length, channels)).astype(np.float32)


def _number(label: str, folder: "RunFolder") -> int:
    names = folder.labels
    if not names:
        raise UserError(f"The model in {folder.path} was trained without labels; leave out --label.")
    if label not in names:
        raise UserError(f"There is no label '{label}'.{nearest(label, names)}")
    return names.index(label)


@dataclass(frozen=True)
class ByClassifier:
    """Guidance by a classifier that `logosphere classify` has taught."""

    classifier: Path | None = None
    """Folder of a classifier (`logosphere classify`) to steer towards --label, whatever the model has learnt."""
    strength: float | None = None
    """How strongly to follow the classifier: 1 is Bayes' rule, more is stronger and less varied; 0 is not at all."""
    exact_edits: bool = False
    """Ask the classifier about every token at every position, rather than for one gradient; slow."""

    def check(self, label: str) -> None:
        """Refuse options that need one another."""
        if self.classifier is None and (self.strength is not None or self.exact_edits):
            raise UserError("--strength and --exact-edits belong to a classifier; name its folder with --classifier.")
        if self.classifier is not None and not label:
            raise UserError("Say which label the classifier should steer towards, with --label.")
        if self.strength is not None and not 0 <= self.strength < float("inf"):
            raise UserError(f"The strength of a classifier must be at least 0, not {self.strength}.")

    def guide(self, folder: "RunFolder", model: "Model", label: str, n: int) -> "Guide | None":
        """The guide of n texts, or None when there is no classifier."""
        if self.classifier is None:
            return None
        from logosphere.sampling.labeller import Labeller

        labeller = Labeller.load(self.classifier, model, folder.tokenizer.fingerprint)
        strength = 1.0 if self.strength is None else self.strength
        return labeller.guide(model, label, n, strength, exact=self.exact_edits)
