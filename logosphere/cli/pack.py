"""logosphere pack"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import corpus_with_progress, parse, print_json, say
from logosphere.cli.evaluate import Measure, measured


@dataclass(frozen=True)
class Arguments:
    """Make a box of a run: weights in half precision, a model card, and a record of what it must measure."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path = Path("box")
    """Folder of the box."""
    measure: Annotated[Measure, tyro.conf.arg(name="")] = field(default_factory=lambda: Measure(sequences=2000))
    samples: int = 3
    """Texts on the card."""
    steps: int = 128
    """Steps to sample them with."""
    json: bool = False
    """Print the record as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "pack")

    import torch

    from logosphere.data.batches import eval_batches
    from logosphere.runs.folder import RunFolder
    from logosphere.runs.packing import SLICE, check_free, pack, written
    from logosphere.sampling.generate import generate

    check_free(arguments.out)
    folder = RunFolder(arguments.run)
    tokenizer, measure = folder.tokenizer, arguments.measure
    report = measured(folder, measure)
    corpus = corpus_with_progress(measure.data or folder.recipe.data, tokenizer)
    held_out = next(iter(eval_batches(corpus.test, folder.recipe.length, SLICE, SLICE))).tokens
    model = folder.model(measure.weights)
    drawn = generate(model, n=arguments.samples, steps=arguments.steps, rng=torch.Generator().manual_seed(0))
    texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    record = pack(folder, arguments.out, report, written(held_out, tokenizer), texts, measure.weights)
    if arguments.json:
        print_json({"box": str(arguments.out), **vars(record)})
    else:
        print(f"{arguments.out}: {report}")
        say(f"Its record: {record.bits:.6f} bits per {report.unit} on {SLICE} sequences that lie inside it")
    return 0
