"""Custom fences of the pages: formulas, and tables of systems, presets and public names generated from the package."""

from html import escape
from typing import Any

from latex2mathml.converter import convert

import logosphere
from logosphere.systems import ASPECTS, DEFAULT, Aspect, infos, option_docs


def math(source: str, *_: Any, **__: Any) -> str:
    """Return LaTeX as MathML, which browsers render without a script."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def systems(*_: Any, **__: Any) -> str:
    """Every system, as the registry describes it."""
    rows = [[f"<code>{info.name}</code>", info.title, info.summary, info.kind, info.paper] for info in infos()]
    return _table(["name", "what it is", "difference", "number", "paper"], rows)


def options(*_: Any, **__: Any) -> str:
    """The options of every system, as the fields of its settings are documented."""
    parts = []
    for info in infos():
        defaults = logosphere.options(info.name)
        rows = [
            [f"<code>{option}</code>", f"<code>{escape(str(defaults[option]))}</code>", escape(text)]
            for option, text in option_docs(info.name).items()
        ]
        if rows:
            table = _table(["option", "default", "meaning"], rows)
            parts.append(f"<details><summary><code>{info.name}</code></summary>{table}</details>")
    return "".join(parts)


def presets(*_: Any, **__: Any) -> str:
    """Return a table of all published presets: each aspect with its default, and the test that checks it."""
    shown = [aspect for aspect in ASPECTS if aspect not in ("optimiser", "network")]
    rows = []
    for info in infos():
        for preset in logosphere.presets(info.name).values():
            if preset.name == DEFAULT:
                continue
            cells = {aspect.name: _aspect(aspect) for aspect in preset.aspects}
            name = f"<code>{info.name}</code>" + ("" if preset.name == "paper" else f" ({preset.name})")
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
