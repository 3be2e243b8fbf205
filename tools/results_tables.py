"""Render the result tables of the documentation from the JSON records in benchmarks/results/.

    python tools/results_tables.py             # rewrite the tables in README.md, docs/ and docs/results/
    python tools/results_tables.py --check     # exit with 1 if a page is stale or a table is shown nowhere
    python tools/results_tables.py --records   # print every record with all of its fields, one JSON object a line

A page marks the place of a table with `<!-- table: NAME -->` and `<!-- /table -->`; everything between the two lines is
generated. benchmarks/results/README.md describes the fields of records and tables.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "results"

Record = dict[str, Any]
Table = dict[str, Any]

DEFAULTS: Record = {
    "system": None, "preset": "default", "options": {}, "data": None, "metric": None, "value": None, "error": None,
    "kind": None, "path": None, "unit": None, "budget": None, "seed": None, "sequences": None, "draws": None,
    "commit": None, "date": None, "script": None, "command": None, "ranked": True, "note": None,
}  # fmt: skip
"""The fields that every record has; the others (text, low, high, steps, …) belong to single experiments."""

KINDS = {"exact": "=", "bound": "≤", "surrogate": "~"}
UNRANKED = "†"
UNITS = {"%": "%", "s": " s", "ms": " ms", "MB": " MB", "kB": " kB"}
"""Units that are printed after a value; those of other metrics are in the title of the column."""

BLOCK = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- /table -->$", flags=re.DOTALL | re.MULTILINE)


def load(folder: Path = FOLDER) -> tuple[list[Record], dict[str, Table]]:
    """Return all records, completed by the common fields of their experiment, and all tables by name."""
    records: list[Record] = []
    tables: dict[str, Table] = {}
    for path in sorted(folder.glob("*.json")):
        # Decimal keeps the digits as written: 3.600 is rendered with three decimals.
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        for experiment in content.get("experiments", []):
            shared = DEFAULTS | {"experiment": experiment["name"]} | experiment.get("common", {})
            records += [shared | record for record in experiment["records"]]
        for table in content.get("tables", []):
            if table["name"] in tables:
                raise ValueError(f"{path.name}: the table {table['name']!r} is defined twice")
            tables[table["name"]] = table
    for record in records:
        if record["kind"] not in (None, *KINDS):
            raise ValueError(f"{record['experiment']}: kind is {record['kind']!r}, not exact, bound or surrogate")
        if not record["ranked"] and not record["note"]:
            raise ValueError(f"{record['experiment']}: an unranked record has no note with the reason")
    return records, tables


def matches(record: Record, where: dict[str, Any]) -> bool:
    """Return whether a record has the given fields; a list allows each of its values."""
    return all(record.get(k) in v if isinstance(v, list) else record.get(k) == v for k, v in where.items())


# ---- cells ---------------------------------------------------------------------------------------------------


def render_number(value: int | Decimal) -> str:
    if isinstance(value, int):
        text = f"{value:,}"
    else:
        text = re.sub(r"E\+?(-?)(\d+)", r"e\g<1>\g<2>", str(value))
    return text.replace("-", "−", 1) if text.startswith("-") else text


def render_value(record: Record) -> str:
    """Return the value with the sign of its kind and its standard error, as `≤ 3.265 ± 0.009`."""
    if record.get("text") is not None:
        return str(record["text"])
    unit = UNITS.get(record["unit"] or "", "")
    if "low" in record:
        return f"{render_number(record['low'])} – {render_number(record['high'])}{unit}"
    sign = f"{KINDS[record['kind']]} " if record["kind"] else ""
    error = f" ± {render_number(record['error'])}" if record["error"] is not None else ""
    return f"{sign}{render_number(record['value'])}{error}{unit}"


def round_figures(record: Record, decimals: int) -> Record:
    """Return a record whose value and error have this number of decimals."""
    figures = {name: record[name] for name in ("value", "error") if record[name] is not None}
    return record | {name: Decimal(figure).quantize(Decimal(10) ** -decimals) for name, figure in figures.items()}


def render_group(records: list[Record]) -> str:
    """Return the values of one metric; several seeds share one sign and, where it is the same, one error."""
    if not records:
        return ""
    errors = {record["error"] for record in records}
    if len(records) == 1 or records[0]["kind"] is None or len(errors) > 1:
        return ", ".join(map(render_value, records))
    first, *rest = [record | {"error": None} for record in records]
    values = ", ".join([render_value(first), *(render_value(record | {"kind": None}) for record in rest)])
    error = errors.pop()
    return values if error is None else f"{values} (± {render_number(error)})"


def render_field(records: list[Record], field: str) -> str:
    value = next((record[field] for record in records if record.get(field) is not None), None)
    if isinstance(value, dict):
        return ", ".join(f"{render_number(v) if isinstance(v, int | Decimal) else v} {k}" for k, v in value.items())
    return render_number(value) if isinstance(value, int | Decimal) else str(value or "")


def render_cell(records: list[Record], column: dict[str, Any], marks: bool) -> str:
    chosen = [record for record in records if matches(record, column.get("where", {}))]
    if "field" in column:
        return render_field(chosen, column["field"])
    metrics = column["metric"] if isinstance(column["metric"], list) else [column["metric"]]
    if "decimals" in column:
        chosen = [round_figures(record, column["decimals"]) for record in chosen]
    groups = [[record for record in chosen if record["metric"] == metric] for metric in metrics]
    cell = " / ".join(text for group in groups if (text := render_group(group)))
    unranked = marks and any(not record["ranked"] for group in groups for record in group)
    return f"{cell} {UNRANKED}" if unranked else cell


# ---- tables --------------------------------------------------------------------------------------------------


def find_rows(records: list[Record], table: Table) -> Iterator[tuple[str, list[Record]]]:
    """Yield the label and the records of each row: those a table lists, or one for each `row` of its records."""
    if "rows" in table:
        for row in table["rows"]:
            yield row["label"], [record for record in records if any(matches(record, one) for one in row["match"])]
        return
    chosen = [record for record in records if matches(record, table["where"])]
    grouped: dict[str, list[Record]] = {}
    for record in chosen:
        grouped.setdefault(record["row"], []).append(record)
    rows = list(grouped.items())
    if "sort" in table:
        rows.sort(key=lambda row: min(record["value"] for record in row[1] if record["metric"] == table["sort"]))
    yield from rows


def render_table(records: list[Record], table: Table) -> str:
    """Return a Markdown table, followed by the notes of its unranked values."""
    columns = table["columns"]
    marks = not any(column.get("field") == "note" for column in columns)
    shown = list(find_rows(records, table))
    rows = [[label, *(render_cell(row, column, marks) for column in columns)] for label, row in shown]
    if not rows:
        raise ValueError(f"the table {table['name']!r} has no rows")
    cells = list(zip(*rows, strict=True))[1:]
    numeric = [all(re.fullmatch(r"[−\d.,]*", cell) for cell in column) for column in cells]
    lines = [
        "| " + " | ".join([table["head"], *(column["title"] for column in columns)]) + " |",
        "|---|" + "".join("---:|" if right else "---|" for right in numeric),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    text = "\n".join(re.sub(r" +", " ", line) for line in lines) + "\n"
    notes = [record["note"] for _, row in shown for record in row if not record["ranked"]] if marks else []
    return text + "".join(f"\n{UNRANKED} {note}\n" for note in dict.fromkeys(notes))


def render_page(text: str, records: list[Record], tables: dict[str, Table]) -> str:
    """Return the text of a page with all of its marked tables generated anew."""

    def replaced(block: re.Match[str]) -> str:
        name = block[1]
        if name not in tables:
            raise ValueError(f"there is no table {name!r} in {FOLDER.name}/")
        return f"<!-- table: {name} -->\n\n{render_table(records, tables[name])}\n<!-- /table -->"

    return BLOCK.sub(replaced, text)


def find_pages(root: Path = ROOT) -> list[Path]:
    pages = [
        root / "README.md",
        *(root / "docs" / f"{name}.md" for name in ("performance", "results", "sphere", "structured-output")),
    ]
    return pages + sorted((root / "docs" / "results").glob("*.md"))


def find_problems(pages: Iterable[Path]) -> list[str]:
    """Return one sentence for each stale page and each table that no page shows."""
    records, tables = load()
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    problems = [
        f"{page.relative_to(ROOT)} is stale; run: python tools/results_tables.py"
        for page, text in texts.items()
        if render_page(text, records, tables) != text
    ]
    shown = {name for text in texts.values() for name, _ in BLOCK.findall(text)}
    return problems + [f"the table {name!r} is on no page" for name in tables if name not in shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    mode.add_argument("--records", action="store_true", help="print all records as JSON lines")
    given = parser.parse_args()
    if given.records:
        for record in load()[0]:
            print(json.dumps(record, ensure_ascii=False, default=float))
    elif given.check:
        problems = find_problems(find_pages())
        if problems:
            sys.exit("\n".join(problems))
    else:
        records, tables = load()
        for page in find_pages():
            text = page.read_text(encoding="utf-8")
            page.write_text(render_page(text, records, tables), encoding="utf-8")


if __name__ == "__main__":
    main()
