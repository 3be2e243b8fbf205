"""Readability of samples of trained models: python benchmarks/bundled_readability.py [RUN...] [--samples N] [--scorer]

1. For each sampler, temperature and number of steps, and for held-out text: the fraction of words known from the
   training split, the fraction of distinct words, the fraction of runs of six words copied from the training split, the
   entropy of characters, words a text, and with --scorer bits per character under SmolLM2 (extra 'judge').
2. For systems on the sphere with whole sequences: after every fourth step of the joint path, the numbers of decoded and
   predicted tokens.
"""

import argparse
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

import logosphere as ls
from logosphere.data.batches import eval_batches
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import take_first_tokens
from logosphere.data.text8 import text8_filter
from logosphere.errors import UserError
from logosphere.evaluation.scorers import CausalLMScorer, load_smollm2
from logosphere.pretrained import sampling_defaults
from logosphere.runs.run import Run
from logosphere.sampling.registry import sampler
from logosphere.sampling.trajectory import Recorder

SAMPLES = 16
TRAIN_TOKENS = 5_000_000
"""Tokens of the training split that words and runs are collected from."""
MIN_COUNT, RUN_LENGTH = 3, 6
"""Occurrences that make a word known, and words of a run."""
SAMPLING = [("ancestral", 64, 1.0), ("ancestral", 64, 0.8), ("ancestral", 64, 0.7), ("ancestral", 64, 0.6),
            ("ancestral", 128, 0.7), ("entropy", 64, 1.0), ("entropy", 64, 0.8), ("entropy", 64, 0.7),
            ("left-to-right", 128, 1.0), ("left-to-right", 128, 0.8), ("left-to-right", 128, 0.7)]  # fmt: skip
"""Sampler, steps, temperature; those that a model does not support are left out."""


def find_runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + RUN_LENGTH]) for i in range(len(words) - RUN_LENGTH + 1)]


def format_row(
    name: str, texts: Sequence[str], known: set[str], seen: set[tuple[str, ...]], scorer: CausalLMScorer | None
) -> str:
    """Return a line of metrics; the first and last word of each text may be cut and are left out."""
    split = [text8_filter(text).split()[1:-1] for text in texts]
    words, runs = [word for one in split for word in one], [found for one in split for found in find_runs(one)]
    counts = Counter(text8_filter(" ".join(texts)))
    p = [count / counts.total() for count in counts.values()]
    known_rate, distinct = sum(word in known for word in words) / len(words), len(set(words)) / len(words)
    error = math.sqrt(known_rate * (1 - known_rate) / len(words))
    entropy = -sum(q * math.log2(q) for q in p)
    copied = sum(found in seen for found in runs) / max(1, len(runs))
    judged = ""
    if scorer is not None:
        score = scorer.score([text for text in texts if text])
        judged = f"   {scorer.name} {score.value:.3f} ± {score.error:.3f} bits per character"
    return (
        f"{name:<32} known words {known_rate:.3f} ± {error:.3f}   distinct words {distinct:.3f}   "
        f"entropy {entropy:.2f} bits   copied runs {copied:.3f}   {len(words) / len(texts):.0f} words a text{judged}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["pretrained:rdlm"])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--scorer", action="store_true", help="score texts by SmolLM2")
    parser.add_argument("--show", type=int, default=0, help="texts to print of each row")
    args = parser.parse_args()
    scorer = load_smollm2() if args.scorer else None
    for name in args.runs:
        measure(Run(name), args.samples, scorer, args.show)


def measure(run: Run, samples: int, scorer: CausalLMScorer | None, show: int) -> None:
    """Print the rows of a model."""
    model, corpus, decode = run.model(), open_corpus(run.config.data, run.tokenizer), run.tokenizer.decode
    trained = take_first_tokens(corpus.train, TRAIN_TOKENS)
    eos = run.tokenizer.eos
    ends: list[int] = [] if eos is None else (np.flatnonzero(trained == eos) + 1).tolist()
    words = text8_filter(" ".join(decode(part) for part in np.split(trained, ends))).split()
    known = {word for word, count in Counter(words).items() if count >= MIN_COUNT}
    seen = set(find_runs(words))
    held_out = next(iter(eval_batches(corpus.valid, model.length, samples, samples))).tokens
    texts = [decode(tokens) for tokens in held_out.numpy()]
    print(f"{run.path.name}\n{format_row('held-out text', texts, known, seen, scorer)}")
    for name, steps, temperature in SAMPLING:
        rng = torch.Generator().manual_seed(0)
        try:
            chosen = sampler(name, model)
        except UserError:
            continue
        drawn = ls.generate(model, n=samples, steps=steps, rng=rng, temperature=temperature, sampler=chosen)
        texts = [decode(tokens) for tokens in drawn.tokens.numpy()]
        print(format_row(f"{name}, {steps} steps, {temperature}", texts, known, seen, scorer), flush=True)
        for text in texts[:show]:
            print("    " + text.replace("\n", "\n    ") + "\n", flush=True)
    if run.config.system.startswith("rdlm") and model.block == model.length:
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
