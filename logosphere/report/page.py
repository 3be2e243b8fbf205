"""Self-contained HTML pages, animations of sampling, and the player that shows them side by side on one timeline."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files

from logosphere.sampling.trajectory import Trajectory


@dataclass(frozen=True)
class Animation:
    """Samples during sampling, as changes (position, symbol) of each frame; symbol -1 is a hidden position.

    The names of the fields are keys of the JSON files and of the player's data.
    """

    length: int
    symbols: list[str]
    frames: list[list[list[int]]]
    """For each frame and sample, a flat list position, symbol, position, symbol …"""
    confidence: list[list[str]] = field(default_factory=list)
    """For each frame and sample, one digit per position: the network's confidence in tenths. Empty if unknown."""
    predictions: list[list[list[int]]] = field(default_factory=list)
    """As `frames`, the network's prediction at positions that are still hidden. Empty if unknown."""


def build_animation(trajectory: Trajectory, symbol: Callable[[int], str], max_frames: int = 256) -> Animation:
    """Build an animation of at most `max_frames` frames from a trajectory; `symbol` gives the text of a token."""
    frames = trajectory.frames
    if len(frames) > max_frames:
        frames = [frames[i * (len(frames) - 1) // (max_frames - 1)] for i in range(max_frames)]
    predictions = [frame.predicted for frame in frames if frame.predicted is not None]
    confidences = [frame.confidence for frame in frames if frame.confidence is not None]
    shown = [frame.tokens for frame in frames] + predictions
    used = sorted({token for rows in shown for row in rows for token in row if token >= 0})
    index = {token: i for i, token in enumerate(used)} | {-1: -1}
    return Animation(
        trajectory.length,
        [symbol(token) for token in used],
        _find_changes([frame.tokens for frame in frames], index),
        confidences if len(confidences) == len(frames) else [],
        _find_changes(predictions, index) if len(predictions) == len(frames) else [],
    )


def _find_changes(frames: list[list[list[int]]], index: dict[int, int]) -> list[list[list[int]]]:
    """Return what changes from frame to frame; before the first frame all positions are hidden."""
    before, changes = [[-1] * len(row) for row in frames[0]], []
    for rows in frames:
        pairs = [
            [(i, index[b]) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            for old, new in zip(before, rows, strict=True)
        ]
        changes.append([[value for pair in row for value in pair] for row in pairs])
        before = rows
    return changes


def apply_changes(row: list[int], changes: list[int]) -> list[int]:
    """Write the changes of one frame into a row of symbols; return the positions that were written."""
    positions, symbols = changes[::2], changes[1::2]
    for position, symbol in zip(positions, symbols, strict=True):
        row[position] = symbol
    return positions


def read_asset(name: str) -> str:
    """Return the text of a style sheet or script of this package."""
    return files("logosphere.report").joinpath(name).read_text(encoding="utf-8")


SCRIPTS = ("theme.js", "player.js", "figures.js", "leaderboard.js")


def _make_policy() -> str:
    digests = [b64encode(sha256(read_asset(name).encode()).digest()).decode() for name in SCRIPTS]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; img-src data:; base-uri 'none'"


CONTENT_SECURITY_POLICY = _make_policy()
"""Pages forbid the browser every request, and every script but those of this package, known by their digests."""


def render_page(title: str, body: str, style: str = "") -> str:
    """Render a page with its style and scripts inside; the body must have a button with the id `theme`.

    `style` is added to the style of all pages.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">'
        f"<title>{escape(title)}</title><style>{read_asset('style.css')}{style}</style></head><body><main>"
        f"{body}</main><script>{read_asset('theme.js')}</script></body></html>\n"
    )


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
        '<input id="time" type="range" min="0" max="1" step="0.0125" value="1" aria-label="progress of sampling">'
        '<output id="when">finished</output></div>'
    )
    return (
        f"{controls}<div class='readings'>{cards}{extra}</div>"
        f'<script type="application/json" id="animations">{content.replace("<", chr(92) + "u003c")}</script>'
        f"<script>{read_asset('player.js')}</script>"
    )


def _render_card(number: int, player: Player) -> str:
    texts = "".join(f"<pre>{escape(text)}</pre>" for text in player.texts[: len(player.animation.frames[0])])
    return f'<div class="reading" data-animation="{number}"><h3>{player.swatch}{escape(player.name)}</h3>{texts}</div>'


def render_player_page(title: str, about: str, players: Sequence[Player]) -> str:
    """Render a page that holds nothing but players."""
    head = (
        f'<header><button class="theme" id="theme" type="button">Light / dark</button><h1>{escape(title)}</h1>'
        f"<p>{escape(about)}</p><p class='soft'>Dots are positions without a token, grey letters are predictions of "
        "the network, new tokens are coloured, and the underline is stronger the lower the confidence of the network."
        "</p></header>"
    )
    return render_page(title, head + render_players(players))
