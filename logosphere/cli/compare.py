"""logosphere compare"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from logosphere.cli.console import bar, corpus_with_progress, parse, print_json, say
from logosphere.cli.evaluate import Measure, measured
from logosphere.cli.train import followed
from logosphere.errors import UserError
from logosphere.recipes.catalogue import recipe
from logosphere.recipes.recipe import Recipe
from logosphere.systems import system

if TYPE_CHECKING:
    from logosphere.comparison.portrait import Ways
    from logosphere.comparison.standing import Standing
    from logosphere.data.corpora import Corpus
    from logosphere.evaluation.judges import Judge
    from logosphere.evaluation.report import Report
    from logosphere.evaluation.samples.texts import Metric, Reference
    from logosphere.report.comparison import SampleReport, Value
    from logosphere.runs.folder import RunFolder

JUDGE = "judge"
"""The folder of a judge that is trained for the comparison."""


@dataclass(frozen=True)
class Samples:
    """How samples are made and measured, for --report."""

    samples: int = 32
    """Texts in each way; 0 for no samples."""
    sampling_steps: tuple[int, ...] = (4, 16, 64)
    """Numbers of steps to sample with, at temperature 1."""
    temperatures: tuple[float, ...] = (0.7, 0.85)
    """Further temperatures, with the most steps."""
    metrics: tuple[str, ...] = ()
    """Sample metrics by name; all when none is named."""
    judge: tuple[str, ...] = ()
    """Judges of samples: the folder of an ar run, 'train' (trains one on the validation split), smollm2, hf:NAME."""


@dataclass(frozen=True)
class Arguments:
    """Rank models on the same sequences, with paired differences. --systems trains them first, all alike.

    A system may have options: mdlm:schedule=cosine, rdlm:optim.lr=1e-3. Run the same command again to go on with a
    comparison that was stopped; what is finished is not done again.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs."""
    systems: str = ""
    """Systems to train first, separated by commas: ar,mdlm"""
    recipe: str = "demo"
    """Recipe to train them with: a name or a file."""
    steps: int | None = None
    """Steps for each of them."""
    tokens: float | None = None
    """Tokens for each of them."""
    minutes: float | None = None
    """Wall-clock minutes for each of them."""
    cpu_minutes: float | None = None
    """Minutes of processor time for each of them."""
    flops: float | None = None
    """Operations of matrix products for each of them, such as 1e13."""
    seeds: int = 1
    """Trainings of each system."""
    out: Path = Path("runs/compare")
    """Folder for their runs."""
    report: Path | None = None
    """Write a page with everything (out.html), and the same as Markdown and JSON beside it."""
    measure: Annotated[Measure, tyro.conf.arg(name="")] = Measure()
    samples: Annotated[Samples, tyro.conf.arg(name="")] = field(default_factory=Samples)
    json: bool = False
    """Print the result as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "compare")
    for word in arguments.systems.split(","):
        if word.strip():
            system(word.strip().split(":")[0])  # the commonest mistake, met before torch is loaded
    if not arguments.systems and not arguments.runs:
        raise UserError("Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2")
    if arguments.report is not None and arguments.report.suffix not in (".html", ".htm"):
        raise UserError(f"The report is a page; give it a name that ends in .html, not '{arguments.report}'.")

    from logosphere.comparison.fairness import check_alike, opened
    from logosphere.comparison.standing import standings

    chosen = _metrics(arguments)
    groups: dict[str, list[RunFolder]] = {str(path): [opened(path)] for path in arguments.runs}
    if arguments.systems:
        trained = _trained(arguments)
        if trained is None:
            return 130
        groups |= trained
    every = [run for runs in groups.values() for run in runs]
    check_alike(every)
    groups = _named(groups)
    corpus = corpus_with_progress(arguments.measure.data or every[0].recipe.data, every[0].tokenizer)
    reports = {name: [_report(run, arguments.measure, corpus) for run in runs] for name, runs in groups.items()}
    standing = standings(reports)
    if arguments.report is not None:
        _write(arguments, standing, groups, corpus, chosen)
    _print(standing, arguments.json)
    return 0


def _metrics(arguments: Arguments) -> "list[Metric]":
    from logosphere.evaluation.samples.catalogue import metrics

    return metrics(arguments.samples.metrics)


def _common(arguments: Arguments) -> Recipe:
    chosen = recipe(arguments.recipe)
    return chosen if arguments.measure.data is None else replace(chosen, data=arguments.measure.data)


def _trained(arguments: Arguments) -> "dict[str, list[RunFolder]] | None":
    """Train what is missing; the runs of each system, or None if somebody stopped it."""
    from logosphere.comparison.entrants import Budget, contenders, entrants

    budget = Budget(arguments.steps, arguments.tokens, arguments.minutes, arguments.cpu_minutes, arguments.flops)
    common = _common(arguments)
    found = contenders(arguments.systems)
    corpus = corpus_with_progress(common.data, common.tokenizer)
    planned = entrants(found, common, budget, arguments.seeds, corpus, arguments.out)
    if "train" in arguments.samples.judge and arguments.report is not None:
        from logosphere.comparison.jury import judge_corpus, judge_entrant

        judge = judge_entrant(common, budget, corpus, arguments.out / JUDGE)
        if _train(judge, judge_corpus(corpus)) is None:
            return None
    groups: dict[str, list[RunFolder]] = {}
    for entrant in planned:
        run = _train(entrant, corpus)
        if run is None:
            return None
        groups.setdefault(entrant.name, []).append(run)
    return groups


