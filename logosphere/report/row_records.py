"""Records of the rows of a leaderboard: one JSON file for each training, with all that repeating it needs.

A record holds the number on the test split with the nats of every sequence, so that rows of different days are compared
in pairs, the curve of the bound on the validation split, what was spent, and the full recipe. Files may come from
others: they are read as data, checked, and named in one sentence where they are damaged.
"""

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from logosphere.errors import UserError, shorten
from logosphere.evaluation.rank_intervals import Array
from logosphere.evaluation.report import Report
from logosphere.io import as_file_name, json_safe, write_json
from logosphere.report.comparison import CurvePoint, SamplingResult, Value
from logosphere.types import SIGN, Kind
from logosphere.untrusted import read_object

FORMAT, VERSION = "logosphere leaderboard row", 1
MAX_RECORD = 4 << 20
"""Bytes of a record, at most; one of 2,000 sequences has some 15,000."""
PACKED = np.dtype("<f4")
"""Nats are stored as base64 of 32-bit numbers: 7 digits, of which an error has 3."""


@dataclass(frozen=True)
class HeldOutNumber:
    """A number on held-out sequences."""

    kind: Kind
    unit: str
    bits: float
    error: float
    """Standard error over sequences."""
    sequences: int
    draws: int
    data: str
    """The text and the split."""
    length: int | None = None
    seed: int = 0
    data_sha256: str = ""
    """Hash of the evaluated tokens; empty where it was not recorded."""
    path: str = ""
    block: int = 0
    precision: str = ""
    nats: tuple[float, ...] = ()
    """Per sequence; empty where they were not recorded."""
    counts: tuple[float, ...] = ()
    """Scored tokens per sequence."""

    def as_arrays(self) -> tuple[Array, Array]:
        return np.asarray(self.nats, dtype=np.float64), np.asarray(self.counts, dtype=np.float64)

    def __str__(self) -> str:
        return f"{SIGN[self.kind]} {self.bits:.4f} ± {self.error:.4f}"


@dataclass(frozen=True)
class RowRecord:
    """One training of a row of the leaderboard."""

    part: str
    """The part of the campaign, or the experiment."""
    row: str
    system: str
    seed: int | None
    budget: dict[str, float]
    """Such as {"CPU minutes": 3}."""
    test: HeldOutNumber
    steps: int | None = None
    tokens: int | None = None
    cpu_seconds: float | None = None
    preset: str = "default"
    options: tuple[str, ...] = ()
    recipe: dict[str, Any] | None = None
    """The configuration of the training with every setting; None where only the command was recorded."""
    command: str = ""
    arguments: tuple[str, ...] = ()
    """The arguments of `logosphere train`, where there is no recipe."""
    commit: str = ""
    date: str = ""
    note: str = ""
    parameters: int | None = None
    overhead_seconds: float | None = None
    """CPU seconds of the comparison that were neither training nor evaluation."""
    learning_rate: dict[str, Any] = field(default_factory=dict)
    """The learning rate, the row it was chosen for, and the bounds on the validation split it was chosen by."""
    curve: tuple[CurvePoint, ...] = ()
    samplings: tuple[SamplingResult, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The row as `logosphere compare --reproduce` takes it."""
        return f"{self.part}/{self.row}" + ("" if self.seed is None else f"/{self.seed}")


def number_from_report(report: Report) -> HeldOutNumber:
    """The number of a record from a report."""
    return HeldOutNumber(
        kind=report.kind, unit=report.unit, bits=report.bits, error=report.error, sequences=report.sequences,
        draws=report.draws, data=report.data, length=report.length, seed=report.seed, data_sha256=report.data_sha256,
        path=report.path, block=report.block, precision=report.precision,
        nats=tuple(report.nats), counts=tuple(float(count) for count in report.counts),
    )  # fmt: skip


def pack(values: Sequence[float]) -> str:
    """Numbers as text, 32 bits each."""
    return base64.b64encode(np.asarray(values, dtype=PACKED).tobytes()).decode()


def unpack(text: object, place: str) -> tuple[float, ...]:
    """Numbers from text; raises ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{place} is {shorten(text)}")
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"{place} is not base64") from None
    if len(content) % PACKED.itemsize:
        raise ValueError(f"{place} is cut off")
    found = np.frombuffer(content, dtype=PACKED).astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{place} holds numbers that are not finite")
    return tuple(found.tolist())


def write_record(record: RowRecord, folder: Path) -> Path:
    """Write a record to its file in a folder."""
    content = asdict(record)
    content["test"] |= {"nats": pack(record.test.nats), "counts": pack(record.test.counts)}
    if len(set(record.test.counts)) == 1:
        content["test"]["counts"] = record.test.counts[0]
    path = record_path(folder, record.part, record.row, record.seed)
    write_json(path, json_safe({"format": FORMAT, "version": VERSION} | content))
    return path


