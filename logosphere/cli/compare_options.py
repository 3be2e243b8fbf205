"""The arguments of `logosphere compare`: runs, systems to train first, and options that change their recipe."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import Arguments, Flat, named_settings, parse
from logosphere.cli.train_options import named_option
from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.recipes import recipe
from logosphere.runs.settings import Budget, EvaluateConfig, SampleMetrics
from logosphere.systems import DEFAULT, system


@dataclass(frozen=True)
class Compare(Arguments):
    """Rank models on the same sequences, with paired differences. --systems trains them first, all alike.

    A system may have options: mdlm:preset=paper, mdlm:schedule=cosine, rdlm:optim.lr=1e-3. Run the same command again
    to continue a comparison that was stopped; finished trainings are kept.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs."""
    systems: str = ""
    """Systems to train first, separated by commas: ar,mdlm"""
    recipe: str = "demo"
    """Recipe to train them with: a name or a file."""
    preset: str = DEFAULT
    """The preset of all systems that name none of their own, such as paper; the optimiser is the recipe's for all."""
    length: int | None = None
    """Tokens per sequence; without it as in the recipe."""
    tokenizer: str = ""
    """auto, text8, characters, byte, bpe:SIZE, wordpiece:SIZE, minilm:SIZE, or a tokenizer.json; without it as in the
    recipe."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    budget: Annotated[Budget, Flat] = Budget()
    seeds: int = 1
    """Trainings of each system."""
    out: Path = Path("runs/compare")
    """Folder for their runs."""
    report: Path | None = None
    """Write a report (out.html), and the same as Markdown and JSON in its folder."""
    measure: Annotated[EvaluateConfig, Flat] = EvaluateConfig()
    samples: Annotated[SampleMetrics, Flat] = field(default_factory=SampleMetrics)
    campaign: Path | None = None
    """Train and measure the rows of a campaign (a YAML file) into records; what has a record is not done again."""
    only: tuple[str, ...] = ()
    """Parts or rows of the campaign, as PART or PART/ROW; without it all."""
    records: Path | None = None
    """Folder for the records of a campaign; default: the name of its file without .yaml."""
    reproduce: tuple[str, str] | None = None
    """Repeat a row from its record: a folder of records (or 'leaderboard', that of this project) and PART/ROW/SEED."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def config(self) -> TrainConfig:
        """The configuration that systems are trained with."""
        common = replace(recipe(self.recipe), network=self.network)
        common = common if self.length is None else replace(common, length=self.length)
        return replace(common, tokenizer=self.tokenizer) if self.tokenizer else common

    def check(self) -> None:
        for word in self.systems.split(","):
            if word.strip():
                system(word.strip().split(":")[0])
        self._check_records()
        recorded = self.campaign is not None or self.reproduce is not None
        if not self.systems.strip(", ") and not self.runs and not recorded:
            raise UserError(
                "Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2"
            )
        if self.report is not None and self.report.suffix not in (".html", ".htm"):
            raise UserError(f"The name of --report must end in .html, not be '{self.report}'.")

    def _check_records(self) -> None:
        """Raise for options that a campaign, or the repetition of a row, does not have."""
        given = {"--campaign": self.campaign, "--reproduce": self.reproduce}
        modes = [name for name, value in given.items() if value is not None]
        if len(modes) > 1:
            raise UserError("--campaign trains rows and --reproduce repeats one; give one of them.")
        others = {"--systems": self.systems, "runs": self.runs, "--report": self.report}
        if modes and (more := [name for name, value in others.items() if value]):
            raise UserError(f"{modes[0]} has its rows from a file; leave out {more[0]}.")
        for name, value in {"--only": self.only, "--records": self.records}.items():
            if value and self.campaign is None:
                raise UserError(f"{name} belongs to a campaign; add --campaign FILE.")


TRAINED = ("--recipe", "--preset", "--length", "--tokenizer")
"""Options that only trainings have, other than those of their network."""


def parse_compare(argv: list[str]) -> Compare:
    """The arguments of `compare`; the network is that of the recipe, except for the settings that are given."""
    chosen = recipe(named_option(argv, "--recipe") or "demo")
    arguments = parse(Compare, argv, "compare", default=Compare(network=chosen.network))
    arguments.check()
    given = [f"--network.{name}" for name in named_settings(argv, "--network.")]
    given += [name for name in TRAINED if named_option(argv, name)]
    if given and not arguments.systems:
        raise UserError(
            f"{given[0].replace('_', '-')} is for systems that are trained first; add for example --systems ar,mdlm."
        )
    return arguments
