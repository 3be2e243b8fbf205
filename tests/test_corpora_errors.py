"""Errors about corpora: each is one line, and none leaves a file behind."""

import os
import re
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from text_fixtures import PROSE, unfinished_files, write_file

from logosphere.data import corpora, sources
from logosphere.data.corpora import open_corpus
from logosphere.errors import UserError


@pytest.mark.parametrize(("module", "source"), [("datasets", "hf:owner/name"), ("pyarrow.parquet", "a.parquet")])
def test_a_missing_package_is_named(module: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "a.parquet", b"")
    with pytest.raises(UserError, match=r"pip install 'logosphere\[data\]'"):
        open_corpus(source)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b"\xef\xbb\xbf", "a.txt is empty"),
        ("a.jsonl", b"\n\n", "a.jsonl is empty"),
        ("a.txt", b"too short", "valid part of .* has only 0 tokens .*longer"),
        ("a.txt", b"x" * 39, "has only 1 tokens"),
        ("a.txt", b"ab\0cd", "zero byte at offset 2"),
        ("a.txt", b"abc\xff\xfe" + b"x" * 99, "not UTF-8 text .see byte offset 3"),
        ("a.txt", b"abc" * 20 + b"\xe6\xbc", "byte offset 60"),
        ("a.txt", b"\xef\xbb\xbfab\xff", "byte offset 5"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "Line 2 of .* is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n"\xff"\n', "Line 3 of .* is not JSON"),
        ("a.jsonl", b"[" * 100_000, "Line 1 of .* is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "a"}\n', "Line 2 of .* field named 'text'"),
        ("a.jsonl", b'{"text": 3}\n', "Line 1 of .* field named 'text'"),
        ("a.parquet", b"PAR1 junk PAR1", "a.parquet is not a valid Parquet file"),
        ("a.txt", "ab \u732b".encode("utf-16"), "a.txt is UTF-16 text; save it as UTF-8"),
        ("a.txt", "ab \u732b".encode("utf-32"), "a.txt is UTF-32 text"),
        ("a.txt", b"\xfe\xff" + "ab".encode("utf-16-be"), "is UTF-16 text"),
        ("a.txt", "no mark".encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8 .*a.txt > utf8.txt"),
        ("a.txt", "no mark".encode("utf-16-be"), "a.txt is UTF-16BE text"),
        ("a.csv", "text\nab\n".encode("utf-16"), "a.csv is UTF-16 text"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), "a.jsonl is UTF-16 text"),
        ("folder/a.png", b"x", "has no text files; it needs one of .txt"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    name: str, content: bytes, message: str, tmp_path: Path, own_cache: Path
) -> None:
    path = write_file(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        open_corpus(str(path.parent if path.suffix == ".png" else path))
    assert "\n" not in str(caught.value)
    assert unfinished_files(own_cache) == []
    assert not (own_cache / "tokens").exists() or list((own_cache / "tokens").iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": [1.5]}, "no column that looks like text, only body"),
        ({"text": [3]}, "column 'text' of .* holds int64, not text"),
        ({"text": [["a"]]}, "holds list<.*, not text"),
        ({"body": ["a b"], "title": ["c d"]}, "several columns that may hold text .body, title.; choose one"),
    ],
)
def test_parquet_without_a_text_column_is_refused(
    columns: dict[str, list[object]], message: str, tmp_path: Path
) -> None:
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        open_corpus(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("kind", ["", "lines:", "labelled:", "promoters:", "letters:"])
def test_pipes_and_devices_are_refused(kind: str, tmp_path: Path) -> None:
    """Opening a pipe would wait for ever; a device has no end. /dev/fd/N of a shell is one of these."""
    os.mkfifo(tmp_path / "pipe.csv")
    for place in (str(tmp_path / "pipe.csv"), "/dev/zero"):
        with pytest.raises(UserError, match=f"{place} is a pipe or a device, .* save it to a file first") as caught:
            open_corpus(kind + place)
        assert "\n" not in str(caught.value)
    if kind == "labelled:":
        write_file(tmp_path / "a.csv", "text,label\na,b\n".encode("utf-16"))
        with pytest.raises(UserError, match="is UTF-16 text"):
            open_corpus(f"labelled:{tmp_path / 'a.csv'}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.txt", "'https://example.org/a.txt' is an address; download it first and name the file"),
        ("s3://bucket/a.txt", "is an address; download it first"),
        ("https://huggingface.co/datasets/owner/name/tree/main", "write hf:owner/name"),
        ("a.txt,b.txt", "'a.txt,b.txt' is not one file; put the files into a folder"),
        ("*.txt", "put the files into a folder"),
        ("b,c.txt", "There is no corpus or file 'b,c.txt'"),
    ],
)
def test_names_that_are_no_single_file_are_explained(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "a.txt", PROSE)
    with pytest.raises(UserError, match=re.escape(message)):
        open_corpus(source)
    write_file(tmp_path / "one,two*.txt", PROSE)  # a file of such a name is read
    assert len(open_corpus("one,two*.txt").train)


def test_file_without_read_permission_is_refused(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str = "r") -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"prose.txt cannot be read \(Permission denied\); check"):
        open_corpus(str(prose))


def test_unwritable_cache_is_refused(prose: Path, own_cache: Path) -> None:
    write_file(own_cache, "a file where the folder should be")
    with pytest.raises(UserError, match="set the environment variable LOGOSPHERE_CACHE"):
        open_corpus(str(prose))


@pytest.mark.parametrize("later", [PROSE * 2, PROSE + "x", PROSE[:-1], PROSE[:9]])
def test_file_changed_while_reading_is_refused(
    prose: Path, own_cache: Path, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_stats = corpora._compute_stats

    def change(source: sources.Source, report: sources.ReportProgress) -> object:
        result = compute_stats(source, report)
        write_file(prose, later)
        return result

    monkeypatch.setattr(corpora, "_compute_stats", change)
    with pytest.raises(UserError, match="changed while it was being read"):
        open_corpus(str(prose))
    assert list((own_cache / "tokens").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tex8", "Did you mean 'text8'"),
        ("prosa.txt", "Did you mean 'prose.txt'"),
        ("zzzzzzzz", "Choose from: bound-sites, captions"),
        ("nowhere/a.txt", "no corpus or file 'nowhere/a.txt'"),
        ("", "no corpus or file ''"),
        ("letters:", "names no text; write letters:FILE"),
        ("letters:prosa.txt", "Did you mean 'prose.txt'"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_missing_source_suggests_existing_ones(
    source: str, message: str, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prose.parent)
    with pytest.raises(UserError, match=message):
        open_corpus(source)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("charcters", "Did you mean 'characters'"),
        ("bytes", "Did you mean 'byte'"),
        ("bpe", "lacks a size; for example bpe:8000"),
        ("bpe:many", "lacks a size"),
        ("bpe:12", "has 256 to"),
        ("text8", "holds '\\\\n', which is not in the alphabet of text8; read it as letters:TEXT, or use --tokenizer"),
        ("prose.txt", "not a readable tokenizer.json"),
    ],
)
def test_invalid_tokenizer_suggests_valid_ones(
    tokenizer: str, message: str, prose: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prose.parent)
    with pytest.raises(UserError, match=message):
        open_corpus(str(prose), tokenizer)
    assert not (own_cache / "tokens").exists()