def record_path(folder: Path, part: str, row: str, seed: int | None) -> Path:
    """The file of a record: the names of part and row, and the seed."""
    plain = as_file_name(row.replace(", ", "--").replace(" ", "-").replace(":", "-"))
    return folder / as_file_name(part) / f"{plain}--{seed}.json"


def read_record(path: Path) -> RowRecord:
    """A record from its file; raises UserError for a damaged one and for one of another version."""
    try:
        content = read_object(path, MAX_RECORD)
        if content.pop("format", None) != FORMAT:
            raise ValueError("it is no record of a leaderboard")
        version = content.pop("version", None)
        if version != VERSION:
            when = "an earlier" if isinstance(version, int) and version < VERSION else "another"
            raise UserError(f"{path} is a record of {when} version ({shorten(version)}), not {VERSION}; make it anew.")
        return _parse(content)
    except OSError as problem:
        raise UserError(f"The record {path} cannot be read ({problem.strerror or problem}).") from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(f"The record {path} is damaged: {_explain(problem)}; restore it or make it anew.") from None


def _explain(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"{problem.args[0]!r} is missing"
    return (str(problem) or type(problem).__name__).splitlines()[0][:200]


def _parse(content: dict[str, Any]) -> RowRecord:
    test = dict(content["test"])
    _check_plain(content, test)
    nats = unpack(test.get("nats", ""), "'nats'")
    counts = test.get("counts", "")
    test["nats"] = nats
    test["counts"] = (float(counts),) * len(nats) if isinstance(counts, int | float) else unpack(counts, "'counts'")
    for number in ("bits", "error"):
        test[number] = float(test[number])
    if nats and not len(nats) == len(test["counts"]) == test["sequences"]:
        raise ValueError(f"it has {len(nats)} nats, {len(test['counts'])} counts and {test['sequences']} sequences")
    samplings = tuple(
        SamplingResult(**one | {"metrics": {name: Value(**value) for name, value in one["metrics"].items()}})
        for one in content.get("samplings", [])
    )
    curve = tuple(_parse_point(point) for point in content.get("curve", []))
    parsed: dict[str, Any] = {name: tuple(content.get(name, ())) for name in ("options", "arguments")}
    parsed |= {"test": HeldOutNumber(**test), "curve": curve, "samplings": samplings}
    parsed["budget"] = {name: float(value) for name, value in content["budget"].items()}
    return RowRecord(**content | parsed)


def _parse_point(point: dict[str, Any]) -> CurvePoint:
    _check_numbers({f"{name} of the curve": value for name, value in point.items()})
    return CurvePoint(int(point["step"]), int(point["tokens"]), float(point["cpu_seconds"]), float(point["bits"]))


TEXTS = (
    "part", "row", "system", "command", "commit", "date", "note", "preset", "unit", "data", "data_sha256", "path",
    "precision",
)  # fmt: skip
NUMBERS = ("bits", "error", "sequences", "draws", "block")
OPTIONAL_NUMBERS = (
    "seed", "steps", "tokens", "cpu_seconds", "parameters", "overhead_seconds", "length",
)  # fmt: skip
OBJECTS = ("recipe", "versions", "learning_rate", "budget")


def _check_plain(content: dict[str, Any], test: dict[str, Any]) -> None:
    """Raise ValueError for entries that a record does not have, and for values of other types than it holds."""
    for given, kind in ((content, RowRecord), (test, HeldOutNumber)):
        if unknown := sorted(given.keys() - {one.name for one in fields(kind)}):
            raise ValueError(f"it has an unknown entry {unknown[0]!r}")
    values = content | test
    if test["kind"] not in SIGN:
        raise ValueError(f"its kind is {shorten(test['kind'])}")
    for name in TEXTS:
        if not isinstance(values.get(name, ""), str):
            raise ValueError(f"{name!r} is {shorten(values[name])}, not a text")
    numbers = {name: values[name] for name in NUMBERS if name in values}
    numbers |= {name: values[name] for name in OPTIONAL_NUMBERS if values.get(name) is not None}
    _check_numbers(numbers | {f"budget of {name}": value for name, value in content["budget"].items()})
    if not all(isinstance(word, str) for name in ("options", "arguments") for word in content.get(name, ())):
        raise ValueError("'options' and 'arguments' must be texts")
    if not all(isinstance(content.get(name), dict | None) for name in OBJECTS):
        raise ValueError(f"{', '.join(OBJECTS)} must be objects")


def _check_numbers(numbers: dict[str, object]) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name!r} is {shorten(value)}, not a finite number")
