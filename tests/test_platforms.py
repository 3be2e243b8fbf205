"""Other machines: no POSIX modules, files as on Windows, terminals with few characters, and paths with backslashes."""

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_helpers import train
from text_fixtures import PROSE

import logosphere as ls
from logosphere.cli import _place, main
from logosphere.cli.encoding import ASCII, encodes_everything, replace_unencodable, to_ascii
from logosphere.io import as_file_name, locked, replace_file
from logosphere.runs.run import unused_path

PACKAGE = Path(ls.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
TEXT_METHODS = {"open", "read_text", "write_text"}
POSIX_MODULES = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog"}
POSIX_NAMES = {
    "os": {"fork", "sync", "O_DIRECTORY", "getuid", "geteuid", "killpg", "setsid", "nice", "getloadavg",
           "sched_getaffinity", "mkfifo", "statvfs", "uname", "WIFEXITED"},
    "signal": {"SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGQUIT", "setitimer", "pthread_kill",
               "pthread_sigmask"},
}  # fmt: skip
"""Names that Windows lacks. `os.sysconf` is read after a file of /proc only."""


@pytest.mark.slow
def test_the_life_of_a_run_without_posix(tmp_path: Path) -> None:
    script = Path(__file__).with_name("without_posix.py")
    env = os.environ | {"LOGOSPHERE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr


def posix_only(text: str) -> Iterator[str]:
    """Imports without an alternative, and names, that Windows lacks."""
    tree = ast.parse(text)
    tried = {child for node in ast.walk(tree) if isinstance(node, ast.Try) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tried:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from POSIX_MODULES & {name.partition(".")[0] for name in names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from POSIX_NAMES.get(node.value.id, set()) & {node.attr}


def test_nothing_is_needed_that_only_posix_has() -> None:
    found = {path.name: [*posix_only(path.read_text(encoding="utf-8"))] for path in FILES}
    assert {name for name, uses in found.items() if uses} == set(), found
    assert list(posix_only("import fcntl\ntry:\n    import pwd\nexcept ImportError:\n    os.fork()")) == [
        "fcntl",
        "fork",
    ]


def text_calls(path: Path) -> Iterator[ast.Call]:
    """Calls that open a file as text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if method not in TEXT_METHODS or owner in ("os", "webbrowser", "tarfile", "archive", "split", "self.split"):
            continue
        words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        words += [word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)]
        if method != "open" or not any(isinstance(word, str) and "b" in word and len(word) <= 3 for word in words):
            yield node


def test_text_files_name_their_encoding() -> None:
    """Without one Python takes that of the machine, which is cp1252 on most Windows machines."""
    for path, call in [(file, call) for file in FILES for call in text_calls(file)]:
        positional = [word.value for word in call.args[:1] if isinstance(word, ast.Constant)]
        named = any(word.arg == "encoding" for word in call.keywords) or positional in (["ascii"], ["utf-8"])
        assert named, f"{path.name}:{call.lineno} {ast.unparse(call)}"


def test_the_check_of_encodings_can_fail(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('path.read_text()\nopen(p)\nopen(p, "rb")\npath.open("w")\nos.open(p)\n', encoding="utf-8")
    assert len(list(text_calls(module))) == 3


# ---- terminals -----------------------------------------------------------------------------------------------


ENCODINGS = ["ascii", "cp1252", "cp437"]


@contextmanager
def terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BytesIO]:
    """Standard output and error with an encoding of few characters inside this block; what is written."""
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        streams = [io.TextIOWrapper(written, encoding=encoding, write_through=True) for _ in range(2)]
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        yield written


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_characters_are_replaced_by_ascii(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(encoding, monkeypatch) as written:
        replace_unencodable()
        print("bound ≤ 1.5 ± 0.2, ≈ 3 → ─│└▶█ ⣿ Łé日")
        text = written.getvalue().decode(encoding)
    expected = {
        "ascii": "bound <= 1.5 +- 0.2, ~ 3 -> -|+># * ?e?\n",
        "cp1252": "bound <= 1.5 ± 0.2, ~ 3 -> -|+># * ?é?\n",
        "cp437": "bound ≤ 1.5 ± 0.2, ≈ 3 -> ─│└>█ * ?é?\n",
    }
    assert text == expected[encoding]


def test_every_replacement_is_ascii() -> None:
    assert all(replacement.isascii() for replacement in ASCII.values())
    assert all(to_ascii(chr(code)).isascii() for code in [*range(0x80, 0x3000), 0x1F600, 0xD800])
    shown = {c for path in (PACKAGE / "cli").rglob("*.py") for c in path.read_text(encoding="utf-8") if not c.isascii()}
    assert all(to_ascii(character) != "?" for character in shown)


def test_streams_that_hold_any_text_are_recognised() -> None:
    assert encodes_everything(io.StringIO()) and encodes_everything(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert not encodes_everything(io.TextIOWrapper(io.BytesIO(), "cp1252"))


@pytest.mark.slow
def test_commands_print_on_any_terminal(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = PROSE + "Ω ≤ ü — „déjà vu“ 日本\n" * 20
    Path("text.txt").write_text(words, encoding="utf-8")
    assert train("--data", "text.txt", "--system", "mdlm") == 0
    small = ["-n", "1", "--steps", "4"]
    for argv, code in [
        (["--help"], 0), (["train", "--help"], 0), (["systems"], 0), (["systems", "rdlm"], 0), (["samplers"], 0),
        (["data", "list"], 0), (["evaluate", "run", "--sequences", "8"], 0), (["sample", "run", *small], 0),
        (["sample", "run", "--watch", *small], 0), (["sample", "run", "--json", *small], 0), (["plot", "run"], 0),
        (["train", "--dry-run", "--data", "text.txt"], 0), (["sample", "ohne–Ordner→日"], 1),
        (["compare", "run", "--sequences", "8", "--samples", "0", "--report", "out.html"], 0),
    ]:  # fmt: skip
        for encoding in ("ascii", "cp1252"):
            with terminal(encoding, monkeypatch) as written:
                assert main(argv) == code, argv
                text = written.getvalue().decode(encoding)
            assert text and "Encode" not in text, argv
            if "--json" in argv:
                (sample,) = json.loads(text.splitlines()[-1])["samples"]
                assert "?" not in sample["text"], "JSON escapes what the terminal lacks"
    assert "≤" in Path("out.md").read_text(encoding="utf-8"), "files are UTF-8 everywhere"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_process_with_an_encoding_of_few_characters(encoding: str, workplace: Path) -> None:
    env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(PACKAGE.parent)}
    argv = [sys.executable, "-m", "logosphere", "evaluate", "pretrained:mdlm", "--sequences", "4", "--draws", "1"]
    done = subprocess.run([*argv, "--data", "pydoc"], env=env, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert b"<= " in done.stdout and (b"\xb1" if encoding == "cp1252" else b"+-") in done.stdout


# ---- files ---------------------------------------------------------------------------------------------------


def test_errors_name_the_file_that_a_temporary_one_would_become() -> None:
    for folder in ("runs/a/", "C:\\runs\\a\\", ""):
        name = f"{folder}.recipe.json.123-0123abcd"
        assert _place(OSError(13, "no", name)) == f"{folder}recipe.json"


def test_names_of_files_are_legal_on_every_system(workplace: Path) -> None:
    assert as_file_name('hf:owner/name:x|y?*<>"') == "hf-owner-name-x-y-----"
    assert unused_path("mdlm", "hf:owner/name:config") == Path("runs/mdlm-name-config")
    assert unused_path("mdlm", "lines:texts/my text.txt") == Path("runs/mdlm-my text")


def test_a_busy_file_is_replaced_when_it_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to replace a file while another program has it open."""
    (tmp_path / "new").write_text("new", encoding="utf-8")
    replace, refusals = os.replace, iter([PermissionError(13, "busy"), PermissionError(13, "busy")])

    def refuse(source: Path, target: Path) -> None:
        if (problem := next(refusals, None)) is not None:
            raise problem
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        replace_file(tmp_path / "new", tmp_path / "old")  # at once where nothing keeps others from renaming
    monkeypatch.setattr("logosphere.io.WINDOWS", True)
    replace_file(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text(encoding="utf-8") == "new"


def test_a_lock_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait=False):
        with pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
            pass
    with locked(tmp_path / "lock", wait=True):
        pass


def test_a_lock_is_released_when_its_process_dies(tmp_path: Path) -> None:
    code = f"""if True:
        import os
        from pathlib import Path
        from logosphere.io import locked
        with locked(Path({str(tmp_path / "lock")!r}), wait=True):
            os._exit(3)"""
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 3
    with locked(tmp_path / "lock", wait=False):
        pass
