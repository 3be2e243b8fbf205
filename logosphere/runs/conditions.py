"""Conditions of a request: the label, source or signal that texts are sampled for, and classifier guidance."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from logosphere.data.tokenizers import IntegerTokenizer, TokenIds
from logosphere.errors import UserError, nearest
from logosphere.model import Model
from logosphere.runs.run import Run
from logosphere.runs.settings import ClassifierGuidance
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.sampling.guidance import Guide
from logosphere.types import Condition


def find_condition(run: Run, label: str, source: str, signal: Path | None, n: int) -> Condition | None:
    """The condition of n texts: a label, a source or a signal; None when none is given."""
    if not label and not source and signal is None:
        return None
    labels = sources = signals = None
    if label:
        labels = torch.full((n,), _label_index(label, run))
    if source:
        sources = torch.from_numpy(_encode_source(source, run)).expand(n, -1)
    if signal is not None:
        signals = torch.from_numpy(_read_signal(signal, run, n))
    return Condition.of(labels=labels, source=sources, signal=signals)


def _encode_source(source: str, run: Run) -> TokenIds:
    """A source in its own alphabet: that of the texts, unless both are integers and sources have more of them."""
    size = run.conditions["source"]
    if not size:
        raise UserError(f"The model in {run.path} was trained without sources; leave out --source.")
    tokenizer = run.tokenizer
    return (IntegerTokenizer(size) if isinstance(tokenizer, IntegerTokenizer) else tokenizer).encode(source)


def _read_signal(path: Path, run: Run, n: int) -> npt.NDArray[np.float32]:
    """The signals [n, L, C] of n texts, from a file that holds one for all of them or one for each."""
    channels, length = run.conditions["signal"], int(run.config.length)
    if not channels:
        raise UserError(f"The model in {run.path} was trained without a signal; leave out --signal.")
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


def _label_index(label: str, run: Run) -> int:
    names = run.labels
    if not names:
        raise UserError(f"The model in {run.path} was trained without labels; leave out --label.")
    if label not in names:
        raise UserError(f"There is no label '{label}'.{nearest(label, names)}")
    return names.index(label)


def classifier_guide(settings: ClassifierGuidance, run: Run, model: Model, label: str, n: int) -> Guide | None:
    """The guide of n texts towards a label, or None where there is no classifier."""
    if settings.classifier is None:
        return None
    checkpoint = ClassifierCheckpoint.load(settings.classifier, model, run.tokenizer.fingerprint)
    strength = 1.0 if settings.strength is None else settings.strength
    return checkpoint.guide(model, label, n, strength, exact=settings.exact_edits)
