"""What the pages write between fences: formulas, and tables made of what the package says of itself; and short names
of sections for the contents beside a page."""

import re
from html import escape
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

import logosphere
from logosphere.systems import ASPECTS, DEFAULT, Aspect, infos, option_docs


def math(source: str, *_: Any, **__: Any) -> str:
    """LaTeX as MathML, which browsers draw without any script."""
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
    """Every published preset beside the default, aspect by aspect, and the test that checks it."""
    shown = [aspect for aspect in ASPECTS if aspect not in ("optimiser", "network")]
    rows = []
    for info in infos():
        for preset in logosphere.presets(info.name).values():
            if preset.name == DEFAULT:
                continue
            cells = {aspect.name: _aspect(aspect) for aspect in preset.aspects}
            name = f"<code>{info.name}</code>" + ("" if preset.name == "paper" else f" ({preset.name})")
            rows.append([name, *(cells[aspect] for aspect in shown), f"<code>{escape(preset.checked)}</code>"])
    return _table(["system", *shown, "checked by"], rows)


def _aspect(aspect: Aspect) -> str:
    """What was published, and below it what the default does instead."""
    paper = escape(aspect.paper)
    return f"{paper}<br><em>default: {escape(aspect.default)}</em>" if aspect.default else paper


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


class ShortNames(Treeprocessor):
    """A heading may end with the command that made its figures, in parentheses; the contents leave that out."""

    def run(self, root: Element) -> None:
        for heading in root.iter():
            if heading.tag in ("h2", "h3") and (code := heading.find("code")) is not None:
                name = re.match(r"(.+) \($", heading.text or "")
                if name and code.tail == ")":
                    heading.set("data-toc-label", name[1])


class Contents(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the name is Markdown's)
        md.treeprocessors.register(ShortNames(md), "short-names", 6)  # after inline code (20), before the contents (5)


def makeExtension(**_: Any) -> Extension:  # noqa: N802 (the name is Markdown's)
    return Contents()
