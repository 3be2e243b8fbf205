"""Rows that decide the settings of the systems on the sphere, beside masked and autoregressive baselines.

    python benchmarks/flagship.py --minutes 3 --seeds 0 1 --out runs/flagship mdlm "rdlm-heat, block 4"
    python benchmarks/flagship.py --minutes 3 --out runs/flagship --table         # what is there, as a table
    python benchmarks/flagship.py --minutes 3 --out runs/flagship --records       # as records

All rows have the recipe text8-tiny (160 × 4, length 128, batches of 32) and the same CPU time. Choices are made on the
validation split; --test evaluates a row on the test split, once. Rows that are there are not trained again, so that the
script may be stopped and started.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from records import find_commit, print_experiment

MUON = ["--optim.name", "muon", "--optim.lr", "2e-3", "--optim.matrix-lr", "4e-3"]
ADAMW = ["--optim.name", "adamw"]
TIED, UNTIED = ["--network.tied", "True"], ["--network.tied", "False"]
DECODER, DEEPER = ["--network.decoder-depth", "1"], ["--network.decoder-depth", "2"]
COPIES = ["--draws", "4"]
"""Four noisy copies of every text, which its encoder reads once."""
HOLLOW = ["--network.hollow"]
ROLLING = ["stagger=0.7", "order=left-to-right"]
JOINT = ["path=joint", "any_order_fraction=0"]
CONTEXT = ["posterior_head=True", "subtract_input_embedding=True"]
"""The network predicts from the other positions; Bayes' rule adds the position's own state."""


def row(system: str, *options: str, network: list[str] | None = None, optim: list[str] | None = None) -> list[str]:
    """Return the arguments of `logosphere train` for a row: tied and trained by Muon unless stated."""
    chosen = ["--options", *options] if options else []
    return ["--system", system, *chosen, *(TIED if network is None else network), *(MUON if optim is None else optim)]


def adamw(rate: str) -> list[str]:
    return [*ADAMW, "--optim.lr", rate]


ROWS: dict[str, list[str]] = {
    "ar": row("ar"),
    "ar, untied": row("ar", network=UNTIED),
    "ar, untied, AdamW": row("ar", network=UNTIED, optim=adamw("4e-3")),
    "ar, AdamW": row("ar", optim=adamw("4e-3")),
    "mdlm": row("mdlm"),
    "mdlm, untied": row("mdlm", network=UNTIED),
    "mdlm, AdamW": row("mdlm", optim=adamw("2e-3")),
    "mdlm, untied, AdamW": row("mdlm", network=UNTIED, optim=adamw("2e-3")),
    "rdlm-heat, joint, head of beliefs, untied, AdamW": row("rdlm-heat", *JOINT, network=UNTIED, optim=adamw("2.5e-3")),
    "rdlm-heat, joint, untied, AdamW": row("rdlm-heat", *JOINT, *CONTEXT, network=UNTIED, optim=adamw("2.5e-3")),
    "rdlm-heat, joint, AdamW": row("rdlm-heat", *JOINT, *CONTEXT, optim=adamw("2.5e-3")),
    "rdlm-heat, joint, head of beliefs": row("rdlm-heat", *JOINT),
    "rdlm-heat, joint": row("rdlm-heat", *JOINT, *CONTEXT),
    "rdlm, joint": row("rdlm", *JOINT, *CONTEXT),
    "rdlm-heat, joint, self-conditioning": row("rdlm-heat", *JOINT, *CONTEXT, "self_conditioning=True"),
    "rdlm-heat, any-order, half": row("rdlm-heat", "path=any-order", "any_order_fraction=0.5"),
    "rdlm-heat, any-order, rising": row("rdlm-heat", "path=any-order", "any_order_fraction=rising"),
    "rdlm-heat, staggered by 0.8": row("rdlm-heat", *JOINT, *CONTEXT, "stagger=0.8"),
    "gaussian-ce": row("gaussian-ce"),
    "gaussian-ce, own embedding subtracted": row("gaussian-ce", *CONTEXT),
    "bfn": row("bfn"),
    "bfn, own embedding subtracted": row("bfn", *CONTEXT),
    "udlm": row("udlm"),
    "udlm, own embedding subtracted": row("udlm", "subtract_input_embedding=True"),
    "plaid": row("plaid", network=UNTIED),  # reads states, which have no table to tie the head to
    "plaid, own embedding subtracted": row("plaid", "subtract_input_embedding=True", network=UNTIED),
    "cdcd": row("cdcd", network=UNTIED),
    "cdcd, own embedding subtracted": row("cdcd", *CONTEXT, network=UNTIED),
}
for name in ("md4", "gidd", "udlm", "sedd-absorb", "gaussian-ce", "bfn"):
    ROWS |= {f"{name}, untied": row(name, network=UNTIED)}
    ROWS.setdefault(name, row(name))
for size in (2, 4, 8, 16):
    blocks = f"block={size}"
    ROWS |= {
        f"bd3lm, block {size}": row("bd3lm", blocks, network=[*TIED, *DECODER]),
        f"rdlm-heat, block {size}, joint": row("rdlm-heat", blocks, *JOINT, *CONTEXT, network=[*TIED, *DECODER]),
        f"rdlm-heat, block {size}, rolling": row(
            "rdlm-heat", blocks, *JOINT, *CONTEXT, *ROLLING, network=[*TIED, *DECODER]
        ),
        f"rdlm-heat, block {size}, joint, hollow": row(
            "rdlm-heat", blocks, *JOINT, *CONTEXT, network=[*TIED, *DECODER, *HOLLOW]
        ),
        f"rdlm-heat, block {size}, rolling, hollow": row(
            "rdlm-heat", blocks, *JOINT, *CONTEXT, *ROLLING, network=[*TIED, *DECODER, *HOLLOW]
        ),
        f"bd3lm, block {size}, 4 copies": row("bd3lm", blocks, network=[*TIED, *DECODER, *COPIES]),
        f"rdlm-heat, block {size}, rolling, 4 copies": row(
            "rdlm-heat", blocks, *JOINT, *CONTEXT, *ROLLING, network=[*TIED, *DECODER, *COPIES]
        ),
        f"rdlm-heat, block {size}, joint, 4 copies": row(
            "rdlm-heat", blocks, *JOINT, *CONTEXT, network=[*TIED, *DECODER, *COPIES]
        ),
        f"rdlm-heat, block {size}, any-order, half, 4 copies": row(
            "rdlm-heat", blocks, "path=any-order", "any_order_fraction=0.5", network=[*TIED, *DECODER, *COPIES]
        ),
        f"rdlm-heat, block {size}, any-order, half": row(
            "rdlm-heat", blocks, "path=any-order", "any_order_fraction=0.5", network=[*TIED, *DECODER]
        ),
        f"rdlm-heat, block {size}, any-order, rising": row(
            "rdlm-heat", blocks, "path=any-order", "any_order_fraction=rising", network=[*TIED, *DECODER]
        ),
    }
ROWS |= {
    "bd3lm, block 4, both streams through all blocks": row("bd3lm", "block=4"),
    "bd3lm, block 4, decoder of 2 blocks": row("bd3lm", "block=4", network=[*TIED, *DEEPER]),
    "rdlm-heat, block 4, rolling, decoder of 2 blocks": row(
        "rdlm-heat", "block=4", *JOINT, *CONTEXT, *ROLLING, network=[*TIED, *DEEPER]
    ),
    "bd3lm, block 4, cross-entropy": row("bd3lm", "block=4", "loss=cross-entropy", network=[*TIED, *DECODER]),
}
ROWS |= {
    "mdlm, bound": row("mdlm", "loss=bound"),
    "mdlm, linear decay to zero": row("mdlm", optim=[*MUON, "--optim.decay", "linear", "--optim.min-lr-ratio", "0"]),
    "mdlm, matrices at 2e-3": row("mdlm", optim=[*MUON[:-1], "2e-3"]),
    "mdlm, matrices at 6e-3": row("mdlm", optim=[*MUON[:-1], "6e-3"]),
    "mdlm, batches of 64": row("mdlm", optim=[*MUON, "--batch", "64"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows; all when none is given")
    parser.add_argument("--minutes", type=float, default=3.0, help="CPU time of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sequences", type=int, default=512, help="validation sequences to evaluate on")
    parser.add_argument("--test", type=int, default=0, help="evaluate on this number of test sequences, too")
    parser.add_argument("--out", type=Path, default=Path("runs/flagship"))
    parser.add_argument("--table", action="store_true", help="only print what is there, as a table")
    parser.add_argument("--records", action="store_true", help="only print what is there, as records")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        sys.exit(f"No such row: {'; '.join(sorted(unknown))}. There are: {'; '.join(ROWS)}.")
    names = args.rows or list(ROWS)
    if args.table or args.records:
        return (_print_table if args.table else _print_records)(names, args)
    for name in names:
        for seed in args.seeds:
            found = _measure(name, seed, args)
            print(f"{name:50} seed {seed}  {found['kind']:6} {found['bits']:.4f} ± {found['error']:.4f}", flush=True)


def _folder(name: str, seed: int, args: argparse.Namespace) -> Path:
    plain = name.replace(", ", "--").replace(" ", "-")
    return Path(args.out) / f"{args.minutes:g}min" / f"{plain}--{seed}"


def _measure(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train a row unless it is there, and return its report on the validation split."""
    folder = _folder(name, seed, args)
    if not (folder / "valid.json").exists():
        resumed = ["--resume"] if (folder / "recipe.json").exists() else []
        _run("train", "text8-tiny", *ROWS[name], "--cpu-minutes", str(args.minutes), "--seed", str(seed),
             "--validations", "4", "--out", str(folder), *resumed)  # fmt: skip
    valid = _evaluate(folder, "valid", args.sequences)
    return _evaluate(folder, "test", args.test) if args.test else valid


