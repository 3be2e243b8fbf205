"""Auxiliary networks of a run as functions: a remasker for g-star, a classifier of noisy states for guidance."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Corpus
from logosphere.data.datasets.examples import Examples
from logosphere.data.splits import Split
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.process_group import find_device
from logosphere.runs.progress import SILENT, Display
from logosphere.runs.run import Run
from logosphere.runs.settings import AuxiliaryConfig
from logosphere.runs.train import open_with_display
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.training.classifier import measure_classifier, train_classifier
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.remasker import RemaskerStep, train_remasker
from logosphere.types import Batch
from logosphere.weights import REMASKER, write_tensors

MEASURED = 512
"""Validation sequences that a classifier is measured on."""

T = TypeVar("T")


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier that was trained, and how well it does on the validation split over the whole path of noise."""

    folder: Path
    labels: tuple[str, ...]
    loss: float
    """Training loss of the last step, nats per label."""
    valid_loss: float
    valid_right: float
    """How often its likeliest label is right."""


def train_remasker_of(run: Run, config: AuxiliaryConfig, display: Display = SILENT) -> RemaskerStep:
    """Train the remasker of a g-star run on its frozen model and save it in the run; the result of the last step."""
    config.check()
    model = run.model().to(find_device(run.config.device))
    if model.remasker is None:
        raise UserError("Only g-star models have a remasker; train one with: logosphere train --system g-star")
    corpus = open_with_display(run.config.data, run.tokenizer, display)
    steps = train_remasker(
        model, _batches(corpus.train, model, config), steps=config.steps, optim=_optimizer(config), seed=config.seed
    )
    last = _take_all(steps, config, display, "train-remasker", lambda s: f"{s.loss:.3f} nats  {s.wrong:.0%} wrong")
    write_tensors(run.path / REMASKER, model.remasker.state_dict())
    return last


def train_classifier_of(
    run: Run,
    config: AuxiliaryConfig,
    network: NetworkConfig,
    *,
    out: Path | None = None,
    data: str = "",
    display: Display = SILENT,
) -> TrainedClassifier:
    """Train a classifier of the noisy states of a run on labelled data, and save it in `out` or in the run."""
    config.check()
    model = run.model().to(find_device(run.config.device))
    corpus = open_with_display(data or run.config.data, run.tokenizer, display)
    examples = _labelled(corpus, run)
    torch.manual_seed(config.seed)
    names = corpus.labels or tuple(map(str, range(examples.label_count)))
    checkpoint = ClassifierCheckpoint.fresh(model, names, network)
    steps = train_classifier(
        checkpoint.classifier, model, _batches(examples, model, config), steps=config.steps, optim=_optimizer(config),
        seed=config.seed,
    )  # fmt: skip
    last = _take_all(steps, config, display, "train-classifier", lambda step: f"{step.loss:.3f} nats")
    held_out = eval_batches(corpus.valid, model.length, config.batch, MEASURED)
    nats, right = measure_classifier(checkpoint.classifier, model, held_out, config.seed)
    folder = out or run.path / "classifier"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder, model, run.tokenizer.fingerprint)
    return TrainedClassifier(folder, tuple(checkpoint.labels), last.loss, nats, right)


def _batches(split: Split, model: Model, config: AuxiliaryConfig) -> Iterator[Batch]:
    """One for each step."""
    return map(train_batches(split, model.length, config.batch, config.seed).at, range(config.steps))


def _optimizer(config: AuxiliaryConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=config.lr, warmup=min(50, config.steps // 10))


def _take_all(
    steps: Iterable[T], config: AuxiliaryConfig, display: Display, title: str, figures: Callable[[T], str]
) -> T:
    """Take all steps and show their figures; the last one."""
    with display.bar(title) as bar:
        for number, step in enumerate(steps, start=1):
            bar.update(number / config.steps, f"step {number}/{config.steps}  {figures(step)}")
    return step


def _labelled(corpus: Corpus, run: Run) -> Examples:
    """The training split, if it has labels and the tokens of the run."""
    if not isinstance(corpus.train, Examples) or corpus.train.labels is None:
        raise UserError(f"{corpus.name} has no labels; give some with --data labelled:FILE, or --data digits.")
    if corpus.tokenizer.fingerprint != run.tokenizer.fingerprint:
        raise UserError(f"{corpus.name} is spelt in other tokens than those of the run in {run.path}.")
    return corpus.train
