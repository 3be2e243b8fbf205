"""Promoters with a signal along them, in the published format of Avdeyev et al. 2023 (DDSM).

The published sets hold 1,024 bases around each transcription start: one-hot ACGT and the signal of transcription,
[N, 1024, 4 + C], with the chromosome of each. Chromosome 10 is for validation, 8 and 9 for the test.
"""

from pathlib import Path

import numpy as np

from logosphere.data.datasets.archives import read_npz
from logosphere.data.datasets.examples import Examples
from logosphere.errors import UserError

VALID_CHROMOSOMES, TEST_CHROMOSOMES = {"chr10"}, {"chr8", "chr9"}
BASES = "ACGT"
MAX_BYTES = 8 << 30
"""Largest unpacked size: 100,000 sequences of 1,024 positions of five numbers with 8 bytes each are 4 GB."""


def load_signal_promoters(path: Path) -> dict[str, Examples]:
    """Splits by chromosome of an .npz with `sequences` [N, L, 4 + C] and `chromosomes` [N]."""
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
