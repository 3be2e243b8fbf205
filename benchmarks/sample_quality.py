"""Quality of samples against the number of steps: what a judge thinks of them, and how varied they are.

    python benchmarks/sample_quality.py --judge runs/judge --minutes 5 --out quality.json runs/rdlm-heat runs/mdlm
    python benchmarks/sample_quality.py --judge runs/judge --out quality.json --steps 4 16 64 --ways ddim runs/plaid

The judge and what it measures: judging.py.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from harness import present
from judging import judge, real_text, verdict

import logosphere as ls
from logosphere.processes.flow import Flow, Transport
from logosphere.processes.gaussian import Gaussian
from logosphere.processes.moves import MOVES
from logosphere.processes.spherical import Spherical
from logosphere.runs.folder import RunFolder
from logosphere.sampling.plan import uniform_grid
from logosphere.sampling.steppers import Moved, ancestral

STEPS = (4, 8, 16, 32, 64, 128, 256)


def samplers(model: ls.Model) -> dict[str, dict]:
    """The ways to sample this model."""
    if isinstance(model.process, Gaussian):
        names = ["ancestral", "ddim", "dpm++"] + (["token-drawn"] if model.process.predicts is None else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if isinstance(model.process, Flow):
        path: object = model.process.path
        names = ["ancestral"] + (["heun"] if isinstance(path, Transport) and path.deterministic else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if not isinstance(model.process, Spherical):
        return {"ancestral": {"stepper": ancestral}}
    ways: dict[str, dict] = {move: {"stepper": Moved(MOVES[move])} for move in MOVES}
    return ways | {"bridge, uniform grid": {"stepper": ancestral, "grid": uniform_grid}}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("runs", nargs="+", type=Path)
    read.add_argument("--judge", type=Path, required=True, help="folder of the judge; trained there if empty")
    read.add_argument("--minutes", type=float, default=5.0, help="processor time to train it")
    read.add_argument("--samples", type=int, default=32)
    read.add_argument("--steps", type=int, nargs="+", default=STEPS)
    read.add_argument("--ways", nargs="+", help="only these samplers; all that fit when none is named")
    read.add_argument("--out", type=Path, required=True, help="where the rows are kept as they are made")
    given = read.parse_args()
    critic = judge(given.judge, given.minutes)
    rows = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows.setdefault("real text", verdict(critic, real_text(256)))
    for run in given.runs:
        model = RunFolder(run).model("ema")
        for way, options in samplers(model).items():
            if given.ways and way not in given.ways:
                continue
            for steps in given.steps:
                name = f"{run.name} {way} {steps}"
                if name not in rows:
                    rng = torch.Generator().manual_seed(0)
                    rows[name] = verdict(critic, ls.sample(model, n=given.samples, steps=steps, rng=rng, **options))
                    given.out.write_text(json.dumps(rows))
                    print(name, rows[name], file=sys.stderr, flush=True)
    present("judge's bits per character", rows)


if __name__ == "__main__":
    main()
