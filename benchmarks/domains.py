"""Systems on other data than plain text: images, DNA, text from meanings, sudokus, music and molecules.

    python benchmarks/domains.py digits --minutes 1 --out runs/domains       # also cifar10 dna synthetic e2e sudoku …
    python benchmarks/domains.py --table --out runs/domains                  # the finished rows, as Markdown

Every row of a table is trained on the training split for the same CPU time with the same network (unless the row names
another), batch and learning rate. The likelihood is that of the test split. Samples are measured by exact checks or by
classifiers that were trained on other data than the generator. Finished rows are kept, and an interrupted training is
resumed. Reference rows need no training: real data, unigram and uniform models.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import domain_checks as checks
import domain_metrics as metrics
import harness  # noqa: F401 (one thread)
import torch

import logosphere as ls
from logosphere.cli.train_options import parse_train
from logosphere.data.batches import eval_batches
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.types import SIGN

UNET = ["--network.body", "unet", "--network.depth", "1"]
CONVOLUTION = ["--network.body", "convolution", "--network.depth", "5"]


def size_arguments(width: int, depth: int, heads: int, batch: int) -> list[str]:
    """Return the arguments of a network that a CPU trains in minutes."""
    size = {"width": width, "depth": depth, "heads": heads}
    return [*(word for name, n in size.items() for word in (f"--network.{name}", str(n))), "--batch", str(batch)]


def row_arguments(system: str, *others: str, **options: str) -> list[str]:
    """Return the arguments of a row: the system, its options, others. rdlm-heat is trained on the any-order path."""
    if system == "rdlm-heat":
        options = {"path": "any-order"} | options
    chosen = [f"{name}={value}" for name, value in options.items()]
    return ["--system", system, *(["--options", *chosen] if chosen else []), *others]


IMAGES = {
    "rdlm-heat, any-order": row_arguments("rdlm-heat", *UNET),
    "mdlm": row_arguments("mdlm", *UNET),
    "d3pm-gaussian, logistic": row_arguments("d3pm-gaussian", *UNET, head="logistic"),
    "md4": row_arguments("md4", *UNET),
    "rdlm": row_arguments("rdlm", *UNET),
    "ar (transformer)": row_arguments("ar"),
}
BASES = {
    name: row_arguments(name.split(",")[0])
    for name in ("rdlm-heat, any-order", "fisher-flow", "dirichlet-flow", "d3pm-uniform", "bit-diffusion", "ar")
} | {"rdlm-heat, any-order (5 convolutions)": row_arguments("rdlm-heat", *CONVOLUTION)}
THREE = {name: row_arguments(name.split(",")[0]) for name in ("mdlm", "rdlm-heat, any-order", "ar")}


@dataclass(frozen=True)
class Table:
    """A table: the recipe and the arguments of all rows, the rows, and the domain that measures them."""

    arguments: list[str]
    rows: dict[str, list[str]]
    domain: type[metrics.Domain]
    unit: str
    sequences: int = 256
    """Test sequences of the likelihood."""


TABLES = {
    "digits": Table(["digits", *size_arguments(64, 3, 4, 32)], IMAGES | {
        "mdlm (transformer)": row_arguments("mdlm"), "rdlm-heat, any-order (transformer)": row_arguments("rdlm-heat"),
        "d3pm-gaussian, softmax": row_arguments("d3pm-gaussian", *UNET)}, metrics.Digits, "pixel"),
    "cifar10": Table(["cifar10", *size_arguments(48, 3, 4, 4), "--optim.lr", "2e-3", "--optim.warmup", "10", "--ema",
                      "0.98", "--validation-sequences", "4"],
                     {name: IMAGES[name] for name in ("md4", "rdlm-heat, any-order", "d3pm-gaussian, logistic")},
                     metrics.Colours, "dimension", 128),
    "dna": Table(["dna", *size_arguments(64, 3, 4, 64)], BASES, metrics.Promoters, "base"),
    "synthetic": Table(["promoters", *size_arguments(64, 3, 4, 64), "--optim.lr", "2e-3", "--network.body",
                        "transformer"], BASES, metrics.Synthetic, "base"),
    "e2e": Table(["e2e", *size_arguments(96, 3, 4, 32)], THREE, checks.Restaurants, "token"),
    "sudoku": Table(["sudoku", *size_arguments(96, 3, 4, 32)], THREE, checks.Sudokus, "cell"),
    "chorales": Table(["chorales", *size_arguments(64, 3, 4, 8)], THREE, checks.Chorales, "note", 32),
    "smiles": Table(["smiles", *size_arguments(96, 3, 4, 64)], THREE, checks.Molecules, "character"),
}  # fmt: skip

Row = dict[str, float | str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], help="tables to make")
    parser.add_argument("--rows", nargs="*", help="only these rows")
    parser.add_argument("--minutes", type=float, default=1.0, help="CPU time of each training")
    parser.add_argument("--samples", type=int, default=256, help="samples of each row")
    parser.add_argument("--steps", type=int, default=64, help="steps of the samplers (ar has its own)")
    parser.add_argument("--precision", default="bfloat16", help="of the trainings; sampling and bounds are in float32")
    parser.add_argument("--out", type=Path, default=Path("runs/domains"))
    parser.add_argument("--table", action="store_true", help="only print the finished rows")
    args = parser.parse_args()
    for name in args.tables or TABLES:
        table, folder = TABLES[name], args.out / name
        if unknown := set(args.rows or ()) - set(table.rows):
            sys.exit(f"No such row: {', '.join(sorted(unknown))}. {name} has: {'; '.join(table.rows)}.")
        if not args.table:
            _make(name, table, folder, args)
        if folder.exists():
            print(f"\n### {name}\n\n{_format_table(table, folder)}", flush=True)


def _make(name: str, table: Table, folder: Path, args: argparse.Namespace) -> None:
    chosen = [row for row in table.rows if not args.rows or row in args.rows]
    missing = [row for row in chosen if not _path(folder, row).exists()]
    if not missing:
        return
    recipes = {row: parse_train([*table.arguments, *table.rows[row], "--validations", "1", "--precision",
                                  args.precision, "--cpu-minutes", str(args.minutes)]).config
               for row in missing}  # fmt: skip
    first = recipes[missing[0]]
    corpus = ls.open_corpus(first.data, first.tokenizer)
    domain = table.domain(corpus, first.length, args.samples, args.steps, folder)
    for row, figures in domain.references().items():
        _write(folder, row, {"reference": "yes", **figures})
    for row in missing:
        path = folder / "runs" / metrics.file_name(row)
        run = Run(path) if path.exists() else create_run(recipes[row], corpus, path)
        for _ in run_training(run, corpus):
            pass
        model = run.model("ema")
        batches = eval_batches(corpus.test, first.length, 32, table.sequences)
        report = ls.evaluate(model, batches, draws=4, rng=0)
        started = time.process_time()
        scores = domain.scores(model, row)
        last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        figures = {"steps": last, "bits": report.bits, "s.e.": report.error, "kind": report.kind}
        _write(folder, row, figures | scores | {"CPU s": time.process_time() - started})
        print(f"{name}: {row}: {json.dumps(figures | scores)}", file=sys.stderr, flush=True)


def _path(folder: Path, row: str) -> Path:
    return folder / f"{metrics.file_name(row)}.json"


def _write(folder: Path, row: str, figures: Row) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _path(folder, row).write_text(json.dumps({"row": row} | figures))


def _format_table(table: Table, folder: Path) -> str:
    """Return references first, then rows by increasing bits; surrogates, which are no likelihoods, last."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found.sort(key=lambda row: ("reference" not in row, row.get("kind") == "surrogate", row.get("bits", 0)))
    names = list(dict.fromkeys(key for row in found for key in row))
    columns = [name for name in names if name not in ("row", "reference", "steps", "bits", "s.e.", "kind")]
    lines = [f"| row | steps | bits per {table.unit} | " + " | ".join(columns) + " |"]
    lines.append("|---|---:|---|" + "---:|" * len(columns))
    for row in found:
        bits = "" if "bits" not in row else f"{SIGN[row['kind']]} {row['bits']:.3f}"
        error = f" ± {row['s.e.']:.3f}" if "s.e." in row else ""
        name = row["row"] if "reference" in row else f"`{row['row'].split(' ')[0].rstrip(',')}`" + _variant(row["row"])
        cells = [f"{row[column]:.3g}" if column in row else "" for column in columns]
        lines.append(f"| {name} | {row.get('steps', '')} | {bits}{error} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _variant(name: str) -> str:
    """Return the part of a row's name after its system."""
    return name[len(name.split(" ")[0].rstrip(",")) :]


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
