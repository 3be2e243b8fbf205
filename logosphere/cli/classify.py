"""logosphere classify"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logosphere.cli.console import corpus_with_progress, parse, print_json, say
from logosphere.cli.teaching import Lessons
from logosphere.errors import UserError

if TYPE_CHECKING:
    from logosphere.data.corpus import Corpus
    from logosphere.data.datasets.examples import Examples
    from logosphere.runs.folder import RunFolder

MEASURED = 512
"""Validation sequences that a classifier is measured on."""


@dataclass(frozen=True)
class Arguments(Lessons):
    """Teach a classifier the labels of noisy texts, to guide a trained model by; the model itself stays as it is.

    Then: logosphere sample RUN --classifier FOLDER --label NAME --strength 5
    """

    out: Path | None = None
    """Folder of the classifier; RUN/classifier unless set."""
    data: str = ""
    """Labelled data, such as labelled:FILE; the run's own unless set."""
    width: int = 96
    """Features per position."""
    depth: int = 2
    """Number of blocks."""
    heads: int = 4
    """Attention heads; must divide the width into even parts."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "classify")
    arguments.check()

    import torch

    from logosphere.data.batches import eval_batches
    from logosphere.denoisers.network import Network
    from logosphere.runs.folder import RunFolder
    from logosphere.runs.train import device_of
    from logosphere.sampling.labeller import Labeller
    from logosphere.training.classifier import measure_classifier, train_classifier

    folder = RunFolder(arguments.run)
    shape = folder.recipe.network.shape
    network = Network(width=arguments.width, depth=arguments.depth, heads=arguments.heads, shape=shape)
    model = folder.model().to(device_of(folder.recipe.device))
    corpus = corpus_with_progress(arguments.data or folder.recipe.data, folder.tokenizer)
    examples = _labelled(corpus, folder)
    torch.manual_seed(arguments.seed)
    labeller = Labeller.fresh(model, _names(corpus, examples), network)
    taught = arguments.taken(
        "classify",
        train_classifier(
            labeller.classifier,
            model,
            arguments.batches(examples, model),
            steps=arguments.steps,
            optim=arguments.optim(),
            seed=arguments.seed,
        ),
        lambda taught: f"{taught.loss:.3f} nats",
    )
    held_out = eval_batches(corpus.valid, model.length, arguments.batch, MEASURED)
    nats, right = measure_classifier(labeller.classifier, model, held_out, arguments.seed)
    out = arguments.out or folder.path / "classifier"
    out.mkdir(parents=True, exist_ok=True)
    labeller.save(out, model, folder.tokenizer.fingerprint)
    found = {"labels": list(labeller.labels), "loss": taught.loss, "valid_loss": nats, "valid_right": right}
    if arguments.json:
        print_json({"run": str(folder.path), "classifier": str(out), "steps": arguments.steps, **found})
    else:
        say(
            f"Validation, over all of the noise: {nats:.3f} nats per label ({math.log(len(labeller.labels)):.3f} is "
            f"knowing nothing), right in {right:.0%}; saved in {out}"
        )
    return 0


def _labelled(corpus: "Corpus", folder: "RunFolder") -> "Examples":
    """The training split, if it has labels and is spelt in the tokens of the run."""
    from logosphere.data.datasets.examples import Examples

    if not isinstance(corpus.train, Examples) or corpus.train.labels is None:
        raise UserError(f"{corpus.name} has no labels; give some with --data labelled:FILE, or --data digits.")
    if corpus.tokenizer.fingerprint != folder.tokenizer.fingerprint:
        raise UserError(f"{corpus.name} is spelt in other tokens than those of the run in {folder.path}.")
    return corpus.train


def _names(corpus: "Corpus", examples: "Examples") -> tuple[str, ...]:
    """Labels without names are called by their numbers."""
    return corpus.labels or tuple(map(str, range(examples.label_count)))
