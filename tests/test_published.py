"""Named corpora: the files as they are published give the same texts as archives of them, downloaded or not."""

import hashlib
import io
import json
import os
import re
import tarfile
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from text_fixtures import write_file

from logosphere.data import catalogue, published
from logosphere.data.archives import read_members
from logosphere.data.catalogue import CATALOGUE, NamedCorpus
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus
from logosphere.data.datasets import INTEGER_DATASETS
from logosphere.data.locate import locate
from logosphere.data.published import RECORD_DATASETS, STORY_END, join_paragraphs, split_stories
from logosphere.data.published_integers import parse_amat
from logosphere.errors import UserError
from logosphere.runs.recipes import RECIPES, recipe

DATA = Path(os.environ.get("LOGOSPHERE_DATA", "")) if os.environ.get("LOGOSPHERE_DATA") else None
"""The folder of real data, where this machine has one; read before the fixtures hide it."""
SOLVED = "953168742862734951417952836746893125281645397395271468138529674574386219629417583"
CLUES = "000000000000000001000002030000003020001040000005000060030000004070080009620007000"
SONG = {split: [[[72, 60, 64, 67], [60, 72]], [[60]]] for split in ("train", "valid", "test")}
Files = dict[str, bytes]


def lines(*rows: str) -> bytes:
    return "\n".join(rows).encode()


def fasta(rows: Iterable[str], name: str) -> bytes:
    return "".join(f">{name}{number}\n{row}\n" for number, row in enumerate(rows)).encode()


