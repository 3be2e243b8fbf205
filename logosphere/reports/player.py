"""Films side by side on one timeline: the part of a page that plays them, and a page with nothing else."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

from logosphere.reports.board import Film
from logosphere.reports.page import page, part


@dataclass(frozen=True)
class Showing:
    """A film, what it is called, and the texts it ends with."""

    name: str
    film: Film
    texts: Sequence[str]
    swatch: str = ""


def cinema(showings: Sequence[Showing], beside: str = "") -> str:
    """All films under one slider, and whatever stands `beside` them."""
    cards = "".join(_card(place, showing) for place, showing in enumerate(showings))
    content = json.dumps([asdict(showing.film) for showing in showings], ensure_ascii=False, separators=(",", ":"))
    controls = (
        '<div class="player"><button id="play" type="button">▶ Watch</button>'
        '<input id="time" type="range" min="0" max="1" step="0.0125" value="1" aria-label="how far texts are written">'
        '<output id="when">finished</output></div>'
    )
    return (
        f"{controls}<div class='readings'>{cards}{beside}</div>"
        f'<script type="application/json" id="films">{content.replace("<", chr(92) + "u003c")}</script>'
        f"<script>{part('player.js')}</script>"
    )


def _card(place: int, showing: Showing) -> str:
    blanks = "".join(f"<pre>{escape(text)}</pre>" for text in showing.texts[: len(showing.film.frames[0])])
    return f'<div class="reading" data-film="{place}"><h3>{showing.swatch}{escape(showing.name)}</h3>{blanks}</div>'


def player_page(title: str, about: str, showings: Sequence[Showing]) -> str:
    """A page that plays films and needs nothing but itself."""
    head = (
        f'<header><button class="theme" id="theme" type="button">Light / dark</button><h1>{escape(title)}</h1>'
        f"<p>{escape(about)}</p><p class='soft'>Dots are not written yet, grey letters are what the network would "
        "write, what has just changed is coloured, and what the network was less sure of is underlined the more "
        "strongly.</p></header>"
    )
    return page(title, head + cinema(showings))
