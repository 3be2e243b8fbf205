"""logosphere remask"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import bar, corpus_with_progress, parse, print_json, say
from logosphere.errors import UserError


@dataclass(frozen=True)
class Arguments:
    """Teach a trained g-star model which of its tokens are wrong; the model itself stays as it is."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a g-star run."""
    steps: int = 500
    """Steps to train."""
    batch: int = 64
    """Sequences per step."""
    lr: float = 2e-3
    """Largest step size."""
    seed: int = 0
    """Fixes data order and noise."""
    json: bool = False
    """Print the result as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "remask")
    if arguments.steps < 1 or arguments.batch < 1:
        raise UserError("The number of steps and the batch must be at least 1.")

    from logosphere.data.batches import draws
    from logosphere.runs.folder import RunFolder
    from logosphere.runs.train import device_of
    from logosphere.training.optim import Optim
    from logosphere.training.remasker import train_remasker
    from logosphere.weights import REMASKER, write_tensors

    folder = RunFolder(arguments.run)
    model = folder.model().to(device_of(folder.recipe.device))
    if model.remasker is None:
        raise UserError("Only g-star models have a remasker; train one with: logosphere train --system g-star")
    corpus = corpus_with_progress(folder.recipe.data, folder.tokenizer)
    crops = draws(corpus.train, model.length, arguments.batch, arguments.seed)
    batches = map(crops.at, range(arguments.steps))
    optim = Optim(lr=arguments.lr, warmup=min(50, arguments.steps // 10))
    with bar("remask") as shown:
        for judged in train_remasker(model, batches, steps=arguments.steps, optim=optim, seed=arguments.seed):
            figures = f"step {judged.step}/{arguments.steps}  {judged.loss:.3f} nats  {judged.wrong:.0%} wrong"
            shown.update(judged.step / arguments.steps, figures)
    write_tensors(folder.path / REMASKER, model.remasker.state_dict())
    if arguments.json:
        print_json({"run": str(folder.path), "steps": arguments.steps, "loss": judged.loss, "wrong": judged.wrong})
    else:
        say(f"{judged.loss:.3f} nats per token; saved as {folder.path / REMASKER}")
    return 0
