"""The budget of a run: how much of it is used, and a larger one to train a finished run longer."""

from dataclasses import asdict, replace

from logosphere.errors import UserError, plural, quote_path
from logosphere.io import RECIPE, WEIGHTS, write_recipe
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run
from logosphere.runs.stage_budgets import Elapsed
from logosphere.training.checkpoint import latest, newest
from logosphere.untrusted import read_object

BUDGETS = ("steps", "minutes", "cpu_minutes")
"""The settings of a training that end it. They are totals, over all resumptions."""


def used(run: Run) -> tuple[Elapsed, int] | None:
    """The time and the steps of a run up to its last checkpoint; None before the first."""
    if (checkpoint := latest(run.state)) is None:
        return None
    try:
        state = read_object(checkpoint / "state.json")
        return Elapsed.read(state), int(state["step"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{checkpoint / 'state.json'} is missing or damaged; restore it from a copy.") from None


def explain_unresumable(run: Run) -> str:
    """Why the training of a run cannot be resumed; empty if it can. To begin it anew would overwrite its weights."""
    if run.is_imported:
        return f"The model in {run.path} was imported, not begun here;"
    if latest(run.state) is None and (run.path / WEIGHTS).exists():
        return f"{run.path} holds weights without a checkpoint to resume from, as an export does;"
    return ""


def is_finished(run: Run) -> bool:
    """Has a training used up its budget, or ended early?"""
    spent = used(run)
    return spent is not None and (spent[0].done(run.config, spent[1]) >= 1 or stopped_early(run))


def stopped_early(run: Run) -> bool:
    """Has a training ended because its bound did not improve for as many validations as it waits?"""
    checkpoint = newest(run.state)
    if run.config.patience is None or checkpoint is None:
        return False
    waited = read_object(checkpoint / "state.json", inside=checkpoint).get("waited", 0)
    return isinstance(waited, int | float) and waited >= run.config.patience


def describe_used(run: Run) -> str:
    """What a run has used: '40 steps in 0.5 minutes'."""
    spent = used(run)
    if spent is None:
        return "0 steps"
    minutes = round(spent[0].seconds / 60, 2 if spent[0].seconds < 600 else 0)
    return f"{plural(spent[1], 'step')} in {plural(minutes, 'minute')}"


def extension_hint(run: Run, wanted: TrainConfig | None = None) -> str:
    """The command that trains a run for twice what it has used, in the budgets of a configuration, or in its own."""
    spent = used(run)
    if spent is None:
        return f"logosphere train --out {quote_path(run.path)} --resume"
    amounts = {"steps": spent[1], "minutes": spent[0].seconds / 60, "cpu_minutes": spent[0].cpu_seconds / 60}
    names = [name for name in BUDGETS if getattr(wanted or run.config, name) is not None]
    words = " ".join(f"--{name.replace('_', '-')} {_format(2 * amounts[name])}" for name in names)
    return f"logosphere train --out {quote_path(run.path)} --resume {words}"


def _format(amount: float | int) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:.3g}"


def extend(run: Run, wanted: TrainConfig) -> Run:
    """The run with the budget of another configuration, which must be larger than what it has used.

    The budget is the total, so that the same command continues an extension that was stopped. The learning rate and
    everything else that depends on the fraction done follow the new budget from the next step on.
    """
    budget = {name: getattr(wanted, name) for name in BUDGETS}
    config = replace(run.config, **budget)
    if config == run.config:
        return run
    spent = used(run)
    if spent is not None and spent[0].done(config, spent[1]) >= 1:
        raise UserError(
            f"The run in {run.path} has trained for {describe_used(run)} already, and a budget is the total; give a "
            f"larger one, for example: {extension_hint(run, wanted)}"
        )
    content = {name: value for name, value in run.content.items() if name not in ("format", "version")}
    with run.lock():
        write_recipe(run.path / RECIPE, content | {"recipe": asdict(config)})
    return Run(run.name)
