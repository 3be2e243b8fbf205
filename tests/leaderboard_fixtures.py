"""Records of a leaderboard with known numbers, written by hand rather than measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from logosphere.report.comparison import CurvePoint
from logosphere.report.row_records import RowRecord, read_record

TINY = Path(__file__).parent / "leaderboard_record.json"
LETTERS = 128


def make_record(
    row: str, bits: float, *, seed: int = 0, minutes: float = 3, system: str = "mdlm", kind: str = "bound",
    part: str = "text8-3min", commit: str = "abcdef123456", nats: bool = True, curve: int = 0, sequences: int = 64,
) -> RowRecord:  # fmt: skip
    """A record whose sequences are as difficult for every row."""
    base = read_record(TINY)
    values = np.random.default_rng(0).normal(0, 0.3, sequences)
    own = np.random.default_rng([seed, *row.encode()]).normal(0, 0.03, sequences)
    each = bits + values - values.mean() + own - own.mean()
    test = replace(
        base.test, kind=kind, bits=bits, error=float(each.std(ddof=1) / sequences**0.5), sequences=sequences,
        nats=tuple((each * LETTERS * np.log(2)).tolist()) if nats else (), counts=(float(LETTERS),) * sequences * nats,
        data="text8 test", data_sha256="ab" * 32 if nats else "",
    )  # fmt: skip
    costs = 60 * minutes * np.arange(1, curve + 1) / max(curve, 1)
    points = tuple(
        CurvePoint(int(10 * cost), int(1e4 * cost), float(cost), float(bits + (cost / (60 * minutes)) ** -0.5 - 1))
        for cost in costs
    )
    return replace(
        base, row=row, part=part, system=system, seed=seed, budget={"CPU minutes": float(minutes)}, test=test,
        commit=commit, steps=600, tokens=2_457_600, cpu_seconds=60.0 * minutes, curve=points, note="",
    )  # fmt: skip


def make_records() -> list[RowRecord]:
    """Two budgets; two seeds of most rows; a surrogate; and a row of another commit."""
    rows = [make_record(name, bits + 0.01 * seed, seed=seed, curve=12, system=name)
            for name, bits in (("mdlm", 2.70), ("md4", 2.71), ("udlm", 2.90)) for seed in (0, 1)]  # fmt: skip
    rows += [make_record("ar", 2.0 + 0.01 * seed, seed=seed, system="ar", kind="exact", curve=12) for seed in (0, 1)]
    rows.append(make_record("fisher-flow", 1.9, system="fisher-flow", kind="surrogate"))
    rows.append(make_record("bfn <b>", 3.1, system="bfn", commit="fedcba654321"))
    return rows + [make_record("mdlm", 2.45, minutes=20, part="text8-20min", curve=12)]
