"""Foreign text in Markdown: names, texts and commands of others, which show as they are and do nothing.

Markdown passes HTML through, so that a name such as `<img src=…>` would be an element of the page that shows the file.
"""

import re

from logosphere.terminal import neutralise

_SPECIAL = re.compile(r"([\\`*_\[\]|])")
_INNER_UNDERSCORE = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")


def escape_text(text: str) -> str:
    """Escape a text on one line, so that it is neither HTML nor a link, an image, emphasis or another cell."""
    plain = " ".join(neutralise(text).replace("\t", " ").split("\n"))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore within a word is no emphasis, and names of systems are easier to read without the backslash.
    return _INNER_UNDERSCORE.sub("_", _SPECIAL.sub(r"\\\1", plain))


def code_span(text: str) -> str:
    """Return a text as code on one line, with more backticks around it than it has in a row."""
    plain = " ".join(neutralise(text).split("\n"))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    space = " " if "`" in plain or plain != plain.strip() or not plain else ""
    return f"{fence}{space}{plain}{space}{fence}"


def code_block(text: str) -> str:
    """Return a text as an indented block of code."""
    return "\n".join(f"    {line}" for line in neutralise(text).split("\n"))
