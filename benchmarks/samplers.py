"""Quality of the samples of one masked model against the number of steps, for each sampler.

    python benchmarks/samplers.py --run runs/rows/mdlm --scorer runs/scorer --remasker runs/g-star --out samplers.json

Metrics: bits per character under the scorer ± s.e. and the entropy of characters within a sample (scoring.py), the
fraction of distinct four-letter strings among all samples, network evaluations, and CPU seconds for each sample. The
remasker of G-Star is trained first, on the training split, with the weights of the model fixed. Its training is not
counted as sampling time.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from harness import print_table
from scoring import LENGTH, load_scorer, load_test_windows, score

import logosphere as ls
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

SAMPLERS = (
    "ancestral", "remdm-cap", "star", "g-star", "first-hitting", "confidence", "p2",
    "remdm-rescale", "star-loop", "conf-star", "entropy", "llada", "entropy-bounded",
)  # fmt: skip
STEPS = (8, 16, 32, 64)
OWN_STEPS = {"first-hitting", "entropy-bounded"}
"""Samplers that choose the number of steps themselves."""


def load_with_remasker(run: Path, folder: Path, minutes: float) -> ls.Model:
    """Load a model with a remasker from the folder; if it is empty, train a remasker for the model of a run."""
    if (folder / "recipe.json").exists():
        return ls.load(folder)
    torch.manual_seed(0)
    model = ls.with_remasker(Run(run).model("ema"))
    crops = ls.Crops(ls.open_corpus("text8").train, LENGTH, 64, 1)
    started, steps = time.process_time(), 0
    calibration = 20
    for trained in ls.train_remasker(
        model, map(crops.at, range(10**9)), steps=calibration, optim=OptimizerConfig(lr=1e-3, min_lr_ratio=1.0)
    ):
        steps = trained.step
    steps = max(calibration, int(60 * minutes / (time.process_time() - started) * steps))
    for trained in ls.train_remasker(
        model, map(crops.at, range(calibration, 10**9)), steps=steps, optim=OptimizerConfig(lr=2e-3)
    ):
        if trained.step % 50 == 0:
            print(
                f"remasker {trained.step}/{steps}: {trained.loss:.4f} nats, {trained.wrong:.3f} wrong", file=sys.stderr
            )
    model.save(folder)
    return model


def distinct_fraction(tokens: torch.Tensor, n: int = 4) -> float:
    """Return the fraction of distinct strings among all strings of n characters in the samples."""
    strings = tokens.unfold(1, n, 1).reshape(-1, n)
    return len(strings.unique(dim=0)) / len(strings)


def measure(model: ls.Model, scorer: ls.Model, name: str, steps: int, samples: int) -> dict[str, float]:
    rng, started = torch.Generator().manual_seed(0), time.process_time()
    drawn = ls.generate(model, samples, steps, rng, sampler=ls.sampler(name, model))
    spent = (time.process_time() - started) / samples
    return score(scorer, drawn.tokens) | {"distinct": distinct_fraction(drawn.tokens), "nfe": drawn.nfe, "cpu s": spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run of mdlm on text8")
    parser.add_argument("--scorer", type=Path, required=True, help="folder of the scorer (scoring.py)")
    parser.add_argument("--remasker", type=Path, required=True, help="folder of the model with its remasker")
    parser.add_argument("--minutes", type=float, default=2.0, help="CPU time to train the remasker")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--samplers", nargs="*", default=SAMPLERS)
    parser.add_argument("--steps", nargs="*", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the rows, extended after each")
    args = parser.parse_args()
    scorer, model = load_scorer(args.scorer, 4.0), load_with_remasker(args.run, args.remasker, args.minutes)
    rows = json.loads(args.out.read_text()) if args.out.exists() else {}
    real = load_test_windows(256)
    rows.setdefault(
        "real text", score(scorer, real) | {"distinct": distinct_fraction(real[: args.samples]), "nfe": 0, "cpu s": 0}
    )
    tasks = [(name, steps) for steps in args.steps for name in args.samplers if name not in OWN_STEPS]
    tasks += [(name, LENGTH) for name in args.samplers if name in OWN_STEPS]
    for name, steps in tasks:
        if f"{name} {steps}" not in rows:
            rows[f"{name} {steps}"] = measure(model, scorer, name, steps, args.samples)
            args.out.write_text(json.dumps(rows))
            print(name, steps, rows[f"{name} {steps}"], file=sys.stderr, flush=True)
    print_table("bits per character under the scorer", rows)


if __name__ == "__main__":
    main()
