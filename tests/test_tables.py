"""Tables are read as the text of one of their columns: CSV, TSV, JSON lines and Parquet."""

import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from text_fixtures import decode_splits, unfinished_files, write_file

from logosphere.data import readers, tables
from logosphere.data.columns import find_column, list_names
from logosphere.data.corpora import open_corpus
from logosphere.errors import UserError

DOCUMENTS = [f'Story {number}: "a, b"; ä\tand\n🙂 the end.' for number in range(40)]
TEXT = "\n\n".join(DOCUMENTS)


def quote(cell: object) -> str:
    return '"' + str(cell).replace('"', '""') + '"'


def to_csv(columns: dict[str, list[object]], mark: str = ",") -> str:
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(mark.join(map(quote, row)) + "\r\n" for row in rows)


def to_json_lines(columns: dict[str, list[object]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def write_parquet(path: Path, columns: dict[str, list[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path, row_group_size=16)
    return path


WRITERS: dict[str, Callable[[Path, dict[str, list[object]]], Path]] = {
    "a.csv": lambda path, columns: write_file(path, to_csv(columns)),
    "bom.csv": lambda path, columns: write_file(path, b"\xef\xbb\xbf" + to_csv(columns).encode()),
    "semicolon.csv": lambda path, columns: write_file(path, to_csv(columns, ";")),
    "a.tsv": lambda path, columns: write_file(path, to_csv(columns, "\t")),
    "a.csv.gz": lambda path, columns: write_file(path, gzip.compress(to_csv(columns).encode())),
    "a.tsv.xz": lambda path, columns: write_file(path, lzma.compress(to_csv(columns, "\t").encode())),
    "A.JSONL": lambda path, columns: write_file(path, to_json_lines(columns)),
    "a.ndjson": lambda path, columns: write_file(path, to_json_lines(columns)),
    "a.jsonl.gz": lambda path, columns: write_file(path, gzip.compress(to_json_lines(columns).encode())),
    "a.parquet": write_parquet,
}


def refuse_remarks(remark: str) -> None:
    raise AssertionError(remark)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents(name: str, tmp_path: Path) -> None:
    numbers = list(range(40))
    path = WRITERS[name](tmp_path / name, {"id": numbers, "body": DOCUMENTS, "when": ["2024-01-01 10:00"] * 40})
    remarks: list[str] = []
    guessed = open_corpus(str(path), notify=remarks.append)
    assert "".join(decode_splits(guessed)) == TEXT and guessed.column == "body"
    assert remarks == [f"The text of {path} is read from the column 'body'; --column names another."]
    named = open_corpus(str(path), column="body", notify=refuse_remarks)
    assert (named.sha256, named.column, named.folder) == (guessed.sha256, "body", guessed.folder)
    with pytest.raises(UserError, match="no column 'corpus', only id, body, when"):
        open_corpus(str(path), column="corpus")


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_called_text_is_read_without_a_remark(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / name, {"title": ["a long title"] * 40, "text": DOCUMENTS})
    assert "".join(decode_splits(open_corpus(str(path), notify=refuse_remarks))) == TEXT
    titles = open_corpus(str(path), column="title", notify=refuse_remarks)
    assert "".join(decode_splits(titles)) == "\n\n".join(["a long title"] * 40), (
        "not from the cache of the other column"
    )


def test_a_guess_warns_in_python(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", to_csv({"body": list(DOCUMENTS)}))
    with pytest.warns(UserWarning, match="read from the column 'body'"):
        open_corpus(str(path))


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        ({}, ""),
        ({"text": [], "body": ["a b"]}, "text"),
        ({"id": [1, 2], "body": ["a b", None]}, "body"),
        ({"id": ["1", "2"], "body": ["ACGT", "GGTA"]}, "body"),
        ({"id": ["a7", "b8"], "body": ["one two", "three four"]}, "body"),
        ({"page": ["https://a.b/c d", "http://x"], "body": ["ACGT", "GGTA"]}, "body"),
        ({"when": ["2024-01-01 10:00"], "body": ["漢字かな交じり文"], "key": ["x9"]}, "body"),
        ({"mixed": ["a b", 3], "body": ["a b", "c d"]}, "body"),
    ],
)
def test_the_only_column_that_looks_like_text_is_found(sample: dict[str, list[object]], found: str) -> None:
    assert find_column(sample, "", "a.csv") == found


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"title": ["one two"], "body": ["one two three"], "n": [1]}, r"may hold text \(title, body\); choose one"),
        ({"first": ["Ann"], "last": ["Lee"]}, r"may hold text \(first, last\); choose one with --column"),
        ({"n": ["1", "2.5"], "day": ["2024-01-01", "-"]}, "no column that looks like text, only n, day; name one"),
        ({"body": []}, "no column that looks like text, only body"),
    ],
)
def test_ambiguous_tables_are_refused_with_their_columns(sample: dict[str, list[object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_column(sample, "", "a.csv")


ROW = b"id,body\n" + b'1,"one two three four"\n' * 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"id,text\n", "a.csv is empty"),
        ("a.csv", ROW + b"2\n", "^Row 21 of .*a.csv has 1 field and the header has 2; correct it"),
        ("a.csv", ROW + b"2,a,b\n", "^Row 21 of .*a.csv has 3 fields and the header has 2"),
        ("a.csv", ROW + b'2,"a" b\n', "^Row 21 of .*a.csv cannot be read as CSV"),
        ("a.csv", ROW + b'2,"a never closed\n', "^Row 21 of .*a.csv cannot be read as CSV .unexpected end"),
        ("a.csv", ROW + b"2,caf\xe9\n", "^Row 21 of .*a.csv is not UTF-8 text"),
        ("a.csv", ROW + b"2,a\0b\n", "^Row 21 of .*a.csv has a zero character in the column 'body'"),
        ("a.csv", b"body,body\na b,c d\n", "^The header of .*a.csv names the column 'body' twice"),
        ("a.csv", "id;body\n1;häuser am meer\n".encode("utf-16"), "a.csv is UTF-16 text; save it as UTF-8"),
        ("a.csv", b"id,body\r1,a b\r", "^The header of .*a.csv cannot be read as CSV"),
        ("a.csv.gz", b"not compressed", "a.csv.gz is damaged or cut off"),
        ("a.csv.gz", gzip.compress(ROW, mtime=0)[:-9], "a.csv.gz is damaged or cut off"),
        ("a.txt.xz", lzma.compress(ROW)[:-9], "a.txt.xz is damaged or cut off"),
        ("a.txt.xz", b"not compressed", "a.txt.xz is damaged or cut off"),
        ("a.jsonl", b'{"body": "a b"}\n{"body": 3}\n', "no column that looks like text, only body"),
        ("a.jsonl", b'{"body": "a b"}\n' * 300 + b'{"body": 3}\n', "^Line 301 of .* no text in a field named 'body'"),
        ("a.jsonl", b'{"body": "a\\u0000b"}\n', "^Line 1 of .* zero character in the column 'body'"),
        ("a.jsonl", b'{"body": "a b"}\n{"body": "a\0b"}\n', "^Line 2 of .* is not JSON"),
        ("a.parquet", b"PAR1 junk PAR1", "a.parquet is not a valid Parquet file"),
    ],
)
def test_faults_name_the_row_in_one_sentence(
    name: str, content: bytes, message: str, tmp_path: Path, own_cache: Path
) -> None:
    path = write_file(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        open_corpus(str(path), notify=lambda remark: None)
    assert "\n" not in str(caught.value) and unfinished_files(own_cache) == []
    assert not (own_cache / "tokens").exists() or list((own_cache / "tokens").iterdir()) == []


def test_faults_of_parquet_name_the_row(tmp_path: Path) -> None:
    broken = pyarrow.array(["a b", "c d"]).buffers()
    broken[2] = pyarrow.py_buffer(b"a b\xff d")
    cells = pyarrow.StringArray.from_buffers(2, broken[1], broken[2])
    parquet.write_table(pyarrow.table({"text": cells}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="^Row 2 of .*a.parquet is not UTF-8 text"):
        open_corpus(str(tmp_path / "a.parquet"))
    write_parquet(tmp_path / "b.parquet", {"text": ["a b", "a\0b"]})
    with pytest.raises(UserError, match="^Row 2 of .*b.parquet has a zero character"):
        open_corpus(str(tmp_path / "b.parquet"))
    coded = pyarrow.array(DOCUMENTS).dictionary_encode()
    parquet.write_table(pyarrow.table({"text": coded, "n": [1] * 40}), tmp_path / "c.parquet")
    assert "".join(decode_splits(open_corpus(str(tmp_path / "c.parquet")))) == TEXT


def test_long_fields_are_texts_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    article = "word " * 40_000  # longer than the limit of the csv library
    path = write_file(tmp_path / "a.csv", to_csv({"text": [article]}))
    assert "".join(decode_splits(open_corpus(str(path)))) == article
    monkeypatch.setattr(tables, "MAX_FIELD", 1000)
    with pytest.raises(UserError, match="^Row 1 of .*a.csv cannot be read as CSV .field larger than field limit"):
        open_corpus(str(path), "byte", tmp_path / "other")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=5))
