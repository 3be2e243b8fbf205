"""The parts and rows of rdlm_paper.py: arguments of `logosphere train`, budgets and evaluations."""

from collections.abc import Callable
from dataclasses import dataclass

import domain_metrics
from rdlm_paper_data import open_wikitext2

import logosphere as ls
from logosphere.data.corpus import Corpus
from logosphere.runs.config import TrainConfig


@dataclass(frozen=True)
class Part:
    """Rows that are compared with each other."""

    data: str
    """Name of the data in records."""
    arguments: list[str]
    """The recipe and the arguments of all rows."""
    rows: dict[str, list[str]]
    minutes: float
    """CPU minutes of each training, unless others are given."""
    sequences: int
    unit: str
    evaluation_batch: int = 32
    curve: bool = False
    """Whether validations during training are kept, for a figure."""
    bound_starts: tuple[str, ...] = ()
    """Starts of the bounds of networks whose own value is a surrogate."""
    domain: type[domain_metrics.Domain] | None = None
    """Metrics of samples."""
    samples: int = 128
    sampling_steps: int = 64
    open_corpus: Callable[[TrainConfig], Corpus] = lambda config: ls.open_corpus(config.data, config.tokenizer)


def system(name: str, *options: str) -> list[str]:
    return ["--system", name, *(["--options", *options] if options else [])]


OPTIMISER = ["--optim.name", "adamw", "--optim.lr", "2.5e-3", "--optim.warmup", "100", "--optim.min-lr-ratio", "0.05",
             "--optim.beta2", "0.99", "--optim.weight-decay", "0.01", "--ema", "0.998"]  # fmt: skip
"""One optimiser for all rows: that of the paper, 3e-4 after 2,500 steps of warm-up, would not begin to learn in these
budgets. The method is named because the recipe of text8 and the preset `paper` have different ones."""
TEXT8 = ["text8-tiny", *OPTIMISER, "--network.neighbours", "1", "--validations", "4", "--validation-sequences", "64"]


def paper(*options: str) -> list[str]:
    """The published system, apart from its optimiser and with the network of the other rows."""
    return [*system("rdlm", *options), "--preset", "paper"]


OBJECTIVES = {
    "paper, drift": paper("loss=drift", "window=null"),
    "paper, cross-entropy": paper("loss=cross-entropy", "window=null"),
    "paper, importance sampling": paper(),
    "ours, drift": system("rdlm", "loss=drift"),
    "ours, cross-entropy": system("rdlm", "loss=cross-entropy", "time_sampler=geometric"),
    "ours, default": system("rdlm"),
    "ours, importance sampling": system(
        "rdlm", "loss=importance-weighted", "time_sampler=geometric", "window=[0.3, 0.6]"
    ),
    "paper from the mask, drift": paper("loss=drift", "window=null", "start=mask"),
    "paper from the mask, cross-entropy": paper("loss=cross-entropy", "window=null", "start=mask"),
    "paper from the mask, importance sampling": paper("start=mask"),
}
STARTS = {
    "mask": system("rdlm", "start=mask"),
    "uniform": system("rdlm", "start=uniform"),
    "mask+uniform": system("rdlm", "start=mask+uniform"),
    "step:0.35": system("rdlm", "start=step:0.35"),
}
WORDS = ["text8-tiny", "--data", "wikitext-2", *OPTIMISER, "--length", "64", "--batch", "16",
         "--network.width", "128", "--network.heads", "4", "--network.neighbours", "1",
         "--validations", "1", "--validation-sequences", "16"]  # fmt: skip
PAPER_NOISE = "total_noise=0.0376"
SPLITTING = {
    "unsplit": system("rdlm", "projected=true"),
    "unsplit, noise of the paper": system("rdlm", "projected=true", PAPER_NOISE),
    "base 32, heads": system("rdlm", "base=32", "digits=heads"),
    "base 32, positions": system("rdlm", "base=32", "digits=positions"),
    "base 3, positions": system("rdlm", "base=3", "digits=positions"),
}
UNET = ["--network.body", "unet", "--network.depth", "1"]
PIXELS = {
    "rdlm": [*system("rdlm"), *UNET],
    "md4": [*system("md4"), *UNET],
    "d3pm-gaussian": [*system("d3pm-gaussian", "head=logistic"), *UNET],
}
BASES = {
    name: system(name) for name in ("rdlm", "fisher-flow", "dirichlet-flow", "d3pm-uniform", "bit-diffusion", "ar")
}
SMALL = ["--network.width", "64", "--network.depth", "3", "--network.heads", "4", "--batch", "64", "--optim.lr", "2e-3",
         "--validations", "1"]  # fmt: skip

PARTS = {
    "objectives": Part(
        "text8", TEXT8, OBJECTIVES, 3, 500, "character", evaluation_batch=64, curve=True,
        bound_starts=("mask", "uniform"),
    ),
    "starts": Part(
        "text8", TEXT8, STARTS, 3, 500, "character", evaluation_batch=64, curve=True, bound_starts=("mask",),
    ),
    "splitting": Part(
        "wikitext-2", WORDS, SPLITTING, 6, 64, "byte", evaluation_batch=4, open_corpus=lambda config: open_wikitext2()
    ),
    "pixels": Part(
        "cifar10",
        ["cifar10", "--network.width", "48", "--network.heads", "4", "--batch", "4", "--optim.lr", "2e-3",
         "--optim.warmup", "10", "--ema", "0.98", "--validations", "1", "--validation-sequences", "4"],
        PIXELS, 30, 64, "dimension", evaluation_batch=4, domain=domain_metrics.Colours, samples=4,
        sampling_steps=32,
    ),
    "synthetic": Part(
        "synthetic-promoters", ["promoters", *SMALL, "--network.body", "transformer"], BASES, 20, 500, "base",
        domain=domain_metrics.Synthetic,
    ),
    "dna": Part("promoters", ["dna", *SMALL], BASES, 20, 500, "base", domain=domain_metrics.Promoters),
}  # fmt: skip
