"""Published datasets by name: texts and DNA as records, sudokus and chorales as integers."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from logosphere.data.datasets.archives import PublishedArchive, read_member
from logosphere.data.datasets.examples import Examples, IntArray
from logosphere.data.datasets.records import Record, parse_csv
from logosphere.data.sources import ReportProgress, Source
from logosphere.errors import UserError

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
    """Sudokus, solved: 81 digits (0 stands for 1), with the clues as a source (0 for an open cell)."""
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
