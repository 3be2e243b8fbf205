"""logosphere train, train-remasker, train-classifier"""

import math
from contextlib import nullcontext
from dataclasses import is_dataclass, replace

from logosphere.cli.arguments import TrainClassifier, TrainRemasker
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.dry_run import dry_run, dry_run_memory
from logosphere.cli.train_options import Train, parse_train_options, split_recipe, use_one_budget
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError, quote_path
from logosphere.evaluation.report import Report
from logosphere.io import REMASKER
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.launch import rank
from logosphere.parallel.lifetime import launcher_died
from logosphere.parallel.process_group import init_distributed
from logosphere.runs.budget import (
    BUDGETS,
    describe_used,
    explain_unresumable,
    extend,
    extension_hint,
    is_finished,
    used,
)
from logosphere.runs.config import TrainConfig
from logosphere.runs.diagnosis import explain_poor_bound
from logosphere.runs.memory import predict_training
from logosphere.runs.parents import open_parent
from logosphere.runs.recipes import recipe
from logosphere.runs.run import Run, latest_run, usable_runs
from logosphere.runs.trackers import check_tracker, tracked
from logosphere.runs.train import (
    RESULT,
    create,
    finish,
    ignore,
    resume_command,
    run_to_end,
    train_classifier_of,
    train_remasker_of,
)
from logosphere.runs.train_data import open_again, open_run_data
from logosphere.terminal import show


def train(arguments: Train, argv: list[str]) -> int:
    """logosphere train"""
    if arguments.dry_run:
        if arguments.config.begin is not None and open_parent(arguments.config.begin, DISPLAY).spec.published:
            return dry_run_memory(predict_training(arguments.config, display=DISPLAY), json=arguments.json)
        return dry_run(split_recipe(argv)[0], arguments.config, arguments.nproc, json=arguments.json)
    if arguments.resume and (finished := _find_finished(arguments, argv)):
        if rank() == 0:
            _show_finished(finished, arguments)
        return 0
    tracker = arguments.tracker
    if tracker is not None:
        check_tracker(tracker)  # before a folder is made
    with init_distributed() as group:
        # The main process creates the folder and the tokens; the others find both.
        created = group.on_main(lambda: _open(arguments, argv))
        path = group.broadcast("" if created is None else str(created[0].path))
        run, corpus = created or _open_created(Run(path), arguments)
        with nullcontext(ignore) if tracker is None or not group.is_main else tracked(tracker, run, log) as on_event:
            outcome = run_to_end(run, corpus, DISPLAY, on_event=on_event, should_stop=launcher_died, group=group)
        if outcome.stopped:
            log(f"Stopped at step {outcome.step:,} and saved. Continue with: {resume_command(run)}")
            return 130
        if not group.is_main:
            return 0
        finish(outcome, corpus)
        assert outcome.report is not None  # the last step of a run is always validated
        show_result(run, outcome.step, outcome.report, json=arguments.json)
    return 0


def show_result(run: Run, step: int, report: Report, *, json: bool) -> None:
    """Print the last validation of a run, beside what no model is needed for."""
    poor = explain_poor_bound(report, run)
    if json:
        print_json({"run": str(run.path), "step": step, "validation": report.summary() | {"reason": poor}})
        return
    show(f"{run.config.system} on {report.data}: {report}")
    if report.baselines:
        show(f"  {report.baselines}")
    if poor:
        log(poor, "bold")
    log(f"Run: {run.path}   Next: logosphere sample {quote_path(run.path)} --watch")


def _find_finished(arguments: Train, argv: list[str]) -> Run | None:
    """The run to be resumed, if it is finished and its results are saved, so that nothing is left to do."""
    found = find_resumed(arguments, argv)
    if found.config != _with_budget(found.config, arguments, argv) or not is_finished(found):
        return None
    return found if (found.path / RESULT).exists() else None


def _show_finished(run: Run, arguments: Train) -> None:
    spent = used(run)
    assert spent is not None  # it is finished
    log(f"The run in {run.path} is finished: {describe_used(run)}. To train it longer: {extension_hint(run)}")
    show_result(run, spent[1], Report.load(run.path / RESULT), json=arguments.json)


def _with_budget(config: TrainConfig, arguments: Train, argv: list[str]) -> TrainConfig:
    """The configuration of a run with the budget of the command line, if that has one."""
    options = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in split_recipe(argv)[1]}
    if not options & set(BUDGETS):
        return config
    return replace(config, **{name: getattr(arguments.config, name) for name in BUDGETS})