def test_any_text_survives_a_table(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        content = to_csv({"text": list(texts)}).encode()
        patch.setattr(tables, "open_binary", lambda path: gzip.open(__import__("io").BytesIO(gzip.compress(content))))
        assert list(tables.read_csv(Path("a.csv"), "text")) == texts


def test_a_folder_of_tables_is_one_text(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write_file(folder / "1.csv", to_csv({"id": [0, 1], "body": ["one two", "three four"]}))
    write_file(folder / "2.jsonl.gz", gzip.compress(to_json_lines({"body": ["five six " * 30]}).encode()))
    corpus = open_corpus(str(folder), notify=lambda remark: None)
    assert "".join(decode_splits(corpus)) == "one two\n\nthree four\n\n" + "five six " * 30
    write_file(folder / "3.csv", to_csv({"story": ["seven eight"]}))
    with pytest.raises(UserError, match=r"in the column 'body' of .*1.csv and in 'story' of .*3.csv; name one"):
        open_corpus(str(folder))
    with pytest.raises(UserError, match=r"3.csv has no column 'body', only story"):
        open_corpus(str(folder), column="body")


def test_only_the_first_tables_of_a_large_folder_are_sampled(tmp_path: Path) -> None:
    for number in range(readers.SAMPLE_FILES + 2):
        write_file(tmp_path / "rows" / f"{number:03}.csv", to_csv({"id": [number], "body": [f"text number {number}"]}))
    opened: list[Path] = []
    csv_format = readers.TABLES[".csv"]
    with pytest.MonkeyPatch.context() as patch:
        counted = replace(csv_format, sample=lambda path: opened.append(path) or csv_format.sample(path))
        patch.setitem(readers.TABLES, ".csv", counted)  # type: ignore[arg-type]
        corpus = open_corpus(str(tmp_path / "rows"), notify=lambda remark: None)
    assert len(opened) == readers.SAMPLE_FILES
    assert "".join(decode_splits(corpus)).endswith(f"text number {readers.SAMPLE_FILES + 1}")
    write_file(tmp_path / "rows" / "999.csv", to_csv({"story": ["another name"]}))
    with pytest.raises(UserError, match="999.csv has no column 'body', only story"):
        open_corpus(str(tmp_path / "rows"), notify=lambda remark: None)


def test_tables_beside_plain_texts_are_left_out_unless_a_column_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "books" / "a.txt", "a plain text " * 20)
    write_file(tmp_path / "books" / "authors.csv", to_csv({"first": ["Ann"], "last": ["Lee"]}))
    remarks: list[str] = []
    assert "Ann" not in "".join(decode_splits(open_corpus(str(tmp_path / "books"), notify=remarks.append)))
    assert remarks == [f"1 table beside the texts in {tmp_path / 'books'} left out; --column NAME reads them as well."]
    assert "".join(decode_splits(open_corpus(str(tmp_path / "books"), column="last"))).endswith("\n\nLee")


@pytest.mark.parametrize("source", ["pydoc", "letters:pydoc", "text8", "synthetic-promoters", "plain.txt", "s.jsonl"])
def test_sources_without_columns_refuse_one(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "plain.txt", "a plain text")
    write_file(tmp_path / "s.jsonl", '"a string"\n')
    with pytest.raises(UserError, match="is no table, so it has no column to choose; leave out --column"):
        open_corpus(source, column="text")


def test_compressed_plain_text_is_read(tmp_path: Path) -> None:
    for name, pack in {"a.txt.gz": gzip.compress, "a.xz": lzma.compress}.items():
        path = write_file(tmp_path / name, pack(b"\xef\xbb\xbf" + TEXT.encode()))
        assert "".join(decode_splits(open_corpus(str(path)))) == TEXT


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.csv.gz"])
def test_tables_are_not_held_in_memory(name: str, tmp_path: Path) -> None:
    """16 MB of rows are read with less than 6 MB, of which one chunk of text is the largest part."""
    columns: dict[str, list[object]] = {"n": list(range(4000)), "text": [f"{n} " + "word " * 800 for n in range(4000)]}
    writer = {"a.jsonl": WRITERS["A.JSONL"]} | WRITERS
    path = writer[name](tmp_path / name, columns)
    measure = (
        "import sys, tracemalloc, pyarrow.parquet; from pathlib import Path; "
        "from logosphere.data.readers import read_files; "
        "tracemalloc.start(); size = sum(map(len, read_files([Path(sys.argv[1])], 'text'))); "
        "print(size, tracemalloc.get_traced_memory()[1])"
    )  # in a process of its own, where nothing else allocates
    printed = subprocess.run([sys.executable, "-c", measure, str(path)], check=True, capture_output=True, text=True)
    size, peak = map(int, printed.stdout.split())
    assert size > 16_000_000 and peak < 6_000_000


def test_a_table_of_many_columns_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Of a hundred thousand names some are shown, and repeated ones are found in linear time."""
    path = tmp_path / "wide.csv"
    path.write_text(",".join(map(str, range(100_000))) + "\n")
    for column in ("", "text"):
        with pytest.raises(UserError, match="99,980 more") as caught:
            open_corpus(str(path), column=column)
        assert len(str(caught.value)) < 500
    path.write_text(",".join([*map(str, range(100_000)), "7"]) + "\n")
    with pytest.raises(UserError, match="names the column '7' twice"):
        open_corpus(str(path))
    assert list_names(["a" * 500]) == "a" * 100 + "…" and list_names(["a", "b"]) == "a, b"
