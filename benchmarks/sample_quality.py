"""Quality of samples against the number of steps: bits per character under a scorer, and entropy of characters.

    python benchmarks/sample_quality.py --scorer runs/scorer --minutes 5 --out quality.json runs/rdlm-heat runs/mdlm
    python benchmarks/sample_quality.py runs/plaid --scorer runs/scorer --out q.json --steps 4 16 64 --samplers ddim

scoring.py describes the scorer and its metrics.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from harness import print_table
from scoring import load_scorer, load_test_windows, score

import logosphere as ls
from logosphere.processes.gaussian.diffusion import GaussianDiffusion
from logosphere.processes.simplex.process import DeterministicPath, SimplexProcess
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.runs.run import Run
from logosphere.sampling.steppers import SphericalStepper, ancestral

STEPS = (4, 8, 16, 32, 64, 128, 256)


def list_samplers(model: ls.Model) -> dict[str, dict[str, Any]]:
    """Return the arguments of `ls.sample` for each sampler of this model."""
    if isinstance(model.process, GaussianDiffusion):
        names = ["ancestral", "ddim", "dpm++"] + (["token-drawn"] if model.process.predicts_tokens else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if isinstance(model.process, SimplexProcess):
        path: object = model.process.path
        names = ["ancestral"] + (["heun"] if isinstance(path, DeterministicPath) and path.deterministic else [])
        return {name: {"sampler": ls.sampler(name, model)} for name in names}
    if not isinstance(model.process, SphericalDiffusion):
        return {"ancestral": {"stepper": ancestral}}
    model.process = model.process.with_path(
        "any-order"
    )  # only ancestral sampling follows it: spherical steps are joint
    any_order: dict[str, dict[str, Any]] = {"any-order": {"stepper": ancestral}}
    return any_order | {move: {"stepper": SphericalStepper(SPHERICAL_STEPS[move])} for move in SPHERICAL_STEPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--scorer", type=Path, required=True, help="folder of the scorer; trained there if empty")
    parser.add_argument("--minutes", type=float, default=5.0, help="CPU time to train the scorer")
    parser.add_argument("--samplers", nargs="*", help="only these samplers")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the rows, extended after each")
    args = parser.parse_args()
    scorer = load_scorer(args.scorer, args.minutes)
    rows = json.loads(args.out.read_text()) if args.out.exists() else {}
    rows.setdefault("real text", score(scorer, load_test_windows(256)))
    models = {run.name: Run(run).model("ema") for run in args.runs}
    planned = [
        (name, sampler, options) for name, model in models.items() for sampler, options in list_samplers(model).items()
    ]
    for steps in args.steps:  # few steps first: a partial table compares all samplers
        for name, sampler, options in planned:
            key, model = f"{name} {sampler} {steps}", models[name]
            if key in rows or (args.samplers is not None and sampler not in args.samplers):
                continue
            rng = torch.Generator().manual_seed(0)
            rows[key] = score(scorer, ls.sample(model, n=args.samples, steps=steps, rng=rng, **options))
            args.out.write_text(json.dumps(rows))
            print(key, rows[key], file=sys.stderr, flush=True)
    print_table("bits per character under the scorer", rows)


if __name__ == "__main__":
    main()