def _evaluate(folder: Path, split: str, sequences: int) -> dict[str, Any]:
    path = folder / f"{split}.json"
    if not path.exists():
        printed = _run("evaluate", str(folder), "--split", split, "--sequences", str(sequences), "--json")
        path.write_text(json.dumps(json.loads(printed) | {"commit": find_commit()}))
    return json.loads(path.read_text())


def _run(*arguments: str) -> str:
    """Run a command with one thread, so that CPU time excludes waiting."""
    command = [sys.executable, "-m", "logosphere", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


def _reports(name: str, split: str, args: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Return the reports of a row by seed."""
    prefix = _folder(name, 0, args).name[:-1]
    found = {}
    for path in sorted((Path(args.out) / f"{args.minutes:g}min").glob(f"{prefix}[0-9]/{split}.json")):
        found[int(path.parent.name.rpartition("--")[2])] = json.loads(path.read_text())
    return found


def _steps(name: str, seed: int, args: argparse.Namespace) -> int:
    return json.loads((_folder(name, seed, args) / "metrics.jsonl").read_text().splitlines()[-1])["step"]


def _print_table(names: list[str], args: argparse.Namespace) -> None:
    for name in names:
        if found := _reports(name, "valid", args):
            bits = [report["bits"] for report in found.values()]
            each = ", ".join(f"{value:.3f}" for value in bits)
            steps = ", ".join(str(_steps(name, seed, args)) for seed in found)
            print(f"{name:50} {statistics.mean(bits):.3f}  ({each}; steps {steps})")


def _print_records(names: list[str], args: argparse.Namespace) -> None:
    records = []
    for name in names:
        for split in ("valid", "test"):
            for seed, report in _reports(name, split, args).items():
                common = {"row": name, "system": ROWS[name][1], "seed": seed, "split": split}
                common |= {"commit": report.get("commit"), "sequences": report["sequences"], "draws": report["draws"]}
                common |= {"options": {"arguments": " ".join(ROWS[name])}}
                common |= {key: report[key] for key in ("path", "block") if report.get(key)}
                figure = {"value": round(report["bits"], 3), "error": round(report["error"], 3), "kind": report["kind"]}
                records.append({**common, "metric": "bits_per_character", **figure, "unit": "bits per character"})
                if split == "valid":
                    records.append({**common, "metric": "training_steps", "value": _steps(name, seed, args)})
    print_experiment(
        f"flagship-{args.minutes:g}min", records, script="benchmarks/flagship.py", data="text8",
        budget={"CPU minutes": args.minutes},
    )  # fmt: skip


if __name__ == "__main__":
    main()
