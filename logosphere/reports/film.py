"""Films: what a trajectory has to show, small enough for a page."""

from collections.abc import Callable

from logosphere.reports.board import Film
from logosphere.sampling.trajectory import Trajectory


def film_of(trajectory: Trajectory, symbol: Callable[[int], str], most: int = 256) -> Film:
    """The changes from frame to frame, of no more than `most` frames."""
    moments = trajectory.moments
    if len(moments) > most:
        moments = [moments[i * (len(moments) - 1) // (most - 1)] for i in range(most)]
    guesses = [moment.guessed for moment in moments if moment.guessed is not None]
    shown = [moment.tokens for moment in moments] + guesses
    used = sorted({token for rows in shown for row in rows for token in row if token >= 0})
    number = {token: i for i, token in enumerate(used)} | {-1: -1}
    sure = [moment.sure for moment in moments if moment.sure is not None]
    return Film(
        trajectory.length,
        [symbol(token) for token in used],
        _changes([moment.tokens for moment in moments], number),
        sure if len(sure) == len(moments) else [],
        _changes(guesses, number) if len(guesses) == len(moments) else [],
    )


def _changes(moments: list[list[list[int]]], number: dict[int, int]) -> list[list[list[int]]]:
    """Of each moment and text, position and symbol of what is no longer as it was; at first nothing is there."""
    before, frames = [[-1] * len(row) for row in moments[0]], []
    for rows in moments:
        changed = [
            [(i, number[b]) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            for old, new in zip(before, rows, strict=True)
        ]
        frames.append([[value for pair in pairs for value in pair] for pairs in changed])
        before = rows
    return frames
