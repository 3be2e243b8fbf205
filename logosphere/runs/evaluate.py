"""Evaluation as one function: the likelihood of a run on a split of its text or of another, with its standard error."""

import hashlib
from pathlib import Path

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import Corpus, Examples, check_length, count_scored_tokens, count_sequences
from logosphere.errors import UserError
from logosphere.evaluation.report import Report, evaluate
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.runs.config import parse_options
from logosphere.runs.progress import SILENT, Display
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.runs.train import open_with_display

LONGEST_NAME = 200
"""Bytes of a report's name; file systems allow 255, and temporary names are longer."""


def evaluate_run(
    run: Run | str | Path,
    config: EvaluateConfig | None = None,
    *,
    options: tuple[str, ...] = (),
    corpus: Corpus | None = None,
    display: Display = SILENT,
    group: ProcessGroup = SINGLE,
) -> Report:
    """The likelihood of a run, the same in every process of a group.

    `options` (name=value) change options of its system for this measurement, where the weights allow it. `corpus` is
    the text to measure, where the caller has opened it.
    """
    config = config or EvaluateConfig()
    run = run if isinstance(run, Run) else Run(run)
    if config.sequences < 0 or config.batch < 1:
        raise UserError("The number of sequences must be at least 0 and the batch at least 1.")
    tokenizer = run.tokenizer
    model = run.model(config.weights, parse_options(options)).to(find_device(run.config.device))
    corpus = corpus or open_with_display(config.data or run.config.data, tokenizer, display)
    split = corpus.split(config.split)
    check_length(split, model.length)
    unit = tokenizer.unit if config.per == "auto" else config.per
    total = count_sequences(split, model.length, config.sequences or None)
    finished = 0
    with display.bar(f"evaluate {run.path.name}") as bar:

        def watch(part: object) -> None:
            nonlocal finished
            finished = min(total, finished + config.batch)
            bar.update(finished / total, f"{finished:,}/{total:,} sequences")

        return evaluate(
            model,
            eval_batches(split, model.length, config.batch, config.sequences or None),
            draws=config.draws,
            rng=config.seed,
            name=run.path.name,
            unit=unit,
            units_per_token=units_per_token(unit, corpus, config.split, model.length),
            data=f"{corpus.name} {config.split}",
            tokenizer=tokenizer.fingerprint,
            weights=config.weights,
            watch=watch,
            group=group,
        )


def save_report(run: Run, report: Report, options: tuple[str, ...] = ()) -> Path:
    """Save a report among the results of a run, under the name of its data and options."""
    name = " ".join([report.data, *options]).replace("/", "-").replace(" ", "-")
    if len(name.encode()) > LONGEST_NAME:  # the file of a long path
        name = f"{hashlib.sha256(name.encode()).hexdigest()[:16]}-{report.data.split()[-1]}"
    path = run.results / f"{name}.json"
    report.save(path)
    return path


def units_per_token(unit: str, corpus: Corpus, split: str, length: int) -> float:
    """Characters or bytes for each token that counts; of separate texts, those that the model can hold whole.

    A tokenizer that is not lossless, such as WordPiece, does not preserve their lengths either: then of all texts.
    """
    part, tokenizer = corpus.split(split), corpus.tokenizer
    if unit in ("token", tokenizer.unit):
        return 1.0
    whole = {"character": corpus.characters, "byte": corpus.bytes}[unit][split]

    def count(examples: Examples) -> int:
        texts = [tokenizer.decode(sequence) for sequence in examples.sequences]
        return sum(len(text) if unit == "character" else len(text.encode()) for text in texts)

    if isinstance(part, Examples) and count(part) == whole:
        part = part.filter_by_length(length)
        whole = count(part)
    return whole / count_scored_tokens(part, length)
