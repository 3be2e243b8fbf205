"""Films: what a trajectory has to show, small enough for a page."""

from collections.abc import Callable

from logosphere.reports.board import Film
from logosphere.sampling.trajectory import Trajectory


def film_of(trajectory: Trajectory, symbol: Callable[[int], str], most: int = 256) -> Film:
    """The changes from frame to frame, of no more than `most` frames."""
    moments = trajectory.moments
    if len(moments) > most:
        moments = [moments[i * (len(moments) - 1) // (most - 1)] for i in range(most)]
    used = sorted({token for moment in moments for row in moment.tokens for token in row if token >= 0})
    number = {token: i for i, token in enumerate(used)} | {-1: -1}
    before = [[-1] * trajectory.length for _ in moments[0].tokens]
    frames = []
    for moment in moments:
        frames.append([_changes(old, new, number) for old, new in zip(before, moment.tokens, strict=True)])
        before = moment.tokens
    sure = [moment.sure for moment in moments if moment.sure is not None]
    return Film(trajectory.length, [symbol(token) for token in used], frames, sure if len(sure) == len(frames) else [])


def _changes(old: list[int], new: list[int], number: dict[int, int]) -> list[int]:
    pairs = [(i, number[b]) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    return [value for pair in pairs for value in pair]
