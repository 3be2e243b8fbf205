"""Train and evaluate rows of optimisers on text8, all with the same network and the same CPU time, on validation data.

    python benchmarks/optimizer_rows.py --minutes 3 --out runs/optimizers "mdlm, adamw 2e-3"   # no names: all rows
    python benchmarks/optimizer_rows.py --step                     # CPU time of a step with AdamW and with Muon

Rows already evaluated in the folder are not trained again. The CPU time of a step depends on the load of the machine,
so the number of steps is printed beside each figure; rows that are compared should be trained one after another.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import logosphere as ls
from logosphere.training.trainer import Trainer

ANY_ORDER = ["--options", "path=any-order"]


def adamw(lr: str, *settings: str) -> list[str]:
    return ["--optim.lr", lr, *settings]


def muon(lr: str, matrix_lr: str, *settings: str) -> list[str]:
    return ["--optim.name", "muon", "--optim.lr", lr, "--optim.matrix-lr", matrix_lr, *settings]


LINEAR = ["--optim.decay", "linear", "--optim.min-lr-ratio", "0"]

ROWS: dict[str, list[str]] = {
    "mdlm, adamw 1e-3": ["mdlm", *adamw("1e-3")],
    "mdlm, adamw 2e-3": ["mdlm", *adamw("2e-3")],
    "mdlm, adamw 4e-3": ["mdlm", *adamw("4e-3")],
    "mdlm, muon 2e-3, matrices 4e-3": ["mdlm", *muon("2e-3", "4e-3")],
    "mdlm, muon 2e-3, matrices 8e-3": ["mdlm", *muon("2e-3", "8e-3")],
    "ar, adamw 4e-3": ["ar", *adamw("4e-3")],
    "ar, muon 4e-3, matrices 4e-3": ["ar", *muon("4e-3", "4e-3")],
    "rdlm-heat, adamw 2.5e-3": ["rdlm-heat", *ANY_ORDER, *adamw("2.5e-3")],
    "rdlm-heat, muon 2.5e-3, matrices 4e-3": ["rdlm-heat", *ANY_ORDER, *muon("2.5e-3", "4e-3")],
    "mdlm, adamw 2e-3, linear to zero": ["mdlm", *adamw("2e-3", *LINEAR)],
    "mdlm, muon 2e-3, matrices 4e-3, linear to zero": ["mdlm", *muon("2e-3", "4e-3", *LINEAR)],
    "mdlm, adamw 2e-3, batch 64": ["mdlm", *adamw("2e-3", "--batch", "64")],
    "mdlm, adamw 3e-3, batch 64": ["mdlm", *adamw("3e-3", "--batch", "64")],
    "mdlm, muon 2e-3, matrices 4e-3, batch 64": ["mdlm", *muon("2e-3", "4e-3", "--batch", "64")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows; all when none is given")
    parser.add_argument("--minutes", type=float, default=3.0, help="CPU time of each training")
    parser.add_argument("--sequences", type=int, default=512, help="validation sequences to evaluate on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/optimizers"))
    parser.add_argument("--step", action="store_true", help="only measure the CPU time of a step")
    args = parser.parse_args()
    if args.step:
        return _time_steps()
    unknown = set(args.rows) - set(ROWS)
    if unknown:
        sys.exit(f"No such row: {'; '.join(sorted(unknown))}. There are: {'; '.join(ROWS)}.")
    for name in args.rows or ROWS:
        folder = args.out / f"{name.replace(', ', '--').replace(' ', '-')}-{args.minutes:g}min-seed{args.seed}"
        report, steps = _report(ROWS[name], folder, args)
        bits = f"{report['kind']:6} {report['bits']:.4f} ± {report['error']:.4f}"
        print(f"{name:48} seed {args.seed}  {bits}  {steps} steps", flush=True)


def _report(row: list[str], folder: Path, args: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Return the report of a row and its number of training steps."""
    path, (system, *settings) = folder / "valid.json", row
    if not path.exists():
        _run("train", "text8-tiny", "--system", system, *settings, "--steps", "None", "--cpu-minutes",
             str(args.minutes), "--validations", "1", "--seed", str(args.seed), "--out", str(folder))  # fmt: skip
        path.write_text(_run("evaluate", str(folder), "--split", "valid", "--sequences", str(args.sequences), "--json"))
    steps = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    return json.loads(path.read_text()), steps


def _run(*arguments: str) -> str:
    """Run a command with one thread, so that CPU time excludes waiting."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "logosphere", *arguments]
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


def _time_steps(rounds: int = 12) -> None:
    """Print CPU times of a step and of the optimiser within it, medians over neighbouring pairs."""
    torch.set_num_threads(1)
    trainers = []
    for name in ("adamw", "muon"):
        torch.manual_seed(0)
        model = ls.build("mdlm", vocab_size=27, length=128, width=160, depth=4, heads=5)
        trainers.append(Trainer(model, optim=ls.OptimizerConfig(name=name), precision="auto", ema=0.998))
    tokens = torch.randint(27, (32, 128), generator=torch.Generator().manual_seed(0))
    times = []
    for number in range(rounds + 2):
        batch = ls.Batch.of(tokens, first=number * 32)
        steps = [_cpu_seconds(partial(one.train_step, batch, 0.0)) for one in trainers]
        times.append(steps + [_cpu_seconds(one.optimizer.step) for one in trainers])
    times = times[2:]
    for place, label in enumerate(("step, adamw", "step, muon", "optimiser, adamw", "optimiser, muon")):
        print(f"{label:20} {1e3 * statistics.median(row[place] for row in times):7.1f} ms")
    print(f"step of muon / step of adamw {statistics.median(row[1] / row[0] for row in times):.3f}")


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
