"""Automata: the language of a regular expression is that of `re`, whatever the alphabet; limits of size are kept."""

import itertools
import random
import re
import time

import pytest

from logosphere.errors import UserError
from logosphere.sampling.structured.automaton import ByteAutomaton, build_automaton, utf8_ranges
from logosphere.sampling.structured.pattern import complement, intersect
from logosphere.sampling.structured.pieces import Pieces
from logosphere.sampling.structured.regex import parse_regex
from logosphere.sampling.structured.token_automaton import TokenAutomaton, build_token_automaton

WORDS = (b"a", b"ab", b"b", b"ba", b"c", b"abc", b"")


def automaton_of(expression: str) -> ByteAutomaton:
    return build_automaton(parse_regex(expression))


def tokens_of(expression: str, *, end: bool = False) -> TokenAutomaton:
    pieces = (*WORDS, b"") if end else WORDS
    return build_token_automaton(parse_regex(expression), Pieces(pieces, pieces, len(WORDS) if end else None), "It")


# ---- characters ------------------------------------------------------------------------------------------------------

EXPRESSIONS = [
    "", "a", "ab|c", "(ab)*", "a{2,3}", "a{2,}b?", "[^a]*", "(a|b)*c(a|b){2}", "(?:a+?b)*", "a|", "[ab]{1,3}c",
    "(?s:.)b", ".b", "^ab$", r"\Aa|b", "(a*)*", "(|a)+b", "(?P<x>a)b", r"\w\d?", r"[\w-]+", r"[^\s]b", "(?x) a b # c",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_language_is_that_of_re(expression: str) -> None:
    if expression == r"\Aa|b":  # an anchor inside of an alternative
        with pytest.raises(UserError, match="inside"):
            automaton_of(expression)
        return
    automaton = automaton_of(expression)
    for length in range(5):
        for text in map("".join, itertools.product("abc\n", repeat=length)):
            assert automaton.accepts(text) == bool(re.fullmatch(expression, text)), text


@pytest.mark.parametrize(
    "expression", [r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "(?a:\\w)", "(?a:\\s)", "[^é-ü€]", "."]
)
def test_classes_of_unicode_are_those_of_re(expression: str) -> None:
    automaton, rng = automaton_of(expression), random.Random(0)
    points = [
        *range(0x500),
        *(rng.randrange(0x500, 0x110000) for _ in range(2000)),
        0x7FF,
        0x800,
        0xFFFF,
        0x10000,
        0x10FFFF,
    ]
    for character in map(chr, points):
        if not 0xD800 <= ord(character) < 0xE000:
            assert automaton.accepts(character) == bool(re.fullmatch(expression, character)), hex(ord(character))


def test_random_expressions_have_the_language_of_re() -> None:
    rng = random.Random(1)

    def draw(depth: int) -> str:
        if depth == 0:
            return rng.choice(["a", "b", "[ab]", "[^a]", "."])
        inner, other = draw(depth - 1), draw(depth - 1)
        return rng.choice([f"{inner}{other}", f"({inner}|{other})", f"({inner})*", f"({inner}){{1,2}}", f"({inner})?"])

    texts = ["".join(text) for length in range(6) for text in itertools.product("ab", repeat=length)]
    for _ in range(60):
        expression = draw(3)
        automaton = automaton_of(expression)
        assert all(automaton.accepts(text) == bool(re.fullmatch(expression, text)) for text in texts), expression


def test_automata_are_minimal() -> None:
    """(a|b)*a(a|b){n} has 2^(n+1) states and no fewer; the same language written twice has the same number."""
    assert automaton_of("[ab]*a[ab]{4}").states == 32
    assert automaton_of("ab|ab|a(b|b)").states == automaton_of("ab").states == 3


def test_utf8_ranges_are_all_code_points_once() -> None:
    sequences = list(utf8_ranges(0x10, 0x2000))
    spelled = [bytes(text) for ranges in sequences for text in itertools.product(*(range(a, b + 1) for a, b in ranges))]
    assert sorted(spelled) == sorted(chr(point).encode() for point in range(0x10, 0x2001))


def test_sets_of_characters() -> None:
    letters = ((97, 122),)
    assert intersect(complement(letters), letters) == ()
    assert intersect(((0, 99),), letters) == ((97, 99),)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (r"(a)\1", "back references"), ("(?=a)b", "look-ahead"), (r"a\b", "word boundaries"), ("a^b", "inside"),
        ("(?i)a", r"\(\?i\)"), ("(a)?(?(1)b|c)", "conditional"), ("(?>a)", "atomic"),
        ("a(", "not a regular expression"),
        ("a{99999999999}", "not a regular expression"), ("(" * 4000 + ")" * 4000, "groups"), ("a" * 20001, "20,001"),
    ],
)  # fmt: skip
def test_what_no_automaton_decides_is_refused_by_name(expression: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as found:
        parse_regex(expression)
    assert str(found.value).count("\n") == 0


@pytest.mark.parametrize(
    ("expression", "size"),
    [("(a{1000}){1000}", "1,001,002"), ("(a|b)*a(a|b){20}", "10,000 states"), ("((a{99}){99}){99}", "limit is 20,000")],
)
def test_large_automata_are_refused_fast_with_their_size(expression: str, size: str) -> None:
    started = time.process_time()
    with pytest.raises(UserError, match=size):
        automaton_of(expression)
    assert time.process_time() - started < 5  # of minutes to years


def test_too_many_transitions_are_refused() -> None:
    pieces = Pieces((b"a",) * 400_000, (b"a",) * 400_000, None)
    with pytest.raises(UserError, match="transitions"):
        build_token_automaton(parse_regex("a{300}"), pieces, "The regular expression")


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["(ab)*c?", "a[bc]*", "(abc|ba)+", "b*"])
def test_rows_of_tokens_are_in_the_language_of_their_text(expression: str) -> None:
    automaton = tokens_of(expression)
    for length in range(4):
        for row in itertools.product(range(len(WORDS)), repeat=length):
            text = b"".join(WORDS[token] for token in row).decode()
            expected = all(WORDS[token] for token in row) and bool(re.fullmatch(expression, text))
            assert automaton.accepts(list(row)) == expected, row


def test_after_an_end_there_are_only_ends() -> None:
    automaton, end = tokens_of("ab?", end=True), len(WORDS)
    assert automaton.accepts([0]) and automaton.accepts([0, end, end]) and automaton.accepts([1, end])
    assert not automaton.accepts([end]) and not automaton.accepts([0, end, 2]) and not automaton.accepts([0, 0, end])


def test_first_tokens_may_be_spelled_in_another_way() -> None:
    """As by tokenizers that put a space before every word but the first."""
    pieces = Pieces((b"the", b"end"), (b" the", b" end"), None)
    automaton = build_token_automaton(parse_regex("the (the )*end"), pieces, "It")
    assert automaton.accepts([0, 1]) and automaton.accepts([0, 0, 1])
    assert not automaton.accepts([1]) and not automaton.accepts([0])
