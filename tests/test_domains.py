"""Validators of small domains, and synthetic promoters with exact probabilities."""

from pathlib import Path

import numpy as np
import pytest

from logosphere import UserError
from logosphere.data import promoters
from logosphere.data.corpora import open_corpus
from logosphere.evaluation.validators import (
    canonicalise_smiles,
    check_chorales,
    check_molecules,
    check_sudoku_groups,
    has_kept_clues,
    is_sudoku_solved,
    kmer_divergence,
    parse_slots,
    slot_accuracy,
)

SOLVED = "953168742862734951417952836746893125281645397395271468138529674574386219629417583"


def test_sudoku_solutions_are_recognised() -> None:
    right = np.array([int(c) - 1 for c in SOLVED])
    rows = right.reshape(9, 9)
    shifted = np.stack([np.roll(np.arange(9), -row) for row in range(9)])  # rows and columns valid, boxes invalid
    boxed = np.concatenate([np.concatenate([np.arange(9).reshape(3, 3)] * 3, 1)] * 3)  # boxes valid, columns invalid
    grids = np.stack([right, shifted.ravel(), boxed.ravel(), rows[[3, 0, 1, 2, 4, 5, 6, 7, 8]].ravel(), right * 0])
    assert is_sudoku_solved(grids).tolist() == [True, False, False, False, False]
    clues = np.where(np.arange(81) % 5 == 0, right + 1, 0)
    assert has_kept_clues(grids[:1], clues[None]).all() and not has_kept_clues(grids[4:], clues[None]).any()
    with pytest.raises(UserError, match="81 cells"):
        is_sudoku_solved(np.zeros((1, 80), dtype=np.int64))


def test_groups_of_a_sudoku_are_counted() -> None:
    right = np.array([int(c) - 1 for c in SOLVED])
    swapped = right.copy()
    swapped[[0, 1]] = swapped[[1, 0]]  # the rows and boxes stay valid, two columns do not
    assert check_sudoku_groups(np.stack([right, swapped])).sum(1).tolist() == [27, 25]


def test_chorales_are_checked_beat_by_beat() -> None:
    bach = [np.array([48, 55, 64, 72, 50, 57, 65, 74]), np.array([43, 59, 62, 67])]
    assert check_chorales(bach, bach) == {"whole": 1.0, "ordered": 1.0, "range": 1.0, "chords": 1.0}
    transposed = [song + 2 for song in bach]  # its highest note leaves the range, every chord is kept
    assert check_chorales(transposed, bach) == {"whole": 1.0, "ordered": 1.0, "range": 11 / 12, "chords": 1.0}
    wrong = [np.array([55, 48, 64, 72, 50]), np.array([48, 49, 50, 51]), np.array([48, 55, 64, 0])]
    found = check_chorales(wrong, bach)
    assert found["whole"] == found["ordered"] == pytest.approx(2 / 3)  # ends with a rest
    assert found["chords"] == pytest.approx(2 / 3) and found["range"] == 1.0
    assert set(check_chorales([np.zeros(0, dtype=np.int64)], bach).values()) == {0.0}


def test_slots_are_found_in_descriptions() -> None:
    meaning = "name[Blue Spice], eatType[coffee shop], customer rating[5 out of 5], near[Café Adriatic]"
    assert parse_slots(meaning)["customer rating"] == "5 out of 5"
    assert slot_accuracy([meaning], ["The Blue Spice is a coffee shop near the river."]) == pytest.approx(2 / 3)
    assert slot_accuracy([meaning], ["blue spice, coffee shop, café adriatic"]) == 1.0


def test_kmer_frequencies_are_compared() -> None:
    assert kmer_divergence(["ACGT"] * 3, ["ACGT"], 2) == 0.0
    assert kmer_divergence(["AAAA"], ["CCCC"], 2) == 1.0
    assert 0 < kmer_divergence(["AACC"], ["AACG"], 2) < 1
    with pytest.raises(UserError, match="4-mers"):
        kmer_divergence(["AC"], ["ACGT"])


def test_molecules_are_checked_or_the_missing_package_is_named() -> None:
    try:
        import rdkit  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="molecules"):
            check_molecules(["C"])
        return
    known = set(canonicalise_smiles(["C1=CC=CC=C1", "C(", ""]))
    assert len(known) == 1
    found = check_molecules(["CCO", "OCC", "C(", "c1ccccc1"], known)
    assert found == {"valid": 0.75, "unique": pytest.approx(2 / 3), "novel": 0.5}


def test_synthetic_promoters_have_exact_probabilities() -> None:
    """Σ p = 1 over all words at one site, and the frequencies of samples match their probabilities."""
    motif = promoters.Motif("AC", promoters.MOTIFS[0].position)
    words = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2)
    assert np.exp(motif.log_p[[0, 1], words].sum(1)).sum() == pytest.approx(1)
    examples = promoters.make_examples(20_000, seed=3)
    rows, strength = np.stack(examples.sequences), examples.signals[:, promoters.START, 0].astype(np.float64)
    strong = strength > 0.9
    tata = rows[:, 40:46]
    word = np.array(["ACGT".index(c) for c in "TATAAA"])
    seen = (tata[strong] == word).all(1).mean()
    there = promoters.motif_probabilities(strength[strong])[:, 2].mean()
    by_chance = np.exp(promoters.BACKGROUND[word].sum())
    expected = there * 0.85**6 + (1 - there) * by_chance
    assert seen == pytest.approx(expected, abs=4 * (expected / strong.sum()) ** 0.5)
    other = np.random.default_rng(0).permuted(strength)
    assert (promoters.log_prob(rows, strength) - promoters.log_prob(rows, other)).mean() > 0.3  # signals matter
    assert promoters.entropy_rate(examples) < np.log2(4)


def test_motif_posterior_separates_motifs_from_background() -> None:
    examples = promoters.make_examples(4_000, seed=5)
    rows, strength = np.stack(examples.sequences), examples.signals[:, promoters.START, 0].astype(np.float64)
    found = promoters.motif_posterior(rows)
    assert found.shape == (4_000, 4)
    assert found[strength > 0.9].mean() > found[strength < 0.1].mean() + 0.5


def test_synthetic_promoters_are_a_corpus() -> None:
    corpus = open_corpus("synthetic-promoters")
    assert corpus.conditions == {"signal": 1} and corpus.tokenizer.size == 4
    assert (len(corpus.train), len(corpus.test)) == (20_000, 2_000)
    assert corpus.tokenizer.decode(corpus.train.sequences[0]).strip("ACGT") == ""


def test_published_promoters_are_split_by_chromosome(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.eye(4)[rng.integers(0, 4, (6, 1024))], rng.uniform(size=(6, 1024, 2))], 2)
    names = np.array(["chr1", "chr8", "chr9", "chr10", "chr2", "chrX"])
    np.savez(tmp_path / "p.npz", sequences=rows.astype(np.float32), chromosomes=names)
    corpus = open_corpus(f"promoters:{tmp_path / 'p.npz'}")
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [3, 1, 2]
    assert corpus.conditions == {"signal": 2}
    assert (corpus.test.sequences[0] == rows[1, :, :4].argmax(1)).all()
    rows[0, 5, :4] = 0.25
    np.savez(tmp_path / "n.npz", sequences=rows.astype(np.float32), chromosomes=names)
    with pytest.raises(UserError, match="with N"):
        open_corpus(f"promoters:{tmp_path / 'n.npz'}")
    np.savez(tmp_path / "x.npz", sequences=rows)
    with pytest.raises(UserError, match="chromosomes"):
        open_corpus(f"promoters:{tmp_path / 'x.npz'}")
