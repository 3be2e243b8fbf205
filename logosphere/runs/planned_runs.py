"""The runs of a comparison: systems with their options, one budget for all, a folder for each training."""

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.evaluation.costs import count_step_flops
from logosphere.pretrained import resolve_folder
from logosphere.runs.config import TrainConfig
from logosphere.runs.loop import Elapsed, build_model
from logosphere.runs.run import Run
from logosphere.runs.settings import Budget
from logosphere.systems import DEFAULT, find_preset, system
from logosphere.training.checkpoint import latest
from logosphere.weights import RECIPE, WEIGHTS


@dataclass(frozen=True)
class SystemSpec:
    """A system with options of its own: mdlm, mdlm:preset=paper, or mdlm:schedule=cosine:optim.lr=1e-3."""

    name: str
    system: str
    options: tuple[str, ...]
    lr: float | None
    preset: str = DEFAULT

    @staticmethod
    def parse(word: str) -> "SystemSpec":
        name, *rest = word.split(":")
        system(name)
        lr, options, preset = None, [], DEFAULT
        for option in rest:
            key, separator, value = option.partition("=")
            if not separator or not value:
                raise UserError(f"'{option}' in '{word}' is not an option of the form name=value.")
            if key == "optim.lr":
                try:
                    lr = float(value)
                except ValueError:
                    raise UserError(
                        f"'{value}' is not a learning rate; write for example {name}:optim.lr=2e-3"
                    ) from None
            elif key == "preset":
                preset = find_preset(name, value).name
            else:
                options.append(option)
        return SystemSpec(word, name, tuple(options), lr, preset)

    def configure(self, common: TrainConfig) -> TrainConfig:
        """The common recipe for this system; a preset brings its model, but the optimiser is the same for all."""
        optim = common.optim if self.lr is None else replace(common.optim, lr=self.lr)
        if self.preset != DEFAULT:
            common = replace(common, system=self.system).with_preset(self.preset, optimiser=False)
        return replace(common, system=self.system, options=(*common.options, *self.options), optim=optim)


def parse_systems(words: str) -> list[SystemSpec]:
    """Systems separated by commas; commas inside brackets belong to an option."""
    found = [SystemSpec.parse(word.strip()) for word in re.split(r",(?![^\[]*\])", words) if word.strip()]
    names = [spec.name for spec in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"'{twice[0]}' is named twice; name each system once, and use --seeds to repeat trainings.")
    return found


@dataclass(frozen=True)
class PlannedRun:
    """One training of a comparison: a system and a seed."""

    name: str
    config: TrainConfig
    folder: Path


def apply_budget(budget: Budget, config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The configuration with this budget. Tokens and operations become steps, rounded down but at least 1."""
    if not budget.given():
        return config
    steps = budget.steps
    if budget.tokens is not None:
        steps = max(1, int(budget.tokens // (config.batch * config.length)))
    if budget.flops is not None:
        steps = max(1, int(budget.flops // count_step_flops(build_model(config, corpus), config.batch)))
    return replace(config, steps=steps, minutes=budget.minutes, cpu_minutes=budget.cpu_minutes)


def plan_runs(
    specs: list[SystemSpec], common: TrainConfig, budget: Budget, seeds: int, corpus: Corpus, out: Path
) -> list[PlannedRun]:
    """Every system with every seed, each in a folder of its own under `out`."""
    if seeds < 1:
        raise UserError(f"There must be at least 1 seed, not {seeds}.")
    planned = []
    for spec in specs:
        config = apply_budget(budget, spec.configure(common), corpus)
        for number in range(seeds):
            name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec.name)
            folder = out / (name if number == 0 else f"{name}-seed{number}")
            planned.append(PlannedRun(spec.name, replace(config, seed=common.seed + number), folder))
    return planned


def find_existing(planned: PlannedRun) -> Run | None:
    """The run of a training that has begun, checked to be the planned one; None if it has not begun."""
    if not (planned.folder / RECIPE).exists():
        return None
    run = Run(planned.folder)
    for name, wanted in asdict(planned.config).items():
        if (found := asdict(run.config)[name]) != wanted:
            raise UserError(
                f"{planned.folder} was trained with {name} = {found}, not {wanted}; "
                "choose another --out for this comparison."
            )
    return run


def is_finished(run: Run) -> bool:
    """Has a training used up its budget?"""
    if (checkpoint := latest(run.state)) is None:
        return False
    try:
        state = json.loads((checkpoint / "state.json").read_bytes())
        elapsed = Elapsed(float(state["seconds"]), float(state["cpu_seconds"]))
        return elapsed.done(run.config, int(state["step"])) >= 1
    except (OSError, ValueError, KeyError):
        raise UserError(f"{checkpoint / 'state.json'} is missing or damaged; restore it from a copy.") from None


def open_saved(path: Path) -> Run:
    """A run that can be compared: it exists, has weights, and is not being trained."""
    folder = resolve_folder(path)
    if folder.is_dir() and not any(folder.iterdir()):
        raise UserError(
            f"{folder} is empty; name the folder of a run, or train one with: logosphere train --out {folder}"
        )
    if folder.is_dir() and not (folder / RECIPE).exists():
        inside = sorted(found.parent.name for found in folder.glob(f"*/{RECIPE}"))
        hint = f" The runs in it are: {', '.join(inside)}." if inside else ""
        raise UserError(f"{folder} is not the folder of a run: {RECIPE} is missing.{hint}")
    run = Run(path)
    try:
        if (folder / ".lock").exists():
            with run.lock():
                pass
    except UserError:
        raise UserError(f"{folder} is still being trained; wait for it or stop it before comparing.") from None
    if not (folder / WEIGHTS).exists():
        raise UserError(f"Nothing has been saved in {folder} yet; go on with: logosphere train --out {folder} --resume")
    return run


def check_comparable(runs: list[Run]) -> None:
    """All runs must have the same text, tokenizer and length."""
    first = runs[0]
    for other in runs[1:]:
        one, two = first.content.get("corpus", {}), other.content.get("corpus", {})
        for what, a, b in (
            ("tokenizer", str(one.get("tokenizer"))[:12], str(two.get("tokenizer"))[:12]),
            ("text", _describe_text(one), _describe_text(two)),
            ("length", first.config.length, other.config.length),
        ):
            if a != b:
                raise UserError(
                    f"{first.path} and {other.path} differ in {what} ({a} and {b}), so they cannot be compared; "
                    f"train both with the same {what}."
                )


def _describe_text(corpus: dict[str, object]) -> str:
    return f"{corpus.get('name')} {str(corpus.get('sha256'))[:12]}"
