"""DNA promoters with a signal along them: the published format, and a synthetic language with known probabilities.

The published sets (Avdeyev et al. 2023, DDSM) hold 1,024 bases around each transcription start: one-hot ACGT and the
signal of transcription, [N, 1024, 4 + C], with the chromosome of each. Chromosome 10 is for validation, 8 and 9 for the
test. In the synthetic language motifs have fixed positions, each with a probability that depends on the signal, so
that samples have an exact score.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logosphere.data.archives import read_npz
from logosphere.data.corpus import Examples, IntArray
from logosphere.data.input_files import check_regular
from logosphere.errors import UserError

VALID_CHROMOSOMES, TEST_CHROMOSOMES = {"chr10"}, {"chr8", "chr9"}
BASES = "ACGT"
MAX_BYTES = 8 << 30
"""Largest unpacked size: 100,000 sequences of 1,024 positions of five numbers with 8 bytes each are 4 GB."""


def load_signal_promoters(path: Path) -> dict[str, Examples]:
    """Splits by chromosome of an .npz with `sequences` [N, L, 4 + C] and `chromosomes` [N]."""
    check_regular(path)
    try:
        stored = read_npz(path, ("sequences", "chromosomes"), MAX_BYTES)
        rows, chromosomes = stored["sequences"], stored["chromosomes"].astype(str)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except Exception as problem:  # the libraries raise errors of any class for a damaged archive
        raise UserError(f"{path} needs the arrays 'sequences' and 'chromosomes' ({problem}).") from None
    if rows.dtype.kind not in "biuf" or rows.ndim != 3 or rows.shape[2] < 5 or len(rows) != len(chromosomes):
        raise UserError(f"'sequences' in {path} must be [N, L, 4 + C]: one-hot A, C, G, T and at least one signal.")
    bases = rows[..., :4]
    if not bool((bases.sum(2) == 1).all() and np.isin(bases, (0, 1)).all()):
        raise UserError(f"{path} has positions that are not one of A, C, G, T; leave out sequences with N.")
    examples = Examples(list(bases.argmax(2).astype(np.int64)), signals=rows[..., 4:].astype(np.float32))
    split = np.array(
        ["valid" if c in VALID_CHROMOSOMES else "test" if c in TEST_CHROMOSOMES else "train" for c in chromosomes]
    )
    parts = {name: examples.select(np.flatnonzero(split == name)) for name in ("train", "valid", "test")}
    for name, part in parts.items():
        if not len(part):
            raise UserError(f"{path} has no sequence for '{name}'; that split is made by chromosome.")
    return parts


FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Motif:
    """A short word at a fixed position, each base being its letter with probability `clarity`."""

    word: str
    position: int
    clarity: float = 0.85

    @property
    def log_p(self) -> FloatArray:
        """log p(base) at each letter of the motif, [n, 4]."""
        hit = np.array([[letter == base for base in BASES] for letter in self.word])
        return np.log(np.where(hit, self.clarity, (1 - self.clarity) / 3))


MOTIFS = (Motif("GGGCGG", 12), Motif("CCAAT", 24), Motif("TATAAA", 40), Motif("TCAGT", 66))
"""GC-box, CAAT-box, TATA-box and initiator, where promoters have them around a start at 68."""
LENGTH, START = 96, 68
BACKGROUND = np.log(np.array([0.29, 0.21, 0.21, 0.29]))


def make_signal(strength: FloatArray) -> npt.NDArray[np.float32]:
    """A peak of this height around the start, [N, L, 1]: the condition of the network."""
    position = np.arange(LENGTH)
    return (strength[:, None] * np.exp(-0.5 * ((position - START) / 4) ** 2))[..., None].astype(np.float32)


def motif_probabilities(strength: FloatArray) -> FloatArray:
    """The probability that each motif is present, [N, motifs]; it grows with the strength of the signal."""
    thresholds = np.linspace(0.2, 0.8, len(MOTIFS))
    return 1 / (1 + np.exp(-12 * (strength[:, None] - thresholds)))


def make_examples(n: int, seed: int) -> Examples:
    """n promoters of the synthetic language, with their signals."""
    rng = np.random.default_rng(seed)
    strength = rng.uniform(size=n)
    return Examples(list(sample_sequences(strength, rng)), signals=make_signal(strength))


def sample_sequences(strength: FloatArray, rng: np.random.Generator) -> IntArray:
    """One promoter for each strength, drawn from p(sequence | signal)."""
    n = len(strength)
    rows = _sample_bases(rng, np.broadcast_to(BACKGROUND, (n, LENGTH, 4)))
    present = rng.uniform(size=(n, len(MOTIFS))) < motif_probabilities(strength)
    for i, motif in enumerate(MOTIFS):
        site = slice(motif.position, motif.position + len(motif.word))
        words = _sample_bases(rng, np.broadcast_to(motif.log_p, (n, len(motif.word), 4)))
        rows[:, site] = np.where(present[:, i, None], words, rows[:, site])
    return rows


def log_prob(rows: IntArray, strength: FloatArray) -> FloatArray:
    """log p(sequence | signal) in nats, exactly: a mixture of motif and background at each site."""
    background = BACKGROUND[rows]
    total = background.sum(1)
    for i, motif in enumerate(MOTIFS):
        plain, word = _site_log_probs(rows, background, motif)
        present = motif_probabilities(strength)[:, i]
        total += np.logaddexp(np.log(present) + word, np.log1p(-present) + plain) - plain
    return total


def motif_posterior(rows: IntArray) -> FloatArray:
    """The probability that each motif is present given the sequence, with even prior odds, [N, motifs].

    The mean squared difference between generated and true sequences is the score of generated promoters, as the
    difference of a model of activity is for real ones.
    """
    background = BACKGROUND[rows]
    odds = np.stack([np.subtract(*_site_log_probs(rows, background, motif)[::-1]) for motif in MOTIFS], 1)
    return 1 / (1 + np.exp(-odds))


def load_synthetic_promoters() -> dict[str, Examples]:
    """The three splits of the dataset synthetic-promoters."""
    return {
        split: make_examples(n, seed)
        for seed, (split, n) in enumerate({"train": 20_000, "valid": 1_000, "test": 2_000}.items())
    }


def entropy_rate(examples: Examples) -> float:
    """-log₂ p per base of examples under the language itself: the lowest average that a model can reach."""
    assert examples.signals is not None
    rows = np.stack(examples.sequences).astype(np.int64)
    strength = examples.signals[:, START, 0].astype(np.float64)
    return float(-log_prob(rows, strength).mean() / LENGTH / math.log(2))


def _site_log_probs(rows: IntArray, background: FloatArray, motif: Motif) -> tuple[FloatArray, FloatArray]:
    """log p of the bases at a motif's position: as background, and as the motif."""
    site = slice(motif.position, motif.position + len(motif.word))
    letters = np.arange(len(motif.word))
    return background[:, site].sum(1), motif.log_p[letters, rows[:, site]].sum(1)


def _sample_bases(rng: np.random.Generator, log_p: FloatArray) -> IntArray:
    cumulative = np.exp(log_p).cumsum(-1)
    return (rng.uniform(size=log_p.shape[:-1])[..., None] * cumulative[..., -1:] > cumulative).sum(-1)
