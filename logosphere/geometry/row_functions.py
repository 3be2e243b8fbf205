"""Functions of many small numbers and a few large ones, with parameters of their own for each row.

Most coordinates of a unit vector in many dimensions are small. On the interval |x| ≤ r that contains all but a few of a
row, an analytic function is a polynomial to the precision of float32: its interpolant at Chebyshev nodes, computed in
float64 at a few points of the row. The other coordinates are computed one by one.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from logosphere.types import Float, Int64

RowFunction = Callable[[Float[Tensor, "n m"], Int64[Tensor, " n"]], Float[Tensor, "n m"]]
"""(arguments in float64, rows they belong to) -> values, up to a constant of the row."""

NODES = 8, 6
"""Up to 4,096 and for more coordinates, that is |x| ≤ 0.22 = 7/√1,024 and |x| ≤ 0.11 = 7/√4,096: for functions
analytic for |x| < 1 the error is then below 10⁻⁷ of their range."""
GROUP = 8
"""Blocks whose large coordinates are computed together: few calls, and the blocks are still in the cache."""
REACH = 7.0
"""r in units of the root mean square: a normal number is beyond it once in 4·10¹¹."""


class RowPolynomials:
    """f(x, row) - f(0, row) for rows of unit vectors; `squared_norm` is that of their coordinates x."""

    def __init__(self, f: RowFunction, x: Float[Tensor, "N K"], squared_norm: Float[Tensor, " N"]):
        self.f, self.x = f, x
        reach = REACH * (squared_norm.double() / x.shape[1]).clamp_min(1e-12).sqrt()
        count = NODES[x.shape[1] > 4096]
        place = torch.cos(torch.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count)
        powers = place[:, None] ** torch.arange(count)
        nodes = torch.cat([torch.zeros(1, dtype=torch.float64), place]).to(x.device)
        values = f(reach[:, None] * nodes, torch.arange(len(x), device=x.device)).double()
        self.at_zero = values[:, :1]
        scaled = (values[:, 1:] - self.at_zero) @ torch.linalg.inv(powers).T.to(x.device)
        degree = torch.arange(count, device=x.device)
        self.coefficients = (scaled / reach[:, None] ** degree)[:, 1:].float()
        self.reach = reach.float()[:, None]

    def blocks(self, slices: Iterable[slice]) -> Iterator[tuple[slice, Float[Tensor, "n K"]]]:
        """The values of successive blocks of rows."""
        width, all_parts = self.x.shape[1], list(slices)
        for first in range(0, len(all_parts), GROUP):
            parts = all_parts[first : first + GROUP]
            found = [self._large(rows) for rows in parts]
            at = torch.cat([places + rows.start * width for places, rows in zip(found, parts, strict=True)])
            exact = self._exact(at // width, at % width).split([len(places) for places in found])
            for rows, places, values in zip(parts, found, exact, strict=True):
                out = self._polynomial(rows)
                out.view(-1)[places] = values
                yield rows, out

    def _large(self, rows: slice) -> Int64[Tensor, " q"]:
        """The places of a block, row after row, that are beyond the interval; by numpy, ten times as fast as torch."""
        large = np.abs(self.x[rows].numpy()) > self.reach[rows].numpy()
        return torch.from_numpy(np.flatnonzero(large))

    def _exact(self, row: Int64[Tensor, " q"], column: Int64[Tensor, " q"]) -> Float[Tensor, " q"]:
        values = self.f(self.x[row, column].double()[:, None], row)
        return (values - self.at_zero[row]).squeeze(1).float()

    def _polynomial(self, rows: slice) -> Float[Tensor, "n K"]:
        """By Horner's rule; the constant term is 0."""
        x, coefficients = self.x[rows], self.coefficients[rows].split(1, 1)
        out = x * coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            out.add_(coefficient).mul_(x)
        return out
