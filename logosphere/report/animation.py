"""Animations of sampling: the tokens of a few samples, stored as changes from frame to frame."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    sure: list[list[str]] = field(default_factory=list)
    """For each frame and sample, one digit per position: the network's confidence in tenths. Empty if unknown."""
    guesses: list[list[list[int]]] = field(default_factory=list)
    """As `frames`, the network's prediction at positions that are still hidden. Empty if unknown."""


def build_animation(trajectory: Trajectory, symbol: Callable[[int], str], max_frames: int = 256) -> Animation:
    """Build an animation of at most `max_frames` frames from a trajectory; `symbol` spells a token."""
    frames = trajectory.frames
    if len(frames) > max_frames:
        frames = [frames[i * (len(frames) - 1) // (max_frames - 1)] for i in range(max_frames)]
    guesses = [frame.predicted for frame in frames if frame.predicted is not None]
    confidences = [frame.confidence for frame in frames if frame.confidence is not None]
    shown = [frame.tokens for frame in frames] + guesses
    used = sorted({token for rows in shown for row in rows for token in row if token >= 0})
    index = {token: i for i, token in enumerate(used)} | {-1: -1}
    return Animation(
        trajectory.length,
        [symbol(token) for token in used],
        _find_changes([frame.tokens for frame in frames], index),
        confidences if len(confidences) == len(frames) else [],
        _find_changes(guesses, index) if len(guesses) == len(frames) else [],
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
