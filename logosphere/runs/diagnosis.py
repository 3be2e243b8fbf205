"""Why a bound is worse than blind guessing: the likeliest reason, from what is known of the run and the measurement."""

from collections.abc import Iterable, Mapping, Sequence

from logosphere.errors import plural
from logosphere.evaluation.leaderboard import LeaderboardRow
from logosphere.evaluation.report import Report
from logosphere.runs.run import Run
from logosphere.runs.training_records import sum_records
from logosphere.systems import DEFAULT

FEW_TOKENS = 2_000
"""Positions seen in training per token of the vocabulary, below which a training is short."""
LARGE_VOCABULARY = 256
MOSTLY_PADDING = 0.5
"""Fraction of positions with text, below which padding has most of the bound."""


def explain_poor_bound(report: Report, run: Run, options: tuple[str, ...] = ()) -> str:
    """A sentence for a bound that is worse than blind guessing, with the likely reason; empty for any other bound."""
    if not report.worse_than_blind:
        return ""
    found = f"{report.name} is worse than blind guessing ({report.blind:.4f} bits per {report.unit})"
    return f"{found}; the likely reason: {_likely_reason(report, run, options)}"


def explain_poor_bounds(rows: Iterable[LeaderboardRow], groups: Mapping[str, Sequence[Run]]) -> tuple[str, ...]:
    """These sentences for the rows of a comparison, about the first run of each."""
    found = (explain_poor_bound(row.report, groups[row.name][0]) for row in rows)
    return tuple(one for one in found if one)


def _likely_reason(report: Report, run: Run, options: tuple[str, ...]) -> str:
    if options:
        return f"it was not trained with {', '.join(options)}; leave --options out."
    if run.is_imported:
        return (
            "the text is far from what it was trained on, or the tokenizer, the mask or the shift of the import is not "
            "that of the checkpoint; logosphere import --dry-run shows them."
        )
    if "corpus" not in run.content:
        return "it was saved without a training run, so nothing is known of its training; it may not have been trained."
    config, spec, trained = run.config, run.spec, sum_records(run.trainings)
    text, trained_on = report.data.rpartition(" ")[0], str(run.content["corpus"]["name"])
    if text and text != trained_on:
        return f"it was trained on another text, {trained_on}."
    few = trained.tokens < FEW_TOKENS * spec.vocab_size
    filled = report.tokens / (report.sequences * report.length)
    if filled < MOSTLY_PADDING:
        return (
            f"texts fill only {filled:.0%} of the length of {report.length}, and the rest has not been learned to be "
            "padding; use a smaller --length or train longer."
        )
    if few and spec.preset != DEFAULT:
        return (
            f"the preset '{spec.preset}' is meant for much longer trainings than {plural(trained.steps, 'step')}; "
            "leave --preset out or train longer."
        )
    if few:
        smaller = ", or use a smaller vocabulary (--tokenizer)" if spec.vocab_size > LARGE_VOCABULARY else ""
        return (
            f"too few steps: it has seen {plural(trained.tokens, 'token')} in {plural(trained.steps, 'step')}, for a "
            f"vocabulary of {spec.vocab_size:,}; train longer{smaller}."
        )
    return (
        f"the training did not converge; try a smaller --optim.lr than {config.optim.lr:g}, and see the curve: "
        "logosphere plot."
    )
