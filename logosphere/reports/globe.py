"""The sphere S² as a drawing: seen from a direction, with paths and points upon it, what is behind drawn faint.

A point X is seen at (<X, r>, <X, o>) and lies in front where <X, v> > 0: r is to the right, o upwards, v to the eye.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from logosphere.reports.svg import group, marker, paper, polyline, words

Point = Sequence[float]
"""Three coordinates."""

SIZE, RADIUS = 360.0, 150.0
EVEN = (1.0, 1.0, 1.0)
"""From here the three axes look alike."""


@dataclass(frozen=True)
class Trail:
    """Something in the colour of an entry: a line through points of the sphere, or the points themselves."""

    entry: int
    points: Sequence[Point]
    line: bool = True
    size: float = 3.0


@dataclass(frozen=True)
class Globe:
    """What is on the sphere, and the names of its axes."""

    trails: Sequence[Trail]
    names: Sequence[str] = ()
    """Of the three vertices (1, 0, 0), (0, 1, 0), (0, 0, 1)."""
    title: str = "the sphere"
    eye: Point = EVEN
    frame: tuple[Point, Point, Point] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", _frame(self.eye))

    def drawn(self) -> str:
        """The whole, as reports/svg.py draws."""
        middle = SIZE / 2
        parts = [f'<circle class="globe" cx="{middle}" cy="{middle}" r="{RADIUS}"/>']
        parts += [self._line("globe", arc) for arc in _graticule()]
        for trail in self.trails:
            parts += self._trail(trail)
        for place, name in zip(VERTICES, self.names, strict=False):
            x, y, _ = self._seen(place)
            out = 1 + 16 / max(1.0, math.hypot(x - middle, y - middle))
            parts.append(words("name", middle + out * (x - middle), middle + out * (y - middle) + 4, name))
        return paper(SIZE, SIZE, self.title, parts)

    def _seen(self, point: Point) -> tuple[float, float, float]:
        """Place on the paper, and how far in front."""
        right, up, to_eye = (sum(a * b for a, b in zip(point, axis, strict=True)) for axis in self.frame)
        return SIZE / 2 + RADIUS * right, SIZE / 2 - RADIUS * up, to_eye

    def _trail(self, trail: Trail) -> list[str]:
        seen = [self._seen(point) for point in trail.points]
        if not trail.line:
            front = [marker(trail.entry, x, y, trail.size) for x, y, depth in seen if depth >= 0]
            behind = [marker(trail.entry, x, y, trail.size) for x, y, depth in seen if depth < 0]
            return [group(trail.entry, behind, " faint"), group(trail.entry, front)]
        return [group(trail.entry, [polyline([(x, y) for x, y, _ in seen], trail.entry)], " thin")]

    def _line(self, look: str, arc: Sequence[Point]) -> str:
        """The part of a line that lies in front."""
        runs: list[list[str]] = [[]]
        for x, y, depth in map(self._seen, arc):
            if depth >= 0:
                runs[-1].append(f"{x:.1f},{y:.1f}")
            elif runs[-1]:
                runs.append([])
        return "".join(f'<polyline class="{look}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1)


VERTICES: tuple[Point, Point, Point] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def _frame(eye: Point) -> tuple[Point, Point, Point]:
    """To the right, upwards (as much as possible along the third axis), and to the eye."""
    length = math.hypot(*eye)
    to_eye = (eye[0] / length, eye[1] / length, eye[2] / length)
    across = math.hypot(to_eye[0], to_eye[1]) or 1.0
    right = (-to_eye[1] / across, to_eye[0] / across, 0.0) if across > 1e-9 else (1.0, 0.0, 0.0)
    up = (
        to_eye[1] * right[2] - to_eye[2] * right[1],
        to_eye[2] * right[0] - to_eye[0] * right[2],
        to_eye[0] * right[1] - to_eye[1] * right[0],
    )
    return right, up, to_eye


def _graticule(parts: int = 6, steps: int = 60) -> Sequence[Sequence[Point]]:
    """Meridians and parallels."""
    round_ = [2 * math.pi * i / steps for i in range(steps + 1)]
    meridians = [
        [(math.cos(a) * math.cos(b), math.sin(a) * math.cos(b), math.sin(b)) for b in round_]
        for a in (math.pi * i / parts for i in range(parts))
    ]
    parallels = [
        [(math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)) for a in round_]
        for b in (math.pi * i / parts - math.pi / 2 for i in range(1, parts))
    ]
    return meridians + parallels
