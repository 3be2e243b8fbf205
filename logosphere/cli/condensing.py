"""Text while it condenses: on the terminal, and saved as a page, a drawing, a GIF or plain numbers."""

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from logosphere.cli.console import messages
from logosphere.data.gaps import Given
from logosphere.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

    from logosphere.data.tokenizers import Tokenizer
    from logosphere.sampling.trajectory import Moment, Trajectory

FRAMES_PER_SECOND = 30
SUFFIXES = (".html", ".svg", ".gif", ".json")
DOUBT = ((3, "magenta"), (6, "blue"), (9, "cyan"))
"""Tenths of probability below which a token has a colour; what is surer is plain."""


def check_suffix(path: Path) -> None:
    """Refuse what cannot be written before a long text is."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"A film is saved as one of {', '.join(SUFFIXES)}, and {path.name} is none of them.")
    if path.suffix == ".gif" and find_spec("PIL") is None:
        raise UserError("GIFs need the extra 'plot': pip install 'logosphere[plot]'")


def save(path: Path, trajectory: "Trajectory", tokenizer: "Tokenizer", texts: list[str], about: str) -> None:
    """Write a trajectory in the form that the name of the file asks for."""
    from logosphere.atomic import write_whole
    from logosphere.report.animated_svg import render_animated_svg
    from logosphere.report.animation import build_animation
    from logosphere.report.gif import render_gif
    from logosphere.report.page import Player, render_player_page

    animation = build_animation(trajectory, tokenizer.symbol)
    match path.suffix:
        case ".html":
            player = Player(about, animation, texts)
            content = render_player_page("Text condensing out of noise", about, [player]).encode()
        case ".svg":
            content = render_animated_svg(animation).encode()
        case ".gif":
            content = render_gif(animation)
        case _:
            told = {"about": about, "texts": texts, **trajectory.as_dict()}
            content = (json.dumps(told, ensure_ascii=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


class Condensing:
    """Text on the terminal while it condenses: new tokens are bright, given ones green.

    Hidden positions are dots, or dim where the network can guess them already. All others are coloured by how sure the
    network was of them.
    """

    def __init__(self, tokenizer: "Tokenizer", given: Given | None):
        from rich.live import Live

        self.tokenizer = tokenizer
        self.known = [] if given is None else given.known.tolist()
        self.live = Live(console=messages, auto_refresh=False)
        self.live.start()
        self.last = 0.0

    def show(self, moment: "Moment") -> None:
        """Draw a moment, but no more of them than an eye can follow."""
        from rich.console import Group
        from rich.text import Text

        pause = self.last + 1 / FRAMES_PER_SECOND - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        self.last = time.monotonic()
        texts = [self.line(moment, sample) for sample in range(len(moment.tokens))]
        parts = [part for text in texts for part in (text, Text())]
        self.live.update(Group(*parts, self.legend(moment)), refresh=True)

    def line(self, moment: "Moment", sample: int) -> "Text":
        """One text with its colours."""
        from rich.text import Text

        fresh = set(moment.changed[sample]) if moment.step < moment.steps else set()
        sure = moment.sure[sample] if moment.sure is not None else ""
        line = Text()
        for i, token in enumerate(moment.tokens[sample]):
            if token < 0:
                guess = moment.guessed[sample][i] if moment.guessed is not None else -1
                line.append(self.tokenizer.symbol(guess) if guess >= 0 else "·", style="dim")
                continue
            doubtful = next((colour for limit, colour in DOUBT if sure and int(sure[i]) < limit), "")
            known = i < len(self.known) and self.known[i]
            style = "green" if known else "bold yellow" if i in fresh else doubtful
            line.append(self.tokenizer.symbol(token), style=style)
        return line

    def legend(self, moment: "Moment") -> "Text":
        """How far the texts are, and what the colours mean, each in its colour."""
        from rich.text import Text

        line = Text(f"step {moment.step}/{moment.steps}   ", style="dim")
        line.append("· not written  guessed", style="dim").append("   ")
        line.append("just changed", style="bold yellow").append("   sure ")
        for limit, colour in reversed(DOUBT):
            line.append(f"<{limit}0% ", style=colour)
        if any(self.known):
            line.append("  given", style="green")
        return line

    def close(self) -> None:
        self.live.stop()
