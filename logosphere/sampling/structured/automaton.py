"""Deterministic finite automata over the bytes of UTF-8.

A pattern becomes a non-deterministic automaton (Thompson 1968), the subset construction (Rabin and Scott 1959) makes it
deterministic, and refinement of partitions (Moore 1956) makes it minimal. Patterns come from users and clients, so
states and work are limited: determinising may take exponentially many of both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logosphere.errors import UserError
from logosphere.sampling.structured.pattern import (
    Alternatives,
    Characters,
    Concatenation,
    Pattern,
    Ranges,
    check_size,
    complement,
    intersect,
)

MAX_STATES = 10_000
"""States of an automaton over bytes."""
MAX_WORK = 4_000_000
"""Moves that the subset construction may follow: a few seconds."""
MAX_REFINEMENT = 100_000_000
"""Entries that minimising may compare; a larger automaton is left as it is."""
UTF8_LIMITS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
"""The last code points with one to four bytes."""

ByteRanges = tuple[tuple[int, int], ...]
"""A first and a last byte for each byte of a sequence."""


@dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton; state 0 is the start, and the last row of `next` is that of failure."""

    next: npt.NDArray[np.int32]
    """The state after each state and byte, [states + 1, 256]."""
    accepting: npt.NDArray[np.bool_]
    """[states + 1]"""

    @property
    def states(self) -> int:
        return len(self.accepting) - 1

    @property
    def failure(self) -> int:
        return self.states

    def accepts(self, text: str) -> bool:
        """Whether a text is in the language."""
        state = 0
        for byte in text.encode():
            state = int(self.next[state, byte])
        return bool(self.accepting[state])


# ---- UTF-8 -----------------------------------------------------------------------------------------------------------


def utf8_ranges(first: int, last: int) -> Iterator[ByteRanges]:
    """Sequences of byte ranges that together are the code points from `first` to `last`."""
    for limit in UTF8_LIMITS[:-1]:
        if first <= limit < last:
            yield from utf8_ranges(first, limit)
            yield from utf8_ranges(limit + 1, last)
            return
    if last <= UTF8_LIMITS[0]:
        yield ((first, last),)
        return
    for bits in (6, 12, 18):
        low = (1 << bits) - 1
        if first & ~low != last & ~low:  # split until all but the first differing byte have their full range
            if first & low:
                yield from utf8_ranges(first, first | low)
                yield from utf8_ranges((first | low) + 1, last)
                return
            if last & low != low:
                yield from utf8_ranges(first, (last & ~low) - 1)
                yield from utf8_ranges(last & ~low, last)
                return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _byte_sequences(ranges: Ranges) -> Iterator[ByteRanges]:
    for first, last in intersect(ranges, complement(())):  # without surrogates
        yield from utf8_ranges(first, last)


# ---- the non-deterministic automaton ---------------------------------------------------------------------------------


class _Draft:
    """A non-deterministic automaton under construction, with free moves and moves by ranges of bytes."""

    def __init__(self, usable: frozenset[int]):
        self.usable = usable
        self.free: list[list[int]] = []
        self.moves: list[list[tuple[int, int, int]]] = []
        self.sequences: dict[Ranges, list[ByteRanges]] = {}

    def add_state(self) -> int:
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1

    def add(self, pattern: Pattern, start: int) -> int:
        """Add a pattern from a state on, and return the state after it."""
        if isinstance(pattern, Characters):
            return self._add_characters(pattern.ranges, start)
        if isinstance(pattern, Concatenation):
            for part in pattern.parts:
                start = self.add(part, start)
            return start
        end = self.add_state()
        if isinstance(pattern, Alternatives):
            for option in pattern.options:
                first = self.add_state()
                self.free[start].append(first)
                self.free[self.add(option, first)].append(end)
            return end
        for _ in range(pattern.least):
            start = self.add(pattern.inner, start)
        if pattern.most is None:
            loop = self.add_state()
            self.free[start].append(loop)
            self.free[self.add(pattern.inner, loop)].append(loop)
            self.free[loop].append(end)
            return end
        for _ in range(pattern.most - pattern.least):
            first = self.add_state()
            self.free[start].append(first)
            self.free[start].append(end)
            start = self.add(pattern.inner, first)
        self.free[start].append(end)
        return end

    def _add_characters(self, ranges: Ranges, start: int) -> int:
        if ranges not in self.sequences:
            self.sequences[ranges] = [
                sequence
                for sequence in _byte_sequences(ranges)
                if all(not self.usable.isdisjoint(range(low, high + 1)) for low, high in sequence)
            ]
        end, shared = self.add_state(), dict[ByteRanges, int]()
        for sequence in self.sequences[ranges]:
            state = start
            for index, (low, high) in enumerate(sequence):
                prefix = sequence[: index + 1]
                if index == len(sequence) - 1:
                    self.moves[state].append((low, high, end))
                elif prefix in shared:
                    state = shared[prefix]
                else:
                    shared[prefix] = self.add_state()
                    self.moves[state].append((low, high, shared[prefix]))
                    state = shared[prefix]
        return end

    def closure(self, states: set[int]) -> frozenset[int]:
        """These states and all that free moves lead to."""
        found, waiting = set(states), list(states)
        while waiting:
            for state in self.free[waiting.pop()]:
                if state not in found:
                    found.add(state)
                    waiting.append(state)
        return frozenset(found)


