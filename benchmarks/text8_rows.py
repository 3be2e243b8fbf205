"""Train and evaluate rows of the text8 table, all with the same network and the same CPU time.

    python benchmarks/text8_rows.py --minutes 10 --out runs/rows ar mdlm   # no names: all rows

Rows already evaluated in the folder are not trained again, so the script may be stopped and started. With --records it
prints the evaluated rows as an experiment for benchmarks/results/text.json.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from records import find_commit, print_experiment

CONTINUOUS = ("rdlm", "rdlm-heat", "plaid", "gaussian-ce", "cdcd", "diffusion-lm", "bit-diffusion", "simplex",
              "bfn", "fisher-flow", "dirichlet-flow", "ddsm")  # fmt: skip
RATES = {"ar": "4e-3", "mdlm": "2e-3"} | dict.fromkeys(CONTINUOUS, "2.5e-3")
"""Learning rates by system: the best of a few, for some systems (docs/LOG.md)."""

RATE = "optim.lr="
OTHER_RATE = "2e-3"
"""The learning rate of the other systems, which was not tuned."""

FORMER = ["--optim.name", "adamw", "--network.tied", "False"]
"""The table was measured with AdamW and untied heads."""
FORMER_SPHERE = {"posterior_head": "False", "subtract_input_embedding": "False"}
"""And with these defaults of systems on the sphere, with half of the sequences any-order on that path."""

JOINT = ["path=joint", "any_order_fraction=0"]
"""The joint path without any-order training sequences, as in the paper. Rows that vary the sphere have it."""
ANY_ORDER = ["path=any-order"]

ROWS: dict[str, list[str]] = {
    "ar": ["ar"],
    "mdlm": ["mdlm"],
    "mdlm, loss = bound": ["mdlm", "loss=bound"],
    "md4": ["md4"],
    "genmd4": ["genmd4"],
    "sedd-absorb": ["sedd-absorb"],
    "sedd-uniform": ["sedd-uniform"],
    "udlm": ["udlm"],
    "gidd": ["gidd"],
    "ardm": ["ardm"],
    "d3pm-absorbing": ["d3pm-absorbing"],
    "d3pm-uniform": ["d3pm-uniform"],
    "d3pm-absorbing, hybrid = 0": ["d3pm-absorbing", "hybrid=0"],
    "d3pm-uniform, hybrid = 0.01": ["d3pm-uniform", "hybrid=0.01"],
    "d3pm-gaussian": ["d3pm-gaussian"],
    "multinomial": ["multinomial"],
    "bd3lm, blocks of 16": ["bd3lm", "block=16"],
    "rdlm": ["rdlm"],
    "rdlm-heat, any-order": ["rdlm-heat", *ANY_ORDER],
    "rdlm, network as published": ["rdlm", "posterior_head=False", "input=state"],
    "rdlm-heat, joint": ["rdlm-heat", *JOINT],
    "rdlm-heat, joint training only": ["rdlm-heat", *ANY_ORDER, "any_order_fraction=0"],
    "rdlm-heat, any-order training only": ["rdlm-heat", *ANY_ORDER, "any_order_fraction=0.99"],
    "rdlm-heat, a quarter any-order": ["rdlm-heat", *ANY_ORDER, "any_order_fraction=0.25"],
    "rdlm-heat, any-order, learning rate 4e-3": ["rdlm-heat", *ANY_ORDER, "optim.lr=4e-3"],
    "rdlm, any-order": ["rdlm", "path=any-order"],
    "rdlm-heat, posterior head": ["rdlm-heat", *JOINT, "posterior_head=True"],
    "rdlm-heat, states as input": ["rdlm-heat", *JOINT, "input=state"],
    "rdlm-heat, start uniform": ["rdlm-heat", *JOINT, "start=uniform"],
    "rdlm-heat, V = 0.01": ["rdlm-heat", *JOINT, "total_noise=0.01"],
    "rdlm-heat, V = 0.1": ["rdlm-heat", *JOINT, "total_noise=0.1"],
    "rdlm-heat, uniform times": ["rdlm-heat", *JOINT, "time_sampler=even"],
    "rdlm-heat, geometric times": ["rdlm-heat", *JOINT, "time_sampler=geometric"],
    "rdlm-heat, geometric times in a window": ["rdlm-heat", *JOINT, "time_sampler=geometric", "window=[0.2, 0.72]"],
    "rdlm-heat, drift loss": ["rdlm-heat", *JOINT, "loss=drift"],
    "rdlm-heat, stagger 0.5": ["rdlm-heat", "stagger=0.5"],
    "rdlm-heat, stagger 0.75": ["rdlm-heat", "stagger=0.75", "posterior_head=True"],
    "rdlm-heat, stagger 0.9": ["rdlm-heat", "stagger=0.9", "posterior_head=True"],
    "rdlm-heat, left to right": ["rdlm-heat", "stagger=0.75", "order=left-to-right", "posterior_head=True"],
    "plaid": ["plaid"],
    "plaid, beliefs as input": ["plaid", "input=belief"],
    "gaussian-ce": ["gaussian-ce"],
    "gaussian-ce, posterior head": ["gaussian-ce", "posterior_head=True"],
    "gaussian-ce, states as input": ["gaussian-ce", "input=state"],
    "gaussian-ce, bits": ["gaussian-ce", "codec=bits", "max_logsnr=2.8"],
    "gaussian-ce, one-hot": ["gaussian-ce", "codec=one-hot"],
    "cdcd": ["cdcd"],
    "diffusion-lm": ["diffusion-lm"],
    "bit-diffusion": ["bit-diffusion"],
    "simplex": ["simplex"],
    "bfn": ["bfn"],
    "bfn, network as published": ["bfn", "posterior_head=False", "loss=bound", "time_sampler=even", "accuracy=0.5625"],
    "fisher-flow": ["fisher-flow"],
    "dirichlet-flow": ["dirichlet-flow"],
    "ddsm": ["ddsm"],
    "ld4lg": ["ld4lg"],
    "ld4lg, latents of 8 features": ["ld4lg", "latent_width=8"],
    "ld4lg, latents of 64 features": ["ld4lg", "latent_width=64"],
    "planner": ["planner"],
    "planner, latents of 64 features": ["planner", "latent_width=64"],
    "tencdm": ["tencdm"],
    "cosmos": ["cosmos"],
    "cosmos, latents of 64 features": ["cosmos", "latent_width=64"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows; all when none is given")
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU time of each training")
    parser.add_argument("--sequences", type=int, default=2000, help="test sequences to evaluate on")
    parser.add_argument(
        "--neighbours", type=int, default=0, help="local mixing; the table in docs/results/text.md has none"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/rows"))
    parser.add_argument("--records", action="store_true", help="only print the evaluated rows, as records")
    args = parser.parse_args()
    if args.records:
        return _print_records(args)
    unknown = set(args.rows) - set(ROWS)
    if unknown:
        sys.exit(f"No such row: {', '.join(sorted(unknown))}. There are: {'; '.join(ROWS)}.")
    for name in args.rows or ROWS:
        report = _report(name, args)
        print(f"{name:32} {report['kind']:6} {report['bits']:.4f} ± {report['error']:.4f}", flush=True)


def _print_records(args: argparse.Namespace) -> None:
    records = []
    for name, (system, *options) in ROWS.items():
        folder = args.out / _folder(name)
        if (folder / "test.json").exists():
            report = json.loads((folder / "test.json").read_text())
            steps = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
            _, _, variant = name.partition(", ")
            row: dict[str, Any] = {"row": f"`{system}`" + (f", {variant}" if variant else ""), "system": system}
            row["commit"] = report.get("commit")
            row["options"] = dict(option.split("=", 1) for option in options)
            if system.startswith("rdlm"):
                row["path"] = row["options"].get("path", "joint")
            figure = {"value": round(report["bits"], 3), "error": round(report["error"], 3), "kind": report["kind"]}
            records.append({**row, "metric": "training_steps", "value": steps})
            records.append({**row, "metric": "bits_per_character", **figure, "unit": "bits per character"})
    print_experiment(
        "text8-3min", records, script="benchmarks/text8_rows.py", data="text8", split="test", seed=0,
        budget={"CPU minutes": args.minutes}, sequences=args.sequences, draws=4,
    )  # fmt: skip


def _folder(name: str) -> str:
    return name.replace(", ", "--").replace(" ", "-").replace("=", "")


def _report(name: str, args: argparse.Namespace) -> dict[str, Any]:
    folder = args.out / _folder(name)
    path = folder / "test.json"
    if not path.exists():
        system, *options = ROWS[name]
        rates = [option.removeprefix(RATE) for option in options if option.startswith(RATE)]
        choices = [option for option in options if not option.startswith(RATE)]
        if system.startswith("rdlm"):
            choices += _former_options(choices)
        choices = ["--options", *choices] if choices else []
        rate = ["--optim.lr", *(rates or [RATES.get(system, OTHER_RATE)])]
        _run("train", "text8-tiny", "--system", system, *choices, *rate,
             *FORMER, "--network.neighbours", str(args.neighbours), "--cpu-minutes", str(args.minutes),
             "--validations", "3", "--out", str(folder))  # fmt: skip
        printed = _run("evaluate", str(folder), "--split", "test", "--sequences", str(args.sequences), "--json")
        path.write_text(json.dumps(json.loads(printed) | {"commit": find_commit()}))
    return json.loads(path.read_text())


def _former_options(choices: list[str]) -> list[str]:
    """Return the options of a system on the sphere that had other defaults when the table was measured."""
    given = dict(option.split("=", 1) for option in choices)
    former = dict(FORMER_SPHERE)
    if given.get("input") == "state":
        former["posterior_head"] = "True"
    if given.get("path") == "any-order":
        former["any_order_fraction"] = "0.5"
    return [f"{name}={value}" for name, value in former.items() if name not in given]


def _run(*arguments: str) -> str:
    """Run a command with one thread, so that CPU time excludes waiting."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "logosphere", *arguments]
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
