"""Published datasets of integers by name: images, sudokus and chorales."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logosphere.data.archives import read_npz
from logosphere.data.catalogue import CATALOGUE
from logosphere.data.corpus import Examples, IntArray
from logosphere.data.locate import find_files, read_parts
from logosphere.data.published import split_indices
from logosphere.data.sources import ReportProgress
from logosphere.errors import UserError

Pixels = npt.NDArray[np.uint8]
Splits = dict[str, Examples]
CELLS = 81
VOICES, PITCHES = 4, 128
CHORALES = "jsb-chorales-quarter.json"
CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32
"""A label, then the red, the green and the blue plane."""
CIFAR10_LABELS = 10
CIFAR10_FILES = ("test_batch", *(f"data_batch_{number}" for number in range(1, 6)))
MNIST_PIXELS = 28 * 28
SPLITS = ("train", "valid", "test")
HELD_OUT = 10
"""One in HELD_OUT images is held out where a dataset lacks a split."""


def load_sudoku(cache: Path, report: ReportProgress) -> Splits:
    """Sudokus, solved: 81 digits (0 is the digit 1), with the clues as a source (0 for an open cell)."""
    solved, puzzles, solutions = "sudoku17_solved.csv", "sudoku17.txt", "sudoku17_solutions.txt"
    parts = read_parts("sudoku", (solved, puzzles, solutions), cache, report)
    if solved in parts:
        rows = [row.split(b",") for row in parts[solved].split()]
        clues, answers = (_digits(list(column)) for column in zip(*rows, strict=True))
    else:
        clues, answers = _digits(parts[puzzles].split()), _digits(parts[solutions].split())
    if clues.shape != answers.shape or not ((clues == answers) | (clues == 0)).all() or not answers.all():
        raise ValueError("a solution differs from the clues of its puzzle")
    examples = Examples(list(answers - 1), sources=list(clues), source_size=10)
    return {split: examples.select(part) for split, part in split_indices(len(clues)).items()}


def _digits(rows: list[bytes]) -> IntArray:
    """Rows of 81 digits as numbers, [N, 81]."""
    numbers = np.frombuffer(b"".join(rows), np.uint8).astype(np.int64) - ord("0")
    if any(len(row) != CELLS for row in rows) or not ((numbers >= 0) & (numbers <= 9)).all():
        raise ValueError(f"a grid is not {CELLS} digits")
    return numbers.reshape(-1, CELLS)


def load_chorales(cache: Path, report: ReportProgress) -> dict[str, Examples]:
    """Bach's chorales in quarters: four voices (from the lowest) at each beat, as pitches; 0 is a rest."""
    songs = json.loads(read_parts("chorales", (CHORALES,), cache, report)[CHORALES])
    return {
        split: Examples([_flatten_beats(song) for song in songs[split]], eos=PITCHES)
        for split in ("train", "valid", "test")
    }


def _flatten_beats(song: Iterable[list[int]]) -> IntArray:
    beats = [sorted(chord)[:VOICES] for chord in song]
    return np.array([[*chord, *[0] * (VOICES - len(chord))] for chord in beats], dtype=np.int64).reshape(-1)


def parse_cifar10(content: bytes, name: str) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Pixels [N, 3072] and labels [N] of a file in CIFAR-10's binary layout."""
    if not content or len(content) % CIFAR10_RECORD_BYTES:
        raise UserError(
            f"{name} has {len(content):,} bytes, which is no multiple of {CIFAR10_RECORD_BYTES:,}: "
            "it does not hold images of 32 × 32 pixels in three colours."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR10_RECORD_BYTES)
    labels = rows[:, 0].astype(np.int64)
    if labels.max() >= CIFAR10_LABELS:
        raise UserError(f"{name} has the label {labels.max()}; CIFAR-10 has labels from 0 to {CIFAR10_LABELS - 1}.")
    planes = rows[:, 1:].reshape(-1, 3, 32 * 32)
    return planes.transpose(0, 2, 1).reshape(len(rows), -1), labels


def load_cifar10(cache: Path, report: ReportProgress) -> Splits:
    """CIFAR-10 in colour, 256 levels; the last tenth of the training images is for validation."""
    test, *batches = [f"cifar-10-batches-bin/{name}.bin" for name in CIFAR10_FILES]
    found = read_parts("cifar10", (test, *batches), cache, report)
    train = [parse_cifar10(found[name], name) for name in batches if name in found]
    pixels, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    test_pixels, test_labels = parse_cifar10(found[test], test)
    return _make_splits(pixels, labels, test_pixels, test_labels, CIFAR10_LABELS)


def load_digits(cache: Path, report: ReportProgress) -> Splits:
    """The 1,797 handwritten digits inside scikit-learn: 8 × 8 pixels, 17 levels; every tenth is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("'digits' comes with scikit-learn; get it with: pip install 'logosphere[images]'") from None
    found = load_digits()
    pixels, labels = found.data.astype(np.uint8), found.target.astype(np.int64)
    last = np.arange(len(labels)) % HELD_OUT == 0
    return _make_splits(pixels[~last], labels[~last], pixels[last], labels[last], 10)


def load_mnist_binary(cache: Path, report: ReportProgress) -> Splits:
    """MNIST in black and white, 28 × 28 (static binarisation)."""
    paths = find_files(CATALOGUE["mnist-binary"], cache, report)
    if len(paths) == len(SPLITS):
        pixels = {split: parse_amat(path.read_bytes(), path.name) for split, path in zip(SPLITS, paths, strict=True)}
    else:
        pixels = _read_packed(paths[0])
    return {split: Examples(list(rows)) for split, rows in pixels.items()}


def parse_amat(content: bytes, name: str) -> Pixels:
    """Images [N, 784] of 0 and 1, which are written as digits with spaces between."""
    digits = np.frombuffer(bytes(content.translate(None, b" \r\n\t")), np.uint8) - np.uint8(ord("0"))
    if not len(digits) or len(digits) % MNIST_PIXELS or digits.max() > 1:
        raise UserError(f"{name} does not hold images of {MNIST_PIXELS} digits 0 or 1; delete it and fetch it again.")
    return digits.reshape(-1, MNIST_PIXELS)


def _read_packed(path: Path) -> dict[str, Pixels]:
    try:
        stored = read_npz(path, SPLITS)
    except Exception as problem:  # the libraries raise errors of any class for a damaged archive
        raise UserError(f"{path} cannot be read ({problem}); fetch it again.") from None
    if missing := [split for split in SPLITS if split not in stored]:
        raise UserError(f"{path} holds no images for '{missing[0]}'.")
    return {split: np.unpackbits(rows, axis=1)[:, :MNIST_PIXELS] for split, rows in stored.items()}


def _make_splits(
    pixels: Pixels, labels: npt.NDArray[np.int64], test: Pixels, test_labels: npt.NDArray[np.int64], label_count: int
) -> Splits:
    kept = len(pixels) - len(pixels) // HELD_OUT
    return {
        "train": Examples(list(pixels[:kept]), labels=labels[:kept], label_count=label_count),
        "valid": Examples(list(pixels[kept:]), labels=labels[kept:], label_count=label_count),
        "test": Examples(list(test), labels=test_labels, label_count=label_count),
    }
