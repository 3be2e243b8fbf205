"""Local mixing of neighbouring positions before attention: its effect on bounds and training time.

    python benchmarks/local_mixing.py --steps 200     # tinystories and text8; about 20 minutes of CPU time

The same network (160 × 4, 5 heads) is trained with network.neighbours 0, 1 and 2 on the same data in the same order and
with the same noise: word pieces of TinyStories (1,024, length 64) as running text and as paragraphs with ends, and
characters of text8 (length 128), 4,096 tokens a step in bfloat16. Rows are bounds of the validation split (256
sequences, 4 draws) at equal numbers of steps, and the CPU time of training. `ar` is the reference of a model that has
the previous token in its residual stream from the start.
"""

import argparse
import sys
import time
from typing import Any

import harness
import torch

import logosphere as ls
from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Split, take_first_tokens

SIZE: dict[str, Any] = {"width": 160, "depth": 4, "heads": 5}
TEXTS = {"running": ("tinystories", "bpe:1024", 64), "paragraphs": ("tinystories", "bpe:1024", 64),
         "letters": ("text8", "auto", 128)}  # fmt: skip
ROWS = [("mdlm", 0), ("mdlm", 1), ("mdlm", 2), ("rdlm-heat", 0), ("rdlm-heat", 1), ("ar", 0)]


def train_and_evaluate(
    name: str, splits: list[Split], vocabulary: int, length: int, steps: int, reach: int
) -> dict[str, float]:
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    if name == "rdlm-heat":
        options = {"path": "any-order", "projected": vocabulary > SIZE["width"] + 2}
    model = ls.build(name, vocab_size=vocabulary, length=length, neighbours=reach, **SIZE, **options)
    batches = train_batches(splits[0], length, 4096 // length, seed=0)
    started = time.process_time()
    optim = ls.OptimizerConfig(lr=3e-3, warmup=30, min_lr_ratio=0.1)
    list(ls.fit(model, map(batches.at, range(steps)), steps=steps, optim=optim, ema=0.98, precision="bfloat16"))
    seconds = time.process_time() - started
    held_out = eval_batches(splits[1], length, 64, 256)
    report = ls.evaluate(model.eval(), held_out, draws=4, rng=0)
    return {"bits per token": report.bits, "s.e.": report.error, "CPU s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--texts", nargs="*", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--systems", nargs="*", default=["mdlm", "rdlm-heat", "ar"])
    args = parser.parse_args()
    for text in args.texts:
        source, tokenizer, length = TEXTS[text]
        corpus = ls.open_corpus(source, tokenizer)
        splits: list[Split] = [corpus.train, corpus.valid]
        if text == "running":
            splits = [take_first_tokens(split, sys.maxsize) for split in splits]
        rows = {
            name if name == "ar" else f"{name}, {reach} on each side": train_and_evaluate(
                name, splits, corpus.tokenizer.size, length, args.steps, reach
            )
            for name, reach in ROWS
            if name in args.systems
        }
        harness.print_table(f"{text}, {args.steps} steps", rows)


if __name__ == "__main__":
    main()
