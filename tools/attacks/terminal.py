"""Attacks on the terminal: control characters and markup in tokens, names, errors and copied commands."""

import io
import os
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from attacks import attack
from logosphere import build
from logosphere.cli import console, main
from logosphere.cli.live_view import LiveView
from logosphere.data.tokenizers import ByteTokenizer, CharacterTokenizer
from logosphere.errors import UserError
from logosphere.sampling.trajectory import TrajectoryFrame
from logosphere.terminal import guard_messages, neutralise, quote_command, show, show_error

CONTROLS = (
    "\x1b]52;c;ZWNobyBoYWNrZWQ=\x07",  # writes the clipboard
    "\x1b]0;a title\x07", "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "\x1b[2J\x1b[H", "\x1b[8m", "\x1bc",
    "\x1b[6n", "\x1bP+q544e\x1b\\", "\x1b_a\x1b\\", "\x1b^a\x1b\\", "\x1b[201~rm\n", "\x1b[?1049h", "\x1b[31m",
    "\x9b2J", "\x9d52;c;YQ==\x9c", "\x90q\x9c", "\x85", "\x07", "\x08\x08\x08", "fine\rwrong", "\x7f", "\x0b", "\x0c",
    "\x00", "\u202egnp.exe", "\u2066a\u2069", "\u200fabc", "\u2028line", "\u061ca", "\U000e0041", "\ud800",
)  # fmt: skip
MARKUP = (
    "[/bold]", "[/]", "[bold]", "[link=http://evil.example]here[/link]", "[red", "a]b[", "[@click=app.bell]x[/]",
    "\\[", "[/a][/b]", "[bold red on white]",
)  # fmt: skip


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def check_harmless(text: str) -> None:
    """Raise if a terminal would act on a text; line breaks and tabs are allowed."""
    assert neutralise(text) == text, f"raw control characters were printed: {text!r}"


@contextmanager
def terminal() -> Iterator[FakeTerminal]:
    """Standard output and error on a terminal."""
    stream = FakeTerminal()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


@contextmanager
def plain_console() -> Iterator[io.StringIO]:
    """The console of progress and remarks without colours, so that every control character is foreign."""
    stream = io.StringIO()
    plain = Console(file=stream, color_system=None, force_terminal=False, highlight=False, width=500)
    with patch.object(console, "messages", plain), patch("logosphere.cli.live_view.messages", plain):
        yield stream


@attack(*CONTROLS)
def print_result(text: str, world: Path) -> None:
    """A generated text with control characters is printed on a terminal."""
    with terminal() as stream:
        show(f"before {text} after")
    check_harmless(stream.getvalue())
    assert "before" in stream.getvalue() and "after" in stream.getvalue()


@attack(*CONTROLS)
def print_error(text: str, world: Path) -> None:
    """An error names a tensor with control characters, also where errors go to a file."""
    stream = io.StringIO()
    with redirect_stderr(stream):
        show_error(f"The tensor {text} is missing.")
    check_harmless(stream.getvalue())


@attack(*CONTROLS)
def fail_command(text: str, world: Path) -> None:
    """A command fails with a sentence that quotes a file of someone else."""
    stream = io.StringIO()
    with redirect_stderr(stream), patch("logosphere.cli.parse_arguments", side_effect=UserError(f"{text} is bad")):
        assert main(["sample"]) == 1
    check_harmless(stream.getvalue())


@attack(*CONTROLS)
def fail_unexpectedly(text: str, world: Path) -> None:
    """An unexpected exception of a library quotes a file of someone else."""
    stream = io.StringIO()
    with redirect_stderr(stream), patch("logosphere.cli.parse_arguments", side_effect=KeyError(text)):
        assert main(["sample"]) == 1
    check_harmless(stream.getvalue())


@attack(*CONTROLS, *MARKUP)
def log_remark(text: str, world: Path) -> None:
    """A remark quotes a name with control characters or with markup of rich."""
    with plain_console() as stream:
        console.log(f"Saved as {text}.")
    check_harmless(stream.getvalue())
    assert f"Saved as {neutralise(text)}." in stream.getvalue()


@attack(*CONTROLS, *MARKUP)
def title_bar(text: str, world: Path) -> None:
    """A progress bar has a name with control characters or markup as its title and among its figures."""
    stream = FakeTerminal()
    plain = Console(file=stream, color_system=None, force_terminal=True, highlight=False, width=500)
    with patch.object(console, "messages", plain), console.bar(text) as bar:
        bar.update(0.5, f"loss {text}")
        shown = list(bar.progress.tasks)
        drawn = Console(file=io.StringIO(), color_system=None, width=500, record=True)
        drawn.print(bar.progress.get_renderable())
    assert shown[0].description == neutralise(text)
    check_harmless(drawn.export_text())


@attack(*CONTROLS)
def show_symbol(text: str, world: Path) -> None:
    """Symbols of tokens are control characters and are shown while a text is denoised."""
    alphabet = "".join(sorted(set(text) | {"a", "b"}))
    tokenizer = CharacterTokenizer(alphabet)
    frame = TrajectoryFrame.__new__(TrajectoryFrame)
    values: dict[str, Any] = {
        "tokens": [list(range(len(alphabet)))], "changed": [[0]], "confidence": None, "predicted": None, "step": 1,
        "steps": 2,
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(frame, name, value)
    with plain_console():
        line = LiveView(tokenizer, None).line(frame, 0)
    check_harmless(line.plain)


@attack(*CONTROLS)
def print_json(text: str, world: Path) -> None:
    """A generated text is printed as JSON on a terminal; the value must stay the same."""
    import json

    with terminal() as stream:
        console.print_json({"text": text, text: 1})
    check_harmless(stream.getvalue())
    read = json.loads(stream.getvalue())
    assert read["text"] == text and read[text] == 1


@attack(*CONTROLS)
def warn(text: str, world: Path) -> None:
    """A warning quotes a damaged file."""
    stream, before = io.StringIO(), (warnings.formatwarning, sys.excepthook)
    try:
        guard_messages()
        with redirect_stderr(stream), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"The table {text} is damaged", stacklevel=1)
        check_harmless(stream.getvalue())
        assert "damaged" in stream.getvalue()
    finally:
        warnings.formatwarning, sys.excepthook = before


@attack(*CONTROLS)
def print_traceback(text: str, world: Path) -> None:
    """With --debug the traceback quotes a file of someone else."""
    stream, before = io.StringIO(), (warnings.formatwarning, sys.excepthook)
    try:
        guard_messages()
        with redirect_stderr(stream):
            try:
                raise ValueError(text)
            except ValueError as problem:
                sys.excepthook(type(problem), problem, problem.__traceback__)
        check_harmless(stream.getvalue())
        assert traceback.__name__.title() in stream.getvalue()
    finally:
        warnings.formatwarning, sys.excepthook = before


@attack(*CONTROLS, "it's", 'say "hi" $(id) `id` \\', "a\\\x1b7", "\x1b'; id; '", "tab\there")
def paste_command(text: str, world: Path) -> None:
    """A copied command with control characters is pasted; the shell must read the same argument."""
    command = quote_command(["printf", "%s", text])
    check_harmless(command)
    assert "\t" not in command
    if shutil.which("bash") and not any(0xD800 <= ord(c) < 0xE000 or c == "\0" for c in text):
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=20, check=True)
        assert done.stdout == text.encode(), done.stdout


def _make_run(world: Path, text: str) -> Path:
    """A model whose every token is spelt with control characters."""
    folder = world / "hostile"
    if not folder.exists():
        model = build("mdlm", vocab_size=256, length=64, width=8, depth=1, heads=1)
        model.tokenizer = ByteTokenizer()
        model.save(folder)
    return folder


def _read_terminal(argv: list[str], folder: Path) -> str:
    """Run a command on a pseudo-terminal; return what it wrote there."""
    import pty  # not on Windows

    main_end, other = pty.openpty()
    environment = os.environ | {"NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(argv, cwd=folder, stdout=other, stderr=subprocess.PIPE, env=environment)
    os.close(other)
    parts = []
    try:
        while part := os.read(main_end, 65536):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(main_end)
        process.communicate(timeout=60)
    assert process.returncode == 0
    return b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n")


@attack("text", "json")
def sample_on_terminal(form: str, world: Path) -> None:
    """A model of random bytes is sampled on a real terminal."""
    folder = _make_run(world, form)
    argv = [sys.executable, "-m", "logosphere", "sample", str(folder), "-n", "2", "--steps", "2"]
    printed = _read_terminal([*argv, "--json"] if form == "json" else argv, world)
    assert len(printed) > 64
    check_harmless(printed)


@attack("raw")
def sample_into_file(form: str, world: Path) -> None:
    """In a pipe the text must stay exact: neutralising it there would change results."""
    argv = [sys.executable, "-m", "logosphere", "sample", str(_make_run(world, form)), "-n", "1", "--steps", "2"]
    done = subprocess.run(argv, cwd=world, capture_output=True, timeout=60, check=True)
    assert any(byte < 32 and byte not in b"\t\n" for byte in done.stdout)