def bases(number: int) -> str:
    return "".join("ACGT"[number // 4**place % 4] for place in range(6))


def table(rows: Iterable[str]) -> bytes:
    return lines("sequence,label", *(f"{row},{number % 2}" for number, row in enumerate(rows)), "")


def stories(letter: str, separator: str = "") -> str:
    return "".join(f"{letter * number}\n\n“tea”, said {letter}\n{separator}" for number in range(1, 41))


STORIES: tuple[Files, Files] = (
    {
        "tinystories_first10k_lines.txt": stories("a", "<|endoftext|>\n").encode(),
        "tinystories_smallGPT.txt": stories("b").encode(),
    },
    {
        "tinystories_first10k_lines.txt": stories("a", "<|endoftext|>\n").encode(),
        "tinystories_smallGPT.txt": (stories("b", "<|endoftext|>\n") + "the next story, cut").encode() + b"\xe2",
    },
)
ENHANCERS = [[bases(number + start) for number in range(20)] for start in (0, 1000)]
FOLD = 3
CASES: dict[str, tuple[Files, Files]] = {
    "captions": ({"image_coco_train.txt": lines(*(f"cat {i}" for i in range(30))), "image_coco_test.txt": b"a dog"},)
    * 2,
    "tinystories": STORIES,
    "passages": STORIES,
    "smiles": ({"qm9_smiles_full.txt": lines("C", "N", *("C" * i for i in range(2, 40)), "")},) * 2,
    "promoters": ({f"gue_prom_prom_core_all_{s}.csv": table(map(bases, range(9))) for s in ("train", "dev", "test")},)
    * 2,
    "bound-sites": ({f"gue_tf_0_{split}.csv": table(map(bases, range(9))) for split in ("train", "dev", "test")},) * 2,
    "enhancers": (
        {
            "ienhancer_train_nonenhancers.fa": fasta(map(str.lower, ENHANCERS[0]), ""),
            "ienhancer_train_enhancers.fa": fasta(ENHANCERS[1], ""),
        },
        {
            "non.cv.txt": fasta(ENHANCERS[0][FOLD:] + ENHANCERS[0][:FOLD], "CHR1_"),
            "enhancer.cv.txt": fasta(ENHANCERS[1][FOLD:] + ENHANCERS[1][:FOLD], "CHR2_"),
        },
    ),
    "sudoku": (
        {"sudoku17_solved.csv": lines(*[f"{CLUES},{SOLVED}"] * 40, "")},
        {"sudoku17.txt": lines(*[CLUES] * 40), "sudoku17_solutions.txt": lines(*[SOLVED] * 40, "")},
    ),
    "chorales": ({"jsb-chorales-quarter.json": json.dumps(SONG).encode()},) * 2,
}
"""For each corpus, files inside its archive and files as they are published, of the same layout as the real ones."""


def write_archive(path: Path, files: Files) -> None:
    with tarfile.open(path, "w:xz") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


def open_silently(name: str) -> Corpus:
    """The corpus, without the remark that these are not the real texts."""
    return open_corpus(name, notify=lambda remark: None)


def publish(name: str, files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the corpus be published as these files in a folder."""
    remote = []
    for file in CATALOGUE[name].files:
        path = write_file(folder / f"at-{name}" / file.name, files[file.name] + b"\n and more" * file.head)
        sha256 = hashlib.sha256(files[file.name]).hexdigest() if file.sha256 else ""
        remote.append(replace(file, urls=(path.as_uri(),), size=len(files[file.name]), sha256=sha256))
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], files=tuple(remote)))


@pytest.mark.parametrize("name", CASES)
def test_published_files_give_the_same_texts_as_an_archive(
    name: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(published.STORY_FILES, "tinystories_smallGPT.txt", 80)
    monkeypatch.setattr(published, "FIRST_FOLD", FOLD)
    archived, files = CASES[name]
    assert set(files) == {file.name for file in CATALOGUE[name].files}
    publish(name, files, tmp_path, monkeypatch)
    assert locate(name, own_cache).state == "download"
    stages: dict[str, int] = {}
    downloaded = open_corpus(
        name, report=lambda stage, done, total: stages.update({stage: done}), notify=lambda remark: None
    )
    assert {f"downloading {file}": len(content) for file, content in files.items()}.items() <= stages.items()
    assert {path.name: path.read_bytes() for path in (own_cache / "downloads").iterdir()} == files
    assert locate(name, own_cache).state == "here"

    for packing in ("archive", "files"):
        folder = tmp_path / packing
        folder.mkdir()
        monkeypatch.setenv("LOGOSPHERE_DATA", str(folder))
        if packing == "archive":
            write_archive(folder / CATALOGUE[name].archives[0], archived)
        else:
            for file, content in files.items():
                write_file(folder / file, content)
        assert str(folder) in locate(name, own_cache).place
        given = open_silently(name)
        assert given.sha256 == downloaded.sha256 and given.labels == downloaded.labels, packing
        for split in ("train", "valid", "test"):
            one, two = given.split(split), downloaded.split(split)
            assert list(map(list, one.sequences)) == list(map(list, two.sequences))
            assert list(map(list, one.sources or ())) == list(map(list, two.sources or ()))


def test_the_order_of_search_is_folder_cache_download(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = ({"jsb-chorales-quarter.json": json.dumps(
        {split: [[[60 + place]]] * 3 for split in SONG}).encode()} for place in range(3))  # fmt: skip
    publish("chorales", third, tmp_path, monkeypatch)
    assert open_silently("chorales").train.sequences[0][0] == 62
    publish("chorales", second, tmp_path, monkeypatch)  # what is in the cache has another hash now
    assert open_silently("chorales").train.sequences[0][0] == 61
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path / "folder"))
    write_file(tmp_path / "folder" / "jsb-chorales-quarter.json", first["jsb-chorales-quarter.json"])
    assert open_silently("chorales").train.sequences[0][0] == 60


def test_static_mnist_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = {split: rng.integers(0, 2, (5, 784), dtype=np.uint8) for split in ("train", "valid", "test")}
    files = {
        f"binarized_mnist_{split}.amat": "".join(" ".join(map(str, row)) + " \n" for row in rows).encode()
        for split, rows in images.items()
    }
    publish("mnist-binary", files, tmp_path, monkeypatch)
    corpus = open_silently("mnist-binary")
    assert (np.stack(corpus.valid.sequences) == images["valid"]).all() and corpus.tokenizer.size == 2
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    np.savez(tmp_path / "binarized_mnist.npz", **{s: np.packbits(rows, axis=1) for s, rows in images.items()})
    assert open_silently("mnist-binary").sha256 == corpus.sha256
    for content in (b"", b"0 1 1", b"2 " * 784, b"<html>" * 784):
        with pytest.raises(UserError, match="does not hold images of 784 digits"):
            parse_amat(content, "x.amat")


@pytest.mark.parametrize("change", [("1", "2"), ("9531", "9530"), (SOLVED, SOLVED[:-1])])
def test_sudokus_whose_solution_is_another_are_refused(
    change: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"sudoku17.txt": lines(*[CLUES] * 40), "sudoku17_solutions.txt": lines(*[SOLVED.replace(*change)] * 40)}
    publish("sudoku", files, tmp_path, monkeypatch)
    with pytest.raises(UserError, match="sudoku are not as published .*delete them and fetch them again: /"):
        open_corpus("sudoku")


def test_other_texts_than_those_of_the_records_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("enhancers", CASES["enhancers"][1], tmp_path, monkeypatch)
    with pytest.warns(UserWarning, match="texts of enhancers differ from those that published results"):
        corpus = open_corpus("enhancers")
    records = RECORD_DATASETS["enhancers"](tmp_path / "cache", lambda *progress: None)
    known = replace(CATALOGUE["enhancers"], texts_sha256=published.hash_records(records))
    monkeypatch.setitem(CATALOGUE, "enhancers", known)
    with warnings.catch_warnings(action="error"):
        assert open_corpus("enhancers").sha256 == corpus.sha256


def test_passages_are_paragraphs_of_one_story_with_plain_quotation_marks() -> None:
    blank, plain = "a said â€œteaâ€\n\nb\nc\n\n\nd\n", f"a’s\nb\n{STORY_END}\nc\n"
    assert split_stories(blank) == [["a said â€œteaâ€", "b"], ["c", "d"]]
    assert split_stories(blank, 3) == [["a said â€œteaâ€", "b"], ["c"]]
    assert split_stories(plain) == [["a’s", "b"], ["c"]]
    assert list(join_paragraphs(["a’s", "said â€œteaâ€"])) == ['a\'s\nsaid "tea"']
    assert [len(one) for one in join_paragraphs(["a" * 200, "b" * 249, "c", "d" * 900, "e"])] == [450, 1, 900, 1]


def test_every_named_corpus_can_be_had() -> None:
    names = set()
    for name, one in CATALOGUE.items():
        assert one.about and one.licence and "\n" not in one.about, name
        assert one.files or one.package or name == "synthetic-promoters", name
        for file in one.files:
            assert file.urls[0].startswith("https://") and all(re.match(r"https?://\S+$", url) for url in file.urls)
            assert file.size > 0 and re.fullmatch("([0-9a-f]{64})?", file.sha256)
            assert (file.name in names) == (name == "passages"), "passages are of the files of tinystories"
            assert file.sha256 or one.texts_sha256 or name == "sudoku", "checked by its hash, its texts or its rules"
            names.add(file.name)
    assert {"text8", "pydoc", *RECORD_DATASETS, *INTEGER_DATASETS, "synthetic-promoters"} == set(CATALOGUE)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_name_data_that_can_be_had(name: str) -> None:
    assert recipe(name).data in CATALOGUE or recipe(name).data.startswith("hf:")


def test_addresses_of_repositories_name_a_revision() -> None:
    urls = [url for one in CATALOGUE.values() for file in one.files for url in file.urls]
    pinned = [url for url in urls if "raw.githubusercontent.com" in url or url.startswith(catalogue.HUB)]
    assert len(pinned) > 12 and all(re.search("/[0-9a-f]{40}/", url) for url in pinned)


needs_data = pytest.mark.skipif(DATA is None, reason="LOGOSPHERE_DATA names no folder of real data")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "enhancers"])
def test_real_files_have_the_sizes_and_hashes_of_the_catalogue(name: str) -> None:
    assert DATA is not None
    one: NamedCorpus = CATALOGUE[name]
    files = [file for file in one.files if file.sha256]
    found = read_members(DATA / one.archives[0], [file.name for file in files]) if files else {}
    for file in files:
        content = found[file.name]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
    assert files or name == "sudoku"


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("captions", (9000, 1000, 10_000)),
        ("tinystories", (11_998, 665, 665)),
        ("passages", (6_329, 452, 492)),
        ("smiles", (117_747, 6542, 6542)),
        ("promoters", (47_356, 5920, 5920)),
        ("bound-sites", (32_378, 1000, 1000)),
        ("enhancers", (2670, 149, 149)),
        ("mnist-binary", (50_000, 10_000, 10_000)),
        ("sudoku", (44_235, 2458, 2458)),
        ("chorales", (229, 76, 77)),
    ],
)
def test_real_archives_hold_the_texts_of_the_records(
    name: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGOSPHERE_DATA", str(DATA))
    with warnings.catch_warnings(action="error"):  # other texts than those of the records
        corpus = open_corpus(name)
    assert tuple(len(corpus.split(split)) for split in ("train", "valid", "test")) == sizes
