"""What the pages write between fences: formulas, and tables made of what the package says of itself."""

from html import escape
from typing import Any

from latex2mathml.converter import convert

import logosphere
from logosphere.cards import CARDS


def math(source: str, *_: Any, **__: Any) -> str:
    """LaTeX as MathML, which browsers draw without any script."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def systems(*_: Any, **__: Any) -> str:
    """Every system, as its card tells it."""
    rows = [[f"<code>{card.name}</code>", card.title, card.difference, card.kind, card.paper] for card in CARDS]
    return _table(["name", "what it is", "what sets it apart", "number", "paper"], rows)


def names(*_: Any, **__: Any) -> str:
    """What `import logosphere as ls` offers, and where it lives."""
    rows = [
        [f"<code>ls.{name}</code>", f"<code>{logosphere._LAZY.get(name, f'logosphere:{name}')}</code>"]
        for name in logosphere.__all__
        if not name.startswith("_")
    ]
    return _table(["name", "module:object"], rows)


def _table(titles: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
