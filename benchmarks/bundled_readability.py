"""Readability of samples of bundled checkpoints: python benchmarks/bundled_readability.py [pretrained:NAME] [SAMPLES]

1. For each sampler, temperature and number of steps, and for held-out text: the fraction of words known from the
   training split, the fraction of distinct words, the fraction of runs of six words copied from the training split, and
   the entropy of characters.
2. For systems on the sphere: after every fourth step of the joint path, the numbers of decoded and predicted tokens.
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
from logosphere.sampling.registry import sampler
from logosphere.sampling.trajectory import Recorder

SAMPLES = 16
TRAIN_TOKENS = 5_000_000
"""Tokens of the training split that words and runs are collected from."""
MIN_COUNT, RUN_LENGTH = 3, 6
"""Occurrences that make a word known, and words of a run."""
SAMPLING = [("ancestral", 64, 1.0), ("ancestral", 64, 0.8), ("ancestral", 32, 0.6), ("ancestral", 64, 0.6),
            ("ancestral", 128, 0.6), ("ancestral", 64, 0.5), ("ancestral", 64, 0.4), ("entropy", 64, 1.0),
            ("entropy", 64, 0.8), ("entropy", 64, 0.7), ("entropy", 64, 0.6)]  # fmt: skip
"""Sampler, steps, temperature."""


def find_runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + RUN_LENGTH]) for i in range(len(words) - RUN_LENGTH + 1)]


def format_row(name: str, texts: Sequence[str], known: set[str], seen: set[tuple[str, ...]]) -> str:
    """Return a line of metrics; the first and last word of each text may be cut and are left out."""
    split = [text8_filter(text).split()[1:-1] for text in texts]
    words, runs = [word for one in split for word in one], [found for one in split for found in find_runs(one)]
    counts = Counter(text8_filter(" ".join(texts)))
    p = [count / counts.total() for count in counts.values()]
    known_rate, distinct = sum(word in known for word in words) / len(words), len(set(words)) / len(words)
    error = math.sqrt(known_rate * (1 - known_rate) / len(words))
    entropy = -sum(q * math.log2(q) for q in p)
    copied = sum(found in seen for found in runs) / max(1, len(runs))
    return (
        f"{name:<32} known words {known_rate:.3f} ± {error:.3f}   distinct words {distinct:.3f}   "
        f"entropy {entropy:.2f} bits   copied runs {copied:.3f}   {len(words)} words"
    )


def main() -> None:
    run = Run(sys.argv[1] if len(sys.argv) > 1 else "pretrained:rdlm")
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else SAMPLES
    model, corpus, decode = run.model(), open_corpus(run.config.data, run.tokenizer), run.tokenizer.decode
    words = text8_filter(decode(take_first_tokens(corpus.train, TRAIN_TOKENS))).split()
    known = {word for word, count in Counter(words).items() if count >= MIN_COUNT}
    seen = set(find_runs(words))
    held_out = next(iter(eval_batches(corpus.valid, model.length, samples, samples))).tokens
    print(format_row("held-out text", [decode(tokens) for tokens in held_out.numpy()], known, seen))
    for name, steps, temperature in SAMPLING:
        rng, chosen = torch.Generator().manual_seed(0), sampler(name, model)
        drawn = ls.generate(model, n=samples, steps=steps, rng=rng, temperature=temperature, sampler=chosen)
        texts = [decode(tokens) for tokens in drawn.tokens.numpy()]
        print(format_row(f"{name}, {steps} steps, {temperature}", texts, known, seen), flush=True)
    if run.config.system.startswith("rdlm"):
        print_trajectory(model, sampling_defaults(run.path.name).temperature)


def print_trajectory(model: ls.Model, temperature: float) -> None:
    recorder, rng = Recorder(model), torch.Generator().manual_seed(0)
    ls.generate(
        model, n=1, steps=64, rng=rng, sampler=sampler("bridge", model), temperature=temperature, watch=recorder.record
    )
    for frame in recorder.frames[::4] + recorder.frames[-1:]:
        decoded, predicted = (sum(token >= 0 for token in rows[0]) for rows in (frame.tokens, frame.predicted or [[]]))
        print(f"bridge, step {frame.step:<3} decoded {decoded:<4} predicted {predicted}")


if __name__ == "__main__":
    main()
