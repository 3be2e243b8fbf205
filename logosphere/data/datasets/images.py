"""Image datasets as sequences of pixels: row by row, the channels of a pixel adjacent."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from logosphere.data.datasets.archives import PublishedArchive, read_member, read_members, read_npz
from logosphere.data.datasets.examples import Examples
from logosphere.data.sources import ReportProgress
from logosphere.errors import UserError

Pixels = npt.NDArray[np.uint8]
Splits = dict[str, Examples]

CIFAR10 = PublishedArchive(
    files=("cifar-10-binary.tar.gz", "cifar-10-binary-part.tar.xz"),
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
)
CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32
"""A label, then the red, the green and the blue plane."""
CIFAR10_LABELS = 10
MNIST = PublishedArchive(
    files=("binarized_mnist.npz",),
    home="the static binarisation of Larochelle and Murray 2011 (rows packed by numpy.packbits)",
)
SPLITS = ("train", "valid", "test")
HELD_OUT = 10
"""One in HELD_OUT images is held out where a dataset lacks a split."""


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
    archive = CIFAR10.find(cache, report)
    batches = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    found = read_members(archive, batches, missing_ok=True)
    train = [parse_cifar10(found[name], name) for name in batches if name in found]
    pixels, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    test = "cifar-10-batches-bin/test_batch.bin"
    test_pixels, test_labels = parse_cifar10(read_member(archive, test), test)
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
    path = MNIST.find(cache, report)
    try:
        stored = read_npz(path, SPLITS)
    except Exception as problem:  # the libraries raise errors of any class for a damaged archive
        raise UserError(f"{path} cannot be read ({problem}); fetch it again.") from None
    if missing := [split for split in SPLITS if split not in stored]:
        raise UserError(f"{path} holds no images for '{missing[0]}'.")
    return {split: Examples(list(np.unpackbits(rows, axis=1)[:, : 28 * 28])) for split, rows in stored.items()}


def _make_splits(
    pixels: Pixels, labels: npt.NDArray[np.int64], test: Pixels, test_labels: npt.NDArray[np.int64], label_count: int
) -> Splits:
    kept = len(pixels) - len(pixels) // HELD_OUT
    return {
        "train": Examples(list(pixels[:kept]), labels=labels[:kept], label_count=label_count),
        "valid": Examples(list(pixels[kept:]), labels=labels[kept:], label_count=label_count),
        "test": Examples(list(test), labels=test_labels, label_count=label_count),
    }
