"""The figure and the tables of RDLM (Jo and Hwang 2025, arXiv:2502.11564) at the scale of CPU minutes.

    python benchmarks/rdlm_paper.py objectives starts splitting pixels synthetic dna --out runs/rdlm-paper
    python benchmarks/rdlm_paper.py objectives --rows "default" --minutes 0.1      # some rows, another budget
    python benchmarks/rdlm_paper.py objectives --records                          # finished rows as records
    python benchmarks/rdlm_paper.py objectives --plot docs/pictures               # their curves as SVG

objectives   its figure 1: squared drift error, cross-entropy, cross-entropy with importance sampling, on text8
starts       mask, uniform, one of both for each sequence, and the paper's step mixture, on text8
splitting    base-b digits against the whole vocabulary of 30,522 word pieces, on WikiText-2
pixels       CIFAR-10;   synthetic, dna   promoters with a signal, and real ones with a label

Every row is trained in a process of its own with one thread, for the same CPU time as the other rows of its part. An
interrupted training is resumed, and finished rows are kept. Validation and test split are evaluated once, at the end.
Where the value of a system is a surrogate, its network is also evaluated by a bound (rdlm_paper_bound.py). Systems with
a condition are also evaluated with wrong conditions (rdlm_paper_conditions.py).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import domain_metrics
import harness  # noqa: F401 (one thread)
from rdlm_paper_bound import load_bound_model
from rdlm_paper_conditions import compare_conditions, give_wrong_conditions
from rdlm_paper_report import plot_part, print_records
from rdlm_paper_rows import PARTS, Part
from records import find_commit

import logosphere as ls
from logosphere.cli.train_options import parse_train
from logosphere.data.batches import eval_batches
from logosphere.data.corpus import Corpus
from logosphere.data.units import units_per_token
from logosphere.evaluation.report import Report
from logosphere.model import Model
from logosphere.runs.create import create_run
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.run import Run

DRAWS = 4
CURVE_SEQUENCES = 64
"""Validation sequences of each point of a curve."""

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rows", nargs="*", help="only these rows")
    parser.add_argument("--minutes", type=float, help="CPU minutes of each training; default: those of the part")
    parser.add_argument("--sequences", type=int, help="sequences of each evaluation; default: those of the part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/rdlm-paper"))
    parser.add_argument("--records", action="store_true", help="only print the finished rows, as records")
    parser.add_argument("--plot", type=Path, help="only write the curves of the finished rows into this folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.parts:
        part, folder = PARTS[name], args.out / name
        if unknown := set(args.rows or ()) - set(part.rows):
            sys.exit(f"No such row: {', '.join(sorted(unknown))}. {name} has: {'; '.join(part.rows)}.")
        rows = args.rows or list(part.rows)
        if args.records or args.plot:
            finished = [json.loads(p.read_text()) for row in rows if (p := row_path(folder, row)).exists()]
            print_records(name, part, finished) if args.records else plot_part(name, finished, args.plot)
        elif args.child:
            measure_row(name, rows[0], folder, args)
        else:
            for row in rows:
                _run_child(name, row, folder, args)


def row_path(folder: Path, row: str) -> Path:
    return folder / f"{domain_metrics.file_name(row)}.json"


def _run_child(name: str, row: str, folder: Path, args: argparse.Namespace) -> None:
    """Measure a row in a process of its own, whose peak memory is that of the row; finished rows are kept."""
    path = row_path(folder, row)
    if not path.exists():
        words = [name, "--rows", row, "--out", str(args.out), "--seed", str(args.seed), "--child"]
        for option in ("minutes", "sequences"):
            if (value := getattr(args, option)) is not None:
                words += [f"--{option}", str(value)]
        command = [sys.executable, __file__, *words]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found = json.loads(path.read_text())
    print(f"{name}: {row}: {json.dumps({key: value for key, value in found.items() if key != 'curve'})}", flush=True)


def measure_row(name: str, row: str, folder: Path, args: argparse.Namespace) -> None:
    """Train a row to its end, evaluate it, and write its figures."""
    part, commit = PARTS[name], find_commit()  # now: the files may change during the training
    minutes = part.minutes if args.minutes is None else args.minutes
    sequences = part.sequences if args.sequences is None else args.sequences
    config = parse_train(
        [*part.arguments, *part.rows[row], "--cpu-minutes", str(minutes), "--seed", str(args.seed)]
    ).config
    corpus = part.open_corpus(config)
    path = folder / "runs" / domain_metrics.file_name(row)
    run = Run(path) if path.exists() else create_run(config, corpus, path)
    curve_path = path / "curve.jsonl"
    for event in run_training(run, corpus):
        if part.curve and isinstance(event, Saved):
            _append_point(curve_path, run, part, corpus, event.step)
    # The largest resident set so far is that of training, and of its validations.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    last = [line for line in run.metrics() if "cpu_seconds" in line][-1]
    figures: Figures = {
        "row": row, "commit": commit, "run": str(path), "CPU minutes": minutes, "seed": args.seed,
        "steps": last["step"], "CPU s": last["cpu_seconds"], "CPU s per step": last["cpu_seconds"] / last["step"],
        "peak MB": peak, "sequences": sequences, "draws": DRAWS, "figures": {}, "curve": _read_lines(curve_path),
    }  # fmt: skip
    for label, model in _models(run, part, corpus).items():
        for split in ("valid", "test"):
            report = _evaluate(model, part, corpus, split, sequences)
            figures["figures"][f"{label}, {split}"] = _figure(report)
        if label == "own" and corpus.conditions:  # the last report is that of the test split
            wrong = _evaluate(model, part, corpus, "test", sequences, wrong=True)
            figures["wrong minus right"] = compare_conditions(report, wrong)
    if part.domain is not None:
        domain = part.domain(corpus, config.length, part.samples, part.sampling_steps, folder)
        figures |= {"scores": domain.scores(run.model("ema"), row), "references": domain.references()}
    folder.mkdir(parents=True, exist_ok=True)
    row_path(folder, row).write_text(json.dumps(figures))


def _models(run: Run, part: Part, corpus: Corpus) -> dict[str, Model]:
    """The values of a row: that of the system, and bounds of the same network where it is a surrogate."""
    own = run.model("ema")
    if own.process.kind != "surrogate" or not part.bound_starts:
        return {"own": own}
    return {"own": own} | {f"bound from {start}": load_bound_model(run, corpus, start) for start in part.bound_starts}


def _evaluate(model: Model, part: Part, corpus: Corpus, split: str, sequences: int, wrong: bool = False) -> Report:
    """Evaluate a model on a split, or with the conditions of other sequences (rdlm_paper_conditions.py)."""
    chosen = corpus.split(split)
    scale = 1.0 if part.unit != "byte" else units_per_token("byte", corpus, split, model.length)
    batches = eval_batches(chosen, model.length, part.evaluation_batch, sequences)
    if wrong:
        batches = give_wrong_conditions(batches, corpus.conditions.get("labels", 0))
    return ls.evaluate(model, batches, draws=DRAWS, rng=0, units_per_token=scale, precision="auto")


def _figure(report: Report) -> Figures:
    return {"bits": report.bits, "error": report.error, "kind": report.kind, "recon": report.recon,
            "tokens": report.tokens, "nats per sequence": sum(report.nats) / len(report.nats)}  # fmt: skip


def _append_point(path: Path, run: Run, part: Part, corpus: Corpus, step: int) -> None:
    """Add a point to the curve of a row, unless a resumed training has it already."""
    if step in {point["step"] for point in _read_lines(path)}:
        return
    seconds = next(line["cpu_seconds"] for line in run.metrics() if line["step"] == step and "cpu_seconds" in line)
    values = {
        label: {key: figure[key] for key in ("bits", "error", "kind")}
        for label, model in _models(run, part, corpus).items()
        if model.process.kind != "surrogate"  # the log of the run has the surrogate
        for figure in (_figure(_evaluate(model, part, corpus, "valid", CURVE_SEQUENCES)),)
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "CPU s": seconds, "values": values}) + "\n")


def _read_lines(path: Path) -> list[Figures]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
