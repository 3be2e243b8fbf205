"""Self-contained HTML pages, and the player that shows animations side by side on one timeline."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files

from logosphere.report.animation import Animation

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Pages forbid the browser every request."""


def render_page(title: str, body: str) -> str:
    """Render a page with its style and scripts inside; the body must have a button with the id `theme`."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">'
        f"<title>{escape(title)}</title><style>{read_asset('style.css')}</style></head><body><main>"
        f"{body}</main><script>{read_asset('theme.js')}</script></body></html>\n"
    )


def read_asset(name: str) -> str:
    """Return the text of a style sheet or script of this package."""
    return files("logosphere.report").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Player:
    """An animation with its title, the final texts of its samples, and an optional mark before the title."""

    name: str
    animation: Animation
    texts: Sequence[str]
    swatch: str = ""


def render_players(players: Sequence[Player], extra: str = "") -> str:
    """Render players under one slider, followed by the HTML `extra`."""
    cards = "".join(_render_card(number, player) for number, player in enumerate(players))
    content = json.dumps([asdict(player.animation) for player in players], ensure_ascii=False, separators=(",", ":"))
    controls = (
        '<div class="player"><button id="play" type="button">▶ Watch</button>'
        '<input id="time" type="range" min="0" max="1" step="0.0125" value="1" aria-label="how far texts are written">'
        '<output id="when">finished</output></div>'
    )
    return (
        f"{controls}<div class='readings'>{cards}{extra}</div>"
        f'<script type="application/json" id="films">{content.replace("<", chr(92) + "u003c")}</script>'
        f"<script>{read_asset('player.js')}</script>"
    )


def _render_card(number: int, player: Player) -> str:
    texts = "".join(f"<pre>{escape(text)}</pre>" for text in player.texts[: len(player.animation.frames[0])])
    return f'<div class="reading" data-film="{number}"><h3>{player.swatch}{escape(player.name)}</h3>{texts}</div>'


def render_player_page(title: str, about: str, players: Sequence[Player]) -> str:
    """Render a page that holds nothing but players."""
    head = (
        f'<header><button class="theme" id="theme" type="button">Light / dark</button><h1>{escape(title)}</h1>'
        f"<p>{escape(about)}</p><p class='soft'>Dots are not written yet, grey letters are what the network would "
        "write, what has just changed is coloured, and what the network was less sure of is underlined the more "
        "strongly.</p></header>"
    )
    return render_page(title, head + render_players(players))
