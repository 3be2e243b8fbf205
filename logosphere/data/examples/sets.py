"""Small published sets of texts, sequences and puzzles, as records or as numbers."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from logosphere.data.examples.collection import Examples, Numbers
from logosphere.data.examples.packed import Packed, member
from logosphere.data.examples.texts import Record, table
from logosphere.data.sources import Report
from logosphere.errors import UserError

Records = dict[str, list[Record]]

E2E = Packed(
    files=("e2e-dataset.zip",),
    home="https://github.com/tuetschek/e2e-dataset",
    url="https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip",
    sha256="1261064c01907af27e8cc39e0a29a81541f6ab69208c1cbfc1be95afbb49dfac",
    size=1_528_421,
)
CAPTIONS = Packed(files=("captions.tar.xz",), home="the COCO captions of the LeakGAN repository")
STORIES = Packed(files=("tinystories.tar.xz",), home="https://huggingface.co/datasets/roneneldan/TinyStories")
STORY_END = "<|endoftext|>"
MOLECULES = Packed(files=("molecules.tar.xz",), home="the QM9 and ZINC sets as SMILES")
PUZZLES = Packed(files=("music_sudoku.tar.xz",), home="the JSB chorales and the sudokus with 17 clues")
DNA = Packed(files=("dna.tar.xz",), home="the GUE benchmark of DNABERT-2")


def e2e(cache: Path, report: Report) -> Records:
    """Descriptions of restaurants, each from its meaning: name[The Vaults], eatType[pub] …"""
    archive = E2E.find(cache, report)
    files = {"train": "trainset.csv", "valid": "devset.csv", "test": "testset_w_refs.csv"}
    return {split: [_described(row) for row in _table(archive, name)] for split, name in files.items()}


def _described(row: dict[str, str]) -> Record:
    return Record(re.sub(r"\s+", " ", row["ref"]).strip(), source=row["mr"])


def captions(cache: Path, report: Report) -> Records:
    """What people wrote below pictures, one sentence each."""
    archive = CAPTIONS.find(cache, report)
    train = _lines(archive, "image_coco_train.txt")
    return {**_held_out(train), "test": _lines(archive, "image_coco_test.txt")}


def tinystories(cache: Path, report: Report) -> Records:
    """Paragraphs of stories for small children; neighbours stay in one split, so that hardly any story is torn."""
    archive = STORIES.find(cache, report)
    splits: Records = {"train": [], "valid": [], "test": []}
    for name in ("tinystories_first10k_lines.txt", "tinystories_smallGPT.txt"):
        paragraphs = [row for row in _lines(archive, name) if row.text != STORY_END]
        part = len(paragraphs) // 20
        cuts = {"train": slice(0, -2 * part), "valid": slice(-2 * part, -part), "test": slice(-part, None)}
        for split, cut in cuts.items():
            splits[split] += paragraphs[cut]
    return splits


def smiles(cache: Path, report: Report) -> Records:
    """The small molecules of QM9 as SMILES."""
    return _thirds(_lines(MOLECULES.find(cache, report), "qm9_smiles_full.txt"))


def promoters(cache: Path, report: Report) -> Records:
    """Human core promoters (label 1) and other DNA (label 0), 70 bases each."""
    return _sequenced(DNA.find(cache, report), "gue_prom_prom_core_all_{}.csv")


def bound_sites(cache: Path, report: Report) -> Records:
    """Sites that a transcription factor binds (label 1) and others (label 0), 101 bases each."""
    return _sequenced(DNA.find(cache, report), "gue_tf_0_{}.csv")


def enhancers(cache: Path, report: Report) -> Records:
    """Human enhancers (label 1) and other DNA (label 0), 200 bases each."""
    archive = DNA.find(cache, report)
    files = {"0": "ienhancer_train_nonenhancers.fa", "1": "ienhancer_train_enhancers.fa"}
    every = [Record(row, label=label) for label, name in files.items() for row in fasta(member(archive, name).decode())]
    return _thirds(every)


def fasta(content: str) -> list[str]:
    """The sequences of a FASTA file: a line with > begins one, which may stand on several lines."""
    return [bases("".join(part.split("\n")[1:])) for part in content.replace("\r", "").split(">") if part.strip()]


def _sequenced(archive: Path, name: str) -> Records:
    files = {"train": "train", "valid": "dev", "test": "test"}
    parts = {split: _table(archive, name.format(theirs)) for split, theirs in files.items()}
    return {
        split: [Record(bases(row["sequence"]), label=row["label"]) for row in rows] for split, rows in parts.items()
    }


def bases(sequence: str) -> str:
    """A sequence of A, C, G and T; anything else, such as N for 'unknown', is refused."""
    sequence = sequence.strip().upper()
    if strange := set(sequence) - set("ACGT"):
        raise UserError(f"A DNA sequence holds '{min(strange)}'; leave out sequences with anything but A, C, G and T.")
    return sequence


def sudoku(cache: Path, report: Report) -> dict[str, Examples]:
    """Sudokus, solved: 81 digits (0 stands for 1), with the clues as a source (0 for an open cell)."""
    rows = member(PUZZLES.find(cache, report), "sudoku17_solved.csv").decode().split()
    both = np.array([[int(c) for c in row.replace(",", "")] for row in rows], dtype=np.int64).reshape(len(rows), 2 * 81)
    clues, solved = both[:, :81], both[:, 81:] - 1
    every = Examples(list(solved), sources=list(clues), source_size=10)
    return {split: every.chosen(part) for split, part in _shares(len(rows)).items()}


VOICES, PITCHES = 4, 128


def chorales(cache: Path, report: Report) -> dict[str, Examples]:
    """Bach's chorales in quarters: four voices (from the lowest) at each beat, as pitches; 0 is a rest."""
    songs = json.loads(member(PUZZLES.find(cache, report), "jsb-chorales-quarter.json"))
    return {
        split: Examples([_sung(song) for song in songs[split]], end=PITCHES) for split in ("train", "valid", "test")
    }


def _sung(song: Iterable[list[int]]) -> Numbers:
    beats = [sorted(chord)[:VOICES] for chord in song]
    return np.array([[*chord, *[0] * (VOICES - len(chord))] for chord in beats], dtype=np.int64).reshape(-1)


RECORDS: dict[str, Callable[[Path, Report], Records]] = {
    "e2e": e2e,
    "captions": captions,
    "tinystories": tinystories,
    "smiles": smiles,
    "promoters": promoters,
    "bound-sites": bound_sites,
    "enhancers": enhancers,
}


def _table(archive: Path, name: str) -> list[dict[str, str]]:
    return table(member(archive, name).decode("utf-8-sig"))


def _lines(archive: Path, name: str) -> list[Record]:
    return [Record(line.strip()) for line in member(archive, name).decode().split("\n") if line.strip()]


def _held_out(records: list[Record]) -> Records:
    kept = len(records) - len(records) // 10
    return {"train": records[:kept], "valid": records[kept:]}


def _thirds(records: list[Record]) -> Records:
    return {split: [records[i] for i in part] for split, part in _shares(len(records)).items()}


def _shares(count: int) -> dict[str, Numbers]:
    """Every twentieth for validation, the next one for the test, the rest for training."""
    place = np.arange(count) % 20
    return {"train": np.flatnonzero(place > 1), "valid": np.flatnonzero(place == 0), "test": np.flatnonzero(place == 1)}