# ---- the deterministic automaton -------------------------------------------------------------------------------------


def build_automaton(
    pattern: Pattern, usable: frozenset[int] = frozenset(range(256)), subject: str = "The pattern"
) -> ByteAutomaton:
    """The minimal automaton of the texts of a pattern that consist of `usable` bytes."""
    check_size(pattern, subject)
    draft = _Draft(usable)
    start = draft.add_state()
    end = draft.add(pattern, start)
    bounds = sorted({bound for moves in draft.moves for low, high, _ in moves for bound in (low, high + 1)} | {0, 256})
    class_of = np.searchsorted(bounds, np.arange(256), side="right") - 1
    first = draft.closure({start})
    number, table = {first: 0}, list[list[int]]()
    waiting, work = [first], 0
    while len(table) < len(waiting):
        current = waiting[len(table)]
        targets: list[set[int]] = [set() for _ in bounds[:-1]]
        for state in current:
            for low, high, target in draft.moves[state]:
                for byte_class in range(class_of[low], class_of[high] + 1):
                    targets[byte_class].add(target)
                    work += 1
        row = []
        for target_set in targets:
            if not target_set:
                row.append(-1)
                continue
            closed = draft.closure(target_set)
            work += len(closed)
            if closed not in number:
                number[closed] = len(number)
                waiting.append(closed)
            row.append(number[closed])
        table.append(row)
        if len(number) > MAX_STATES or work > MAX_WORK:
            reached = f"more than {MAX_STATES:,} states" if len(number) > MAX_STATES else f"{len(number):,} states"
            raise UserError(
                f"{subject} needs an automaton of {reached}, found in {work:,} moves, and the limits are "
                f"{MAX_STATES:,} states and {MAX_WORK:,} moves; use fewer or shorter repetitions."
            )
    moves = np.array(table, dtype=np.int32).reshape(len(table), len(bounds) - 1)
    accepting = np.array([end in states for states in waiting])
    return _expand(*_minimise(*_trim(moves, accepting)), class_of)


Table = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]
"""Next states [S, C], -1 for failure, and which states accept."""


def _trim(moves: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> Table:
    """Without the states from which no text is accepted; the start remains."""
    alive = accepting.copy()
    while True:
        found = alive | (np.where(moves >= 0, alive[moves], False)).any(1)
        if (found == alive).all():
            break
        alive = found
    kept = alive.copy()
    kept[0] = True
    numbers = np.where(alive, np.cumsum(kept) - 1, -1).astype(np.int32)
    return np.where(moves >= 0, numbers[moves], -1)[kept].astype(np.int32), accepting[kept]


def _minimise(moves: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> Table:
    """Merge states that accept the same texts, by refining a partition until it is stable."""
    blocks, work = accepting.astype(np.int64) + 1, 0
    while True:
        seen = np.where(moves >= 0, blocks[moves], 0)
        _, refined = np.unique(hash_rows(np.concatenate([blocks[:, None], seen], 1).T), return_inverse=True)
        refined = refined.reshape(-1) + 1
        work += moves.size
        if refined.max() == len(set(blocks.tolist())):
            break
        blocks = refined
        if work > MAX_REFINEMENT:
            return moves, accepting
    order = np.full(int(refined.max()) + 1, -1)
    numbers = np.zeros(len(refined), dtype=np.int32)
    for state, block in enumerate(refined.tolist()):  # the start keeps number 0
        if order[block] < 0:
            order[block] = order.max() + 1
        numbers[state] = order[block]
    _, first = np.unique(numbers, return_index=True)
    return np.where(moves >= 0, numbers[moves], -1)[first].astype(np.int32), accepting[first]


def hash_rows(columns: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint64]:
    """A number for each of the rows whose entries are `columns`, [entries, rows]: the same for equal rows.

    It is their product with random numbers modulo 2^64 (Carter and Wegman 1979). Different rows get the same number
    with a probability of about 1e-15, and sorting numbers is a hundred times faster than sorting rows.
    """
    random = np.random.default_rng(columns.shape[0])
    factors: npt.NDArray[np.uint64] = random.integers(1, 1 << 63, size=(len(columns),), dtype=np.uint64) * 2 + 1
    found = np.zeros(columns.shape[1], dtype=np.uint64)
    for column, factor in zip(columns, factors, strict=True):
        found += (column.astype(np.uint64) + np.uint64(1)) * factor
    return found


def _expand(
    moves: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_], class_of: npt.NDArray[np.int64]
) -> ByteAutomaton:
    """The automaton with a column for each byte and a row for failure."""
    states = len(moves)
    table = np.where(moves >= 0, moves, states)[:, class_of]
    table = np.concatenate([table, np.full((1, 256), states)]).astype(np.int32)
    return ByteAutomaton(table, np.append(accepting, False))
