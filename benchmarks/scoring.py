"""The scorer of sample quality: an autoregressive model of text8, trained on the validation split.

    python benchmarks/scoring.py --out runs/scorer --minutes 4

The generators are trained on the training split, so the scorer shares no training text with them. Its bits per
character on the test split are the reference value. Fewer bits than that together with a lower entropy indicate
repetitive samples. Entropy is that of the characters within each sample, averaged over samples.
"""

import argparse
import math
import time
from pathlib import Path

import harness
import torch

import logosphere as ls
from logosphere.data.batches import Crops, windows
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Trainer

LENGTH = 128


def load_scorer(folder: Path, minutes: float) -> ls.Model:
    """Load the autoregressive model of the folder; if there is none, train it for this number of CPU minutes."""
    if (folder / "recipe.json").exists():
        return ls.load(folder)
    corpus = ls.open_corpus("text8")
    torch.manual_seed(0)
    model = ls.build("ar", vocab_size=27, length=LENGTH, width=160, depth=4, heads=5)
    trainer, crops = Trainer(model, ema=0.99, optim=OptimizerConfig(lr=4e-3)), Crops(corpus.valid, LENGTH, 32, 0)
    started, step = time.process_time(), 0
    while (done := (time.process_time() - started) / (60 * minutes)) < 1:
        trainer.train_step(crops.at(step), done)
        step += 1
    assert trainer.ema is not None
    trainer.ema.swap()
    model.save(folder)
    return model


def load_test_windows(n: int) -> torch.Tensor:
    """Return n windows of the test split, [n, LENGTH]."""
    return next(iter(windows(ls.open_corpus("text8").test, LENGTH, n, n))).tokens


def score(scorer: ls.Model, tokens: torch.Tensor) -> dict[str, float]:
    """Return bits per character under the scorer with their standard error, and the entropy within a sample."""
    bits = scorer.eval().nelbo(tokens, torch.Generator().manual_seed(0)).total.double() / LENGTH / math.log(2)
    p = torch.nn.functional.one_hot(tokens, 27).double().mean(1)
    entropy = -(p * p.clamp_min(1e-12).log2()).sum(1)
    return {"bits": float(bits.mean()), "s.e.": float(bits.std() / len(bits) ** 0.5), "entropy": float(entropy.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the scorer; trained there if empty")
    parser.add_argument("--minutes", type=float, default=4.0, help="CPU time of its training")
    args = parser.parse_args()
    scorer = load_scorer(args.out, args.minutes)
    harness.print_table("scorer on real text", {"real text": score(scorer, load_test_windows(256))})


if __name__ == "__main__":
    main()
