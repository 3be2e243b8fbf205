"""How the models in the box read: python benchmarks/box_reading.py [box:NAME]

1. Temperature and steps: the share of words that the training split knows, of words that differ, and the entropy of
   letters, beside held-out text of the same length and number.
2. On the sphere, with all positions together: after each step, tokens that states spell and tokens that are guessed.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence

import torch

import logosphere as ls
from logosphere.data.corpora import open_corpus
from logosphere.runs.folder import RunFolder
from logosphere.sampling.samplers import sampler
from logosphere.sampling.trajectory import Recorder

TEXTS, LETTERS, TIMES = 16, 5_000_000, 3
WAYS = [(64, 1.0), (64, 0.8), (32, 0.6), (64, 0.6), (128, 0.6), (64, 0.5), (64, 0.4)]
READABLE = 0.6


def row(name: str, texts: Sequence[str], known: set[str]) -> str:
    """Ends of texts may cut words, so the first and last of each are left out."""
    words = [word for text in texts for word in text.split()[1:-1]]
    letters = Counter("".join(texts))
    shares = [count / letters.total() for count in letters.values()]
    spelt, different = sum(word in known for word in words) / len(words), len(set(words)) / len(words)
    error = math.sqrt(spelt * (1 - spelt) / len(words))
    entropy = -sum(share * math.log2(share) for share in shares)
    return f"{name:<28} spelt {spelt:.3f} ± {error:.3f}   different {different:.3f}   letters {entropy:.2f} bits"


def main() -> None:
    run = RunFolder(sys.argv[1] if len(sys.argv) > 1 else "box:rdlm")
    model, corpus = run.model(), open_corpus(run.recipe.data, run.tokenizer)
    words = Counter(run.tokenizer.decode(corpus.train[:LETTERS]).split())
    known = {word for word, count in words.items() if count >= TIMES}
    held_out = run.tokenizer.decode(corpus.valid[: TEXTS * model.length])
    print(row("held-out text", [held_out[i : i + model.length] for i in range(0, len(held_out), model.length)], known))
    for steps, temperature in WAYS:
        rng = torch.Generator().manual_seed(0)
        drawn = ls.generate(model, n=TEXTS, steps=steps, rng=rng, temperature=temperature)
        texts = [run.tokenizer.decode(tokens) for tokens in drawn.tokens.numpy()]
        print(row(f"{steps} steps, temperature {temperature}", texts, known), flush=True)
    if not run.recipe.system.startswith("rdlm"):
        return
    recorder, rng = Recorder(model), torch.Generator().manual_seed(0)
    way = sampler("bridge", model)
    ls.generate(model, n=1, steps=64, rng=rng, sampler=way, temperature=READABLE, watch=recorder.see)
    for moment in recorder.moments[::4] + recorder.moments[-1:]:
        spelt, guessed = (sum(token >= 0 for token in rows[0]) for rows in (moment.tokens, moment.guessed or [[]]))
        print(f"bridge, step {moment.step:<3} spelt {spelt:<4} guessed {guessed}")


if __name__ == "__main__":
    main()
