"""A look next door beside attention: what it brings to networks that learn to fill in hidden tokens.

    python benchmarks/neighbours.py --steps 200     # tinystories and text8; about 15 minutes of processor time

The same network (160 × 4, 5 heads) with --network.neighbours 0, 1 and 2, the same data in the same order and the same
noise: word pieces of TinyStories (1,024, length 64), letters of text8 (length 128), 4,096 tokens a step in bfloat16.
Bounds of the validation split (256 sequences, 4 draws) at equal numbers of steps, and the processor time of the
trainings. `ar` is there for what a model learns that has the token before in its residual stream from the start.
"""

import argparse
import time

import harness
import torch

import logosphere as ls
from logosphere.data.batches import draws, sequences
from logosphere.data.corpora import Corpus

SIZE = {"width": 160, "depth": 4, "heads": 5}
TEXTS = {"tinystories": ("bpe:1024", 64), "text8": ("auto", 128)}
ROWS = [("mdlm", 0), ("mdlm", 1), ("mdlm", 2), ("rdlm-heat", 0), ("rdlm-heat", 1), ("ar", 0)]


def figures(name: str, corpus: Corpus, length: int, steps: int, reach: int) -> dict[str, float]:
    torch.manual_seed(0)
    wide = {"projected": True} if name == "rdlm-heat" and corpus.tokenizer.size > SIZE["width"] + 2 else {}
    model = ls.build(name, vocab_size=corpus.tokenizer.size, length=length, neighbours=reach, **SIZE, **wide)
    drawn = draws(corpus.train, length, 4096 // length, seed=0)
    begun = time.process_time()
    optim = ls.Optim(lr=3e-3, warmup=30, final=0.1)
    list(ls.fit(model, map(drawn.at, range(steps)), steps=steps, optim=optim, ema=0.98, precision="bfloat16"))
    seconds = time.process_time() - begun
    held_out = sequences(corpus.valid, length, 64, 256)
    report = ls.evaluate(model.eval(), held_out, draws=4, rng=0)
    return {"bits per token": report.bits, "s.e.": report.error, "CPU s": seconds}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--steps", type=int, default=200)
    read.add_argument("--texts", nargs="*", default=list(TEXTS), choices=list(TEXTS))
    read.add_argument("--systems", nargs="*", default=["mdlm", "rdlm-heat", "ar"])
    given = read.parse_args()
    for text in given.texts:
        tokenizer, length = TEXTS[text]
        corpus = ls.open_corpus(text, tokenizer)
        rows = {
            name if name == "ar" else f"{name}, {reach} on each side": figures(name, corpus, length, given.steps, reach)
            for name, reach in ROWS
            if name in given.systems
        }
        harness.present(f"{text}, {given.steps} steps", rows)


if __name__ == "__main__":
    main()
