"""Control by a classifier (Li et al. 2022; Schiff et al. 2024): does it obey, and what does that cost in fluency?

    python benchmarks/control.py --seconds 40 --steps 24 --strengths 0 3 10

Human core promoters and other DNA, 70 bases each, half and half (`promoters` of `logosphere data list`). The generators
learn both together and know no labels. Diffusion-LM is steered by the gradient of a small convolution that has learnt
labels from noisy embeddings (SteeredState), discrete systems by first-order edits of a classifier of noisy tokens
(Edits), other continuous ones by gradients of a classifier of what they expect (Gradients); all classifiers are taught
on the training split. Two others judge the result, both taught on the validation split: a convolution of its own
(success: the share of samples it takes for promoters) and an autoregressive model (fluency: bits per base, beside those
of real test sequences). Variety is the share of distinct strings of eight bases.
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
LESSONS = 600
"""Updates of each classifier."""
Way = Callable[[float], dict[str, object]]
"""From a strength to the arguments of the sampler that steer it."""


def split(part: object) -> tuple[Tensor, Tensor]:
    """All sequences of a split, and their labels; 1 is a promoter."""
    batch = next(iter(sequential_batches(part, LENGTH, 1 << 20)))  # type: ignore[arg-type]
    assert batch.condition is not None and batch.condition.labels is not None
    return batch.tokens, batch.condition.labels


def picked(tokens: Tensor, labels: Tensor, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches drawn with replacement."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = torch.randint(len(tokens), (BATCH,), generator=rng)
        yield tokens[rows], labels[rows]


def trained(name: str, tokens: Tensor, seconds: float, **options: Any) -> ls.Model:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=BASES, length=LENGTH, **NETWORK, **options)
    trainer, started = Trainer(model, ema=0.99, optim=ls.OptimizerConfig(lr=3e-3, warmup=50)), time.process_time()
    for part, _ in picked(tokens, tokens, 1 << 30, seed=1):
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


def taught(read: Callable[[Tensor], Tensor], width: int, data: tuple[Tensor, Tensor], seed: int) -> Classifier:
    """A classifier of what `read` makes of tokens."""
    torch.manual_seed(seed)
    classifier = Classifier(width)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-3)
    for tokens, labels in picked(*data, LESSONS, seed):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(classifier(read(tokens)), labels.float()).backward()
        optimizer.step()
    return classifier.eval().requires_grad_(False)


def plain(tokens: Tensor) -> Tensor:
    return F.one_hot(tokens, BASES).float()


def steered_states(model: ls.Model, data: tuple[Tensor, Tensor]) -> Way:
    """Diffusion-LM's own control: the gradient of a classifier of clean states passes through the network."""
    codec, rng = model.process.codec, torch.Generator().manual_seed(3)

    def noisy(tokens: Tensor) -> Tensor:
        """Embeddings with noise of any size up to theirs: x̂ is not quite an embedding either."""
        u = codec.encode(tokens).detach()
        return u + u.std() * torch.rand(len(u), 1, 1, generator=rng) * torch.randn(u.shape, generator=rng)

    guide = taught(noisy, BASES, data, seed=4)

    def way(strength: float) -> dict[str, object]:
        judged = GradientGuidedState(model.denoiser, model.process, lambda x: F.logsigmoid(guide(x)), strength)
        return {"denoiser": judged}

    return way


def guided(model: ls.Model, data: tuple[Tensor, Tensor]) -> Way:
    """A classifier of noisy states: edits of discrete ones, gradients of others."""
    torch.manual_seed(4)
    labeller = ls.Labeller.fresh(model, ["other", "promoter"], NetworkConfig(width=32, depth=2, heads=2))
    batches = (
        ls.Batch.of(tokens, condition=ls.Condition.of(labels=labels))
        for tokens, labels in picked(*data, LESSONS, seed=4)
    )
    optim = ls.OptimizerConfig(lr=3e-3, warmup=20)
    told = list(ls.train_classifier(labeller.classifier, model, batches, steps=LESSONS, optim=optim))
    print(f"classifier: {sum(one.loss for one in told[-50:]) / 50:.3f} nats", file=sys.stderr, flush=True)
    labeller.classifier.eval().requires_grad_(False)
    return lambda strength: {"guide": labeller.guide(model, "promoter", SAMPLES, strength)}


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--systems", nargs="+", default=["diffusion-lm", "mdlm"])
    read.add_argument(
        "--seconds",
        type=float,
        default=90.0,
        help="processor time to train a generator; the critic: half",
    )
    read.add_argument("--steps", type=int, default=32)
    read.add_argument("--strengths", type=float, nargs="+", default=[0, 1, 3, 10])
    given = read.parse_args()
    corpus = ls.open_corpus("promoters")
    train, valid, test = (split(part) for part in (corpus.train, corpus.valid, corpus.test))
    critic = trained("ar", valid[0], given.seconds / 2)
    judge = taught(plain, BASES, valid, seed=5)

    def measured(tokens: Tensor, nfe: float = 0.0) -> dict[str, float]:
        bits = critic.nelbo(tokens, torch.Generator().manual_seed(0)).total.double() / LENGTH / math.log(2)
        strings = tokens.unfold(1, 8, 1).reshape(-1, 8) @ BASES ** torch.arange(8)
        success = (judge(plain(tokens)) > 0).double().mean()
        return {
            "success": float(success),
            "bits per base": float(bits.mean()),
            "s.e.": float(bits.std() / len(bits) ** 0.5),
            "variety": len(strings.unique()) / len(strings),
            "NFE": nfe,
        }

    right = ((judge(plain(test[0])) > 0) == (test[1] == 1)).double().mean()
    print(f"the judge is right in {right:.3f} of the test split", file=sys.stderr)
    rows = {}
    for label in (1, 0):
        real = test[0][test[1] == label]
        rows[f"real, label {label}"] = measured(real[torch.arange(SAMPLES) * len(real) // SAMPLES])
    for name in given.systems:
        own = name == "diffusion-lm"
        model = trained(name, train[0], given.seconds, **({"embedding": BASES} if own else {}))
        way = (steered_states if own else guided)(model, train)
        for strength in given.strengths:
            rng = torch.Generator().manual_seed(2)
            drawn = ls.generate(model, n=SAMPLES, steps=given.steps, rng=rng, **way(strength))
            rows[f"{name}, strength {strength:g}"] = measured(drawn.tokens, drawn.nfe)
            print(name, strength, rows[f"{name}, strength {strength:g}"], file=sys.stderr, flush=True)
    harness.present("control by a classifier", rows)


if __name__ == "__main__":
    main()
