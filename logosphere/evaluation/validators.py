"""Validators of samples from small domains: sudokus, E2E descriptions, DNA, chorales, molecules and promoters.

Promoters are scored by their predicted activity. A model of activity is a function from bases, the integers 0 … 3 of A,
C, G, T, to one activity per sequence. The synthetic promoters of data/promoters.py have an exact one. Papers use Sei
for real promoters; its network and weights are not part of this package: load them and pass the network to `Sei`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.evaluation.likelihood import ratio_with_error
from logosphere.types import Float, Int64

IntArray = npt.NDArray[np.int64]


def is_sudoku_solved(cells: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each grid [N, 81] of digits 0 … 8 has every digit once in each row, column and box, [N]."""
    return np.all(check_sudoku_groups(cells), axis=1)


def check_sudoku_groups(cells: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each of the 27 rows, columns and boxes of each grid [N, 81] has every digit once, [N, 27]."""
    if cells.ndim != 2 or cells.shape[1] != 81:
        raise UserError(f"A sudoku has 81 cells, not {cells.shape[-1]}.")
    grids = cells.reshape(-1, 9, 9)
    boxes = grids.reshape(-1, 3, 3, 3, 3).transpose(0, 1, 3, 2, 4).reshape(-1, 9, 9)
    groups = np.concatenate([grids, grids.transpose(0, 2, 1), boxes], axis=1)  # [N, 27, 9]
    return (np.sort(groups, axis=2) == np.arange(9)).all(axis=2)


def has_kept_clues(cells: IntArray, clues: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each grid agrees with its clues [N, 81], digits 1 … 9 and 0 for open cells."""
    return ((clues == 0) | (cells + 1 == clues)).all(axis=1)


def parse_slots(meaning: str) -> dict[str, str]:
    """The slots of an E2E meaning: 'name[Cocum], area[riverside]' -> {'name': 'Cocum', 'area': 'riverside'}."""
    return dict(re.findall(r"(\w[\w ]*)\[([^\]]*)\]", meaning))


VERBATIM = ("name", "near", "eatType", "food", "area")
"""Slots whose value occurs literally in a description; prices, ratings and families are paraphrased."""


def slot_accuracy(meanings: Sequence[str], texts: Sequence[str]) -> float:
    """The fraction of the verbatim slots of meanings that their descriptions mention."""
    named = mentioned = 0
    for meaning, text in zip(meanings, texts, strict=True):
        for slot, value in parse_slots(meaning).items():
            if slot in VERBATIM:
                named += 1
                mentioned += value.lower() in text.lower()
    return mentioned / named if named else float("nan")


def kmer_divergence(samples: Iterable[str], reference: Iterable[str], k: int = 4) -> float:
    """Jensen-Shannon divergence in bits between the frequencies of k-mers; 0 for equal, at most 1."""
    p, q = (_kmer_frequencies(texts, k) for texts in (samples, reference))
    kmers = sorted(p.keys() | q.keys())
    if not p or not q:
        raise UserError(f"There are no {k}-mers to compare; the texts are shorter.")
    a, b = (np.array([part.get(kmer, 0.0) for kmer in kmers]) for part in (p, q))
    middle = (a + b) / 2
    return float(sum((x[x > 0] * np.log2(x[x > 0] / middle[x > 0])).sum() for x in (a, b)) / 2)


def _kmer_frequencies(texts: Iterable[str], k: int) -> dict[str, float]:
    counts = Counter(text[i : i + k] for text in texts for i in range(len(text) - k + 1))
    total = sum(counts.values())
    return {kmer: count / total for kmer, count in counts.items()}


def check_chorales(songs: Sequence[IntArray], training: Sequence[IntArray], voices: int = 4) -> dict[str, float]:
    """Fractions of valid parts of songs, `voices` pitches per beat from the lowest, 0 for a rest.

    whole: songs of complete beats; ordered: beats whose voices ascend, rests last; range: notes within the range of
    the training songs; chords: beats whose chord, up to octaves and transposition, occurs in the training songs.
    """
    beats = [_split_beats(song, voices) for song in songs]
    played, known = (
        np.concatenate([*beats, np.zeros((0, voices), np.int64)]),
        _split_beats(np.concatenate(training), voices),
    )
    if not len(played):
        return {"whole": 0.0, "ordered": 0.0, "range": 0.0, "chords": 0.0}
    heights = np.where(played == 0, np.iinfo(np.int64).max, played)
    notes, known_notes = played[played > 0], known[known > 0]
    chords = {_chord(beat) for beat in known}
    return {
        "whole": float(np.mean([len(song) > 0 and len(song) % voices == 0 for song in songs])),
        "ordered": float((np.diff(heights, axis=1) >= 0).all(1).mean()),
        "range": float(((notes >= known_notes.min()) & (notes <= known_notes.max())).mean()) if len(notes) else 0.0,
        "chords": float(np.mean([_chord(beat) in chords for beat in played])),
    }


def _split_beats(song: IntArray, voices: int) -> IntArray:
    return np.asarray(song[: len(song) // voices * voices], dtype=np.int64).reshape(-1, voices)


def _chord(beat: IntArray) -> tuple[int, ...]:
    """The intervals of a chord above its lowest note, within an octave; () for a rest."""
    notes = beat[beat > 0]
    return tuple(np.unique((notes - notes.min()) % 12).tolist()) if len(notes) else ()


def canonicalise_smiles(smiles: Iterable[str]) -> list[str]:
    """The canonical SMILES by RDKit of the valid molecules among these."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError:
        raise UserError("Molecules are checked by RDKit; get it with: pip install 'logosphere[molecules]'") from None
    RDLogger.DisableLog("rdApp.*")
    parsed = (Chem.MolFromSmiles(text) for text in smiles if text)
    return [Chem.MolToSmiles(molecule) for molecule in parsed if molecule is not None]


def check_molecules(smiles: Sequence[str], known: Set[str] = frozenset()) -> dict[str, float]:
    """Fractions of valid molecules, of distinct ones among the valid, and of new ones among the distinct.

    `known` are the canonical SMILES of the training molecules.
    """
    valid = canonicalise_smiles(smiles)
    distinct = set(valid)
    return {
        "valid": len(valid) / max(1, len(smiles)),
        "unique": len(distinct) / max(1, len(valid)),
        "novel": len(distinct - known) / max(1, len(distinct)),
    }


ActivityModel = Callable[[Int64[Tensor, "N L"]], Float[Tensor, " N"]]

ACTIVE_MARK = "H3K4me3"
"""The mark of active promoters; Sei's tracks of it are averaged (Avdeyev et al. 2023, DDSM, section 4.3)."""
WINDOW = 4096
"""Bases in the input of Sei."""


class MeanWithError(NamedTuple):
    """A mean over sequences and its standard error."""

    mean: float
    error: float


def activity_error(
    activity: ActivityModel, generated: Int64[Tensor, "N L"], real: Int64[Tensor, "M K"], batch: int = 64
) -> MeanWithError:
    """SP-MSE: E (activity(generated) - activity(real))², each pair under one signal (DDSM, section 4.3)."""
    if generated.shape != real.shape or not len(generated):
        raise UserError(
            f"Each designed sequence needs the real one of its signal, of the same length: got "
            f"{list(generated.shape)} and {list(real.shape)}."
        )
    if not 0 <= int(torch.minimum(generated, real).min()) <= int(torch.maximum(generated, real).max()) < 4:
        raise UserError("Bases are the numbers 0 to 3, for A, C, G and T; leave out sequences with N.")
    parts = zip(generated.split(batch), real.split(batch), strict=True)
    squares = torch.cat([(activity(a) - activity(b)).double().square() for a, b in parts])
    return MeanWithError(*ratio_with_error(squares, torch.ones_like(squares)))


class Sei:
    """The activity of promoters by Sei (Chen et al. 2022), from a network that the user has loaded.

    `names` is Sei's own list of its tracks, one a line; those that name the mark of active promoters are averaged.
    Sequences are centred in its window, padded with the uniform distribution (0.25 each).
    """

    def __init__(self, network: nn.Module, names: Path):
        try:
            lines = names.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"Sei's list of tracks could not be read from {names} ({problem}).") from None
        self.network = network.eval()
        self.tracks = torch.tensor([i for i, line in enumerate(lines) if ACTIVE_MARK in line])
        if not len(self.tracks):
            raise UserError(f"{names} names no track of {ACTIVE_MARK}; it should be Sei's list, one track a line.")

    @torch.no_grad()
    def __call__(self, bases: Int64[Tensor, "N L"]) -> Float[Tensor, " N"]:
        padding = WINDOW - bases.shape[1]
        if padding < 0:
            raise UserError(f"Sei accepts at most {WINDOW} bases, not {bases.shape[1]}.")
        one_hot = F.one_hot(bases, 4).float().transpose(1, 2)
        predicted = self.network(F.pad(one_hot, (padding // 2, padding - padding // 2), value=0.25))
        if predicted.ndim != 2 or predicted.shape[1] <= int(self.tracks.max()):
            raise UserError(f"The network returned {list(predicted.shape)}, not one row of Sei's tracks a sequence.")
        return predicted[:, self.tracks].mean(1)
