"""The judge of sample quality: an autoregressive model of text8 that has seen none of the generators' text.

    python benchmarks/judging.py --out runs/judge --minutes 4

It is trained on the validation split. Its bits per character on real test text are the value to reach; less than that
together with less entropy means dull text. Entropy is that of the characters within each sample, averaged.
"""

import argparse
import math
import time
from pathlib import Path

import harness  # noqa: F401 (one thread)
import torch

import logosphere as ls
from logosphere.data.batches import Crops, windows
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Trainer

LENGTH = 128


def judge(folder: Path, minutes: float) -> ls.Model:
    """The autoregressive model in the folder, or a new one trained for so many minutes of processor time."""
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


def real_text(n: int) -> torch.Tensor:
    """n windows of the test split."""
    return next(iter(windows(ls.open_corpus("text8").test, LENGTH, n, n))).tokens


def verdict(judge: ls.Model, tokens: torch.Tensor) -> dict[str, float]:
    """Bits per character ± s.e., and the entropy of characters within a sample."""
    bits = judge.eval().nelbo(tokens, torch.Generator().manual_seed(0)).total.double() / LENGTH / math.log(2)
    share = torch.nn.functional.one_hot(tokens, 27).double().mean(1)
    entropy = -(share * share.clamp_min(1e-12).log2()).sum(1)
    return {"bits": float(bits.mean()), "s.e.": float(bits.std() / len(bits) ** 0.5), "entropy": float(entropy.mean())}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--out", type=Path, required=True, help="folder of the judge; trained there if empty")
    read.add_argument("--minutes", type=float, default=4.0, help="processor time to train it")
    given = read.parse_args()
    harness.present("the judge on real text", {"real text": verdict(judge(given.out, given.minutes), real_text(256))})


if __name__ == "__main__":
    main()
