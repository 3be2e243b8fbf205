"""Quality of samples against the number of steps: what a judge thinks of them, and how varied they are.

    python benchmarks/sample_quality.py --judge runs/judge --minutes 5 --out quality.json runs/rdlm-heat runs/mdlm
    python benchmarks/sample_quality.py runs/plaid --judge runs/judge --out quality.json --steps 4 16 64 --ways ddim

The judge and what it measures: judging.py.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from harness import present
from judging import judge, real_text, verdict

import logosphere as ls
from logosphere.processes.gaussian.diffusion import GaussianDiffusion
from logosphere.processes.simplex.process import DeterministicPath, SimplexProcess
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.runs.run import Run
from logosphere.sampling.steppers import SphericalStepper, base

STEPS = (4, 8, 16, 32, 64, 128, 256)


def samplers(model: ls.Model) -> dict[str, dict[str, Any]]:
    """The ways to sample this model."""
    if isinstance(model.process, GaussianDiffusion):
        names = ["ancestral", "ddim", "dpm++"] + (["token-drawn"] if model.process.predicts_tokens else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if isinstance(model.process, SimplexProcess):
        path: object = model.process.path
        names = ["ancestral"] + (["heun"] if isinstance(path, DeterministicPath) and path.deterministic else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if not isinstance(model.process, SphericalDiffusion):
        return {"ancestral": {"stepper": base}}
    model.process = model.process.with_path("any-order")  # the steps below move all positions jointly all the same
    ways: dict[str, dict[str, Any]] = {"in turn": {"stepper": base}}
    return ways | {move: {"stepper": SphericalStepper(SPHERICAL_STEPS[move])} for move in SPHERICAL_STEPS}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("runs", nargs="+", type=Path)
    read.add_argument("--judge", type=Path, required=True, help="folder of the judge; trained there if empty")
    read.add_argument("--minutes", type=float, default=5.0, help="processor time to train it")
    read.add_argument("--ways", nargs="*", help="only these ways to sample")
    read.add_argument("--samples", type=int, default=32)
    read.add_argument("--steps", type=int, nargs="+", default=STEPS)
    read.add_argument("--out", type=Path, required=True, help="where the rows are kept as they are made")
    given = read.parse_args()
    critic = judge(given.judge, given.minutes)
    rows = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows.setdefault("real text", verdict(critic, real_text(256)))
    models = {run.name: Run(run).model("ema") for run in given.runs}
    ways = [(name, way, options) for name, model in models.items() for way, options in samplers(model).items()]
    for steps in given.steps:  # all ways with few steps first, so that a table can be read before the last is done
        for name, way, options in ways:
            key, model = f"{name} {way} {steps}", models[name]
            if key in rows or (given.ways is not None and way not in given.ways):
                continue
            rng = torch.Generator().manual_seed(0)
            rows[key] = verdict(critic, ls.sample(model, n=given.samples, steps=steps, rng=rng, **options))
            given.out.write_text(json.dumps(rows))
            print(key, rows[key], file=sys.stderr, flush=True)
    present("judge's bits per character", rows)


if __name__ == "__main__":
    main()
