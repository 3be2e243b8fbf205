"""Trajectory: the record of a walk, in plain numbers. The terminal, pages, pictures and the studio all read this."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from logosphere.codecs.base import HIDDEN
from logosphere.codecs.vertices import VertexCodec
from logosphere.model import Model
from logosphere.sampling.walk import Frame
from logosphere.types import Float

Place = tuple[float, float]
LIKELY = 0.5
"""A token of more probability is shown before it is written."""


@dataclass(frozen=True)
class Moment:
    """Where all texts stand after a step."""

    step: int
    steps: int
    time: float
    """The latest clock of any position: 1 is noise, 0 is data."""
    tokens: list[list[int]]
    """Of each text, the tokens spelt so far, -1 where there is none yet."""
    changed: list[list[int]]
    """Of each text, the positions that spell something else than the moment before."""
    sure: list[str] | None
    """Of each text, a digit for every position: the probability of its likeliest token, in tenths, rounded down."""
    guessed: list[list[int]] | None
    """Of each text, where nothing is spelt yet, the token that the network holds more likely than all others together;
    -1 where there is none. States of the sphere and Gaussian ones spell nothing until late, though much is known."""
    places: list[list[Place]] | None
    """Of each text, where the states are on the sphere, seen from above the mask; see `seen_from_above`."""


@dataclass(frozen=True)
class Trajectory:
    """All moments of a walk."""

    length: int
    moments: list[Moment]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Recorder:
    """Watches a walk of `generate(…, watch=recorder.see)`."""

    def __init__(self, model: Model):
        self.length, self.moments = model.length, list[Moment]()
        self.on_sphere = isinstance(model.process.codec, VertexCodec)

    def see(self, frame: Frame) -> Moment:
        """Take down a frame."""
        tokens: list[list[int]] = frame.tokens.tolist()
        before = self.moments[-1].tokens if self.moments else [[-1] * self.length for _ in tokens]
        moment = Moment(
            step=frame.step,
            steps=frame.steps,
            time=round(float(frame.t.max()), 6),
            tokens=tokens,
            changed=[
                [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
                for old, new in zip(before, tokens, strict=True)
            ],
            sure=None if frame.sure is None else _digits(frame.sure, self.length),
            guessed=_guesses(frame),
            places=_places(frame.z) if self.on_sphere else None,
        )
        self.moments.append(moment)
        return moment

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(self.length, list(self.moments))


def _digits(sure: Float[Tensor, "B M"], length: int) -> list[str] | None:
    """Tenths of each token; a token of several digits is as sure as the least of them."""
    if sure.shape[1] % length:
        return None  # states of whole sequences do not belong to positions
    tenths = (sure.view(len(sure), length, -1).amin(-1) * 10).clamp(0, 9).long()
    return ["".join(map(str, row)) for row in tenths.tolist()]


def _guesses(frame: Frame) -> list[list[int]] | None:
    """What the network would write; nothing where a token has several states, or there are states of whole texts."""
    if frame.sure is None or frame.likeliest is None or frame.sure.shape != frame.tokens.shape:
        return None
    guess = (frame.tokens == HIDDEN) & (frame.sure > LIKELY)
    rows: list[list[int]] = torch.where(guess, frame.likeliest, HIDDEN).tolist()
    return rows


def seen_from_above(z: Float[Tensor, "B L d"]) -> Float[Tensor, "B L 2"]:
    """Σ_k x_k² (cos 2πk/V, sin 2πk/V): the mask in the middle of a disc, the V tokens around its rim.

    x² are the shares that a state on the sphere holds of each vertex, so this is a linear picture of the simplex.
    """
    angles = torch.arange(z.shape[-1] - 1, device=z.device) * (2 * math.pi / (z.shape[-1] - 1))
    rim = torch.stack([angles.cos(), angles.sin()], -1)
    return z[..., :-1].float().square() @ rim


def _places(z: Tensor) -> list[list[Place]]:
    return [[(round(x, 3), round(y, 3)) for x, y in row] for row in seen_from_above(z).tolist()]
