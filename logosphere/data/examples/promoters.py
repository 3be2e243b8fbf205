"""DNA with a signal along it: the published format of promoters, and a synthetic language with an exact score.

The published sets (Avdeyev et al. 2023, DDSM) hold 1,024 bases around each transcription start: one-hot ACGT and the
signal of transcription, [N, 1024, 4 + C], with the chromosome of each. Chromosome 10 is for validation, 8 and 9 for the
test. These files are not small, so there is also a synthetic language, labelled as such, whose every probability is
known: motifs stand at fixed places, each with a probability that the signal sets.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logosphere.data.examples.collection import Examples, Numbers
from logosphere.data.examples.packed import arrays
from logosphere.data.sources import Report
from logosphere.errors import UserError

Signal = npt.NDArray[np.float32]
VALID_CHROMOSOMES, TEST_CHROMOSOMES = {"chr10"}, {"chr8", "chr9"}
LETTERS = "ACGT"
LARGEST = 8 << 30
"""Bytes of a published set, unpacked: 100,000 sequences of 1,024 places of five numbers with 8 bytes each are 4 GB."""


def published(path: Path) -> dict[str, Examples]:
    """Splits by chromosome out of an .npz with `sequences` [N, L, 4 + C] and `chromosomes` [N]."""
    try:
        stored = arrays(path, ("sequences", "chromosomes"), LARGEST)
        rows, chromosomes = stored["sequences"], stored["chromosomes"].astype(str)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except Exception as problem:  # the libraries raise whatever a damaged archive brings up
        raise UserError(f"{path} needs the arrays 'sequences' and 'chromosomes' ({problem}).") from None
    if rows.dtype.kind not in "biuf" or rows.ndim != 3 or rows.shape[2] < 5 or len(rows) != len(chromosomes):
        raise UserError(f"'sequences' in {path} must be [N, L, 4 + C]: one-hot A, C, G, T and at least one signal.")
    bases = rows[..., :4]
    if not bool((bases.sum(2) == 1).all() and np.isin(bases, (0, 1)).all()):
        raise UserError(f"{path} has positions that are not one of A, C, G, T; leave out sequences with N.")
    every = Examples(list(bases.argmax(2).astype(np.int64)), signals=rows[..., 4:].astype(np.float32))
    split = np.array(
        ["valid" if c in VALID_CHROMOSOMES else "test" if c in TEST_CHROMOSOMES else "train" for c in chromosomes]
    )
    parts = {name: every.chosen(np.flatnonzero(split == name)) for name in ("train", "valid", "test")}
    for name, part in parts.items():
        if not len(part):
            raise UserError(f"{path} has no sequence for '{name}'; that split is made by chromosome.")
    return parts


@dataclass(frozen=True)
class Motif:
    """A short word that stands at a fixed place, each letter as likely as `clarity` says."""

    word: str
    place: int
    clarity: float = 0.85

    @property
    def log_p(self) -> npt.NDArray[np.float64]:
        """log p(base) at each letter of the motif, [n, 4]."""
        hit = np.array([[letter == base for base in LETTERS] for letter in self.word])
        return np.log(np.where(hit, self.clarity, (1 - self.clarity) / 3))


MOTIFS = (Motif("GGGCGG", 12), Motif("CCAAT", 24), Motif("TATAAA", 40), Motif("TCAGT", 66))
"""GC-box, CAAT-box, TATA-box and initiator, where promoters have them around a start at 68."""
LENGTH, START = 96, 68
BACKGROUND = np.log(np.array([0.29, 0.21, 0.21, 0.29]))


def signal_of(strength: npt.NDArray[np.float64]) -> Signal:
    """A peak of this height around the start, [N, L, 1]: what the network is shown."""
    place = np.arange(LENGTH)
    return (strength[:, None] * np.exp(-0.5 * ((place - START) / 4) ** 2))[..., None].astype(np.float32)


def present(strength: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The probability that each motif is there, [N, motifs]: the stronger the signal, the more of them."""
    thresholds = np.linspace(0.2, 0.8, len(MOTIFS))
    return 1 / (1 + np.exp(-12 * (strength[:, None] - thresholds)))


def synthetic(n: int, seed: int) -> Examples:
    """n promoters of the synthetic language, with their signals."""
    rng = np.random.default_rng(seed)
    strength = rng.uniform(size=n)
    return Examples(list(written(strength, rng)), signals=signal_of(strength))


def written(strength: npt.NDArray[np.float64], rng: np.random.Generator) -> Numbers:
    """One promoter for each strength, drawn from p(sequence | signal)."""
    n = len(strength)
    rows = _drawn(rng, np.broadcast_to(BACKGROUND, (n, LENGTH, 4)))
    there = rng.uniform(size=(n, len(MOTIFS))) < present(strength)
    for number, motif in enumerate(MOTIFS):
        site = slice(motif.place, motif.place + len(motif.word))
        words = _drawn(rng, np.broadcast_to(motif.log_p, (n, len(motif.word), 4)))
        rows[:, site] = np.where(there[:, number, None], words, rows[:, site])
    return rows


def log_prob(rows: Numbers, strength: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log p(sequence | signal) in nats, exactly: a mixture of motif and background at each site."""
    background = BACKGROUND[rows]
    total = background.sum(1)
    for number, motif in enumerate(MOTIFS):
        plain, word = _site(rows, background, motif)
        there = present(strength)[:, number]
        total += np.logaddexp(np.log(there) + word, np.log1p(-there) + plain) - plain
    return total


def occupancy(rows: Numbers) -> npt.NDArray[np.float64]:
    """How likely each motif is to be there, from the sequence alone and even odds before, [N, motifs].

    It is what a sequence says of its signal; the mean squared difference to that of the true sequence is the score of
    generated promoters, as a profile model's is for real ones.
    """
    background = BACKGROUND[rows]
    odds = np.stack([np.subtract(*_site(rows, background, motif)[::-1]) for motif in MOTIFS], 1)
    return 1 / (1 + np.exp(-odds))


def synthetic_promoters(cache: Path, report: Report) -> dict[str, Examples]:
    """Synthetic promoters: 96 bases with motifs that a signal calls for (made up, with an exact score)."""
    return {
        split: synthetic(n, seed)
        for seed, (split, n) in enumerate({"train": 20_000, "valid": 1_000, "test": 2_000}.items())
    }


def entropy_rate(examples: Examples) -> float:
    """-log₂ p per base of a collection under the language itself: what no model can beat on average."""
    assert examples.signals is not None
    rows = np.stack(examples.sequences).astype(np.int64)
    strength = examples.signals[:, START, 0].astype(np.float64)
    return float(-log_prob(rows, strength).mean() / LENGTH / math.log(2))


def _site(
    rows: Numbers, background: npt.NDArray[np.float64], motif: Motif
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """log p of the bases at a motif's place: as background, and as the motif."""
    site = slice(motif.place, motif.place + len(motif.word))
    letters = np.arange(len(motif.word))
    return background[:, site].sum(1), motif.log_p[letters, rows[:, site]].sum(1)


def _drawn(rng: np.random.Generator, log_p: npt.NDArray[np.float64]) -> Numbers:
    cumulative = np.exp(log_p).cumsum(-1)
    return (rng.uniform(size=log_p.shape[:-1])[..., None] * cumulative[..., -1:] > cumulative).sum(-1)
