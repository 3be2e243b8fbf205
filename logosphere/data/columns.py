"""The column of text of a table: found by its name or by its first rows, and checked cell by cell."""

from collections.abc import Iterable, Mapping

from logosphere.errors import UserError

TEXT_COLUMN = "text"
"""The column that is read where a table has it and no other is named."""
SAMPLE_ROWS = 200
"""Rows that a column of text is recognised by."""
NAMES, NAME_LENGTH = 20, 100
"""Names of columns in an error, and their characters, at most."""
Sample = dict[str, list[object]]
"""The values of the first rows by the name of their column."""


def find_column(sample: Mapping[str, list[object]], column: str, location: str) -> str:
    """The column of text among those of a table, by the values of its first rows; empty if it has no columns."""
    if not sample:
        return ""
    names = list_names(sample)
    if column:
        if column not in sample:
            raise UserError(f"{location} has no column '{column}', only {names}; name one of them with --column.")
        return column
    if TEXT_COLUMN in sample:
        return TEXT_COLUMN
    texts = [name for name, values in sample.items() if _is_text(values)]
    likely = [name for name in texts if _has_words(sample[name])] or texts
    if len(likely) == 1:
        return likely[0]
    if likely:
        raise UserError(
            f"{location} has several columns that may hold text ({list_names(likely)}); choose one with --column."
        )
    raise UserError(f"{location} has no column that looks like text, only {names}; name one with --column.")


def list_names(names: Iterable[str]) -> str:
    """The first names of columns, each cut where it is long, and the number of the others: errors are sentences."""
    given = list(names)
    shown = ", ".join(name if len(name) <= NAME_LENGTH else f"{name[:NAME_LENGTH]}…" for name in given[:NAMES])
    return shown if len(given) <= NAMES else f"{shown} and {len(given) - NAMES:,} more"


def _is_text(values: Iterable[object]) -> bool:
    """Are all values texts, and at least half of them not numbers, dates or addresses?"""
    given = [value for value in values if value not in (None, "")]
    texts = [value for value in given if isinstance(value, str)]
    worded = [text for text in texts if any(map(str.isalpha, text)) and "://" not in text.split(" ")[0]]
    return bool(given) and len(texts) == len(given) and 2 * len(worded) >= len(given)


def _has_words(values: Iterable[object]) -> bool:
    """Do at least half of the values have several words, or letters of a script that may not separate them?"""
    texts = [str(value).strip() for value in values if value not in (None, "")]
    return 2 * sum(" " in text or any(c.isalpha() and c > "\u024f" for c in text) for text in texts) >= len(texts)


def check_column(names: Iterable[str], location: str, column: str = TEXT_COLUMN) -> None:
    """Raise UserError unless a table has this column."""
    if column not in names:
        raise UserError(
            f"{location} has no column '{column}', only {list_names(names)}; name the one that holds text with "
            "--column."
        )


def check_cell(value: object, location: str, column: str = TEXT_COLUMN) -> str:
    """The text of one cell; a missing value is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"The column '{column}' of {location} holds {type(value).__name__}, not text; convert it.")
    if "\0" in value:
        raise UserError(f"{location} has a zero character in the column '{column}'; remove it.")
    return value


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can hold and UTF-8 cannot, by '�'."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
