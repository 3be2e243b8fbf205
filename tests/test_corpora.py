"""Corpora: every source returns its text, split and tokenised as requested."""

import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from text_fixtures import PROSE, decode_splits, write_file

from logosphere.data import corpora, published, text8
from logosphere.data.catalogue import RemoteFile
from logosphere.data.corpora import open_corpus
from logosphere.data.published import Record
from logosphere.data.text8 import text8_filter
from logosphere.data.token_cache import verify_hashes
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.errors import UserError

CLEAN = "the quick brown fox jumps over the lazy dog " * 50


@pytest.mark.parametrize("tokenizer", ["auto", "characters", "byte", "bpe:300"])
def test_splits_concatenate_to_the_text(prose: Path, tokenizer: str) -> None:
    corpus = open_corpus(str(prose), tokenizer)
    train, valid, test = decode_splits(corpus)
    held_out = len(PROSE) * 5 // 100
    assert train + valid + test == PROSE
    assert len(valid) == len(test) == held_out
    assert corpus.characters == {"train": len(train), "valid": held_out, "test": held_out}
    assert corpus.sha256 == hashlib.sha256(PROSE.encode()).hexdigest()
    verify_hashes(corpus.folder)


def test_counts_of_bytes_and_characters_differ_beyond_ascii(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_file(tmp_path / "a.txt", "äö" * 50)))
    assert corpus.characters == {"train": 90, "valid": 5, "test": 5}
    assert corpus.bytes == {"train": 180, "valid": 10, "test": 10}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(2, 9))
def test_chunks_do_not_depend_on_the_read_size(text: str, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "CHUNK", 8)
        whole = list(corpora._rechunk([text]))
        assert "".join(whole) == text
        assert all(0 < len(piece) <= 8 for piece in whole)
        assert list(corpora._rechunk(text[i : i + step] for i in range(0, len(text), step))) == whole


def test_tokens_do_not_depend_on_the_chunk_size(prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_corpus(str(prose), "bpe:300")
    monkeypatch.setattr(corpora, "CHUNK", 64)
    pieces = open_corpus(str(prose), "bpe:300", tmp_path / "other")
    assert np.array_equal(whole.train, pieces.train) and np.array_equal(whole.test, pieces.test)


def test_pydoc_corpus_is_always_available() -> None:
    corpus = open_corpus("pydoc")
    assert corpus.tokenizer.fingerprint == text8_tokenizer().fingerprint
    assert corpus.train.dtype == np.uint8
    assert 200_000 < sum(corpus.characters.values()) < 1_000_000
    assert "  " not in decode_splits(corpus)[0]


@given(st.text(st.sampled_from("aB 3é.\n")), st.integers(1, 9))
def test_letters_do_not_depend_on_the_read_size(text: str, step: int) -> None:
    pieces = [text8_filter(text[i : i + step]) for i in range(0, len(text), step)]
    assert "".join(text8.join_filtered(pieces)) == text8_filter(text)


def test_letters_prefix_normalises_any_text(prose: Path) -> None:
    corpus = open_corpus(f"letters:{prose}")
    assert corpus.tokenizer.fingerprint == text8_tokenizer().fingerprint
    assert corpus.name == f"letters:{prose}"
    assert "".join(decode_splits(corpus)) == text8_filter(PROSE)
    assert (
        "".join(decode_splits(open_corpus(str(prose)))) == PROSE
    )  # the same file without normalisation, from the same cache


def test_letters_prefix_keeps_the_splits_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": ["A cat.", "Two dogs!"], "valid": ["3 mice"], "test": ["No one?"]}
    records = {split: [Record(text) for text in rows] for split, rows in splits.items()}
    monkeypatch.setitem(published.RECORD_DATASETS, "tinystories", lambda cache, report: records)
    assert decode_splits(open_corpus("letters:tinystories")) == ["a cat two dogs ", " three mice", "no one "]


@pytest.mark.parametrize(
    ("text", "name"),
    [(CLEAN, "text8"), (PROSE, "characters"), ("".join(map(chr, range(32, 232))) * 2, "bytes")],
)
def test_auto_selects_the_smallest_matching_alphabet(text: str, name: str, tmp_path: Path) -> None:
    assert open_corpus(str(write_file(tmp_path / "a.txt", text))).tokenizer.name == name


def test_subwords_are_trained_on_the_train_split_only(tmp_path: Path) -> None:
    text = CLEAN[:1800] + "zyzzyva " * 25
    corpus = open_corpus(str(write_file(tmp_path / "a.txt", text)), "bpe:400")
    assert len(corpus.tokenizer.encode(" quick")) == 1
    assert len(corpus.tokenizer.encode(" zyzzyva")) > 3
    assert corpus.train.dtype == np.uint16


def test_wordpiece_and_a_tokenizer_file(prose: Path, tmp_path: Path) -> None:
    assert open_corpus(str(prose), "wordpiece:200").tokenizer.name == "wordpiece"
    trained = SubwordTokenizer.train_bpe([PROSE], 280)
    file = write_file(tmp_path / "mine.json", trained.describe()["json"])
    corpus = open_corpus(str(prose), str(file))
    assert corpus.tokenizer.name == "mine" and "".join(decode_splits(corpus)) == PROSE
    other = write_file(tmp_path / "mine.json", SubwordTokenizer.train_bpe([PROSE], 270).describe()["json"])
    assert open_corpus(str(prose), str(other)).folder != corpus.folder


def test_json_lines_parquet_and_folders_give_the_same_documents(tmp_path: Path) -> None:
    documents = [f"Document {number}: ä\n🙂" for number in range(40)]
    lines = [json.dumps({"text": text}) for text in documents[:20]] + [json.dumps(text) for text in documents[20:]]
    write_file(tmp_path / "a.jsonl", "\n".join(lines[:30]) + "\n\n" + "\n".join(lines[30:]))
    parquet.write_table(pyarrow.table({"text": [*documents, None], "other": [0] * 41}), tmp_path / "a.parquet")
    for number, text in enumerate(documents):
        write_file(tmp_path / "folder" / f"{number // 7:02}" / f"{number:02}.md", text)
    write_file(tmp_path / "folder" / "00" / "empty.txt", "")
    write_file(tmp_path / "folder" / ".hidden" / "a.txt", "not me")
    write_file(tmp_path / "folder" / "picture.png", b"\0")
    for name in ("a.jsonl", "a.parquet", "folder"):
        assert "".join(decode_splits(open_corpus(str(tmp_path / name)))) == "\n\n".join(documents), name


def test_lists_in_json_are_tables(tmp_path: Path) -> None:
    """A .json file holds a list of objects or strings, or JSON lines; its braces are never the text."""
    documents = [f"Document {number}: ä" for number in range(40)]
    rows = [{"id": number, "body": text} for number, text in enumerate(documents)]
    write_file(tmp_path / "list.json", "\ufeff" + json.dumps(rows, indent=2))
    write_file(tmp_path / "strings.json", json.dumps(documents))
    write_file(tmp_path / "lines.json", "\n".join(map(json.dumps, rows)))
    column = {"list.json": "body", "strings.json": "", "lines.json": "body"}
    for name in column:
        assert "".join(decode_splits(open_corpus(str(tmp_path / name), column=column[name]))) == "\n\n".join(documents)
    with pytest.warns(UserWarning, match="read from the column 'body'"):
        open_corpus(str(tmp_path / "list.json"))
    write_file(tmp_path / "folder" / "a.txt", "\n\n".join(documents))
    write_file(tmp_path / "folder" / "info.json", '{"made": "today"}')  # describes the others
    assert "".join(decode_splits(open_corpus(str(tmp_path / "folder")))) == "\n\n".join(documents)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n"rows": []\n}', "neither a list in JSON nor JSON lines"),
        ('{"rows": ["a b", "c d"]}', "no column that looks like text, only rows"),
        ('[{"body": "a b"},', "is not JSON"),
        ('[{"body": "a b"}, 3]', "Entry 2 of .* has no text in a field named 'body'"),
        ("words", "name it .txt to read it as it is"),
    ],
)
def test_json_without_texts_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_corpus(str(write_file(tmp_path / "a.json", content)), column="body" if "body" in content else "")


