"""Sources of random numbers.

Processes draw uniform and normal numbers and stratified quantiles of time from a `Noise`. There are two sources.
`GeneratorNoise` reads a torch.Generator. `CounterNoise` computes every number from (seed, step, sample, request,
position) with a hash, so that training, evaluation and sampling see the same noise on one process or many, on every
device, before and after a resume.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from logosphere.errors import UserError, shorten
from logosphere.types import Bool, Float, Int64, Rows

GOLDEN = 0x9E3779B97F4A7C15
WIDE = 256
"""Normal numbers in rows longer than this are computed in float32, two from one 64-bit word."""
BLOCK, LARGE_BLOCK = 1 << 17, 1 << 26
"""Numbers in a block of rows on a CPU (512 KiB of float32), and on other devices."""


def _signed(number: int) -> int:
    """The 64-bit pattern of an unsigned number, as torch's int64 holds it."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _mix64(bits: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words that passes BigCrush.

    torch shifts int64 arithmetically, hence the masks that make the shifts logical.
    """
    bits = _xor_shift(bits, 30).mul_(_signed(0xBF58476D1CE4E5B9))
    bits = _xor_shift(bits, 27).mul_(_signed(0x94D049BB133111EB))
    return _xor_shift(bits, 31)


def _xor_shift(bits: Int64[Tensor, "..."], places: int) -> Int64[Tensor, "..."]:
    """bits ^ (bits >>> places), in one new tensor, because memory traffic dominates large draws."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1).bitwise_xor_(bits)


def hash64(words: Int64[Tensor, "..."], key: int) -> Int64[Tensor, "..."]:
    """A keyed hash of 64-bit words."""
    return _mix64(_mix64(words + _signed(key * GOLDEN + 5)) + _signed(key))


