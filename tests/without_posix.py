"""A process in which the package finds none of what only POSIX systems have, and files behave as on Windows.

python without_posix.py FOLDER runs the life of a run there: train, stop, resume, evaluate, sample, export, compare and
the studio. Modules that Windows lacks cannot be imported by the package or by filelock (the standard library and torch
have branches of their own for Windows), names that Windows lacks are removed, and files that this process has open can
be neither renamed nor replaced nor deleted.
"""

import builtins
import importlib
import os
import pkgutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

BLOCKED = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog", "posix"}
IMPORTERS = {"logosphere", "filelock"}
MISSING_NAMES = {os: ["sync", "sysconf", "getuid", "killpg", "getloadavg", "nice"], signal: ["SIGHUP", "SIGALRM"]}
ILLEGAL = set('<>:"|?*\\')
"""Characters that names of files cannot have on Windows."""
SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "2", "--device", "cpu"]


def block_imports() -> None:
    """Refuse imports of modules that Windows lacks."""
    find = builtins.__import__

    def refusing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = str((globals or {}).get("__name__", "")).partition(".")[0]
        if importer in IMPORTERS and name in BLOCKED:
            raise ImportError(f"{importer} must not need {name}")
        return find(name, globals, locals, fromlist, level)

    builtins.__import__ = refusing
    for module, names in MISSING_NAMES.items():
        for name in names:
            delattr(module, name)


def open_files() -> list[str]:
    """Files that this process has open or mapped."""
    handles = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    found = [os.readlink(path) for path in handles if os.path.lexists(path)]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return found + [line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6]


def refuse_while_open(act: Callable[..., None]) -> Callable[..., None]:
    """A function of paths that fails, as on Windows, for files that are open and for folders with such files."""

    def refusing(*paths: Any, **options: Any) -> None:
        if not any(isinstance(path, int) for path in paths) and "dir_fd" not in options:
            for path in map(os.path.abspath, paths):
                if held := [file for file in open_files() if file == path or file.startswith(f"{path}/")]:
                    raise PermissionError(13, "The process cannot access the file, because it is open", held[0])
        act(*paths, **options)

    return refusing


def behave_like_windows() -> None:
    """Let files and folders behave as on Windows."""
    import logosphere.io

    logosphere.io.WINDOWS = True
    logosphere.io.BUSY_SECONDS = 0.0
    os.replace, os.rename, os.unlink = (refuse_while_open(act) for act in (os.replace, os.rename, os.unlink))
    opening = os.open

    def open_no_folder(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if os.path.isdir(path) and sys._getframe(1).f_globals["__name__"].startswith("logosphere"):
            raise PermissionError(13, "Permission denied", path)
        return opening(path, flags, *rest, **options)

    os.open = open_no_folder


def import_everything() -> None:
    """Import all modules of the package but the one that needs an evaluation harness."""
    import logosphere

    for module in pkgutil.walk_packages(logosphere.__path__, "logosphere."):
        if not module.name.endswith(("__main__", "lm_eval_adapter")):
            importlib.import_module(module.name)


def check_restrictions(folder: Path) -> None:
    """The restrictions of this process are in force."""
    for module in BLOCKED:
        try:
            builtins.__import__(module, {"__name__": "logosphere.runs.run"})
        except ImportError:
            continue
        raise AssertionError(f"{module} can be imported")
    with (folder / "held").open("w", encoding="utf-8"):
        for act in (lambda: os.replace(folder / "held", folder / "free"), (folder / "held").unlink):
            try:
                act()
            except PermissionError:
                continue
            raise AssertionError("an open file was moved")
    (folder / "held").unlink()


def run(*argv: str) -> None:
    from logosphere.cli import main

    print("$ logosphere", *argv, flush=True)
    code = main([*argv, "--debug"])
    assert code == 0, f"{argv} ended with {code}"


def stop_after_three_steps(text: Path) -> None:
    """A training that is stopped, and resumed by the command line."""
    import logosphere as ls
    from logosphere.networks.config import NetworkConfig

    seen: list[object] = []
    config = ls.TrainConfig(
        system="mdlm", data=str(text), length=16, batch=4, steps=6, validations=2, validation_sequences=8,
        network=NetworkConfig(width=16, depth=1, heads=2), device="cpu",
    )  # fmt: skip
    from logosphere.runs.train import create, run_to_end

    folder, corpus, model = create(config, "run")
    outcome = run_to_end(folder, corpus, on_event=seen.append, should_stop=lambda: len(seen) >= 3, model=model)
    assert outcome.stopped and outcome.step < 6


def open_studio() -> None:
    """Start the studio, fetch its page and stop it with Ctrl-C."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    status: list[int] = []

    def fetch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not status:
            try:
                urlopen(f"http://127.0.0.1:{port}/", timeout=5)
            except URLError as problem:
                code = getattr(problem, "code", None)  # without the token it is refused by the studio itself
                status.extend([code] if code else [])
            time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=fetch, daemon=True).start()
    try:
        run("studio", "run", "--port", str(port))
    except KeyboardInterrupt:
        pass
    assert status and status[0] in (403, 404), status


def main(folder: Path) -> None:
    os.chdir(folder)
    warnings.filterwarnings("ignore", message=".*soft.*lock.*")  # filelock without fcntl
    os.environ["USERNAME"] = "user"  # which getpass reads on Windows
    block_imports()
    behave_like_windows()
    import torch

    torch.set_num_threads(1)
    check_restrictions(folder)
    import_everything()
    text = Path("a text.txt")
    lines = "".join(f"line {number}: the quick brown fox jumps over it.\n" for number in range(120))
    text.write_text(lines, encoding="utf-8", newline="\r\n")
    stop_after_three_steps(text)
    run("train", "--resume", "--out", "run")
    run("evaluate", "run", "--sequences", "8", "--draws", "2")
    run("sample", "run", "-n", "2", "--steps", "4", "--prompt", "line")
    run("export", "run", "--out", "small", "--sequences", "8", "--samples", "2", "--steps", "4")
    run("sample", "small", "-n", "1", "--steps", "4")
    run("compare", "run", "--report", "report.html", "--sequences", "8", "--draws", "2", "--samples", "0")
    open_studio()
    illegal = [str(path) for path in folder.rglob("*") if set(path.name) & ILLEGAL or path.name.endswith((".", " "))]
    assert not illegal, illegal
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
