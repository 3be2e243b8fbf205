"""logosphere remask"""

from dataclasses import dataclass

from logosphere.cli.console import corpus_with_progress, parse, print_json, say
from logosphere.cli.teaching import Lessons
from logosphere.errors import UserError


@dataclass(frozen=True)
class Arguments(Lessons):
    """Teach a trained g-star model which of its tokens are wrong; the model itself stays as it is."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "remask")
    arguments.check()

    from logosphere.runs.folder import RunFolder
    from logosphere.runs.train import device_of
    from logosphere.training.remasker import train_remasker
    from logosphere.weights import REMASKER, write_tensors

    folder = RunFolder(arguments.run)
    model = folder.model().to(device_of(folder.recipe.device))
    if model.remasker is None:
        raise UserError("Only g-star models have a remasker; train one with: logosphere train --system g-star")
    corpus = corpus_with_progress(folder.recipe.data, folder.tokenizer)
    judged = arguments.taken(
        "remask",
        train_remasker(
            model,
            arguments.batches(corpus.train, model),
            steps=arguments.steps,
            optim=arguments.optim(),
            seed=arguments.seed,
        ),
        lambda judged: f"{judged.loss:.3f} nats  {judged.wrong:.0%} wrong",
    )
    write_tensors(folder.path / REMASKER, model.remasker.state_dict())
    if arguments.json:
        print_json({"run": str(folder.path), "steps": arguments.steps, "loss": judged.loss, "wrong": judged.wrong})
    else:
        say(f"{judged.loss:.3f} nats per token; saved as {folder.path / REMASKER}")
    return 0