def _train(entrant: Any, corpus: "Corpus") -> "RunFolder | None":
    """Take one training to its end, from wherever it stands."""
    from logosphere.atomic import write_json
    from logosphere.comparison.assemble import COSTS
    from logosphere.comparison.entrants import begun, finished
    from logosphere.evaluation.costs import forget_peak, peak_bytes
    from logosphere.runs.train import start

    run = begun(entrant)
    if run is not None and finished(run):
        say(f"[dim]{entrant.folder} is trained already[/]")
        return run
    run = run or start(entrant.recipe, corpus, entrant.folder)
    forget_peak()
    outcome = followed(run, corpus, lambda event: None)
    write_json(run.path / COSTS, {"peak_bytes": peak_bytes()})
    if outcome.stopped:
        say(f"Stopped at step {outcome.step:,} of {entrant.name} and saved. Go on with the same command.")
    elif outcome.asked:
        say(f"Stopped after {entrant.name}. Go on with the same command.")
    return None if outcome.asked else run


def _named(groups: "dict[str, list[RunFolder]]") -> "dict[str, list[RunFolder]]":
    """Runs by the name of their folder where that tells them apart, else by its path."""
    short = [Path(name).name for name in groups]
    return {Path(name).name if short.count(Path(name).name) == 1 else name: runs for name, runs in groups.items()}


def _report(run: "RunFolder", measure: Measure, corpus: "Corpus") -> "Report":
    """The report of a run, measured once for the same weights and settings."""
    from logosphere.comparison.memory import digest, remembered
    from logosphere.evaluation.report import Report

    shape = [field.name for field in fields(Report)]  # a version that says more is measured again
    key = [asdict(measure), digest(run.weights_file(measure.weights)), run.content["corpus"], corpus.sha256, shape]
    content = remembered(run.results / "compare.json", key, lambda: asdict(measured(run, measure)))
    return Report(**content)


def _write(
    arguments: Arguments,
    standing: "Sequence[Standing]",
    groups: "dict[str, list[RunFolder]]",
    corpus: "Corpus",
    chosen: "list[Metric]",
) -> None:
    from logosphere.comparison.assemble import board
    from logosphere.comparison.portrait import Ways, reference, values
    from logosphere.evaluation.samples.catalogue import judged
    from logosphere.report.write import write_comparison_report

    assert arguments.report is not None
    how, measure = arguments.samples, arguments.measure
    length = next(iter(groups.values()))[0].recipe.length
    against = reference(corpus, measure.split, length, max(how.samples, 2))
    portraits: dict[str, SampleReport] = {}
    real: dict[str, Value] = {}
    if how.samples:
        ways = Ways(how.samples, how.sampling_steps, how.temperatures, measure.seed)
        chosen = [judged(judge) for judge in _jury(arguments)] + chosen
        real = values(against.real, against, chosen)
        for name, runs in groups.items():
            report = next(one.report for one in standing if one.name == name)
            portraits[name] = _portrait(runs[0], corpus, against, chosen, ways, measure, _units(report))
    made = board(standing, groups, portraits, corpus, chosen, against, real)
    page, *beside = write_comparison_report(made, arguments.report)
    size = page.stat().st_size / 1e6
    say(f"Report: {page} ({size:.1f} MB), {', '.join(path.name for path in beside)} beside it")


def _jury(arguments: Arguments) -> "list[Judge]":
    from logosphere.comparison.jury import summoned

    return [summoned(name, arguments.out / JUDGE) for name in arguments.samples.judge]


def _units(report: "Report") -> float:
    """Characters, bytes or whatever bits are counted per, for each token."""
    return sum(report.nats) / math.log(2) / report.tokens / report.bits if report.bits else 1.0


def _portrait(
    run: "RunFolder",
    corpus: "Corpus",
    against: "Reference",
    chosen: "list[Metric]",
    ways: "Ways",
    measure: Measure,
    units_per_token: float,
) -> "SampleReport":
    from logosphere.comparison.memory import digest, remembered
    from logosphere.comparison.portrait import portrait
    from logosphere.report.comparison import parse_sample_report

    key = [
        digest(run.weights_file(measure.weights)),
        asdict(ways),
        [(m.name, m.version) for m in chosen],
        measure.split,
        measure.per,
        corpus.sha256,
    ]
    with bar(f"samples {run.path.name}") as shown:

        def made() -> object:
            def watch(what: str) -> None:
                shown.update(0.0, what)

            model = run.model(measure.weights)
            return asdict(portrait(model, corpus, measure.split, against, chosen, ways, units_per_token, watch))

        return parse_sample_report(remembered(run.results / "portrait.json", key, made))


def _print(standing: "Sequence[Standing]", as_json: bool) -> None:
    if as_json:
        print_json({"rows": [_row(one) for one in standing]})
        return
    from logosphere.comparison.standing import table

    first = standing[0].report
    print(table(standing))
    say(f"{first.data}, {first.sequences:,} sequences of {first.length}, {first.draws} draws each")


def _row(one: "Standing") -> dict[str, object]:
    return one.report.summary() | {
        "above_best": one.above, "above_best_error": one.above_error,
        "seeds": [report.bits for report in one.seeds], "spread": one.spread,
    }  # fmt: skip
