"""How the models in the box read: python benchmarks/box_reading.py [box:NAME]

1. Samplers, temperature and steps: the share of words that the training split knows, of words that differ, of runs of
   six words that stand in the training split as they are, and the entropy of letters, beside held-out text.
2. On the sphere, with all positions together: after each step, tokens that states spell and tokens that are guessed.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence

import torch

import logosphere as ls
from logosphere.data.batches import eval_batches
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import take_first_tokens
from logosphere.data.text8 import text8_filter
from logosphere.pretrained import sampling_defaults
from logosphere.runs.run import Run
from logosphere.sampling.samplers import sampler
from logosphere.sampling.trajectory import Recorder

TEXTS, TOKENS, TIMES, RUN = 16, 5_000_000, 3, 6
WAYS = [("ancestral", 64, 1.0), ("ancestral", 64, 0.8), ("ancestral", 32, 0.6), ("ancestral", 64, 0.6),
        ("ancestral", 128, 0.6), ("ancestral", 64, 0.5), ("ancestral", 64, 0.4), ("entropy", 64, 1.0),
        ("entropy", 64, 0.8), ("entropy", 64, 0.7), ("entropy", 64, 0.6)]  # fmt: skip


def runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]


def row(name: str, texts: Sequence[str], known: set[str], seen: set[tuple[str, ...]]) -> str:
    """Ends of texts may cut words, so the first and last of each are left out."""
    split = [text8_filter(text).split()[1:-1] for text in texts]
    words, together = [word for one in split for word in one], [found for one in split for found in runs(one)]
    letters = Counter(text8_filter(" ".join(texts)))
    shares = [count / letters.total() for count in letters.values()]
    spelt, different = sum(word in known for word in words) / len(words), len(set(words)) / len(words)
    error = math.sqrt(spelt * (1 - spelt) / len(words))
    entropy = -sum(share * math.log2(share) for share in shares)
    copied = sum(found in seen for found in together) / max(1, len(together))
    return (
        f"{name:<32} spelt {spelt:.3f} ± {error:.3f}   different {different:.3f}   letters {entropy:.2f} bits   "
        f"copied {copied:.3f}   {len(words)} words"
    )


def main() -> None:
    run = Run(sys.argv[1] if len(sys.argv) > 1 else "box:rdlm")
    texts_drawn = int(sys.argv[2]) if len(sys.argv) > 2 else TEXTS
    model, corpus, decode = run.model(), open_corpus(run.config.data, run.tokenizer), run.tokenizer.decode
    words = text8_filter(decode(take_first_tokens(corpus.train, TOKENS))).split()
    known = {word for word, count in Counter(words).items() if count >= TIMES}
    seen = set(runs(words))
    held_out = next(iter(eval_batches(corpus.valid, model.length, texts_drawn, texts_drawn))).tokens
    print(row("held-out text", [decode(tokens) for tokens in held_out.numpy()], known, seen))
    for name, steps, temperature in WAYS:
        rng, way = torch.Generator().manual_seed(0), sampler(name, model)
        drawn = ls.generate(model, n=texts_drawn, steps=steps, rng=rng, temperature=temperature, sampler=way)
        texts = [decode(tokens) for tokens in drawn.tokens.numpy()]
        print(row(f"{name}, {steps} steps, {temperature}", texts, known, seen), flush=True)
    if not run.config.system.startswith("rdlm"):
        return
    recorder, rng = Recorder(model), torch.Generator().manual_seed(0)
    way = sampler("bridge", model)
    ls.generate(
        model,
        n=1,
        steps=64,
        rng=rng,
        sampler=way,
        temperature=sampling_defaults(run.path.name).temperature,
        watch=recorder.see,
    )
    for moment in recorder.moments[::4] + recorder.moments[-1:]:
        spelt, guessed = (sum(token >= 0 for token in rows[0]) for rows in (moment.tokens, moment.guessed or [[]]))
        print(f"bridge, step {moment.step:<3} spelt {spelt:<4} guessed {guessed}")


if __name__ == "__main__":
    main()
