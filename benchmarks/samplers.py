"""Steps against quality: what a judge thinks of the samples of one masked model, sampler by sampler.

    python benchmarks/samplers.py --run runs/rows/mdlm --judge runs/judge --remasker runs/g-star --out samplers.json

Bits per character of the judge ± s.e. and the entropy of characters within a sample (judging.py), the share of distinct
four-letter strings among all samples, network evaluations, and CPU seconds for each sample. The remasker of G-Star is
trained first, on the training split, with the model as it is; its minutes count as trainer, not as sampling.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from harness import present
from judging import LENGTH, judge, real_text, verdict

import logosphere as ls
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

SAMPLERS = (
    "ancestral", "remdm-cap", "star", "g-star", "first-hitting", "confidence", "p2",
    "remdm-rescale", "star-loop", "conf-star", "entropy", "llada", "entropy-bounded",
)  # fmt: skip
STEPS = (8, 16, 32, 64)
ONCE = {"first-hitting", "entropy-bounded"}
"""Samplers that choose the number of steps themselves."""


def with_remasker(run: Path, folder: Path, minutes: float) -> ls.Model:
    """The model of a run and a remasker, trained for so many minutes of processor time; kept in a folder."""
    if (folder / "recipe.json").exists():
        return ls.load(folder)
    torch.manual_seed(0)
    model = ls.with_remasker(Run(run).model("ema"))
    crops = ls.Crops(ls.open_corpus("text8").train, LENGTH, 64, 1)
    started, steps = time.process_time(), 0
    pace = 20
    for judged in ls.train_remasker(
        model, map(crops.at, range(10**9)), steps=pace, optim=OptimizerConfig(lr=1e-3, min_lr_ratio=1.0)
    ):
        steps = judged.step
    steps = max(pace, int(60 * minutes / (time.process_time() - started) * steps))
    for judged in ls.train_remasker(
        model, map(crops.at, range(pace, 10**9)), steps=steps, optim=OptimizerConfig(lr=2e-3)
    ):
        if judged.step % 50 == 0:
            print(f"remasker {judged.step}/{steps}: {judged.loss:.4f} nats, {judged.wrong:.3f} wrong", file=sys.stderr)
    model.save(folder)
    return model


def distinct(tokens: torch.Tensor, n: int = 4) -> float:
    """The share of different strings of n characters among all in the samples."""
    strings = tokens.unfold(1, n, 1).reshape(-1, n)
    return len(strings.unique(dim=0)) / len(strings)


def row(model: ls.Model, critic: ls.Model, name: str, steps: int, samples: int) -> dict[str, float]:
    rng, started = torch.Generator().manual_seed(0), time.process_time()
    drawn = ls.generate(model, samples, steps, rng, sampler=ls.sampler(name, model))
    spent = (time.process_time() - started) / samples
    judged = verdict(critic, drawn.tokens)
    return judged | {"distinct": distinct(drawn.tokens), "nfe": drawn.nfe, "cpu s": spent}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--run", type=Path, required=True, help="a run of mdlm on text8")
    read.add_argument("--judge", type=Path, required=True, help="folder of the judge (judging.py)")
    read.add_argument("--remasker", type=Path, required=True, help="folder of the model with its remasker")
    read.add_argument("--minutes", type=float, default=2.0, help="processor time to train the remasker")
    read.add_argument("--samples", type=int, default=64)
    read.add_argument("--samplers", nargs="*", default=SAMPLERS)
    read.add_argument("--steps", nargs="*", type=int, default=STEPS)
    read.add_argument("--out", type=Path, required=True, help="where the rows are kept as they are made")
    given = read.parse_args()
    critic, model = judge(given.judge, 4.0), with_remasker(given.run, given.remasker, given.minutes)
    rows = json.loads(given.out.read_text()) if given.out.exists() else {}
    real = real_text(256)
    rows.setdefault(
        "real text", verdict(critic, real) | {"distinct": distinct(real[: given.samples]), "nfe": 0, "cpu s": 0}
    )
    tasks = [(name, steps) for steps in given.steps for name in given.samplers if name not in ONCE]
    tasks += [(name, LENGTH) for name in given.samplers if name in ONCE]
    for name, steps in tasks:
        if f"{name} {steps}" not in rows:
            rows[f"{name} {steps}"] = row(model, critic, name, steps, given.samples)
            given.out.write_text(json.dumps(rows))
            print(name, steps, rows[f"{name} {steps}"], file=sys.stderr, flush=True)
    present("judge's bits per character", rows)


if __name__ == "__main__":
    main()
