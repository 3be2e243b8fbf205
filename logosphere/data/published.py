"""Published datasets of texts and DNA by name, as records."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from logosphere.data.corpus import IntArray
from logosphere.data.locate import read_parts
from logosphere.data.sources import ReportProgress, Source
from logosphere.errors import UserError


@dataclass(frozen=True)
class Record:
    """A text, and its label or the source it is generated from."""

    text: str
    label: str | None = None
    source: str | None = None


Records = dict[str, list[Record]]
STORY_END = "<|endoftext|>"
STORY_FILES = {"tinystories_first10k_lines.txt": None, "tinystories_smallGPT.txt": 5758}
"""Files of stories, and how many of their paragraphs are used; the end of a download is a broken one."""
PASSAGE = 450
"""Characters that whole paragraphs of a passage have together at most; a longer paragraph is a passage by itself."""
MISREAD = {"â€œ": '"', "â€™": "'", "â€“": "–", "â€”": "—", "â€": '"', "“": '"', "”": '"', "’": "'"}
"""Quotation marks and dashes that the published files hold in two forms, one of them decoded wrongly."""
FIRST_FOLD = 297
"""Sequences of the first of five folds, which the published file of enhancers has at its end."""


def parse_csv(content: str, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a CSV table with a header."""
    return list(csv.DictReader(io.StringIO(content), delimiter=delimiter, strict=True))


def load_e2e(cache: Path, report: ReportProgress) -> Records:
    """Descriptions of restaurants, each from its meaning: name[The Vaults], eatType[pub] …"""
    files = {"train": "trainset.csv", "valid": "devset.csv", "test": "testset_w_refs.csv"}
    found = _read_all("e2e", files, cache, report)
    return {split: [_e2e_record(row) for row in _parse_table(found[name])] for split, name in files.items()}


def _e2e_record(row: dict[str, str]) -> Record:
    return Record(re.sub(r"\s+", " ", row["ref"]).strip(), source=row["mr"])


def load_captions(cache: Path, report: ReportProgress) -> Records:
    """Captions of pictures, one sentence each."""
    files = {"train": "image_coco_train.txt", "test": "image_coco_test.txt"}
    found = _read_all("captions", files, cache, report)
    train, test = (parse_lines(found[name].decode()) for name in files.values())
    return {**_hold_out_valid(train), "test": test}


def load_tinystories(cache: Path, report: ReportProgress) -> Records:
    """Paragraphs of stories for small children; splits are contiguous, so few stories lie in two of them."""
    found = _read_all("tinystories", {name: name for name in STORY_FILES}, cache, report)
    splits: Records = {"train": [], "valid": [], "test": []}
    for name, used in STORY_FILES.items():
        text = found[name].decode(errors="strict" if used is None else "ignore")
        paragraphs = [row for row in parse_lines(text) if row.text != STORY_END][:used]
        part = len(paragraphs) // 20
        cuts = {"train": slice(0, -2 * part), "valid": slice(-2 * part, -part), "test": slice(-part, None)}
        for split, cut in cuts.items():
            splits[split] += paragraphs[cut]
    return splits


def load_passages(cache: Path, report: ReportProgress) -> Records:
    """Passages of stories for small children: paragraphs that follow one another, with plain quotation marks."""
    found = _read_all("passages", {name: name for name in STORY_FILES}, cache, report)
    splits: Records = {"train": [], "valid": [], "test": []}
    for name, used in STORY_FILES.items():
        text = found[name].decode(errors="strict" if used is None else "ignore")
        stories = split_stories(text, used)
        part = len(stories) // 20
        cuts = {"train": slice(0, -2 * part), "valid": slice(-2 * part, -part), "test": slice(-part, None)}
        for split, cut in cuts.items():
            splits[split] += [Record(passage) for story in stories[cut] for passage in join_paragraphs(story)]
    return splits


def split_stories(text: str, used: int | None = None) -> list[list[str]]:
    """The paragraphs of each story, `used` of them in all.

    Where blank lines separate paragraphs, a line break without one ends a story, as STORY_END does.
    """
    stories: list[list[str]] = [[]]
    blank_lines, taken, gap = "\n\n" in text.split(STORY_END)[0].strip(), 0, True
    for line in map(str.strip, text.split("\n")):
        if not line or line == STORY_END:
            gap = gap or not line
        elif taken == used:
            break
        else:
            taken += 1
            if stories[-1] and blank_lines and not gap:
                stories.append([])
            stories[-1].append(line)
            gap = False
        if line == STORY_END and stories[-1]:
            stories.append([])
    return stories if stories[-1] else stories[:-1]


