"""The command line: parses arguments, runs the command, and reports every failure as one sentence and an exit code."""

import errno
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logosphere import __version__
from logosphere.cli.encoding import replace_unencodable
from logosphere.errors import UserError, suggest
from logosphere.parallel.launch import PeerLost, is_distributed, launch, must_launch, rank
from logosphere.parallel.lifetime import has_launcher
from logosphere.terminal import show, show_error

if TYPE_CHECKING:
    from logosphere.cli.console import Arguments


class UsageError(UserError):
    """Arguments that are not a valid command line; errors of a command itself are of another kind."""


@dataclass(frozen=True)
class Command:
    """A command: its line in the help, the class of its arguments, and the module with the function of its name."""

    about: str
    arguments: str
    """Class in logosphere/cli/arguments.py."""
    module: str
    """Module in logosphere/cli/."""
    function: str = ""
    """The function, where it cannot have the name of the command."""


COMMANDS = {
    "train": Command("train a model on your text", "Train", "train"),
    "adapt": Command("make a diffusion of an autoregressive model", "Adapt", "adapt"),
    "import": Command("import a published model as a run", "Import", "import_command", "import_run"),
    "evaluate": Command("measure the likelihood of a trained model, with its error", "Evaluate", "evaluate"),
    "sample": Command("generate text, continue a prompt, fill gaps", "Sample", "sample"),
    "studio": Command("watch, steer and compare models in the browser", "Studio", "studio"),
    "serve": Command("answer requests of OpenAI's API: completions, infilling, chats", "Serve", "serve"),
    "plot": Command("draw the training curves of a run in the terminal", "Plot", "evaluate"),
    "train-remasker": Command("train the remasker of a g-star model", "TrainRemasker", "train"),
    "train-classifier": Command("train a classifier of noisy texts for guidance", "TrainClassifier", "train"),
    "compare": Command("train systems alike, rank them on the same sequences, write one report", "Compare", "evaluate"),
    "bench": Command("measure the speed and memory of training and sampling", "Bench", "evaluate"),
    "export": Command("export a run as a small folder for a package", "Export", "evaluate"),
    "publish": Command("publish a run on the hub, with a card of what was measured", "Publish", "publish"),
    "systems": Command("list the systems that can be trained, and their presets", "Systems", "systems"),
    "samplers": Command("list the samplers", "Samplers", "systems"),
    "data": Command("list or fetch corpora", "Data", "listings"),
    "launch": Command("write a batch script for a cluster", "Launch", "listings"),
    "completion": Command("print completions for your shell", "Completion", "listings"),
}
FORMER = {"show": "plot", "remask": "train-remasker", "classify": "train-classifier", "pack": "export"}
"""Commands by their former names, which still work."""

USAGE = """usage: logosphere COMMAND [OPTIONS]

Train, measure, compare and sample diffusion language models.

commands:
{commands}

Help on a command:                     logosphere COMMAND --help
A small model is bundled; watch it:    logosphere sample --watch
Then train one on a text of yours:     logosphere train --data my-text.txt
options everywhere: --debug (show tracebacks), --version"""

INTERRUPTED, FAILED, MISUSED = 130, 1, 2


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit code."""
    words = sys.argv[1:] if argv is None else argv
    replace_unencodable()
    # Idle threads of torch spin for milliseconds by default, which on a busy machine takes the processor from the very
    # thread they wait for. A short spin costs nothing when it is idle. It must be set before torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if is_distributed():  # each process would log that all parameters were used
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        show(USAGE.format(commands="\n".join(f"  {name:<17} {one.about}" for name, one in COMMANDS.items())))
        return 0 if words else MISUSED
    if words[0] == "--version":
        show(__version__)
        return 0
    name = FORMER.get(words[0], words[0])
    if name != words[0]:
        show_error(f"Note: 'logosphere {words[0]}' is now called 'logosphere {name}'.")
    if name not in COMMANDS:
        return _complain(f"There is no command '{name}'.{suggest(name, COMMANDS)}", MISUSED)
    argv = words[1:]
    try:
        arguments = parse_arguments(name, argv)
        if must_launch(arguments.processes):
            return launch([name, *argv], arguments.processes)
        module = import_module(f"logosphere.cli.{COMMANDS[name].module}")  # which may import torch
        function = COMMANDS[name].function or name.replace("-", "_")
        run: Callable[[Any, list[str]], int] = getattr(module, function)
        return run(arguments, argv)
    except BaseException as problem:
        if debug:
            raise
        return _explain(problem, name)


def parse_arguments(name: str, argv: list[str]) -> "Arguments":
    """The arguments of a command, checked; parsing needs tyro, but no torch."""
    module = import_module("logosphere.cli.arguments")
    arguments: Arguments = module.parse_command(name, getattr(module, COMMANDS[name].arguments), argv)
    return arguments


def _explain(problem: BaseException, command: str) -> int:
    """Print one sentence about a failure; the exit code."""
    match problem:
        case SystemExit():
            return problem.code if isinstance(problem.code, int) else FAILED
        case UserError() | KeyboardInterrupt() if rank() > 0:
            return FAILED  # the main process fails as well and prints why
        case PeerLost() if is_distributed() and has_launcher():
            return FAILED  # the launcher prints why
        case UserError():
            return _complain(str(problem), MISUSED if isinstance(problem, UsageError) else FAILED)
        case KeyboardInterrupt():
            again = " The same command continues." if command == "compare" else ""
            if command == "train" and str(problem):  # interrupted in a run, whose resume command the exception holds
                again = f" Continue with: {problem}"
            return _complain(f"Stopped.{again}", INTERRUPTED)
        case BrokenPipeError():
            sys.stderr.close()  # the reader of the output has closed it
            return FAILED
        case OSError(errno=errno.ENOSPC):
            return _complain(
                "The disk is full. Earlier checkpoints are complete; free some space and run this again, a training "
                "with --resume.",
                FAILED,
            )
        case OSError(errno=errno.EROFS | errno.EACCES | errno.EPERM):
            place = f"{_place(problem) or 'A file'} cannot be used ({problem.strerror})"
            return _complain(f"{place}; choose another folder, or change its permissions.", FAILED)
        case OSError():
            return _complain(f"{problem.strerror or problem}: {_place(problem)}".rstrip(": ") + ".", FAILED)
        case MemoryError():
            return _complain("There is not enough memory; try a smaller --batch, --length or network.", FAILED)
        case RuntimeError() if "out of memory" in str(problem) or "can't allocate memory" in str(problem):
            return _complain("There is not enough memory; try a smaller --batch, --length or network.", FAILED)
        case _:
            kind = type(problem).__name__
            return _complain(
                f"This should not happen ({kind}: {problem}); run again with --debug and report it.", FAILED
            )


def _place(problem: OSError) -> str:
    """The file of an error; a temporary file is named after the file it would have become."""
    return re.sub(r"(^|[/\\])\.([^/\\]+?)\.(draft-)?\d+-[0-9a-f]{8}(?=[/\\]|$)", r"\1\2", str(problem.filename or ""))


def _complain(sentence: str, code: int) -> int:
    show_error(f"logosphere: {sentence}")
    return code
