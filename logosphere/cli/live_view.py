"""Text while it is denoised: live on the terminal, and saved as a page, a drawing, a GIF or plain numbers."""

import json
import time
from importlib.util import find_spec
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from logosphere.cli.console import messages
from logosphere.data.tokenizers import Prompt, Tokenizer
from logosphere.errors import UserError
from logosphere.io import write_atomic
from logosphere.sampling.trajectory import Trajectory, TrajectoryFrame
from logosphere.terminal import neutralise

FRAMES_PER_SECOND = 30
CONFIDENCE_COLOURS = ((3, "magenta"), (6, "blue"), (9, "cyan"))
"""Tenths of probability below which a token has a colour; more confident tokens are plain."""


def check_installed(path: Path) -> None:
    """Raise for a format that cannot be written here, before a long text is sampled."""
    if path.suffix == ".gif" and find_spec("PIL") is None:
        raise UserError("GIFs need the extra 'plot': pip install 'logosphere[plot]'")


def save_trajectory(path: Path, trajectory: Trajectory, tokenizer: Tokenizer, texts: list[str], about: str) -> None:
    """Write a trajectory in the format that the suffix of the file names."""
    # The report is not needed for texts alone.
    from logosphere.report.images import render_animated_svg, render_gif
    from logosphere.report.page import Player, build_animation, render_player_page

    film = build_animation(trajectory, tokenizer.symbol)
    match path.suffix:
        case ".html":
            content = render_player_page("Text denoised step by step", about, [Player(about, film, texts)]).encode()
        case ".svg":
            content = render_animated_svg(film).encode()
        case ".gif":
            content = render_gif(film)
        case _:
            record = {"about": about, "texts": texts, **trajectory.as_dict()}
            content = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


class LiveView:
    """Text on the terminal while it is denoised: new tokens are bright, known ones green.

    Masked positions are dots, or dim where the network can predict them already. All others are coloured by the
    confidence of the network.
    """

    def __init__(self, tokenizer: Tokenizer, given: Prompt | None):
        self.tokenizer = tokenizer
        self.known = [] if given is None else given.known.tolist()
        self.live = Live(console=messages, auto_refresh=False)
        self.live.start()
        self.last = 0.0

    def show(self, frame: TrajectoryFrame) -> None:
        """Draw a frame, at most FRAMES_PER_SECOND of them."""
        pause = self.last + 1 / FRAMES_PER_SECOND - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        self.last = time.monotonic()
        texts = [self.line(frame, sample) for sample in range(len(frame.tokens))]
        parts = [part for text in texts for part in (text, Text())]
        self.live.update(Group(*parts, self.legend(frame)), refresh=True)

    def line(self, frame: TrajectoryFrame, sample: int) -> Text:
        """One text with its colours."""
        fresh = set(frame.changed[sample]) if frame.step < frame.steps else set()
        sure = frame.confidence[sample] if frame.confidence is not None else ""
        line = Text()
        for i, token in enumerate(frame.tokens[sample]):
            if token < 0:
                guess = frame.predicted[sample][i] if frame.predicted is not None else -1
                line.append(neutralise(self.tokenizer.symbol(guess)) if guess >= 0 else "·", style="dim")
                continue
            doubtful = next((colour for limit, colour in CONFIDENCE_COLOURS if sure and int(sure[i]) < limit), "")
            known = i < len(self.known) and self.known[i]
            style = "green" if known else "bold yellow" if i in fresh else doubtful
            line.append(neutralise(self.tokenizer.symbol(token)), style=style)
        return line

    def legend(self, frame: TrajectoryFrame) -> Text:
        """The step, and what the colours mean, each in its colour."""
        line = Text(f"step {frame.step}/{frame.steps}   ", style="dim")
        line.append("· masked  predicted", style="dim").append("   ")
        line.append("just changed", style="bold yellow").append("   confidence ")
        for limit, colour in reversed(CONFIDENCE_COLOURS):
            line.append(f"<{limit}0% ", style=colour)
        if any(self.known):
            line.append("  known", style="green")
        return line

    def close(self) -> None:
        self.live.stop()
