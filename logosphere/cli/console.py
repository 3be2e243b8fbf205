"""What commands share: parsing arguments, printing results, and progress bars with the time left."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from tyro import _errors as tyro_errors

from logosphere.cli.usage_errors import UsageError, explain
from logosphere.io import json_safe
from logosphere.parallel.launch import rank
from logosphere.runs.progress import Display

T = TypeVar("T")

messages = Console(stderr=True, highlight=False, quiet=rank() > 0)
"""Progress and remarks go here, so that results on standard output can be piped. Only the main process prints."""


def log(remark: str) -> None:
    """A remark on one line, however long."""
    messages.print(remark, soft_wrap=True)


def parse(kind: type[T], argv: list[str], command: str, default: T | None = None, about: str | None = None) -> T:
    """The arguments of a command; --help is answered here, and usage errors are raised as one sentence."""

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        raise UsageError(explain(event, kind, argv, command))

    config = [tyro.conf.AvoidSubcommands, tyro.conf.PositionalMetavarFromFieldName]
    settings: dict[str, Any] = {"args": argv, "prog": f"logosphere {command}"}
    if default is None:  # without a recipe there is nothing that None or --no-… could take back
        settings["config"] = [*config, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone]
    else:
        settings |= {"config": config, "default": default, "description": about}
    with tyro_errors.on_parse_error(refuse):
        return tyro.cli(kind, **settings)


def print_json(content: dict[str, Any]) -> None:
    json.dump(json_safe(content), sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def format_time(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Bar:
    """A live bar with a line of figures; silent when nobody watches."""

    def __init__(self, progress: Progress, task: TaskID):
        self.progress, self.task, self.started, self.first = progress, task, time.monotonic(), 0.0

    def update(self, done: float, figures: str) -> None:
        """Show the share done, figures, and the time left as the past pace promises it."""
        if not self.first:
            self.first = done
        elapsed = time.monotonic() - self.started
        left = elapsed * (1 - done) / (done - self.first) if done > self.first else float("nan")
        ending = f"{format_time(left)} left" if left == left else ""
        self.progress.update(self.task, completed=done, figures=f"{figures}  [dim]{ending}[/]")


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """A progress bar on the terminal."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=messages, disable=not messages.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task(title, total=1.0, figures=""))


DISPLAY = Display(bar=bar, log=log)
"""Progress and remarks of the verbs, on the terminal."""
