"""Custom fences of the pages: formulas, and tables of systems, presets and public names generated from the package."""

from html import escape
from typing import Any

from latex2mathml.converter import convert

import logosphere
from logosphere.cards import CARDS
from logosphere.presets import ASPECTS, DEFAULT, Aspect


def math(source: str, *_: Any, **__: Any) -> str:
    """Return LaTeX as MathML, which browsers render without a script."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def systems(*_: Any, **__: Any) -> str:
    """Return a table of all systems, from their cards."""
    rows = [[f"<code>{card.name}</code>", card.title, card.difference, card.kind, card.paper] for card in CARDS]
    return _table(["name", "title", "difference", "likelihood", "paper"], rows)


def presets(*_: Any, **__: Any) -> str:
    """Return a table of all published presets: each aspect with its default, and the test that checks it."""
    shown = [aspect for aspect in ASPECTS if aspect not in ("optimiser", "network")]
    rows = []
    for card in CARDS:
        for preset in logosphere.presets(card.name).values():
            if preset.name == DEFAULT:
                continue
            cells = {aspect.name: _aspect(aspect) for aspect in preset.aspects}
            name = f"<code>{card.name}</code>" + ("" if preset.name == "paper" else f" ({preset.name})")
            rows.append([name, *(cells[aspect] for aspect in shown), f"<code>{escape(preset.checked)}</code>"])
    return _table(["system", *shown, "test"], rows)


def _aspect(aspect: Aspect) -> str:
    """Return the published value and, below it, the default where it differs."""
    paper = escape(aspect.paper)
    return f"{paper}<br><em>default: {escape(aspect.default)}</em>" if aspect.default else paper


def names(*_: Any, **__: Any) -> str:
    """Return a table of the public names with the modules that define them."""
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
