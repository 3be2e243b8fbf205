"""Trajectories: a record of the sampling loop in plain numbers, for the terminal, pages, plots and the studio."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from logosphere.codecs.base import HIDDEN
from logosphere.model import Model
from logosphere.sampling.loop import Frame
from logosphere.types import Float

XY = tuple[float, float]
MIN_PREDICTED = 0.5
"""A token is shown as predicted where its probability is larger."""


@dataclass(frozen=True)
class TrajectoryFrame:
    """All texts after a step."""

    step: int
    steps: int
    time: float
    """The largest time of any position: 1 is noise, 0 is data."""
    tokens: list[list[int]]
    """For each text, the tokens decoded so far, -1 where there is none yet."""
    changed: list[list[int]]
    """For each text, the positions whose token differs from the frame before."""
    confidence: list[str] | None
    """For each text, a digit per position: the probability of its likeliest token in tenths, rounded down."""
    predicted: list[list[int]] | None
    """For each text, at positions that are not decoded yet, the token with a probability above one half, -1 where there
    is none. States of the sphere and Gaussian ones are decoded late, long after the network can predict them."""
    projected_xy: list[list[XY]] | None
    """For each text, the states of the sphere in the plane; see `project_to_disc`."""


@dataclass(frozen=True)
class Trajectory:
    """All frames of a sampling loop."""

    length: int
    frames: list[TrajectoryFrame]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Recorder:
    """Records a sampling loop: `generate(…, watch=recorder.record)`."""

    def __init__(self, model: Model):
        self.length, self.frames = model.length, list[TrajectoryFrame]()
        self.on_sphere = model.process.codec.on_sphere

    def record(self, frame: Frame) -> TrajectoryFrame:
        """Add a frame, and return its record."""
        tokens: list[list[int]] = frame.tokens.tolist()
        before = self.frames[-1].tokens if self.frames else [[-1] * self.length for _ in tokens]
        recorded = TrajectoryFrame(
            step=frame.step,
            steps=frame.steps,
            time=round(float(frame.t.max()), 6),
            tokens=tokens,
            changed=[
                [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
                for old, new in zip(before, tokens, strict=True)
            ],
            confidence=None if frame.confidence is None else _digits(frame.confidence, self.length),
            predicted=_predictions(frame),
            projected_xy=_projection(frame.z) if self.on_sphere else None,
        )
        self.frames.append(recorded)
        return recorded

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(self.length, list(self.frames))


def _digits(confidence: Float[Tensor, "B M"], length: int) -> list[str] | None:
    """Tenths for each token; the confidence of a token of several digits is the smallest of theirs."""
    if confidence.shape[1] % length:
        return None  # states of whole sequences do not belong to positions
    tenths = (confidence.view(len(confidence), length, -1).amin(-1) * 10).clamp(0, 9).long()
    return ["".join(map(str, row)) for row in tenths.tolist()]


def _predictions(frame: Frame) -> list[list[int]] | None:
    """Predicted tokens; None where a token has several states, or states belong to whole sequences."""
    if frame.confidence is None or frame.likeliest is None or frame.confidence.shape != frame.tokens.shape:
        return None
    predicted = (frame.tokens == HIDDEN) & (frame.confidence > MIN_PREDICTED)
    rows: list[list[int]] = torch.where(predicted, frame.likeliest, HIDDEN).tolist()
    return rows


def project_to_disc(z: Float[Tensor, "B L d"]) -> Float[Tensor, "B L 2"]:
    """Σ_k x_k² (cos 2πk/V, sin 2πk/V): the mask at the centre of a disc, the V tokens on its circumference.

    x² are the weights of the vertices in a state of the sphere, so this is a linear projection of the simplex.
    """
    angles = torch.arange(z.shape[-1] - 1, device=z.device) * (2 * math.pi / (z.shape[-1] - 1))
    circle = torch.stack([angles.cos(), angles.sin()], -1)
    return z[..., :-1].float().square() @ circle


def _projection(z: Tensor) -> list[list[XY]]:
    return [[(round(x, 3), round(y, 3)) for x, y in row] for row in project_to_disc(z).tolist()]
