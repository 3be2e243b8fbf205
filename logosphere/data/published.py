"""Published datasets by name: texts and DNA as records; images, sudokus and chorales as integers."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logosphere.data.corpus import Examples, IntArray
from logosphere.data.download import PublishedArchive, read_member, read_members, read_npz
from logosphere.data.sources import ReportProgress, Source
from logosphere.errors import UserError


@dataclass(frozen=True)
class Record:
    """A text, and its label or the source it is generated from."""

    text: str
    label: str | None = None
    source: str | None = None


def parse_csv(content: str, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a CSV table with a header."""
    return list(csv.DictReader(io.StringIO(content), delimiter=delimiter, strict=True))


Records = dict[str, list[Record]]
E2E = PublishedArchive(
    files=("e2e-dataset.zip",),
    home="https://github.com/tuetschek/e2e-dataset",
    urls=("https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip",),
    sha256="1261064c01907af27e8cc39e0a29a81541f6ab69208c1cbfc1be95afbb49dfac",
    size=1_528_421,
)

CAPTIONS = PublishedArchive(files=("captions.tar.xz",), home="the COCO captions of the LeakGAN repository")
STORIES = PublishedArchive(files=("tinystories.tar.xz",), home="https://huggingface.co/datasets/roneneldan/TinyStories")
STORY_END = "<|endoftext|>"
MOLECULES = PublishedArchive(files=("molecules.tar.xz",), home="the QM9 and ZINC sets as SMILES")
PUZZLES = PublishedArchive(files=("music_sudoku.tar.xz",), home="the JSB chorales and the sudokus with 17 clues")
DNA = PublishedArchive(files=("dna.tar.xz",), home="the GUE benchmark of DNABERT-2")


def load_e2e(cache: Path, report: ReportProgress) -> Records:
    """Descriptions of restaurants, each from its meaning: name[The Vaults], eatType[pub] …"""
    archive = E2E.find(cache, report)
    files = {"train": "trainset.csv", "valid": "devset.csv", "test": "testset_w_refs.csv"}
    return {split: [_e2e_record(row) for row in _read_table(archive, name)] for split, name in files.items()}


def _e2e_record(row: dict[str, str]) -> Record:
    return Record(re.sub(r"\s+", " ", row["ref"]).strip(), source=row["mr"])


def load_captions(cache: Path, report: ReportProgress) -> Records:
    """Captions of pictures, one sentence each."""
    archive = CAPTIONS.find(cache, report)
    train = _read_lines(archive, "image_coco_train.txt")
    return {**_hold_out_valid(train), "test": _read_lines(archive, "image_coco_test.txt")}


def load_tinystories(cache: Path, report: ReportProgress) -> Records:
    """Paragraphs of stories for small children; splits are contiguous, so few stories lie in two of them."""
    archive = STORIES.find(cache, report)
    splits: Records = {"train": [], "valid": [], "test": []}
    for name in ("tinystories_first10k_lines.txt", "tinystories_smallGPT.txt"):
        paragraphs = [row for row in _read_lines(archive, name) if row.text != STORY_END]
        part = len(paragraphs) // 20
        cuts = {"train": slice(0, -2 * part), "valid": slice(-2 * part, -part), "test": slice(-part, None)}
        for split, cut in cuts.items():
            splits[split] += paragraphs[cut]
    return splits


def load_smiles(cache: Path, report: ReportProgress) -> Records:
    """The small molecules of QM9 as SMILES."""
    return _split_records(_read_lines(MOLECULES.find(cache, report), "qm9_smiles_full.txt"))


def load_promoters(cache: Path, report: ReportProgress) -> Records:
    """Human core promoters (label 1) and other DNA (label 0), 70 bases each."""
    return _read_labelled_dna(DNA.find(cache, report), "gue_prom_prom_core_all_{}.csv")


def load_bound_sites(cache: Path, report: ReportProgress) -> Records:
    """Sites that a transcription factor binds (label 1) and others (label 0), 101 bases each."""
    return _read_labelled_dna(DNA.find(cache, report), "gue_tf_0_{}.csv")


def load_enhancers(cache: Path, report: ReportProgress) -> Records:
    """Human enhancers (label 1) and other DNA (label 0), 200 bases each."""
    archive = DNA.find(cache, report)
    files = {"0": "ienhancer_train_nonenhancers.fa", "1": "ienhancer_train_enhancers.fa"}
    records = [
        Record(row, label=label)
        for label, name in files.items()
        for row in parse_fasta(read_member(archive, name).decode())
    ]
    return _split_records(records)


