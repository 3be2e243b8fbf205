"""logosphere evaluate"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from logosphere.cli.console import bar, corpus_with_progress, parse, print_json, say
from logosphere.errors import UserError
from logosphere.parallel.launch import launch, must_launch

if TYPE_CHECKING:
    from logosphere.data.corpus import Corpus
    from logosphere.evaluation.report import Report
    from logosphere.parallel.team import Team
    from logosphere.runs.folder import RunFolder


LONGEST_NAME = 200
"""Bytes of a report's name; file systems allow 255, and drafts have longer ones."""


@dataclass(frozen=True)
class Measure:
    """On what a likelihood is measured, and how closely."""

    data: str | None = None
    """Another corpus than the one trained on: a name, a file or a folder."""
    split: Literal["train", "valid", "test"] = "test"
    """Which part of the text. Tune on valid, report test."""
    sequences: int = 1024
    """Sequences to measure, spread over the split; 0 for all."""
    draws: int = 4
    """Draws of time and noise for each sequence."""
    batch: int = 64
    """Sequences at a time; the result does not depend on it."""
    per: Literal["auto", "token", "character", "byte"] = "auto"
    """What bits are counted per; auto: what a token is."""
    weights: Literal["ema", "best", "model"] = "ema"
    """Averaged weights, the best of them on the validation split, or the plain ones."""
    seed: int = 0
    """Fixes the noise."""


@dataclass(frozen=True)
class Arguments:
    """Measure the likelihood of a trained model on held-out text, with its standard error."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    measure: Annotated[Measure, tyro.conf.arg(name="")] = Measure()
    options: tuple[str, ...] = ()
    """Options of the system to change for this measurement, where the weights allow it, such as path=together."""
    nproc: int = 1
    """Processes on this machine that share the sequences; under torchrun it need not be given."""
    json: bool = False
    """Print the result as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "evaluate")
    if must_launch(arguments.nproc):
        return launch(["evaluate", *words], arguments.nproc)

    from logosphere.parallel.team import assembled
    from logosphere.runs.folder import RunFolder

    folder = RunFolder(arguments.run)
    with assembled() as team:
        report = measured(folder, arguments.measure, team, arguments.options)
        return _told(folder, report, arguments) if team.leads else 0


def _told(folder: "RunFolder", report: "Report", arguments: Arguments) -> int:
    if arguments.json:
        print_json(report.summary())
    else:
        print(f"{report.name} on {report.data}: {report}")
        terms = f"reconstruction {report.recon:.4f}, diffusion {report.diffusion:.4f}, prior {report.prior:.4f}"
        print(f"  {terms}; {report.tokens:,} tokens counted")
    # Told before it is saved: a folder that cannot be written must not cost the figure.
    name = " ".join([report.data, *arguments.options]).replace("/", "-").replace(" ", "-")
    if len(name.encode()) > LONGEST_NAME:  # the file of a long path
        name = f"{hashlib.sha256(name.encode()).hexdigest()[:16]}-{report.data.split()[-1]}"
    path = folder.results / f"{name}.json"
    report.save(path)
    say(f"Saved as {path}")
    return 0


def measured(
    folder: "RunFolder", measure: Measure, team: "Team | None" = None, options: tuple[str, ...] = ()
) -> "Report":
    """The report of a run, the same for every process of a team; with other options of its system than it has."""
    from logosphere.data.batches import eval_batches
    from logosphere.data.splits import check_length, count_sequences
    from logosphere.evaluation.report import evaluate
    from logosphere.parallel.team import ALONE
    from logosphere.recipes.recipe import options_from
    from logosphere.runs.train import device_of

    if measure.sequences < 0 or measure.batch < 1:
        raise UserError("The number of sequences must be at least 0 and the batch at least 1.")
    recipe, tokenizer = folder.recipe, folder.tokenizer
    model = folder.model(measure.weights, options_from(options)).to(device_of(recipe.device))
    corpus = corpus_with_progress(measure.data or recipe.data, tokenizer)
    row = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[measure.split]
    check_length(row, model.length)
    unit = tokenizer.unit if measure.per == "auto" else measure.per
    total = count_sequences(row, model.length, measure.sequences or None)
    finished = 0

    with bar(f"evaluate {folder.path.name}") as shown:

        def watch(part: object) -> None:
            nonlocal finished
            finished = min(total, finished + measure.batch)
            shown.update(finished / total, f"{finished:,}/{total:,} sequences")

        return evaluate(
            model,
            eval_batches(row, model.length, measure.batch, measure.sequences or None),
            draws=measure.draws,
            rng=measure.seed,
            name=folder.path.name,
            unit=unit,
            units_per_token=_units_per_token(unit, corpus, measure.split, model.length),
            data=f"{corpus.name} {measure.split}",
            tokenizer=tokenizer.fingerprint,
            weights=measure.weights,
            watch=watch,
            team=team or ALONE,
        )


def _units_per_token(unit: str, corpus: "Corpus", split: str, length: int) -> float:
    """Characters or bytes for each token that counts; of separate texts, those that the model can write whole.

    A tokenizer that does not give texts back, as WordPiece, does not tell their lengths either: then it is all texts.
    """
    from logosphere.data.datasets.examples import Examples
    from logosphere.data.splits import count_scored_tokens

    row, tokenizer = getattr(corpus, split), corpus.tokenizer
    if unit in ("token", tokenizer.unit):
        return 1.0
    whole = {"character": corpus.characters, "byte": corpus.bytes}[unit][split]

    def units(part: Examples) -> int:
        texts = [tokenizer.decode(sequence) for sequence in part.sequences]
        return sum(len(text) if unit == "character" else len(text.encode()) for text in texts)

    if isinstance(row, Examples) and units(row) == whole:
        row = row.filter_by_length(length)
        whole = units(row)
    return whole / count_scored_tokens(row, length)
