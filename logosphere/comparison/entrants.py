"""Who takes part: systems with their options, one budget for all, and a folder for each training."""

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.evaluation.costs import count_step_flops
from logosphere.presets import DEFAULT
from logosphere.presets import preset as find_preset
from logosphere.recipes.recipe import Recipe
from logosphere.runs.folder import RunFolder
from logosphere.runs.train import Clock, build_model
from logosphere.systems import system
from logosphere.training.checkpoint import latest
from logosphere.weights import RECIPE


@dataclass(frozen=True)
class Budget:
    """How long each system trains; one of these."""

    steps: int | None = None
    tokens: float | None = None
    minutes: float | None = None
    cpu_minutes: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        if len(self._given()) > 1:
            raise UserError(f"Give one budget, not {' and '.join(self._given())}: every system gets the same.")
        for name, value in self._given().items():
            if value <= 0:
                raise UserError(f"The budget --{name.replace('_', '-')} must be above 0, not {value:g}.")

    def _given(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self).items() if value is not None}

    def applied(self, recipe: Recipe, corpus: Corpus) -> Recipe:
        """The recipe with this budget. Tokens and operations are turned into steps, rounded down but at least 1."""
        if not self._given():
            return recipe
        steps = self.steps
        if self.tokens is not None:
            steps = max(1, int(self.tokens // (recipe.batch * recipe.length)))
        if self.flops is not None:
            steps = max(1, int(self.flops // count_step_flops(build_model(recipe, corpus), recipe.batch)))
        return replace(recipe, steps=steps, minutes=self.minutes, cpu_minutes=self.cpu_minutes)


@dataclass(frozen=True)
class Contender:
    """A system with options of its own: mdlm, mdlm:preset=paper, or mdlm:schedule=cosine:optim.lr=1e-3."""

    name: str
    system: str
    options: tuple[str, ...]
    lr: float | None
    preset: str = DEFAULT

    @staticmethod
    def parse(word: str) -> "Contender":
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
        return Contender(word, name, tuple(options), lr, preset)

    def recipe(self, common: Recipe) -> Recipe:
        """The common recipe for this system; a preset brings its model, but the optimiser is the same for all."""
        optim = common.optim if self.lr is None else replace(common.optim, lr=self.lr)
        if self.preset != DEFAULT:
            common = replace(common, system=self.system).with_preset(self.preset, optimiser=False)
        return replace(common, system=self.system, options=(*common.options, *self.options), optim=optim)


def contenders(words: str) -> list[Contender]:
    """Systems separated by commas; commas inside brackets belong to an option."""
    found = [Contender.parse(word.strip()) for word in re.split(r",(?![^\[]*\])", words) if word.strip()]
    names = [contender.name for contender in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"'{twice[0]}' is named twice; name each system once, and use --seeds to repeat trainings.")
    return found


@dataclass(frozen=True)
class Entrant:
    """One training: a system and a seed."""

    name: str
    recipe: Recipe
    folder: Path


def entrants(
    found: list[Contender], common: Recipe, budget: Budget, seeds: int, corpus: Corpus, out: Path
) -> list[Entrant]:
    """Every system with every seed, each in a folder of its own under `out`."""
    if seeds < 1:
        raise UserError(f"There must be at least 1 seed, not {seeds}.")
    every = []
    for contender in found:
        recipe = budget.applied(contender.recipe(common), corpus)
        for number in range(seeds):
            place = re.sub(r"[^A-Za-z0-9.=-]+", "-", contender.name)
            folder = out / (place if number == 0 else f"{place}-seed{number}")
            every.append(Entrant(contender.name, replace(recipe, seed=common.seed + number), folder))
    return every


def begun(entrant: Entrant) -> RunFolder | None:
    """The folder of a training that has begun, checked to be the one that is meant; None if it has not."""
    if not (entrant.folder / RECIPE).exists():
        return None
    run = RunFolder(entrant.folder)
    for name, wanted in asdict(entrant.recipe).items():
        if (found := asdict(run.recipe)[name]) != wanted:
            raise UserError(
                f"{entrant.folder} was trained with {name} = {found}, not {wanted}; "
                "choose another --out for this comparison."
            )
    return run


def finished(run: RunFolder) -> bool:
    """Has a training used up its budget?"""
    if (checkpoint := latest(run.state)) is None:
        return False
    try:
        state = json.loads((checkpoint / "state.json").read_bytes())
        clock = Clock(float(state["seconds"]), float(state["cpu_seconds"]))
        return clock.done(run.recipe, int(state["step"])) >= 1
    except (OSError, ValueError, KeyError):
        raise UserError(f"{checkpoint / 'state.json'} is missing or damaged; restore it from a copy.") from None
