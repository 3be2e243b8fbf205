"""Output on terminals and in files whose encoding lacks some characters, such as cp1252 on Windows.

Text that cannot be encoded is replaced by ASCII instead of raising UnicodeEncodeError: ≤ by <=, ± by +-, lines and
bars by - | + and #, accented letters by their base letter, and everything else by ?.
"""

import codecs
import io
import sys
import unicodedata

ASCII = {
    "≤": "<=", "≥": ">=", "±": "+-", "≈": "~", "≠": "!=", "→": "->", "←": "<-", "↦": "->", "×": "x", "·": ".",
    "…": "...", "–": "-", "—": "--", "−": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "«": '"', "»": '"',
    "∞": "inf", "√": "sqrt",
    "²": "^2", "³": "^3", "½": "1/2", "∝": "~", "▶": ">", "•": "*", "⏎": "\\n", "⇥": "\\t", "␃": "#", "⋯": "...",
    "│": "|", "┃": "|", "║": "|", "╎": "|", "┆": "|", "╱": "/", "╲": "\\",
    "α": "alpha", "β": "beta", "λ": "lambda", "μ": "mu", "σ": "sigma", "τ": "tau", "θ": "theta",
}  # fmt: skip
LINES, BLOCKS, BRAILLE = range(0x2500, 0x2580), range(0x2580, 0x25A0), range(0x2800, 0x2900)
HORIZONTAL = "─━═╌╍┄┅┈┉╴╶╸╺"
HANDLER = "logosphere-ascii"


def to_ascii(character: str) -> str:
    """The nearest ASCII text of a character."""
    if character in ASCII:
        return ASCII[character]
    code = ord(character)
    if code in LINES:
        return "-" if character in HORIZONTAL else "+"
    if code in BLOCKS:
        return "#"
    if code in BRAILLE:
        return " " if code == BRAILLE.start else "*"
    if unicodedata.category(character) in ("Mn", "Cf"):
        return ""
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return plain or "?"


def _replace(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    return "".join(map(to_ascii, problem.object[problem.start : problem.end])), problem.end


def replace_unencodable() -> None:
    """Let standard output and error replace characters that their encoding lacks."""
    codecs.register_error(HANDLER, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "surrogateescape":
            stream.reconfigure(errors=HANDLER)


def encodes_everything(stream: object) -> bool:
    """Whether a stream can hold any text; one without an encoding is in memory and can."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")
