"""Records and curves of the finished rows of rdlm_paper.py."""

from pathlib import Path
from typing import Any

from rdlm_paper_rows import Part
from records import print_experiment

from logosphere.report.plots import Dot, Series, plot
from logosphere.report.svg import make_standalone

Row = dict[str, Any]
DIGITS = {"character": 3, "byte": 3, "dimension": 2, "base": 3}


def print_records(name: str, part: Part, rows: list[Row]) -> None:
    """Print the rows of a part as an experiment for benchmarks/results/paper.json."""
    records: list[Row] = []
    digits = DIGITS[part.unit]
    for row in rows:
        shared = {"row": row["row"], "commit": row["commit"], "budget": {"CPU minutes": row["CPU minutes"]},
                  "seed": row["seed"]}  # fmt: skip
        records.append(shared | {"metric": "training_steps", "value": row["steps"]})
        records.append(shared | {"metric": "seconds_per_step", "value": round(row["CPU s per step"], 3)})
        records.append(shared | {"metric": "peak_memory", "value": round(row["peak MB"]), "unit": "MB"})
        for label, figure in row["figures"].items():
            protocol, _, split = label.rpartition(", ")
            size = {"split": split, "protocol": protocol, "sequences": row["sequences"], "draws": row["draws"]}
            value = {"value": round(figure["bits"], digits), "error": round(figure["error"], digits)}
            records.append(
                shared | size | {"metric": f"bits_per_{part.unit}"} | value
                | {"kind": figure["kind"], "unit": f"bits per {part.unit}"}
            )  # fmt: skip
        if compared := row.get("wrong minus right"):
            size = {"split": "test", "sequences": row["sequences"], "draws": row["draws"], "of": compared["of"]}
            value = {"value": round(compared["bits"], 4), "error": round(compared["error"], 4)}
            records.append(shared | size | {"metric": "wrong_minus_right"} | value | {"unit": f"bits per {part.unit}"})
        records += [shared | score for score in _list_scores(row.get("scores", {}))]
    for label, figures in (rows[0].get("references", {}) if rows else {}).items():
        scores = {metric: value for metric, value in figures.items() if metric not in ("bits", "kind")}
        if "bits" in figures:
            likelihood = {"metric": f"bits_per_{part.unit}", "kind": figures["kind"]}
            records.append({"row": label, "value": float(f"{figures['bits']:.4g}")} | likelihood)
        records += [{"row": label} | score for score in _list_scores(scores)]
    print_experiment(f"paper-{name}", records, script="benchmarks/rdlm_paper.py", data=part.data)


def _list_scores(scores: Row) -> list[Row]:
    """Return a record of each metric of samples, with its standard error where there is one."""
    errors = {"squared motif difference": "s.e. of the difference"}
    records = []
    for metric, value in scores.items():
        if metric not in errors.values():
            record = {"metric": metric.replace(" ", "_"), "value": float(f"{value:.4g}")}
            error = scores.get(errors.get(metric, ""))
            records.append(record if error is None else record | {"error": float(f"{error:.2g}")})
    return records


def plot_part(name: str, rows: list[Row], folder: Path) -> None:
    """Write the validation bounds of a part over CPU seconds and over steps, one SVG file each.

    A row whose own value is a surrogate shows its best bound instead, so that all curves are of one kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for x, title in (("CPU s", "CPU seconds"), ("step", "steps")):
        series = []
        for entry, row in enumerate(rows):
            label = best_bound(row)
            dots = [
                Dot(point[x], point["values"][label]["bits"], point["values"][label]["error"], f"{row['row']}, {label}")
                for point in row["curve"]
            ]
            series.append(Series(entry, row["row"], dots))
        drawn = plot(series, title=f"{name}: validation bound", x=title, y="bound, bits per character")
        if drawn:
            make_standalone(drawn).save(folder / f"paper-{name}-{x.split()[0].lower()}.svg")


def best_bound(row: Row) -> str:
    """Return the protocol of a row that is a bound, the lowest on the validation split."""
    bounds = {
        label.removesuffix(", valid"): figure["bits"]
        for label, figure in row["figures"].items()
        if label.endswith(", valid") and figure["kind"] != "surrogate"
    }
    return min(bounds, key=lambda label: bounds[label])