def parse_fasta(content: str) -> list[str]:
    """The sequences of a FASTA file; a line with > begins a sequence of one or more lines."""
    return [
        normalise_bases("".join(part.split("\n")[1:])) for part in content.replace("\r", "").split(">") if part.strip()
    ]


def _read_labelled_dna(archive: Path, name: str) -> Records:
    files = {"train": "train", "valid": "dev", "test": "test"}
    parts = {split: _read_table(archive, name.format(suffix)) for split, suffix in files.items()}
    return {
        split: [Record(normalise_bases(row["sequence"]), label=row["label"]) for row in rows]
        for split, rows in parts.items()
    }


def normalise_bases(sequence: str) -> str:
    """A sequence in upper case; raises UserError unless it has A, C, G and T only."""
    sequence = sequence.strip().upper()
    if foreign := set(sequence) - set("ACGT"):
        raise UserError(f"A DNA sequence holds '{min(foreign)}'; leave out sequences with anything but A, C, G and T.")
    return sequence


def load_sudoku(cache: Path, report: ReportProgress) -> dict[str, Examples]:
    """Sudokus, solved: 81 digits (0 is the digit 1), with the clues as a source (0 for an open cell)."""
    rows = read_member(PUZZLES.find(cache, report), "sudoku17_solved.csv").decode().split()
    both = np.array([[int(c) for c in row.replace(",", "")] for row in rows], dtype=np.int64).reshape(len(rows), 2 * 81)
    clues, solved = both[:, :81], both[:, 81:] - 1
    examples = Examples(list(solved), sources=list(clues), source_size=10)
    return {split: examples.select(part) for split, part in _split_indices(len(rows)).items()}


VOICES, PITCHES = 4, 128


def load_chorales(cache: Path, report: ReportProgress) -> dict[str, Examples]:
    """Bach's chorales in quarters: four voices (from the lowest) at each beat, as pitches; 0 is a rest."""
    songs = json.loads(read_member(PUZZLES.find(cache, report), "jsb-chorales-quarter.json"))
    return {
        split: Examples([_flatten_beats(song) for song in songs[split]], eos=PITCHES)
        for split in ("train", "valid", "test")
    }


def _flatten_beats(song: Iterable[list[int]]) -> IntArray:
    beats = [sorted(chord)[:VOICES] for chord in song]
    return np.array([[*chord, *[0] * (VOICES - len(chord))] for chord in beats], dtype=np.int64).reshape(-1)


RECORD_DATASETS: dict[str, Callable[[Path, ReportProgress], Records]] = {
    "e2e": load_e2e,
    "captions": load_captions,
    "tinystories": load_tinystories,
    "smiles": load_smiles,
    "promoters": load_promoters,
    "bound-sites": load_bound_sites,
    "enhancers": load_enhancers,
}


def open_records_as_text(name: str, cache: Path, report: ReportProgress) -> Source:
    """A dataset of records as a running text, in its own three splits."""
    splits = RECORD_DATASETS[name](cache, report)
    texts = {split: "\n".join(record.text for record in rows) for split, rows in splits.items()}
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    return Source(name, f"{name} {digest}", {split: _one_piece(text) for split, text in texts.items()})


def _one_piece(text: str) -> Callable[[], Iterator[str]]:
    return lambda: iter([text])


def _read_table(archive: Path, name: str) -> list[dict[str, str]]:
    return parse_csv(read_member(archive, name).decode("utf-8-sig"))


def _read_lines(archive: Path, name: str) -> list[Record]:
    return [Record(line.strip()) for line in read_member(archive, name).decode().split("\n") if line.strip()]


def _hold_out_valid(records: list[Record]) -> Records:
    kept = len(records) - len(records) // 10
    return {"train": records[:kept], "valid": records[kept:]}


def _split_records(records: list[Record]) -> Records:
    return {split: [records[i] for i in part] for split, part in _split_indices(len(records)).items()}


def _split_indices(count: int) -> dict[str, IntArray]:
    """Indices of the splits: every twentieth for validation, the next one for the test, the rest for training."""
    phase = np.arange(count) % 20
    return {"train": np.flatnonzero(phase > 1), "valid": np.flatnonzero(phase == 0), "test": np.flatnonzero(phase == 1)}


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
