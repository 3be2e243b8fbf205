"""logosphere train"""

from dataclasses import is_dataclass, replace
from pathlib import Path
from types import TracebackType

from logosphere.cli.arguments import Train, parse_train_options, split_recipe, use_one_budget
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.dry_run import dry_run
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.parallel.launch import abandoned, launch, must_launch
from logosphere.parallel.process_group import ProcessGroup, init_distributed
from logosphere.runs.config import TrainConfig
from logosphere.runs.loop import Event, StepTaken, Validated
from logosphere.runs.recipes import recipe
from logosphere.runs.run import Run, latest_run, list_runs
from logosphere.runs.train import create, finish, open_again, open_with_display, run_to_end


def run(arguments: Train, argv: list[str]) -> int:
    config = arguments.config
    if arguments.dry_run:
        return dry_run(config, arguments.nproc, json=arguments.json)
    if must_launch(arguments.nproc):
        return launch(["train", *argv], arguments.nproc)
    with init_distributed() as group:
        # The main process creates the folder and the tokens; the others find both.
        created = group.on_main(lambda: _open(arguments, argv))
        path = group.broadcast("" if created is None else str(created[0].path))
        trained, corpus = created or _open_created(Run(path), arguments)
        return _train(trained, corpus, arguments, group)


def _open(arguments: Train, argv: list[str]) -> tuple[Run, Corpus]:
    """A new run, or the one to be resumed, and its data."""
    if not arguments.resume:
        return create(arguments.config, arguments.out, DISPLAY)[:2]
    found = find_resumed(arguments, argv)
    return found, open_with_display(found.config.data, found.tokenizer, DISPLAY)


def _open_created(run: Run, arguments: Train) -> tuple[Run, Corpus]:
    """The run that the main process has created, and its data."""
    if arguments.resume:
        return run, open_with_display(run.config.data, run.tokenizer, DISPLAY)
    return run, open_again(run, arguments.config, DISPLAY)


def _train(run: Run, corpus: Corpus, arguments: Train, group: ProcessGroup) -> int:
    logged = arguments.tensorboard and group.is_main
    with TensorBoardLogger(run.path / "tensorboard" if logged else None) as logger:
        outcome = run_to_end(run, corpus, DISPLAY, on_event=logger.log, should_stop=abandoned, group=group)
    if outcome.stopped:
        log(f"Stopped at step {outcome.step:,} and saved. Go on with: logosphere train --out {run.path} --resume")
        return 130
    if group.is_main:
        finish(outcome, corpus)
        assert outcome.report is not None  # the last step of a run is always validated
        if arguments.json:
            print_json({"run": str(run.path), "step": outcome.step, "validation": outcome.report.summary()})
        else:
            print(f"{run.config.system} on {outcome.report.data}: {outcome.report}")
            log(f"Run: {run.path}   Next: logosphere sample {run.path} --watch")
    return 0


def find_resumed(arguments: Train, argv: list[str]) -> Run:
    """The run in --out, or the last one that agrees with the other options; a run is continued as it was begun."""
    places = [arguments.out] if arguments.out is not None else list_runs() or [latest_run()]
    other = ""
    for place in places:
        found = Run(place)
        if not (differences := _differences(argv, found.config)):
            return found
        other = other or f"The run in {place} was begun with {differences}"
    raise UserError(
        f"{other}; leave that out to go on as it was begun, or begin another run with its weights: "
        f"logosphere train --begin {places[0]}"
    )


def _differences(argv: list[str], begun: TrainConfig) -> str:
    """The settings that arguments ask for and a run was begun without, empty if there are none."""
    name, rest = split_recipe(argv)
    named = recipe(name) if name else begun
    default = replace(begun, system=named.system, data=named.data)
    now = _settings(use_one_budget(parse_train_options(rest, default).config, rest))
    then = _settings(begun)
    changed = [key for key in then if now[key] != then[key]]
    return ", ".join(f"--{key.replace('_', '-')} {_shown(then[key])}, not {_shown(now[key])}" for key in changed[:3])


def _settings(config: TrainConfig) -> dict[str, object]:
    """All settings by the names of their options."""
    flat: dict[str, object] = {}
    for name, value in vars(config).items():
        flat |= {f"{name}.{key}": inner for key, inner in vars(value).items()} if is_dataclass(value) else {name: value}
    return flat


def _shown(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


class TensorBoardLogger:
    """Copies metrics to tensorboard; without a path it does nothing."""

    def __init__(self, path: Path | None):
        self.path = path

    def __enter__(self) -> "TensorBoardLogger":
        self.writer = None
        if self.path is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter  # an extra
            except ImportError:
                raise UserError("tensorboard is not installed; get it with: pip install 'logosphere[track]'") from None
            self.writer = SummaryWriter(str(self.path))
        return self

    def log(self, event: Event) -> None:
        if self.writer is None:
            return
        match event:
            case StepTaken(progress=progress):
                self.writer.add_scalar("train/loss", progress.loss, progress.step)
            case Validated(step=step, report=report):
                self.writer.add_scalar(f"val/bits per {report.unit}", report.bits, step)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()
