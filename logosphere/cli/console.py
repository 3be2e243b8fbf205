"""What the commands share: parsing options, printing results, and progress that says how long it still takes."""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from logosphere.atomic import plain
from logosphere.cli.mistakes import Misuse, in_a_sentence
from logosphere.parallel.launch import rank

if TYPE_CHECKING:
    from logosphere.data.corpus import Corpus
    from logosphere.data.tokenizers import Tokenizer

T = TypeVar("T")

messages = Console(stderr=True, highlight=False, quiet=rank() > 0)
"""Progress and remarks go here, so that results on standard output can be piped. Of several processes one speaks."""


def say(remark: str) -> None:
    """A remark on one line, however long."""
    messages.print(remark, soft_wrap=True)


def parse(kind: type[T], words: list[str], command: str, default: T | None = None, about: str | None = None) -> T:
    """Options of a command out of its words; --help and mistakes are answered here."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return _parsed(kind, words, command, default, about)
    except SystemExit as end:
        if end.code in (0, None):  # it was asked for help
            raise
        raise Misuse(in_a_sentence(said.getvalue(), command)) from None


def _parsed(kind: type[T], words: list[str], command: str, default: T | None, about: str | None) -> T:
    prog = f"logosphere {command}"
    config = [tyro.conf.AvoidSubcommands, tyro.conf.PositionalMetavarFromFieldName]
    if default is None:  # without a recipe there is nothing that None or --no-… could take back
        plain = [*config, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone]
        return tyro.cli(kind, args=words, prog=prog, config=plain)
    return tyro.cli(kind, args=words, prog=prog, default=default, config=config, description=about)


def print_json(content: dict[str, Any]) -> None:
    json.dump(plain(content), sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def clock(seconds: float) -> str:
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
        ending = f"{clock(left)} left" if left == left else ""
        self.progress.update(self.task, completed=done, figures=f"{figures}  [dim]{ending}[/]")


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """A progress bar on the terminal."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=messages, disable=not messages.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task(title, total=1.0, figures=""))


def corpus_with_progress(source: str, tokenizer: "str | Tokenizer") -> "Corpus":
    """Open a corpus and show what takes long about it."""
    from logosphere.data.corpora import open_corpus

    with bar(source) as shown:
        return open_corpus(source, tokenizer, report=_shown(shown))


def _shown(shown: Bar) -> Callable[[str, int, int], None]:
    def report(stage: str, done: int, total: int) -> None:
        if stage == "rebuilding a damaged cache":
            say("The cached tokens of this text were damaged; they are built again.")
        shown.update(done / total if total else 0.0, stage)

    return report