def test_lone_surrogates_in_json_are_replaced(tmp_path: Path) -> None:
    line = r'{"text": "a\ud800b \ud83d\ude42 %s"}' % ("x" * 99)
    assert "".join(decode_splits(open_corpus(str(write_file(tmp_path / "a.jsonl", line))))).startswith("a�b 🙂")


def test_a_byte_order_mark_and_a_character_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logosphere.data.readers.BLOCK", 5)
    path = write_file(tmp_path / "a.txt", b"\xef\xbb\xbf" + ("漢字🙂" * 20).encode())
    assert "".join(decode_splits(open_corpus(str(path)))) == "漢字🙂" * 20


@pytest.fixture
def small_text8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zip of the same layout as the published one, in LOGOSPHERE_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LOGOSPHERE_DATA", str(folder))
    with zipfile.ZipFile(folder / "text8.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("text8", CLEAN)
    content = (folder / "text8.zip").read_bytes()
    file = RemoteFile(
        "text8.zip", len(content), ((folder / "text8.zip").as_uri(),), hashlib.sha256(content).hexdigest()
    )
    monkeypatch.setattr(text8, "TEXT8", replace(text8.TEXT8, files=(file,)))
    monkeypatch.setattr(text8, "TEXT8_CHARACTERS", len(CLEAN))
    monkeypatch.setattr(text8, "TEXT8_MD5", hashlib.md5(CLEAN.encode()).hexdigest())
    monkeypatch.setattr(text8, "TEXT8_SHA256", hashlib.sha256(CLEAN.encode()).hexdigest())
    return folder


def test_text8_is_read_from_the_data_folder_zipped_or_not(small_text8: Path, own_cache: Path) -> None:
    assert "".join(decode_splits(open_corpus("text8"))) == CLEAN
    (small_text8 / "text8.zip").unlink()
    write_file(small_text8 / "text8", CLEAN)
    assert "".join(decode_splits(open_corpus("text8"))) == CLEAN
    assert not (own_cache / "downloads").exists()


def test_text8_is_read_once(small_text8: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size and hash are published, so no pass over the text is needed before it is tokenised."""
    opened: list[Path] = []
    read = text8.read_text8
    monkeypatch.setattr(text8, "read_text8", lambda path, *rest: opened.append(path) or read(path, *rest))
    corpus = open_corpus("text8")
    assert opened == [small_text8 / "text8.zip"]
    assert corpus.sha256 == hashlib.sha256(CLEAN.encode()).hexdigest()
    assert (text8.TEXT8_CHARACTERS, set(CLEAN)) == (sum(corpus.characters.values()), set(corpus.tokenizer.alphabet))


def test_text8_is_downloaded_once(small_text8: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGOSPHERE_DATA")
    stages: set[str] = set()
    open_corpus("text8", report=lambda stage, done, total: stages.add(stage))
    assert "downloading text8.zip" in stages
    (small_text8 / "text8.zip").unlink()
    assert open_corpus("text8").name == "text8"


def test_failed_download_names_the_data_folder(small_text8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGOSPHERE_DATA")
    (small_text8 / "text8.zip").unlink()
    with pytest.raises(UserError, match="LOGOSPHERE_DATA"):
        open_corpus("text8")


@pytest.mark.parametrize("name", ["text8.zip", "text8"])
@pytest.mark.parametrize(
    "content", [b"", b"junk", CLEAN.encode() + b" ", CLEAN.replace("q", "k").encode(), CLEAN.upper().encode()]
)
def test_text8_with_another_checksum_is_refused(small_text8: Path, own_cache: Path, name: str, content: bytes) -> None:
    (small_text8 / "text8.zip").unlink()
    write_file(small_text8 / name, content)
    with pytest.raises(UserError, match=f"{name} .*fetch it again"):
        open_corpus("text8")
    assert not [path for path in own_cache.rglob("*") if path.is_file()] and not list(own_cache.glob("tokens/*"))


def test_a_damaged_zip_is_refused(small_text8: Path) -> None:
    path = small_text8 / "text8.zip"
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match="text8.zip .*fetch it again"):
        open_corpus("text8")


class Table(list[dict[str, object]]):
    """Rows as the dataset library presents them."""

    def __init__(self, *rows: object, column: str = "text"):
        super().__init__({column: row} for row in rows)
        self.column_names = [column]
        self.cache_files = [{"filename": "revision"}]


def install_hub(monkeypatch: pytest.MonkeyPatch, **tables: Table) -> None:
    def load_dataset(name: str, config: str | None) -> dict[str, Table]:
        if (name, config) != ("owner/name", "config"):
            raise FileNotFoundError(f"no {name} {config}\nmore")
        return dict(tables)

    library = ModuleType("datasets")
    library.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)


def test_hub_uses_the_splits_of_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    install_hub(monkeypatch, test=Table("end", "."), train=Table("x" * 100, None), validation=Table("middle"))
    assert decode_splits(open_corpus("hf:owner/name:config")) == ["x" * 100, "middle", "end\n\n."]


def test_hub_creates_missing_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    install_hub(monkeypatch, train=Table("x" * 95 + "valid"), test=Table("end"))
    assert decode_splits(open_corpus("hf:owner/name:config")) == ["x" * 95, "valid", "end"]


@pytest.mark.parametrize(
    ("source", "tables", "message"),
    [
        ("hf:owner/other", {}, r"owner/other cannot be loaded \(no owner/other None\); check"),
        ("hf:", {}, "names no dataset; write hf:OWNER/NAME"),
        ("hf:owner/name:config", {"test": Table("a")}, "no split 'train', only test"),
        ("hf:owner/name:config", {"train": Table("a", column="id")}, "no column 'body', only id"),
        ("hf:owner/name:config", {"train": Table(1, 2, column="id")}, "no column that looks like text, only id"),
        (
            "hf:owner/name:config",
            {"train": Table("a" * 99, column="body"), "test": Table("a")},
            "no column 'body', only text",
        ),
        ("hf:owner/name:config", {"train": Table(3)}, "holds int, not text"),
    ],
)
def test_invalid_hub_sources_are_refused(
    source: str, tables: dict[str, Table], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_hub(monkeypatch, **tables)
    column = "body" if "'body', only id" in message else ""
    with pytest.raises(UserError, match=message):
        open_corpus(source, column=column, notify=lambda remark: None)


def test_hub_reads_the_column_that_is_named_or_looks_like_text(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("a good story " * 9, column="body")
    for number, row in enumerate(table):
        row["id"] = number
    table.column_names = ["body", "id"]
    install_hub(monkeypatch, train=table)
    remarks: list[str] = []
    guessed = open_corpus("hf:owner/name:config", notify=remarks.append)
    assert (guessed.column, remarks) == (
        "body", ["The text of hf:owner/name:config is read from the column 'body'; --column names another."]
    )  # fmt: skip
    named = open_corpus("letters:hf:owner/name:config", column="body")
    assert named.column == "body" and decode_splits(named) == decode_splits(guessed)
