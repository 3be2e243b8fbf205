"""Regular expressions of Python as patterns.

They are parsed by Python's own `re`, so that a text is in the language exactly if `re.fullmatch` finds it. What no
finite automaton can decide, or what depends on the text around, is refused by name: back references, look-around,
conditional groups, word boundaries.
"""

import re
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from logosphere.errors import UserError, shorten
from logosphere.sampling.structured.pattern import (
    EMPTY,
    LAST_CHARACTER,
    Alternatives,
    Characters,
    Concatenation,
    Pattern,
    Ranges,
    Repetition,
    check_size,
    complement,
    merge_ranges,
)

MAX_LENGTH = 20_000
"""Characters of a regular expression."""

_parser: Any = import_module("re._parser")  # of the standard library; its tree has been the same since Python 3.6

REFUSED = {
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "conditional groups",
    "ASSERT": "look-ahead and look-behind",
    "ASSERT_NOT": "look-ahead and look-behind",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetitions",
}
FLAGS = {re.IGNORECASE: "(?i)", re.MULTILINE: "(?m)", re.LOCALE: "(?L)"}
"""Flags that are refused; (?s), (?x), (?a) and (?u) are supported."""
BEGINNING, END = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")
NEWLINE = ((10, 10),)


def parse_regex(expression: str, *, search: bool = False) -> Pattern:
    """The pattern of all texts that a regular expression matches from end to end.

    With `search` texts may have more before and after it, except where it begins with ^ and ends with $, as in
    JSON schemas.
    """
    if not isinstance(expression, str):
        raise UserError(f"A regular expression must be a string, not {shorten(expression)}.")
    if len(expression) > MAX_LENGTH:
        raise UserError(
            f"The regular expression has {len(expression):,} characters, and the limit is {MAX_LENGTH:,}; shorten it."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sets that may change their meaning in later versions
            tree = _parser.parse(expression)
        pattern = _Reader(tree.state.flags, expression).read_whole(list(tree), search=search)
        check_size(pattern, f"The regular expression {shorten(expression)}")
    except RecursionError:
        raise UserError("The regular expression has too many groups inside one another; write it with fewer.") from None
    except (re.error, OverflowError) as error:
        raise UserError(f"{shorten(expression)} is not a regular expression of Python ({error}).") from None
    return pattern


@cache
def _category(name: str, *, ascii_only: bool) -> Ranges:
    r"""The characters of \d, \s and \w, and of their complements."""
    if "NOT_" in name:
        return complement(_category(name.replace("NOT_", ""), ascii_only=ascii_only))
    test: Callable[[str], bool] = {
        "CATEGORY_DIGIT": str.isdecimal,
        "CATEGORY_SPACE": str.isspace,
        "CATEGORY_WORD": lambda character: character.isalnum() or character == "_",
    }[name]
    last = 127 if ascii_only else LAST_CHARACTER
    found = merge_ranges([(point, point) for point in range(last + 1) if test(chr(point))])
    if ascii_only and name == "CATEGORY_SPACE":  # \x1c to \x1f are spaces of Unicode only
        return merge_ranges([(9, 13), (32, 32)])
    return found


class _Reader:
    """Turns the syntax tree of `re` into a pattern."""

    def __init__(self, flags: int, expression: str):
        self.expression = expression
        for flag, written in FLAGS.items():
            if flags & flag:
                raise self._refuse(f"the flag {written}")
        self.dot_all, self.ascii_only = bool(flags & re.DOTALL), bool(flags & re.ASCII)

    def read_whole(self, items: list[Any], *, search: bool) -> Pattern:
        """The whole expression; ^ and $ at its ends say what is true of every match from end to end."""
        anything = Repetition(Characters(complement(())))
        before, after = [anything] * search, [anything] * search
        while items and self._is_anchor(items[0], BEGINNING):
            items, before = items[1:], []
        while items and self._is_anchor(items[-1], END):
            items, after = items[:-1], []
        return Concatenation((*before, self._read_all(items), *after))

    def _is_anchor(self, item: Any, names: tuple[str, ...]) -> bool:
        return str(item[0]) == "AT" and str(item[1]) in names

    def _read_all(self, items: Any) -> Pattern:
        parts = tuple(self._read(str(operator), argument) for operator, argument in items)
        return parts[0] if len(parts) == 1 else Concatenation(parts)

    def _read(self, operator: str, argument: Any) -> Pattern:
        if operator in REFUSED:
            raise self._refuse(REFUSED[operator])
        if operator == "AT":
            place = "word boundaries" if "BOUNDARY" in str(argument) else "^ and $ inside of it"
            raise self._refuse(place)
        if operator in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "RANGE", "CATEGORY"):
            return Characters(self._set(operator, argument))
        if operator == "BRANCH":
            return Alternatives(tuple(self._read_all(branch) for branch in argument[1]))
        if operator == "SUBPATTERN":
            _, added, removed, inner = argument
            return self._with_flags(added, removed)._read_all(inner)
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = argument
            endless = most == _parser.MAXREPEAT
            return Repetition(self._read_all(inner), int(least), None if endless else int(most))
        if operator == "FAILURE":
            return Characters(())
        if operator == "SUCCESS":
            return EMPTY
        raise self._refuse(operator.lower().replace("_", " "))

    def _with_flags(self, added: int, removed: int) -> "_Reader":
        """The reader of a group with flags of its own."""
        own = (re.DOTALL if self.dot_all else 0) | (re.ASCII if self.ascii_only else 0)
        if added & re.UNICODE:
            own &= ~re.ASCII
        return _Reader((own | added) & ~removed, self.expression) if added or removed else self

    def _set(self, operator: str, argument: Any) -> Ranges:
        """The characters that an item matches."""
        if operator == "LITERAL":
            return ((argument, argument),)
        if operator == "NOT_LITERAL":
            return complement(((argument, argument),))
        if operator == "ANY":
            return complement(()) if self.dot_all else complement(NEWLINE)
        if operator == "RANGE":
            return (argument,)
        if operator == "CATEGORY":
            return _category(str(argument), ascii_only=self.ascii_only)
        if operator != "IN":
            raise self._refuse(operator.lower().replace("_", " "))
        negated = str(argument[0][0]) == "NEGATE"
        items = argument[1:] if negated else argument
        ranges = merge_ranges([pair for item in items for pair in self._set(str(item[0]), item[1])])
        return complement(ranges) if negated else ranges

    def _refuse(self, construct: str) -> UserError:
        return UserError(
            f"The regular expression {shorten(self.expression)} has {construct}, which a finite automaton cannot "
            "decide here; use characters, classes, groups, | and repetitions."
        )
