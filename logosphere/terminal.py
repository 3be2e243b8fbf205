"""The one outlet of text for terminals, which cannot control the terminal it is shown on.

Texts of models, names of tensors, fields of recipes and file names come from others. Their control characters could
write the clipboard (OSC 52), change the title, overwrite lines or reverse the direction of text. They are shown as
escapes such as \\x1b. Results in files and pipes stay as they are.
"""

import json
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
"""C0 but for tabs and line breaks, DEL, C1, marks of direction, line separators, halves of surrogates, tags."""
_UNTYPED = re.compile(f"{_CONTROL.pattern}|\t")
"""Characters that a terminal acts on when they are pasted; a tab completes."""


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def neutralise(text: str) -> str:
    """Replace control characters by visible escapes; tabs and line breaks stay."""
    return _CONTROL.sub(_escape, text)


def neutralise_json(text: str) -> str:
    """Replace control characters by the escapes of JSON, which are the same value to a program."""
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def is_terminal(stream: object) -> bool:
    """Whether a stream is a terminal; a closed or missing one is none."""
    isatty = getattr(stream, "isatty", None)
    try:
        return isatty is not None and bool(isatty())
    except ValueError:  # it is closed
        return False


def show(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print a result: neutralised on a terminal, exact in files and pipes."""
    print(neutralise(text) if is_terminal(sys.stdout) else text, end=end, flush=flush)


def show_error(text: str) -> None:
    """Print a sentence to standard error, neutralised wherever it goes, because logs are read on terminals too."""
    print(neutralise(text), file=sys.stderr)


def show_json(content: Any, *, ascii_only: bool) -> None:
    """Print JSON on one line; on a terminal with all control characters as escapes."""
    text = json.dumps(content, ensure_ascii=ascii_only, allow_nan=False)
    print(neutralise_json(text) if is_terminal(sys.stdout) else text, flush=True)


def guard_messages() -> None:
    """Let tracebacks and warnings of this process use the outlet too, since they quote names and texts."""
    formatted = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return neutralise(formatted(message, category, filename, lineno, line))

    def show_traceback(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
        show_error("".join(traceback.format_exception(kind, problem, trace)).rstrip("\n"))

    warnings.formatwarning = format_warning
    sys.excepthook = show_traceback


def quote_command(argv: Sequence[str]) -> str:
    """Return a command line that a shell reads as these arguments, without control characters.

    A pasted escape could end the paste and type a command. Arguments with such characters are written as $'…', which
    bash, zsh, ksh and POSIX shells of 2024 read.
    """
    return " ".join(_quote(word) for word in argv)


def _quote(word: str) -> str:
    if not _UNTYPED.search(word):
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_UNTYPED.sub(_escape_bytes, plain)}'"


def _escape_bytes(found: re.Match[str]) -> str:
    """The UTF-8 bytes of a character in octal, of three digits always, so that what follows is not read as more."""
    return "".join(f"\\{byte:03o}" for byte in found[0].encode("utf-8", "surrogatepass"))
