"""Patterns: the syntax trees of regular languages over characters, and their size when repetitions are written out."""

from dataclasses import dataclass

from logosphere.errors import UserError

LAST_CHARACTER = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
"""Code points that are no characters and that UTF-8 cannot hold."""
MAX_SIZE = 20_000
"""Characters of a pattern whose repetitions are written out."""

Ranges = tuple[tuple[int, int], ...]
"""Code points from a first to a last one each, in order and disjoint."""


@dataclass(frozen=True, eq=False)
class Characters:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Concatenation:
    """Patterns one after another; without any, the empty text."""

    parts: tuple["Pattern", ...]


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Any one of several patterns."""

    options: tuple["Pattern", ...]


@dataclass(frozen=True, eq=False)
class Repetition:
    """A pattern from `least` to `most` times; None for any number."""

    inner: "Pattern"
    least: int = 0
    most: int | None = None


Pattern = Characters | Concatenation | Alternatives | Repetition

EMPTY = Concatenation(())


def merge_ranges(ranges: list[tuple[int, int]]) -> Ranges:
    """The union of ranges, in order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        elif first <= last:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, first = [], 0
    for start, end in merge_ranges([*ranges, SURROGATES]):
        if first < start:
            found.append((first, start - 1))
        first = end + 1
    if first <= LAST_CHARACTER:
        found.append((first, LAST_CHARACTER))
    return tuple(found)


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """The characters of both."""
    return complement(merge_ranges([*complement(first), *complement(second)]))


def literal(text: str) -> Pattern:
    """A text itself."""
    return Concatenation(tuple(Characters(((ord(character),) * 2,)) for character in text))


def any_of(*texts: str) -> Pattern:
    """Any one of several texts."""
    return Alternatives(tuple(literal(text) for text in texts))


def join(*parts: Pattern | str) -> Pattern:
    """Patterns and texts one after another."""
    return Concatenation(tuple(literal(part) if isinstance(part, str) else part for part in parts))


def optional(inner: Pattern) -> Pattern:
    """A pattern or nothing."""
    return Repetition(inner, 0, 1)


def characters(text: str) -> Characters:
    """One of the characters of a text."""
    return Characters(merge_ranges([(ord(character), ord(character)) for character in text]))


def count_characters(pattern: Pattern) -> int:
    """The number of sets of characters when all repetitions are written out."""
    counted: dict[int, int] = {}  # parts may be shared, so each is counted once

    def count(part: Pattern) -> int:
        if id(part) not in counted:
            counted[id(part)] = 1 + sum(times * count(inner) for inner, times in _inner(part))
        return counted[id(part)]

    return count(pattern)


def _inner(pattern: Pattern) -> list[tuple[Pattern, int]]:
    """The patterns inside of one, and how often each is written out."""
    if isinstance(pattern, Characters):
        return []
    if isinstance(pattern, Concatenation):
        return [(part, 1) for part in pattern.parts]
    if isinstance(pattern, Alternatives):
        return [(option, 1) for option in pattern.options]
    return [(pattern.inner, max(1, pattern.least + 1 if pattern.most is None else pattern.most))]


def check_size(pattern: Pattern, subject: str) -> None:
    """Raise UserError for a pattern that is too large to be written out."""
    size = count_characters(pattern)
    if size > MAX_SIZE:
        raise UserError(
            f"{subject} has a size of {size:,} characters when its repetitions are written out, and the limit is "
            f"{MAX_SIZE:,}; use fewer or shorter repetitions."
        )