def _open(arguments: Train, argv: list[str]) -> tuple[Run, Corpus]:
    """A new run, or the one to be resumed, and its data."""
    if not arguments.resume:
        return create(arguments.config, arguments.out, DISPLAY)[:2]
    found = find_resumed(arguments, argv)
    found = extend(found, _with_budget(found.config, arguments, argv))
    return found, open_run_data(found, DISPLAY)


def _open_created(run: Run, arguments: Train) -> tuple[Run, Corpus]:
    """The run that the main process has created, and its data."""
    if arguments.resume:
        return run, open_run_data(run, DISPLAY)
    return run, open_again(run, arguments.config, DISPLAY)


def _note(remark: str) -> None:
    """Show a remark of the main process."""
    if rank() == 0:
        log(remark)


def find_resumed(arguments: Train, argv: list[str]) -> Run:
    """The run in --out, or the last one that agrees with the other options; a run keeps its own settings.

    A run with the budget of the options is preferred to one that it would extend.
    """
    places = [arguments.out] if arguments.out is not None else list(usable_runs(notify=_note)) or [latest_run()]
    other, extended = "", None
    for place in places:
        found = Run(place, trust_references=True)  # who continues a training has agreed to its data
        if reason := explain_unresumable(found):
            other = other or reason
            continue
        differences = _differences(argv, found.config)
        if not differences and found.config == _with_budget(found.config, arguments, argv):
            return found
        if not differences:
            extended = extended or found
            continue
        other = other or f"The run in {place} was begun with {differences}; leave that out to continue it, or"
    if extended is not None:
        return extended
    raise UserError(f"{other} begin another run with its weights: logosphere train --begin {quote_path(places[0])}")


def _differences(argv: list[str], begun: TrainConfig) -> str:
    """The settings other than its budget in which the arguments differ from those of a run, empty if there are none."""
    name, rest = split_recipe(argv)
    named = recipe(name) if name else begun
    default = replace(begun, system=named.system, data=named.data)
    now = _settings(use_one_budget(parse_train_options(rest, default).config, rest))
    then = _settings(begun)
    changed = [key for key in then if now[key] != then[key] and key not in BUDGETS]
    if set(_options(now)) <= set(_options(then)):  # a run has further options, which were resolved when it began
        changed = [key for key in changed if key != "options"]
    return ", ".join(f"--{key.replace('_', '-')} {_format(then[key])}, not {_format(now[key])}" for key in changed[:3])


def _options(settings: dict[str, object]) -> tuple[str, ...]:
    options = settings["options"]
    assert isinstance(options, tuple)
    return options


def _settings(config: TrainConfig) -> dict[str, object]:
    """All settings by the names of their options."""
    flat: dict[str, object] = {}
    for name, value in vars(config).items():
        flat |= {f"{name}.{key}": inner for key, inner in vars(value).items()} if is_dataclass(value) else {name: value}
    return flat


def _format(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def train_remasker(arguments: TrainRemasker, argv: list[str]) -> int:
    """logosphere train-remasker"""
    trained, steps = Run(arguments.run, trust_references=True), arguments.config.steps  # as a training goes on
    last = train_remasker_of(trained, arguments.config, DISPLAY)
    if arguments.json:
        print_json({"run": str(trained.path), "steps": steps, "loss": last.loss, "wrong": last.wrong})
    else:
        log(f"{last.loss:.3f} nats per token; saved as {trained.path / REMASKER}")
    return 0


def train_classifier(arguments: TrainClassifier, argv: list[str]) -> int:
    """logosphere train-classifier"""
    trained = Run(arguments.run, trust_references=True)
    shape = trained.config.network.shape
    network = NetworkConfig(width=arguments.width, depth=arguments.depth, heads=arguments.heads, shape=shape)
    found = train_classifier_of(
        trained, arguments.config, network, out=arguments.out, data=arguments.data, display=DISPLAY
    )
    if arguments.json:
        figures = {"loss": found.loss, "valid_loss": found.valid_loss, "valid_right": found.valid_right}
        about = {"run": str(trained.path), "classifier": str(found.folder), "steps": arguments.config.steps}
        print_json(about | {"labels": list(found.labels)} | figures)
    else:
        log(
            f"Validation, averaged over times: {found.valid_loss:.3f} nats per label "
            f"({math.log(len(found.labels)):.3f} at random), accuracy {found.valid_right:.0%}; saved in {found.folder}"
        )
    return 0
