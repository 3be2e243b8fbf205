"""Parquet files with a column of text, read batch by batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logosphere.data.columns import SAMPLE_ROWS, Sample, check_cell, check_column
from logosphere.errors import UserError, import_optional
from logosphere.untrusted import open_regular

BATCH_ROWS = 128
"""Rows decoded at a time; each may be a long document."""


def read_parquet(path: Path, column: str) -> Iterator[str]:
    """The texts of a column, one for each row."""
    with _open_table(path) as table:
        schema = table.schema_arrow
        check_column(schema.names, str(path), column)
        if not _holds_text(schema.field(column).type):
            raise UserError(
                f"The column '{column}' of {path} holds {schema.field(column).type}, not text; name another with "
                "--column."
            )
        start = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=[column]):
            for number, value in enumerate(_decode(batch.column(0), path, start), start=start + 1):
                yield check_cell(value, f"Row {number} of {path}", column)
            start += len(batch)


def sample_parquet(path: Path) -> Sample:
    """The first texts of every column that holds text; the others have no values."""
    with _open_table(path) as table:
        schema = table.schema_arrow
        texts = [name for name in schema.names if _holds_text(schema.field(name).type)]
        batch = next(table.iter_batches(batch_size=SAMPLE_ROWS, columns=texts), None) if texts else None
        found = {} if batch is None else {name: _decode(batch.column(name), path, 0) for name in texts}
        return {name: found.get(name, []) for name in schema.names}


def _holds_text(kind: Any) -> bool:
    """Whether a type of the library is that of texts, of texts from a dictionary, or of nothing but missing values."""
    return "string" in str(kind).partition("<")[0] or str(kind).startswith("dictionary<values=string") or kind == "null"


def _decode(cells: Any, path: Path, start: int) -> list[object]:
    """The values of an array; raises UserError for the row whose text is not UTF-8."""
    values: list[object] = []
    try:
        return list(cells.to_pylist())
    except UnicodeDecodeError:
        for number, cell in enumerate(cells, start=start + 1):
            try:
                values.append(cell.as_py())
            except UnicodeDecodeError:
                raise UserError(f"Row {number} of {path} is not UTF-8 text; write the file again.") from None
    return values


@contextmanager
def _open_table(path: Path) -> Iterator[Any]:
    parquet = import_optional("pyarrow.parquet")
    arrow_error = import_optional("pyarrow").ArrowException
    try:
        # Opened here, because the library reports a missing permission less clearly.
        with open_regular(path) as file:
            yield parquet.ParquetFile(file)
    except arrow_error as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a valid Parquet file ({reason}); write or fetch it again.") from error
