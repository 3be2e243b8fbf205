"""python -m logosphere, and the console script: the command line in a process of its own."""

import atexit
import os
import sys
import threading
from types import FrameType
from typing import NoReturn

from logosphere.allocator import keep_freed_memory
from logosphere.cli import main
from logosphere.parallel.lifetime import end_with_launcher
from logosphere.terminal import guard_messages

_START_FRAMES = {"<module>", "_run_code", "_run_module_as_main"}
"""Functions that call `run` when this process was started for the command line and nothing else."""


def run() -> NoReturn:
    """Run the command of sys.argv and end the process with its exit code."""
    end_with_launcher()
    guard_messages()
    if sys.argv[1:2] not in (["studio"], ["serve"]):  # a server is often idle and should not keep memory then
        keep_freed_memory()
        # torch asks for pages of 2 MiB, so that the first use of an array has fewer page faults.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # One of several processes exits without cleanup: its output and files are complete, and destroying the process
        # group while other processes still run sometimes aborts (a thread of gloo that is not joined).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if _owns_process():
        _exit_at_once(code)
    sys.exit(code)


def _owns_process() -> bool:
    """Whether nothing is to run after the command: no profiler, debugger, coverage or interactive interpreter."""
    if sys.gettrace() is not None or sys.getprofile() is not None or sys.flags.inspect or sys.flags.interactive:
        return False
    frame: FrameType | None = sys._getframe(2)  # the caller of `run`
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return set(names) <= _START_FRAMES


def _exit_at_once(code: int) -> None:
    """Exit as the interpreter does, but leave its objects to the kernel, because destroying torch takes 0.4 s.

    Threads are joined, exit handlers run and the output is flushed, in the order of Py_FinalizeEx. Where the output
    cannot be flushed this returns, and the interpreter exits and reports it in the usual way.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    run()