def join_paragraphs(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield consecutive paragraphs, joined by line breaks, as passages of at most PASSAGE characters where they fit."""
    passage = ""
    for paragraph in paragraphs:
        for misread, mark in MISREAD.items():
            paragraph = paragraph.replace(misread, mark)
        if passage and len(passage) + 1 + len(paragraph) > PASSAGE:
            yield passage
            passage = ""
        passage = f"{passage}\n{paragraph}" if passage else paragraph
    if passage:
        yield passage


def load_smiles(cache: Path, report: ReportProgress) -> Records:
    """The small molecules of QM9 as SMILES."""
    name = "qm9_smiles_full.txt"
    return _split_records(parse_lines(_read_all("smiles", {"all": name}, cache, report)[name].decode()))


def load_promoters(cache: Path, report: ReportProgress) -> Records:
    """Human core promoters (label 1) and other DNA (label 0), 70 bases each."""
    return _load_labelled_dna("promoters", "gue_prom_prom_core_all_{}.csv", cache, report)


def load_bound_sites(cache: Path, report: ReportProgress) -> Records:
    """Sites that a transcription factor binds (label 1) and others (label 0), 101 bases each."""
    return _load_labelled_dna("bound-sites", "gue_tf_0_{}.csv", cache, report)


def load_enhancers(cache: Path, report: ReportProgress) -> Records:
    """Human enhancers (label 1) and other DNA (label 0), 200 bases each."""
    archived = {"0": "ienhancer_train_nonenhancers.fa", "1": "ienhancer_train_enhancers.fa"}
    published = {"0": "non.cv.txt", "1": "enhancer.cv.txt"}
    found = read_parts("enhancers", (*archived.values(), *published.values()), cache, report)
    records = []
    for label in ("0", "1"):
        if archived[label] in found:
            rows = parse_fasta(found[archived[label]].decode())
        else:
            rows = parse_fasta(found[published[label]].decode())
            rows = rows[-FIRST_FOLD:] + rows[:-FIRST_FOLD]
        records += [Record(row, label=label) for row in rows]
    return _split_records(records)


def parse_fasta(content: str) -> list[str]:
    """The sequences of a FASTA file; a line with > begins a sequence of one or more lines."""
    return [
        normalise_bases("".join(part.split("\n")[1:])) for part in content.replace("\r", "").split(">") if part.strip()
    ]


def _load_labelled_dna(name: str, form: str, cache: Path, report: ReportProgress) -> Records:
    files = {"train": form.format("train"), "valid": form.format("dev"), "test": form.format("test")}
    found = _read_all(name, files, cache, report)
    return {
        split: [Record(normalise_bases(row["sequence"]), label=row["label"]) for row in _parse_table(found[file])]
        for split, file in files.items()
    }


def normalise_bases(sequence: str) -> str:
    """A sequence in upper case; raises UserError unless it has A, C, G and T only."""
    sequence = sequence.strip().upper()
    if foreign := set(sequence) - set("ACGT"):
        raise UserError(f"A DNA sequence holds '{min(foreign)}'; leave out sequences with anything but A, C, G and T.")
    return sequence


RECORD_DATASETS: dict[str, Callable[[Path, ReportProgress], Records]] = {
    "e2e": load_e2e,
    "captions": load_captions,
    "tinystories": load_tinystories,
    "passages": load_passages,
    "smiles": load_smiles,
    "promoters": load_promoters,
    "bound-sites": load_bound_sites,
    "enhancers": load_enhancers,
}


def open_records_as_text(name: str, cache: Path, report: ReportProgress) -> Source:
    """A dataset of records as a running text, in its own three splits."""
    splits = RECORD_DATASETS[name](cache, report)
    texts = {split: "\n".join(record.text for record in rows) for split, rows in splits.items()}
    return Source(name, f"{name} {hash_records(splits)}", {split: _one_piece(text) for split, text in texts.items()})


def hash_records(splits: Records) -> str:
    """The hash of all texts."""
    texts = {split: "\n".join(record.text for record in rows) for split, rows in splits.items()}
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _one_piece(text: str) -> Callable[[], Iterator[str]]:
    return lambda: iter([text])


def _read_all(name: str, files: dict[str, str], cache: Path, report: ReportProgress) -> dict[str, bytes]:
    """The contents of these files of a corpus by their names."""
    found = read_parts(name, tuple(files.values()), cache, report)
    if missing := [file for file in files.values() if file not in found]:
        raise UserError(f"The files of {name} lack {missing[0]}; fetch them again.")
    return found


def _parse_table(content: bytes) -> list[dict[str, str]]:
    return parse_csv(content.decode("utf-8-sig"))


def parse_lines(text: str) -> list[Record]:
    """One record for each line that is not blank."""
    return [Record(line.strip()) for line in text.split("\n") if line.strip()]


def _hold_out_valid(records: list[Record]) -> Records:
    kept = len(records) - len(records) // 10
    return {"train": records[:kept], "valid": records[kept:]}


def _split_records(records: list[Record]) -> Records:
    return {split: [records[i] for i in part] for split, part in split_indices(len(records)).items()}


def split_indices(count: int) -> dict[str, IntArray]:
    """Indices of the splits: every twentieth for validation, the next one for the test, the rest for training."""
    phase = np.arange(count) % 20
    return {"train": np.flatnonzero(phase > 1), "valid": np.flatnonzero(phase == 0), "test": np.flatnonzero(phase == 1)}
