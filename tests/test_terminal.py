"""Text of others on terminals: control characters and markup do nothing, results in files stay exact."""

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from logosphere.cli import console, main
from logosphere.terminal import neutralise, neutralise_json, quote_command, show, show_error

CLIPBOARD = "\x1b]52;c;YQ==\x07"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_as_escapes() -> None:
    assert neutralise(CLIPBOARD) == "\\x1b]52;c;YQ==\\x07"
    assert neutralise("a\r\x9b2J\u202e\ud800\u2028") == "a\\x0d\\x9b2J\\u202e\\ud800\\u2028"
    plain = "two lines\n\tand a tab, ≤ ± ä 漢 🙂 👩‍🔬"
    assert neutralise(plain) == plain
    assert json.loads(neutralise_json(json.dumps("\x9b\u202e\x7f", ensure_ascii=False))) == "\x9b\u202e\x7f"


def test_results_are_neutralised_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(CLIPBOARD)
    show_error(CLIPBOARD)
    printed = capsys.readouterr()
    assert printed.out == CLIPBOARD + "\n" and printed.err == neutralise(CLIPBOARD) + "\n"
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(CLIPBOARD)
    assert terminal.getvalue() == neutralise(CLIPBOARD) + "\n"


@pytest.mark.parametrize("name", ["[/bold]", "[red]", "[/]", "a[link=x]b", CLIPBOARD])
def test_names_in_remarks_are_no_markup(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(console, "messages", Console(file=stream, color_system=None, width=200))
    console.log(f"Saved as {name}", "bold")
    assert stream.getvalue() == f"Saved as {neutralise(name)}\n"
    with console.bar(name) as bar:
        bar.update(0.5, name)


def test_errors_of_commands_are_neutralised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(tmp_path / f"run{CLIPBOARD}")]) == 1
    message = capsys.readouterr().err
    assert "\x1b" not in message and "\\x1b]52" in message
    code = (
        f"import sys; sys.argv = ['x', '--debug', 'sample', {str(tmp_path / CLIPBOARD)!r}]; sys.path.insert(0, '.')\n"
    )
    code += "from logosphere.__main__ import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert b"\x1b" not in done.stderr and b"Traceback" in done.stderr


def test_copied_commands_hold_no_control_characters() -> None:
    assert quote_command(["sample", "a b", "it's"]) == """sample 'a b' 'it'"'"'s'"""
    assert quote_command(["\x1b[201~\t'\\"]) == "$'\\033[201~\\011\\'\\\\'"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_texts_are_printed_before_they_are_saved(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("logosphere.cli.live_view.write_atomic", fail)
    argv = ["sample", "pretrained:ar", "-n", "1", "--steps", "2", "--save", str(tmp_path / "film.json"), *form]
    assert main(argv) == 1
    printed = capsys.readouterr()
    assert len(printed.out) > 64 and "disk is full" in printed.err
