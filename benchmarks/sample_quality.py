"""Quality of samples against the number of steps: what a judge thinks of them, and how varied they are.

    python benchmarks/sample_quality.py --judge runs/judge --minutes 5 --out quality.json runs/rdlm-heat runs/mdlm

The judge is an autoregressive model trained on the validation split of text8, which no generator has seen. Its bits per
character on real test text are the value to reach; less than that together with less entropy means dull text. Entropy
is that of the characters within each sample, averaged.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from harness import present

import logosphere as ls
from logosphere.data.batches import Crops, windows
from logosphere.processes.moves import MOVES
from logosphere.processes.spherical import Spherical
from logosphere.runs.folder import RunFolder
from logosphere.sampling.plan import uniform_grid
from logosphere.sampling.steppers import Moved, ancestral
from logosphere.training.fit import Training
from logosphere.training.optim import Optim

LENGTH, STEPS = 128, (4, 8, 16, 32, 64, 128, 256)


def judge(folder: Path, minutes: float) -> ls.Model:
    """The autoregressive model in the folder, or a new one trained for so many minutes of processor time."""
    if (folder / "recipe.json").exists():
        return ls.load(folder)
    corpus = ls.open_corpus("text8")
    torch.manual_seed(0)
    model = ls.build("ar", vocab_size=27, length=LENGTH, width=160, depth=4, heads=5)
    training, crops = Training(model, ema=0.99, optim=Optim(lr=4e-3)), Crops(corpus.valid, LENGTH, 32, 0)
    started, step = time.process_time(), 0
    while (done := (time.process_time() - started) / (60 * minutes)) < 1:
        training.advance(crops.at(step), 0, done)
        step += 1
    training.averaged.exchange()
    model.save(folder)
    return model


def verdict(judge: ls.Model, tokens: torch.Tensor) -> dict[str, float]:
    """Bits per character ± s.e., and the entropy of characters within a sample."""
    bits = judge.eval().nelbo(tokens, torch.Generator().manual_seed(0)).total.double() / LENGTH / math.log(2)
    share = torch.nn.functional.one_hot(tokens, 27).double().mean(1)
    entropy = -(share * share.clamp_min(1e-12).log2()).sum(1)
    return {"bits": float(bits.mean()), "s.e.": float(bits.std() / len(bits) ** 0.5), "entropy": float(entropy.mean())}


def samplers(model: ls.Model) -> dict[str, dict]:
    """The ways to sample this model."""
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
    read.add_argument("--out", type=Path, required=True, help="where the rows are kept as they are made")
    given = read.parse_args()
    critic = judge(given.judge, given.minutes)
    rows = json.loads(given.out.read_text()) if given.out.exists() else {}
    real = next(iter(windows(ls.open_corpus("text8").test, LENGTH, 256, 256))).tokens
    rows.setdefault("real text", verdict(critic, real))
    for run in given.runs:
        model = RunFolder(run).model("ema")
        for way, options in samplers(model).items():
            for steps in STEPS:
                name = f"{run.name} {way} {steps}"
                if name not in rows:
                    rng = torch.Generator().manual_seed(0)
                    rows[name] = verdict(critic, ls.sample(model, n=given.samples, steps=steps, rng=rng, **options))
                    given.out.write_text(json.dumps(rows))
                    print(name, rows[name], file=sys.stderr, flush=True)
    present("judge's bits per character", rows)


if __name__ == "__main__":
    main()
