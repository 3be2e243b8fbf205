"""Control by a classifier (Li et al. 2022; Schiff et al. 2024): success of the control against fluency.

    python benchmarks/control.py --seconds 40 --steps 24 --strengths 0 3 10

The data are human core promoters and other DNA, 70 bases each, in equal numbers (`promoters` of `logosphere data
list`). The generators are trained on both without labels. Diffusion-LM is guided by the gradient of a small convolution
trained on noisy embeddings (GradientGuidedState), discrete systems by first-order edits of a classifier of noisy tokens
(DiscreteClassifierGuidance), other continuous systems by gradients of a classifier of the prediction. These classifiers
are trained on the training split. Two scorers are trained on the validation split: a convolution (success: the fraction
of samples that it classifies as promoters) and an autoregressive model (fluency: bits per base, also of real test
sequences). Variety is the fraction of distinct strings of eight bases.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import logosphere as ls
from logosphere.data.batches import sequential_batches
from logosphere.networks.config import NetworkConfig
from logosphere.networks.guidance import GradientGuidedState
from logosphere.training.trainer import Trainer

LENGTH, BASES, SAMPLES, BATCH = 70, 4, 256, 64
NETWORK: dict[str, Any] = {"width": 64, "depth": 2, "heads": 2}
CLASSIFIER_STEPS = 600
Guide = Callable[[float], dict[str, object]]
"""Returns the arguments of the sampler for a guidance strength."""


def load_split(part: object) -> tuple[Tensor, Tensor]:
    """Return all sequences of a split and their labels; 1 is a promoter."""
    batch = next(iter(sequential_batches(part, LENGTH, 1 << 20)))  # type: ignore[arg-type]
    assert batch.condition is not None and batch.condition.labels is not None
    return batch.tokens, batch.condition.labels


def draw_batches(tokens: Tensor, labels: Tensor, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches drawn with replacement."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = torch.randint(len(tokens), (BATCH,), generator=rng)
        yield tokens[rows], labels[rows]


def train_generator(name: str, tokens: Tensor, seconds: float, **options: Any) -> ls.Model:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=BASES, length=LENGTH, **NETWORK, **options)
    trainer, started = Trainer(model, ema=0.99, optim=ls.OptimizerConfig(lr=3e-3, warmup=50)), time.process_time()
    for part, _ in draw_batches(tokens, tokens, 1 << 30, seed=1):
        if (done := (time.process_time() - started) / seconds) >= 1:
            break
        progress = trainer.train_step(ls.Batch.of(part, first=trainer.step * BATCH), done)
    assert trainer.ema is not None
    trainer.ema.swap()
    print(f"{name}: {progress.step} updates, {progress.nats / math.log(2):.3f} bits", file=sys.stderr, flush=True)
    return model.eval()


class Classifier(nn.Module):
    """Two convolutions and a mean: states [B, L, d] -> log-odds of being a promoter."""

    def __init__(self, width: int, channels: int = 32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(width, channels, 9, padding=4), nn.ReLU(), nn.Conv1d(channels, channels, 5, padding=2), nn.ReLU()
        )
        self.last = nn.Linear(channels, 1)

    def forward(self, states: Tensor) -> Tensor:
        return self.last(self.layers(states.transpose(1, 2)).mean(-1)).squeeze(-1)


def train_classifier(
    featurise: Callable[[Tensor], Tensor], width: int, data: tuple[Tensor, Tensor], seed: int
) -> Classifier:
    """Train a classifier of features of tokens."""
    torch.manual_seed(seed)
    classifier = Classifier(width)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-3)
    for tokens, labels in draw_batches(*data, CLASSIFIER_STEPS, seed):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(classifier(featurise(tokens)), labels.float()).backward()
        optimizer.step()
    return classifier.eval().requires_grad_(False)


def one_hot(tokens: Tensor) -> Tensor:
    return F.one_hot(tokens, BASES).float()


def guide_states(model: ls.Model, data: tuple[Tensor, Tensor]) -> Guide:
    """Guide as in Diffusion-LM: the gradient of a classifier of clean states, through the network."""
    codec, rng = model.process.codec, torch.Generator().manual_seed(3)

    def embed_noisy(tokens: Tensor) -> Tensor:
        """Return embeddings with noise of up to their own scale: the prediction x̂ is not an embedding either."""
        u = codec.encode(tokens).detach()
        return u + u.std() * torch.rand(len(u), 1, 1, generator=rng) * torch.randn(u.shape, generator=rng)

    classifier = train_classifier(embed_noisy, BASES, data, seed=4)

    def guide(strength: float) -> dict[str, object]:
        log_prob = lambda x: F.logsigmoid(classifier(x))  # noqa: E731
        return {"denoiser": GradientGuidedState(model.denoiser, model.process, log_prob, strength)}

    return guide


def guide_with_noisy_classifier(model: ls.Model, data: tuple[Tensor, Tensor]) -> Guide:
    """Guide by a classifier of noisy states: edits of discrete states, gradients of continuous ones."""
    torch.manual_seed(4)
    checkpoint = ls.ClassifierCheckpoint.fresh(model, ["other", "promoter"], NetworkConfig(width=32, depth=2, heads=2))
    batches = (
        ls.Batch.of(tokens, condition=ls.Condition.of(labels=labels))
        for tokens, labels in draw_batches(*data, CLASSIFIER_STEPS, seed=4)
    )
    optim = ls.OptimizerConfig(lr=3e-3, warmup=20)
    steps = list(ls.train_classifier(checkpoint.classifier, model, batches, steps=CLASSIFIER_STEPS, optim=optim))
    print(f"classifier: {sum(step.loss for step in steps[-50:]) / 50:.3f} nats", file=sys.stderr, flush=True)
    checkpoint.classifier.eval().requires_grad_(False)
    return lambda strength: {"guide": checkpoint.guide(model, "promoter", SAMPLES, strength)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["diffusion-lm", "mdlm"])
    parser.add_argument(
        "--seconds",
        type=float,
        default=90.0,
        help="CPU time to train a generator; the autoregressive scorer has half of it",
    )
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0, 1, 3, 10])
    args = parser.parse_args()
    corpus = ls.open_corpus("promoters")
    train, valid, test = (load_split(part) for part in (corpus.train, corpus.valid, corpus.test))
    scorer = train_generator("ar", valid[0], args.seconds / 2)
    classifier = train_classifier(one_hot, BASES, valid, seed=5)

    def measure(tokens: Tensor, nfe: float = 0.0) -> dict[str, float]:
        bits = scorer.nelbo(tokens, torch.Generator().manual_seed(0)).total.double() / LENGTH / math.log(2)
        strings = tokens.unfold(1, 8, 1).reshape(-1, 8) @ BASES ** torch.arange(8)
        success = (classifier(one_hot(tokens)) > 0).double().mean()
        return {
            "success": float(success),
            "bits per base": float(bits.mean()),
            "s.e.": float(bits.std() / len(bits) ** 0.5),
            "variety": len(strings.unique()) / len(strings),
            "NFE": nfe,
        }

    right = ((classifier(one_hot(test[0])) > 0) == (test[1] == 1)).double().mean()
    print(f"accuracy of the classifier that measures success: {right:.3f}", file=sys.stderr)
    rows = {}
    for label in (1, 0):
        real = test[0][test[1] == label]
        rows[f"real, label {label}"] = measure(real[torch.arange(SAMPLES) * len(real) // SAMPLES])
    for name in args.systems:
        own = name == "diffusion-lm"
        model = train_generator(name, train[0], args.seconds, **({"embedding": BASES} if own else {}))
        guide = (guide_states if own else guide_with_noisy_classifier)(model, train)
        for strength in args.strengths:
            rng = torch.Generator().manual_seed(2)
            drawn = ls.generate(model, n=SAMPLES, steps=args.steps, rng=rng, **guide(strength))
            rows[f"{name}, strength {strength:g}"] = measure(drawn.tokens, drawn.nfe)
            print(name, strength, rows[f"{name}, strength {strength:g}"], file=sys.stderr, flush=True)
    harness.print_table("control by a classifier", rows)


if __name__ == "__main__":
    main()
