"""Where randomness comes from.

Processes ask a `Noise` for uniform and normal numbers and for stratified quantiles of time. There are two sources:
`Drawn` reads a torch.Generator (exploration); `Keyed` computes every number from (seed, step, sample, request,
position) with a hash, so that training, evaluation and sampling see the same noise on one process or many, on every
device, before and after a resume.
"""

import math
from abc import ABC, abstractmethod
from copy import copy

import torch
from torch import Tensor

from logosphere.shapes import Bool, Float, Int64

GOLDEN = 0x9E3779B97F4A7C15


def _signed(number: int) -> int:
    """The 64-bit pattern of an unsigned number, as torch's int64 holds it."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _scramble(bits: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words that passes BigCrush.

    torch shifts int64 arithmetically, hence the masks that make the shifts logical.
    """
    bits = _folded(bits, 30).mul_(_signed(0xBF58476D1CE4E5B9))
    bits = _folded(bits, 27).mul_(_signed(0x94D049BB133111EB))
    return _folded(bits, 31)


def _folded(bits: Int64[Tensor, "..."], places: int) -> Int64[Tensor, "..."]:
    """bits ^ (bits >>> places), in one new tensor: large draws spend their time on memory."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1).bitwise_xor_(bits)


def scrambled(words: Int64[Tensor, "..."], key: int) -> Int64[Tensor, "..."]:
    """A hash of 64-bit words, another one for every key."""
    return _scramble(_scramble(words + _signed(key * GOLDEN + 5)) + _signed(key))


class Noise(ABC):
    """A source of random numbers; the first axis of every shape is the batch."""

    device: torch.device

    @abstractmethod
    def uniform(self, *shape: int) -> Float[Tensor, "..."]:
        """Independent numbers in the open interval (0, 1), float64."""

    @abstractmethod
    def quantiles(self, draws: int, clocks: int) -> Float[Tensor, "B draws clocks"]:
        """Numbers uniform on (0, 1); those of one clock are spread evenly over the draws and the whole batch."""

    def at(self, where: Bool[Tensor, "..."]) -> "Noise":
        """Noise for these positions alone: they are packed, and the first axis of every shape is theirs."""
        return self

    def select(self, kept: Bool[Tensor, " B"]) -> "Noise":
        """Noise for these sequences of the batch alone."""
        return self

    def during(self, step: int) -> "Noise":
        """The noise of a step of a walk, whatever was asked for in the steps before."""
        return self

    def normal(self, *shape: int) -> Float[Tensor, "..."]:
        """Independent standard normal numbers, float32."""
        u = self.uniform(*shape)
        return torch.special.ndtri(u, out=u).float()

    def row_keys(self, *shape: int) -> Int64[Tensor, "..."]:
        """Keys for `normal_rows`."""
        return (self.uniform(*shape) * 2.0**52).long()


def normal_rows(keys: Int64[Tensor, " N"], count: int) -> Float[Tensor, "N n"]:
    """`count` standard normal numbers for each key, always the same: for rows too long to be drawn with all others."""
    counter = torch.arange(1, count + 1, device=keys.device)
    u = _unit(_scramble(_scramble(keys)[:, None] + counter * _signed(GOLDEN)))
    return torch.special.ndtri(u, out=u).float()


def as_generator(rng: torch.Generator | int, device: torch.device) -> torch.Generator:
    """A generator as it is, or a new one on the device for a seed."""
    return torch.Generator(device).manual_seed(rng) if isinstance(rng, int) else rng


class Drawn(Noise):
    """Noise from a torch.Generator, for a batch of `batch` sequences."""

    def __init__(self, rng: torch.Generator, batch: int):
        self.rng, self.batch, self.device = rng, batch, rng.device

    def uniform(self, *shape: int) -> Tensor:
        numbers = torch.rand(shape, generator=self.rng, dtype=torch.float64, device=self.device)
        return numbers.clamp_min(2.0**-54)  # torch.rand may return 0, whose logarithm nobody wants

    def quantiles(self, draws: int, clocks: int) -> Tensor:
        place = torch.arange(self.batch, device=self.device)
        return _lattice(place, self.batch, draws, self.uniform(clocks))


class Keyed(Noise):
    """Noise as a function of (seed, step, sample): the n-th request of a step always gets the same answer."""

    def __init__(self, seed: int, step: int, ids: Int64[Tensor, " B"], place: Int64[Tensor, " B"], total: int):
        self.seed, self.ids, self.place, self.total, self.device = seed, ids, place, total, ids.device
        whole = torch.tensor(_signed(seed * GOLDEN + 1), device=ids.device)
        self.shared = _scramble(_scramble(whole) + _signed(step * GOLDEN + 2))
        self.keys = _scramble(_scramble(self.shared + 3) ^ _scramble(ids * _signed(GOLDEN) + 4))
        self.requests = 0
        self.packed = torch.zeros_like(ids)
        """Requests for packed positions of each sequence: those of its batch do not count."""

    def at(self, where: Tensor) -> Noise:
        rows, places = where.nonzero(as_tuple=True)
        return _Packed(self, rows, places)

    def select(self, kept: Tensor) -> Noise:
        part = copy(self)
        part.ids, part.place = self.ids[kept], self.place[kept]
        part.keys, part.packed = self.keys[kept], self.packed[kept]
        return part

    def during(self, step: int) -> Noise:
        return Keyed(self.seed, step, self.ids, self.place, self.total)

    def _bits(self, keys: Tensor, shape: tuple[int, ...]) -> Tensor:
        self.requests += 1
        inner = math.prod(shape[1:])
        counter = torch.arange(1, inner + 1, device=keys.device) + (self.requests << 40)
        return _scramble(keys[:, None] + counter * _signed(GOLDEN)).view(shape)

    def uniform(self, *shape: int) -> Tensor:
        return _unit(self._bits(self.keys, shape))

    def quantiles(self, draws: int, clocks: int) -> Tensor:
        shifts = _unit(self._bits(self.shared[None], (1, clocks)))[0]
        return _lattice(self.place, self.total, draws, shifts)


class _Packed(Noise):
    """Keyed noise of some positions: a function of the sequence, the place in it and what was asked about it before."""

    def __init__(self, whole: Keyed, rows: Int64[Tensor, " N"], places: Int64[Tensor, " N"]):
        self.whole, self.rows, self.places, self.device = whole, rows, places, whole.device

    def at(self, where: Tensor) -> Noise:
        return _Packed(self.whole, self.rows[where], self.places[where])

    def uniform(self, *shape: int) -> Tensor:
        rows, whole = self.rows, self.whole
        whole.packed = whole.packed + torch.zeros_like(whole.packed).index_fill(0, rows, 1)
        position = _scramble((whole.packed[rows] << 40) + self.places * _signed(GOLDEN) + 6)
        counter = torch.arange(1, math.prod(shape[1:]) + 1, device=rows.device)
        return _unit(_scramble((whole.keys[rows] ^ position)[:, None] + counter * _signed(GOLDEN)).view(shape))

    def quantiles(self, draws: int, clocks: int) -> Tensor:
        return self.whole.quantiles(draws, clocks)[self.rows]  # times belong to whole sequences


def _unit(bits: Int64[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The upper 52 bits as a number in (0, 1); with 53 the largest would round to 1."""
    return (bits >> 12).bitwise_and_((1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)


def _lattice(
    place: Tensor, total: int, draws: int, shifts: Float[Tensor, " clocks"]
) -> Float[Tensor, "B draws clocks"]:
    """w_bdj = frac((d·G + g_b) / (G·D) + shift_j): a common shift keeps each w uniform and all of them apart."""
    order = torch.arange(draws, device=place.device) * total + place[:, None]
    return ((order / (total * draws))[..., None] + shifts) % 1.0


def running_sum(values: Tensor, dim: int = -1) -> Tensor:
    """Σ_{j <= i} values_j along a dimension, the same every time.

    GPUs add up in an arbitrary order, which torch refuses where determinism is asked for; there the sum is taken on the
    processor.
    """
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim).to(values.device)
    return values.cumsum(dim)


def categorical(log_p: Float[Tensor, "... K"], u: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """Draw from softmax(log_p) by inverting its distribution function at u.

    Summed in float64: with the usual float32 Gumbel trick every category below 6e-8 would never be drawn.
    """
    cumulative = running_sum(log_p.double().softmax(-1))
    threshold = u.to(log_p.device)[..., None] * cumulative[..., -1:]
    # 'right' passes over categories of probability 0 even when u falls on their edge.
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp_max(log_p.shape[-1] - 1)