class Noise(ABC):
    """A source of random numbers; the first axis of every shape is the batch."""

    device: torch.device

    @abstractmethod
    def uniform(self, *shape: int) -> Float[Tensor, "..."]:
        """Independent numbers in the open interval (0, 1), float64."""

    @abstractmethod
    def low_discrepancy_times(self, draws: int, blocks: int) -> Float[Tensor, "B draws blocks"]:
        """Numbers uniform on (0, 1); those of one block are stratified over the draws and the whole batch."""

    def for_positions(self, where: Bool[Tensor, "..."]) -> "Noise":
        """Noise for these positions only: they are packed, and index the first axis of every shape."""
        return self

    def select(self, kept: Rows) -> "Noise":
        """Noise for these sequences of the batch only."""
        return self

    def for_step(self, step: int) -> "Noise":
        """The noise of a sampling step, independent of the requests in earlier steps."""
        return self

    def normal(self, *shape: int) -> Float[Tensor, "..."]:
        """Independent standard normal numbers, float32."""
        if shape[-1] > WIDE:
            return self._wide_normal(shape)
        return Noise._wide_normal(self, shape)

    def _wide_normal(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """`normal` for long rows, which may be computed in float32."""
        u = self.uniform(*shape)
        return torch.special.ndtri(u, out=u).float()

    def normal_blocks(self, *shape: int) -> tuple[Float[Tensor, "... d"], Iterator[slice]]:
        """An array for `normal`, and an iterator that fills it: it yields blocks of its rows when they are filled.

        What is computed from a block at once finds it in the cache of a processor.
        """
        numbers = self.normal(*shape)
        return numbers, row_blocks(numbers.flatten(0, -2))

    def row_keys(self, *shape: int) -> Int64[Tensor, "..."]:
        """Keys for `normal_rows`."""
        return (self.uniform(*shape) * 2.0**52).long()


def normal_rows(keys: Int64[Tensor, " N"], count: int) -> Float[Tensor, "N n"]:
    """`count` standard normal numbers for each key, reproducible: for rows too long to be drawn with all others."""
    if count > WIDE:
        out = torch.empty(len(keys), count, device=keys.device)
        return _filled(out, _box_muller(_mix64(keys), out))
    counter = torch.arange(1, count + 1, device=keys.device)
    u = _unit(_mix64(_mix64(keys)[:, None] + counter * _signed(GOLDEN)))
    return torch.special.ndtri(u, out=u).float()


def _box_muller(keys: Int64[Tensor, " N"], out: Float[Tensor, "N n"], offset: int = 0) -> Iterator[slice]:
    """Fill rows with standard normal numbers √(-2 log u) (cos φ, sin φ) (Box and Muller 1958), and yield blocks.

    u is the size of a word, of which float32 keeps the upper 24 significant bits, and φ has the lower 32 bits; numbers
    reach 9 standard deviations. The cosines and the sines of a row's words are its two halves.
    """
    count = out.shape[1]
    half = (count + 1) // 2
    counter = (torch.arange(1, half + 1, device=keys.device) + offset).mul_(_signed(GOLDEN))
    for rows in row_blocks(out):
        bits = _mix64(keys[rows, None] + counter)
        angle = bits.int().float().mul_(math.pi * 2.0**-31)
        radius = bits.float().abs_().add_(1).mul_(2.0**-63).log_().mul_(-2).sqrt_()
        torch.mul(radius, angle.cos(), out=out[rows, :half])
        torch.mul(radius[:, : count - half], angle.sin_()[:, : count - half], out=out[rows, half:])
        yield rows


def row_blocks(rows: Float[Tensor, "N d"]) -> Iterator[slice]:
    """Divide the rows of an array into blocks, which on a CPU fit into its cache; elsewhere they limit memory."""
    size = max(1, (BLOCK if rows.device.type == "cpu" else LARGE_BLOCK) // rows.shape[1])
    return (slice(first, min(first + size, len(rows))) for first in range(0, len(rows), size))


def _filled(numbers: Tensor, blocks: Iterator[slice]) -> Tensor:
    for _ in blocks:
        pass
    return numbers


def as_generator(rng: torch.Generator | int, device: torch.device) -> torch.Generator:
    """A generator as it is, or a new one on the device for a seed."""
    return rng if isinstance(rng, torch.Generator) else torch.Generator(device).manual_seed(as_seed(rng))


def as_seed(seed: object) -> int:
    """A seed; raises UserError for anything but a whole number from 0 to 2^63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 1 << 63:
        raise UserError(
            f"A seed must be a whole number from 0 to 2^63 - 1, or a torch.Generator where one is taken, not "
            f"{shorten(seed)}."
        )
    return int(seed)


@dataclass(frozen=True)
class RowSeeds:
    """A seed for each row of a batch: row i gets the numbers that row `rows[i]` gets in a batch of its own seed.

    So a sequence does not depend on those that it is sampled together with.
    """

    seeds: tuple[int, ...]
    rows: tuple[int, ...]

    @staticmethod
    def of(*batches: tuple[int, int]) -> "RowSeeds":
        """The rows of several batches, each (seed, number of rows), one after another."""
        pairs = [(seed, row) for seed, count in batches for row in range(count)]
        return RowSeeds(tuple(seed for seed, _ in pairs), tuple(row for _, row in pairs))

    def __len__(self) -> int:
        return len(self.seeds)

    def noise(self, device: torch.device, part: slice = slice(None)) -> "CounterNoise":
        """The noise of these rows, or of a part of them."""
        rows = torch.tensor(self.rows[part], dtype=torch.long, device=device)
        keys = [draw_key(as_generator(seed, device)) for seed in self.seeds[part]]
        return CounterNoise(torch.tensor(keys, dtype=torch.long, device=device), 0, rows, torch.zeros_like(rows), 1)


def draw_key(rng: torch.Generator) -> int:
    """The key of a CounterNoise, from a generator."""
    return int(torch.randint(2**62, (1,), generator=rng, device=rng.device))


class GeneratorNoise(Noise):
    """Noise from a torch.Generator, for a batch of `batch` sequences."""

    def __init__(self, rng: torch.Generator, batch: int):
        self.rng, self.batch, self.device = rng, batch, rng.device

    def uniform(self, *shape: int) -> Tensor:
        numbers = torch.rand(shape, generator=self.rng, dtype=torch.float64, device=self.device)
        return numbers.clamp_min(2.0**-54)  # torch.rand may return 0, whose logarithm is not finite

    def _wide_normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.rng, device=self.device)

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        index = torch.arange(self.batch, device=self.device)
        return _lattice(index, self.batch, draws, self.uniform(blocks))


class CounterNoise(Noise):
    """Noise as a function of (seed, step, sample): the n-th request of a step always gets the same numbers.

    The seed is that of the batch, or each sequence has its own; then times are stratified over its draws alone.
    """

    def __init__(
        self,
        seed: int | Int64[Tensor, " B"],
        step: int,
        ids: Int64[Tensor, " B"],
        global_index: Int64[Tensor, " B"],
        total: int,
    ):
        self.seed, self.ids, self.global_index, self.total, self.device = seed, ids, global_index, total, ids.device
        if isinstance(seed, Tensor):
            whole = seed * _signed(GOLDEN) + 1
        else:
            whole = torch.full((), _signed(seed * GOLDEN + 1), device=ids.device)  # a kernel; a copy would synchronise
        self.shared = _mix64(_mix64(whole) + _signed(step * GOLDEN + 2))
        self.keys = _mix64(_mix64(self.shared + 3) ^ _mix64(ids * _signed(GOLDEN) + 4))
        self.requests = 0
        self.packed = torch.zeros_like(ids)
        """The number of requests for packed positions of each sequence; requests for whole batches are not counted."""

    def for_positions(self, where: Tensor) -> Noise:
        rows, positions = where.nonzero(as_tuple=True)
        return _PackedNoise(self, rows, positions)

    def select(self, kept: Rows) -> Noise:
        part = copy(self)
        part.ids, part.global_index = self.ids[kept], self.global_index[kept]
        part.keys, part.packed = self.keys[kept], self.packed[kept]
        if isinstance(self.seed, Tensor):
            part.seed, part.shared = self.seed[kept], self.shared[kept]
        return part

    def for_step(self, step: int) -> Noise:
        return CounterNoise(self.seed, step, self.ids, self.global_index, self.total)

    def _bits(self, keys: Tensor, shape: tuple[int, ...]) -> Tensor:
        self.requests += 1
        inner = math.prod(shape[1:])
        counter = torch.arange(1, inner + 1, device=keys.device) + (self.requests << 40)
        return _mix64(keys[:, None] + counter * _signed(GOLDEN)).view(shape)

    def uniform(self, *shape: int) -> Tensor:
        return _unit(self._bits(self.keys, shape))

    def _wide_normal(self, shape: tuple[int, ...]) -> Tensor:
        return _filled(*self.normal_blocks(*shape))

    def normal_blocks(self, *shape: int) -> tuple[Tensor, Iterator[slice]]:
        keys = self._bits(self.keys, shape[:-1]).flatten()  # one for each row
        numbers = torch.empty(shape, device=self.device)
        return numbers, _box_muller(keys, numbers.view(-1, shape[-1]))

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        if self.shared.dim():  # each row is the only one of its batch
            return _lattice(
                self.global_index, 1, draws, _unit(self._bits(self.shared, (len(self.ids), blocks)))[:, None]
            )
        shifts = _unit(self._bits(self.shared[None], (1, blocks)))[0]
        return _lattice(self.global_index, self.total, draws, shifts)


class _PackedNoise(Noise):
    """Counter noise of some positions: a function of the sequence, the position, and earlier requests."""

    def __init__(self, whole: CounterNoise, rows: Int64[Tensor, " N"], positions: Int64[Tensor, " N"]):
        self.whole, self.rows, self.positions, self.device = whole, rows, positions, whole.device

    def for_positions(self, where: Tensor) -> Noise:
        return _PackedNoise(self.whole, self.rows[where], self.positions[where])

    def _request_keys(self) -> Int64[Tensor, " N"]:
        """The key of each position for the next request."""
        rows, whole = self.rows, self.whole
        whole.packed = whole.packed + torch.zeros_like(whole.packed).index_fill(0, rows, 1)
        position = _mix64((whole.packed[rows] << 40) + self.positions * _signed(GOLDEN) + 6)
        return whole.keys[rows] ^ position

    def uniform(self, *shape: int) -> Tensor:
        counter = torch.arange(1, math.prod(shape[1:]) + 1, device=self.device)
        return _unit(_mix64(self._request_keys()[:, None] + counter * _signed(GOLDEN)).view(shape))

    def _wide_normal(self, shape: tuple[int, ...]) -> Tensor:
        return _filled(*self.normal_blocks(*shape))

    def normal_blocks(self, *shape: int) -> tuple[Tensor, Iterator[slice]]:
        numbers = torch.empty(shape, device=self.device)
        rows, keys = numbers.view(-1, shape[-1]), self._request_keys()
        if len(rows) > len(keys):
            keys = _mix64(keys[:, None] + torch.arange(len(rows) // len(keys), device=self.device)).flatten()
        return numbers, _box_muller(keys, rows)

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        return self.whole.low_discrepancy_times(draws, blocks)[self.rows]  # times belong to whole sequences


def _unit(bits: Int64[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The upper 52 bits as a number in (0, 1); with 53 the largest would round to 1."""
    return (bits >> 12).bitwise_and_((1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)


def _lattice(
    index: Tensor, total: int, draws: int, shifts: Float[Tensor, "*#B blocks"]
) -> Float[Tensor, "B draws blocks"]:
    """w_bdj = frac((d·G + g_b) / (G·D) + shift_j): each w is uniform, and all are stratified."""
    order = torch.arange(draws, device=index.device) * total + index[:, None]
    return ((order / (total * draws))[..., None] + shifts) % 1.0


def running_sum(values: Tensor, dim: int = -1) -> Tensor:
    """Σ_{j <= i} values_j along a dimension, deterministic.

    GPUs add in an arbitrary order, which torch refuses where deterministic algorithms are required; the sum is then
    computed on the CPU.
    """
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim).to(values.device)
    return values.cumsum(dim)


def categorical(log_p: Float[Tensor, "... K"], u: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """Draw from softmax(log_p) by inverting its distribution function at u.

    Summed in float64: with the usual float32 Gumbel trick every category below 6e-8 would never be drawn.
    """
    if log_p.dim() == 2 and log_p.numel() > BLOCK and log_p.device.type == "cpu":
        return torch.cat([_invert_cdf(log_p[rows], u[rows]) for rows in row_blocks(log_p)])
    return _invert_cdf(log_p, u)


def _invert_cdf(log_p: Float[Tensor, "... K"], u: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
    cumulative = running_sum(log_p.double().softmax(-1))
    if cumulative.device.type == "cpu" and not bool(cumulative[..., -1].isfinite().all()):  # others would be waited for
        raise UserError("A token cannot be drawn from probabilities that are not finite; use less extreme settings.")
    threshold = u.to(log_p.device)[..., None] * cumulative[..., -1:]
    # 'right' skips categories of probability 0 even when u is at their edge.
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp_max(log_p.shape[-1] - 1)
