"""A shuffled order of n things that is a formula: no list of them is made, loaded or kept.

A Feistel network over pairs of half-words permutes 0 … 4^k - 1, the smallest power of four that holds n; numbers that
come out too large are put in again until one fits (cycle walking, Black and Rogaway 2002), which takes fewer than four
rounds on average. The round function is the keyed hash that all noise here comes from.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.noise import scrambled
from logosphere.shapes import Int64

ROUNDS = 6


@dataclass(frozen=True)
class Permutation:
    """A permutation of 0 … size - 1, another one for every key."""

    size: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.size < 1 << 60:
            raise UserError(f"There must be something to shuffle, and not more than 2^60 things, not {self.size}.")

    def __call__(self, places: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        """Which thing stands at each place."""
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        things = self._mixed(places, half)
        while bool((outside := things >= self.size).any()):
            things = torch.where(outside, self._mixed(things, half), things)
        return things

    def _mixed(self, numbers: Int64[Tensor, "N"], half: int) -> Int64[Tensor, "N"]:
        mask = (1 << half) - 1
        left, right = numbers >> half, numbers & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (scrambled(right, self.key * ROUNDS + turn) & mask)
        return left << half | right
