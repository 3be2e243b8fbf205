"""Beyond plain text: images, DNA, text from meanings, sudokus, music and molecules, each with its own measure.

    python benchmarks/domains.py digits --minutes 1 --out runs/domains       # also cifar10 dna synthetic e2e sudoku …
    python benchmarks/domains.py --table --out runs/domains                  # what is there, as Markdown

Every row of a part is trained on the training split for the same processor time, with the same network (unless the row
names another), batch and learning rate; the likelihood is that of the test split, and samples are measured by what is
certain of them or by judges that have seen other data than the generator. Rows that are there are not made again, and
a training that was stopped goes on. References need no training: what real data score, and what knowing nothing costs.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import domain_checks as checks
import domain_measures as measures
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


def sized(width: int, depth: int, heads: int, batch: int) -> list[str]:
    """A network that a processor trains in minutes."""
    size = {"width": width, "depth": depth, "heads": heads}
    return [*(word for name, n in size.items() for word in (f"--network.{name}", str(n))), "--batch", str(batch)]


def of(system: str, *words: str, **options: str) -> list[str]:
    """A row: the system, its options, other words of the command line."""
    if system == "rdlm-heat":
        options = {"path": "any-order"} | options
    chosen = [f"{name}={value}" for name, value in options.items()]
    return ["--system", system, *(["--options", *chosen] if chosen else []), *words]


IMAGES = {
    "rdlm-heat": of("rdlm-heat", *UNET),
    "mdlm": of("mdlm", *UNET),
    "d3pm-gaussian": of("d3pm-gaussian", *UNET, head="logistic"),
    "md4": of("md4", *UNET),
    "rdlm": of("rdlm", *UNET),
    "ar (transformer)": of("ar"),
}
BASES = {
    name: of(name) for name in ("rdlm-heat", "fisher-flow", "dirichlet-flow", "d3pm-uniform", "bit-diffusion", "ar")
} | {"rdlm-heat (convolution)": of("rdlm-heat", *CONVOLUTION)}
THREE = {name: of(name) for name in ("mdlm", "rdlm-heat", "ar")}


@dataclass(frozen=True)
class Part:
    """A table: the recipe and what all rows share, the rows, and who measures them."""

    words: list[str]
    rows: dict[str, list[str]]
    domain: type[measures.Domain]
    unit: str
    sequences: int = 256
    """Test sequences that the likelihood is measured on."""


PARTS = {
    "digits": Part(["digits", *sized(64, 3, 4, 32)], IMAGES | {
        "mdlm (transformer)": of("mdlm"), "rdlm-heat (transformer)": of("rdlm-heat"),
        "d3pm-gaussian, softmax": of("d3pm-gaussian", *UNET)}, measures.Digits, "pixel"),
    "cifar10": Part(["cifar10", *sized(48, 3, 4, 4), "--optim.lr", "2e-3", "--optim.warmup", "10", "--ema", "0.98",
                     "--validation-sequences", "4"],
                    {name: IMAGES[name] for name in ("md4", "rdlm-heat", "d3pm-gaussian")}, measures.Colours,
                    "dimension", 128),
    "dna": Part(["dna", *sized(64, 3, 4, 64)], BASES, measures.Promoters, "base"),
    "synthetic": Part(["promoters", *sized(64, 3, 4, 64), "--optim.lr", "2e-3", "--network.body", "transformer"],
                      BASES, measures.Synthetic, "base"),
    "e2e": Part(["e2e", *sized(96, 3, 4, 32)], THREE, checks.Restaurants, "token"),
    "sudoku": Part(["sudoku", *sized(96, 3, 4, 32)], THREE, checks.Sudokus, "cell"),
    "chorales": Part(["chorales", *sized(64, 3, 4, 8)], THREE, checks.Chorales, "note", 32),
    "smiles": Part(["smiles", *sized(96, 3, 4, 64)], THREE, checks.Molecules, "character"),
}  # fmt: skip

Row = dict[str, float | str]


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("parts", nargs="*", choices=[[], *PARTS], help="tables to make")
    read.add_argument("--rows", nargs="*", help="only these rows")
    read.add_argument("--minutes", type=float, default=1.0, help="processor time of each training")
    read.add_argument("--samples", type=int, default=256, help="sequences to draw and measure")
    read.add_argument("--steps", type=int, default=64, help="steps of the samplers (ar has its own)")
    read.add_argument("--precision", default="bfloat16", help="of the trainings; sampling and bounds are in float32")
    read.add_argument("--out", type=Path, default=Path("runs/domains"))
    read.add_argument("--table", action="store_true", help="only print the rows that are there")
    given = read.parse_args()
    for name in given.parts or PARTS:
        part, folder = PARTS[name], given.out / name
        if unknown := set(given.rows or ()) - set(part.rows):
            sys.exit(f"No such row: {', '.join(sorted(unknown))}. {name} has: {'; '.join(part.rows)}.")
        if not given.table:
            _make(name, part, folder, given)
        if folder.exists():
            print(f"\n### {name}\n\n{_table(part, folder)}", flush=True)


def _make(name: str, part: Part, folder: Path, given: argparse.Namespace) -> None:
    wanted = [row for row in part.rows if not given.rows or row in given.rows]
    missing = [row for row in wanted if not _path(folder, row).exists()]
    if not missing:
        return
    recipes = {row: parse_train([*part.words, *part.rows[row], "--validations", "1", "--precision",
                                  given.precision, "--cpu-minutes", str(given.minutes)]).config
               for row in missing}  # fmt: skip
    first = recipes[missing[0]]
    corpus = ls.open_corpus(first.data, first.tokenizer)
    domain = part.domain(corpus, first.length, given.samples, given.steps, folder)
    for row, figures in domain.references().items():
        _write(folder, row, {"reference": "yes", **figures})
    for row in missing:
        path = folder / "runs" / measures.file_name(row)
        run = Run(path) if path.exists() else create_run(recipes[row], corpus, path)
        for _ in run_training(run, corpus):
            pass
        model = run.model("ema")
        batches = eval_batches(corpus.test, first.length, 32, part.sequences)
        report = ls.evaluate(model, batches, draws=4, rng=0)
        begun = time.process_time()
        scores = domain.scores(model, row)
        last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        figures = {"steps": last, "bits": report.bits, "s.e.": report.error, "kind": report.kind}
        _write(folder, row, figures | scores | {"CPU s": time.process_time() - begun})
        print(f"{name}: {row}: {json.dumps(figures | scores)}", file=sys.stderr, flush=True)


def _path(folder: Path, row: str) -> Path:
    return folder / f"{measures.file_name(row)}.json"


def _write(folder: Path, row: str, figures: Row) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _path(folder, row).write_text(json.dumps({"row": row} | figures))


def _table(part: Part, folder: Path) -> str:
    """References first, then rows from the fewest bits; surrogates, which are no likelihoods, last."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found.sort(key=lambda row: ("reference" not in row, row.get("kind") == "surrogate", row.get("bits", 0)))
    names = list(dict.fromkeys(key for row in found for key in row))
    columns = [name for name in names if name not in ("row", "reference", "steps", "bits", "s.e.", "kind")]
    lines = [f"| row | steps | bits per {part.unit} | " + " | ".join(columns) + " |"]
    lines.append("|---|---:|---|" + "---:|" * len(columns))
    for row in found:
        bits = "" if "bits" not in row else f"{SIGN[row['kind']]} {row['bits']:.3f}"
        error = f" ± {row['s.e.']:.3f}" if "s.e." in row else ""
        name = row["row"] if "reference" in row else f"`{row['row'].split(' ')[0].rstrip(',')}`" + _rest(row["row"])
        cells = [f"{row[column]:.3g}" if column in row else "" for column in columns]
        lines.append(f"| {name} | {row.get('steps', '')} | {bits}{error} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rest(name: str) -> str:
    """What follows the system in the name of a row."""
    return name[len(name.split(" ")[0].rstrip(",")) :]


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
