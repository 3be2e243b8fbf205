"""The command line: finds the command, runs it, and turns whatever goes wrong into one sentence and an exit code."""

import errno
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module

from logosphere.cli.mistakes import Misuse
from logosphere.errors import UserError, nearest
from logosphere.parallel.launch import Deserted, launched, observed, rank

COMMANDS = {
    "train": "train a model on your text",
    "evaluate": "measure the likelihood of a trained model, with its error",
    "sample": "generate text, continue a prompt, fill gaps",
    "studio": "watch, steer and compare models in the browser",
    "show": "draw the training curves of a run in the terminal",
    "remask": "teach a g-star model which of its tokens are wrong",
    "classify": "teach a classifier of noisy texts, to guide a model by",
    "compare": "train systems alike, rank them on the same sequences, write one report",
    "bench": "measure the speed and memory of training and sampling",
    "pack": "make a small folder of a run that a package can carry",
    "systems": "list the systems that can be trained",
    "samplers": "list the ways to generate text",
    "data": "list or fetch corpora",
    "launch": "write a batch script for a cluster",
    "completion": "print completions for your shell",
}

USAGE = """usage: logosphere COMMAND [OPTIONS]

Train, measure, compare and sample diffusion language models.

commands:
{commands}

Every command explains itself:       logosphere COMMAND --help
A small model comes along; watch it: logosphere sample --watch
Then train one on a text of yours:   logosphere train --data my-text.txt
options everywhere: --debug (show tracebacks), --version"""

INTERRUPTED, FAILED, MISUSED = 130, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    # Idle threads of torch spin for milliseconds by default, which on a busy machine takes the processor from the very
    # thread they wait for. A short spin costs nothing when it is idle. It must be set before torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if launched():  # several processes would each remark that all parameters happened to be used
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands="\n".join(f"  {name:<10} {line}" for name, line in COMMANDS.items())))
        return 0 if words else MISUSED
    if words[0] == "--version":
        from logosphere import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        return _complain(f"There is no command '{words[0]}'.{nearest(words[0], COMMANDS)}", MISUSED)
    try:
        command: Callable[[list[str]], int] = import_module(f"logosphere.cli.{words[0]}").run
        return command(words[1:])
    except BaseException as problem:
        if debug:
            raise
        return _explain(problem)


def _explain(problem: BaseException) -> int:
    match problem:
        case SystemExit():
            return problem.code if isinstance(problem.code, int) else FAILED
        case UserError() | KeyboardInterrupt() if rank() > 0:
            return FAILED  # what one process of a team cannot do, none can, and the first says so
        case Deserted() if launched() and observed():
            return FAILED  # whoever has started the team knows more
        case UserError():
            return _complain(str(problem), MISUSED if isinstance(problem, Misuse) else FAILED)
        case KeyboardInterrupt():
            return _complain(
                "Stopped. Nothing that was saved is lost; run the same command again to go on.", INTERRUPTED
            )
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
    """The file that a problem is about; drafts go by the name of what they were to become."""
    return re.sub(r"(^|/)\.([^/]+?)\.(draft-)?\d+-[0-9a-f]{8}(?=/|$)", r"\1\2", str(problem.filename or ""))


def _complain(sentence: str, code: int) -> int:
    print(f"logosphere: {sentence}", file=sys.stderr)
    return code
