"""The command line: parses arguments, runs the command, and turns every failure into one sentence and an exit code."""

import errno
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logosphere.errors import UserError, suggest
from logosphere.parallel.launch import Deserted, launched, observed, rank

if TYPE_CHECKING:
    from logosphere.cli.arguments import Arguments


@dataclass(frozen=True)
class Command:
    """A command: its line in the help, the class of its arguments, and the module that runs it."""

    about: str
    arguments: str
    """Class in logosphere/cli/arguments.py."""

    @property
    def module(self) -> str:
        return f"logosphere.cli.{re.sub(r'(?<!^)(?=[A-Z])', '_', self.arguments).lower()}"


COMMANDS = {
    "train": Command("train a model on your text", "Train"),
    "evaluate": Command("measure the likelihood of a trained model, with its error", "Evaluate"),
    "sample": Command("generate text, continue a prompt, fill gaps", "Sample"),
    "studio": Command("watch, steer and compare models in the browser", "Studio"),
    "plot": Command("draw the training curves of a run in the terminal", "Plot"),
    "train-remasker": Command("train the remasker of a g-star model", "TrainRemasker"),
    "train-classifier": Command("train a classifier of noisy texts, to guide a model by", "TrainClassifier"),
    "compare": Command("train systems alike, rank them on the same sequences, write one report", "Compare"),
    "bench": Command("measure the speed and memory of training and sampling", "Bench"),
    "export": Command("make a small folder of a run that a package can carry", "Export"),
    "systems": Command("list the systems that can be trained, and their presets", "Systems"),
    "samplers": Command("list the ways to generate text", "Samplers"),
    "data": Command("list or fetch corpora", "Data"),
    "launch": Command("write a batch script for a cluster", "Launch"),
    "completion": Command("print completions for your shell", "Completion"),
}
FORMER = {"show": "plot", "remask": "train-remasker", "classify": "train-classifier", "pack": "export"}
"""Commands by their former names, which still work."""

USAGE = """usage: logosphere COMMAND [OPTIONS]

Train, measure, compare and sample diffusion language models.

commands:
{commands}

Every command explains itself:         logosphere COMMAND --help
A small model is bundled; watch it:    logosphere sample --watch
Then train one on a text of yours:     logosphere train --data my-text.txt
options everywhere: --debug (show tracebacks), --version"""

INTERRUPTED, FAILED, MISUSED = 130, 1, 2


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit code."""
    words = sys.argv[1:] if argv is None else argv
    # Idle threads of torch spin for milliseconds by default, which on a busy machine takes the processor from the very
    # thread they wait for. A short spin costs nothing when it is idle. It must be set before torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if launched():  # several processes would each remark that all parameters happened to be used
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands="\n".join(f"  {name:<17} {one.about}" for name, one in COMMANDS.items())))
        return 0 if words else MISUSED
    if words[0] == "--version":
        from logosphere import __version__

        print(__version__)
        return 0
    name = FORMER.get(words[0], words[0])
    if name != words[0]:
        print(f"Note: 'logosphere {words[0]}' is now called 'logosphere {name}'.", file=sys.stderr)
    if name not in COMMANDS:
        return _complain(f"There is no command '{name}'.{suggest(name, COMMANDS)}", MISUSED)
    try:
        return _run(name, words[1:])
    except BaseException as problem:
        if debug:
            raise
        return _explain(problem, name)


def _run(name: str, argv: list[str]) -> int:
    """Parse the arguments, then import the module of the command, which may load torch, and run it."""
    arguments = parse_arguments(name, argv)
    run: Callable[[Any, list[str]], int] = import_module(COMMANDS[name].module).run
    return run(arguments, argv)


def parse_arguments(name: str, argv: list[str]) -> "Arguments":
    """The arguments of a command, checked."""
    from logosphere.cli import arguments as known
    from logosphere.cli.console import parse

    if name == "train":
        return known.parse_train(argv)
    if name == "launch":  # what follows -- is for train
        argv = argv[: argv.index("--")] if "--" in argv else argv
    arguments: Arguments = parse(getattr(known, COMMANDS[name].arguments), argv, name)
    arguments.check()
    return arguments


def _explain(problem: BaseException, command: str) -> int:
    from logosphere.cli.usage_errors import UsageError

    match problem:
        case SystemExit():
            return problem.code if isinstance(problem.code, int) else FAILED
        case UserError() | KeyboardInterrupt() if rank() > 0:
            return FAILED  # what one process cannot do, none can, and the main process says so
        case Deserted() if launched() and observed():
            return FAILED  # the process that started the group knows more
        case UserError():
            return _complain(str(problem), MISUSED if isinstance(problem, UsageError) else FAILED)
        case KeyboardInterrupt():
            again = "add --resume to go on" if command == "train" else "run the same command again to go on"
            return _complain(f"Stopped. Nothing that was saved is lost; {again}.", INTERRUPTED)
        case BrokenPipeError():
            sys.stderr.close()  # whoever read our output has gone; there is nobody to tell
            return FAILED
        case OSError(errno=errno.ENOSPC):
            return _complain(
                "The disk is full. What was saved before is whole; free some space and run this again.", FAILED
            )
        case OSError(errno=errno.EROFS | errno.EACCES | errno.EPERM):
            place = f"{_place(problem) or 'A file'} cannot be used ({problem.strerror})"
            return _complain(f"{place}; choose another folder, or change who may write there.", FAILED)
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
    """The file that a problem is about; temporary files go by the name of what they were to become."""
    return re.sub(r"(^|/)\.([^/]+?)\.(draft-)?\d+-[0-9a-f]{8}(?=/|$)", r"\1\2", str(problem.filename or ""))


def _complain(sentence: str, code: int) -> int:
    print(f"logosphere: {sentence}", file=sys.stderr)
    return code
