"""logosphere launch"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from logosphere.atomic import write_whole
from logosphere.cli.console import parse, say
from logosphere.cli.train import arguments_of
from logosphere.errors import UserError
from logosphere.parallel.slurm import Job, batch_script


@dataclass(frozen=True)
class Arguments:
    """Write a batch script for a cluster. What follows a bare -- are words for `logosphere train`, with --out."""

    target: Annotated[Literal["slurm"], tyro.conf.Positional]
    """slurm"""
    job: Annotated[Job, tyro.conf.arg(name="")] = field(default_factory=Job)
    file: Path = Path("train.sbatch")
    """Where to write the script."""


def run(words: list[str]) -> int:
    cut = words.index("--") if "--" in words else len(words)
    arguments = parse(Arguments, words[:cut], "launch", default=None)
    training = words[cut + 1 :]
    # Mistakes are found now and not after a night in the queue.
    out = arguments_of(training).out if training else None
    if out is None:
        raise UserError("Say what to train and where, for example: logosphere launch slurm -- text8 --out runs/text8")
    if arguments.file.exists():
        raise UserError(f"{arguments.file} exists already; choose another --file.")
    kept = _without(training, "--out")
    write_whole(arguments.file, batch_script(arguments.job, str(out), kept).encode())
    say(f"Wrote {arguments.file}. Next: sbatch {arguments.file}")
    return 0


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    kept, skip = [], False
    for word in words:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return kept
