"""JSON schemas as patterns: every text of the pattern is JSON that the schema accepts.

Objects have their properties in the order of the schema and no others, and between values there is no white space
except one optional space after ':' and ','. Both only leave out some of the texts that a schema accepts. Keywords that
restrict values and are not supported are refused by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logosphere.errors import UserError, shorten, suggest
from logosphere.sampling.structured.pattern import (
    EMPTY,
    Alternatives,
    Characters,
    Concatenation,
    Pattern,
    Repetition,
    any_of,
    characters,
    check_size,
    complement,
    intersect,
    join,
    literal,
    merge_ranges,
    optional,
)
from logosphere.sampling.structured.regex import parse_regex

MAX_BYTES = 1 << 20
"""Length of a schema."""
MAX_DEPTH = 32
"""Schemas inside one another, references included."""
MAX_SCHEMAS = 2_000
"""Schemas in a schema, counted again at each reference."""
MAX_INTEGERS = 10_000
"""Integers between a minimum and a maximum, which are written out."""

ANNOTATIONS = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "format",
}  # fmt: skip
"""Keywords that restrict no value; a format is an annotation by default."""
ANYWHERE = {"type", "enum", "const", "anyOf", "oneOf", "$ref"}
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
"""Supported keywords of each type."""
KEYWORDS = sorted(ANNOTATIONS | ANYWHERE | set[str]().union(*OF_TYPE.values()))

CONTROL = ((0, 0x1F),)
SPACE = optional(literal(" "))
COLON, COMMA = join(":", SPACE), join(",", SPACE)
DIGIT, NONZERO = Characters(((48, 57),)), Characters(((49, 57),))
INTEGER = join(optional(literal("-")), Alternatives((literal("0"), join(NONZERO, Repetition(DIGIT, 0, 14)))))
FRACTION = optional(join(".", Repetition(DIGIT, 1, 15)))
EXPONENT = optional(join(characters("eE"), optional(characters("+-")), Repetition(DIGIT, 1, 2)))
NUMBER = join(INTEGER, FRACTION, EXPONENT)
"""At most 15 digits before the point and after it, and two of the exponent: no parser takes such a number for
infinite."""
PLAIN = complement(merge_ranges([*CONTROL, (34, 34), (92, 92)]))
"""Characters that stand for themselves in a string."""
SHORT_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}


def parse_schema(schema: object) -> Pattern:
    """The pattern of a schema, given as a dictionary or as the text of a JSON file."""
    if isinstance(schema, str):
        if len(schema) > MAX_BYTES:
            raise UserError(f"The schema has {len(schema):,} characters, and the limit is {MAX_BYTES:,}; shorten it.")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UserError(f"The schema is not JSON ({str(error) or 'too deep'}); correct it.") from None
    if not isinstance(schema, Mapping):
        raise UserError(f"A JSON schema must be an object with keywords such as type, not {shorten(schema)}.")
    pattern = _SchemaReader(schema).read(schema, ())
    check_size(pattern, "The JSON schema")
    return pattern


def quote(text: str) -> Pattern:
    """A string as JSON, as `json.dumps` writes it without escapes of other characters than it must."""
    return literal(json.dumps(text, ensure_ascii=False))


def in_string(pattern: Pattern) -> Pattern:
    """The same texts inside a JSON string, with escapes for the characters that need them."""
    if isinstance(pattern, Concatenation):
        return Concatenation(tuple(map(in_string, pattern.parts)))
    if isinstance(pattern, Alternatives):
        return Alternatives(tuple(map(in_string, pattern.options)))
    if isinstance(pattern, Repetition):
        return Repetition(in_string(pattern.inner), pattern.least, pattern.most)
    plain = Characters(intersect(pattern.ranges, PLAIN))
    special = intersect(pattern.ranges, complement(PLAIN))
    points = [point for first, last in special for point in range(first, last + 1)]
    if not points:
        return plain
    escapes = [SHORT_ESCAPES.get(point, f"\\u{point:04x}") for point in points]
    return Alternatives((plain, *map(literal, escapes)))


ANY_CHARACTER = in_string(Characters(merge_ranges([*PLAIN, (34, 34), (92, 92), (9, 10), (13, 13)])))
"""A character of a string: plain, or one of the escapes of quotes, backslashes, tabs and line breaks."""


class _SchemaReader:
    """Turns a schema and those inside it into patterns; `path` are the keys that lead to a schema, for errors."""

    def __init__(self, root: Mapping[str, Any]):
        self.root = root
        self.following: list[str] = []
        self.count = 0

    def read(self, schema: object, path: tuple[str, ...]) -> Pattern:
        where = "/".join(("#", *path))
        if len(path) > 3 * MAX_DEPTH or len(self.following) > MAX_DEPTH:
            raise UserError(f"The JSON schema has more than {MAX_DEPTH} schemas inside one another at {where[:80]}….")
        self.count += 1
        if self.count > MAX_SCHEMAS:
            raise UserError(f"The JSON schema has more than {MAX_SCHEMAS:,} schemas, counted at each $ref; shorten it.")
        if not isinstance(schema, Mapping) or (schema is not self.root and not schema):
            raise UserError(
                f"The JSON schema at {where} is {shorten(schema)}, which accepts any or no value; give it a type."
            )
        for keyword in schema:
            if keyword not in KEYWORDS:
                raise UserError(
                    f"The keyword '{keyword}' of the JSON schema at {where} is not supported."
                    f"{suggest(keyword, KEYWORDS)}"
                )
        chosen = [keyword for keyword in ("$ref", "const", "enum", "anyOf", "oneOf") if keyword in schema]
        if len(chosen) > 1:
            raise UserError(f"The JSON schema at {where} has both {chosen[0]} and {chosen[1]}; keep one of them.")
        if chosen:
            return self._read_choice(chosen[0], schema, path)
        kinds = schema.get("type")
        if kinds is None:
            raise UserError(f"The JSON schema at {where} has no type; add one of {', '.join(OF_TYPE)}.")
        names = kinds if isinstance(kinds, list) and kinds else [kinds]
        for name in names:
            if not isinstance(name, str) or name not in OF_TYPE:
                raise UserError(f"The type {shorten(name)} of the JSON schema at {where} is not {', '.join(OF_TYPE)}.")
        allowed = ANNOTATIONS | ANYWHERE | set[str]().union(*(OF_TYPE[name] for name in names))
        if foreign := [keyword for keyword in schema if keyword not in allowed]:
            raise UserError(
                f"The keyword '{foreign[0]}' of the JSON schema at {where} is not supported for the type "
                f"{' or '.join(names)}; leave it out."
            )
        readers: dict[str, Callable[[Mapping[str, Any], tuple[str, ...]], Pattern]] = {
            "object": self._read_object,
            "array": self._read_array,
            "string": self._read_string,
            "integer": self._read_integer,
            "number": lambda schema, path: NUMBER,
            "boolean": lambda schema, path: any_of("true", "false"),
            "null": lambda schema, path: literal("null"),
        }
        return Alternatives(tuple(readers[name](schema, path) for name in names))

    # ---- keywords for any value ------------------------------------------------------------------------------------

    def _read_choice(self, keyword: str, schema: Mapping[str, Any], path: tuple[str, ...]) -> Pattern:
        where, content = "/".join(("#", *path)), schema[keyword]
        other = set(schema) - ANNOTATIONS - {keyword} - ({"type"} if keyword in ("const", "enum") else set())
        if other:
            raise UserError(f"The JSON schema at {where} has {min(other)} beside {keyword}; keep one of them.")
        if keyword == "$ref":
            return self._follow(content, where)
        if keyword == "const":
            return _write_values([content], schema.get("type"), where)
        if not isinstance(content, list) or not content:
            raise UserError(f"{keyword} of the JSON schema at {where} must be a list that is not empty.")
        if keyword == "enum":
            return _write_values(content, schema.get("type"), where)
        if keyword == "oneOf" and not _have_distinct_types(content):
            raise UserError(
                f"oneOf of the JSON schema at {where} has options that one value could meet together; use anyOf."
            )
        return Alternatives(tuple(self.read(option, (*path, keyword, str(n))) for n, option in enumerate(content)))

    def _follow(self, reference: object, where: str) -> Pattern:
        """The schema that a reference inside this document names."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UserError(f"$ref of the JSON schema at {where} must begin with '#', not be {shorten(reference)}.")
        if reference in self.following:
            raise UserError(
                f"The JSON schema refers to itself by {reference}; a finite automaton has no recursion, so write out "
                "as many levels as are needed."
            )
        found: object = self.root
        for key in reference[1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise UserError(f"$ref of the JSON schema at {where} names {reference}, which is not in the schema.")
            found = found[key]
        self.following.append(reference)
        pattern = self.read(found, tuple(reference[1:].split("/")[1:]))
        self.following.pop()
        return pattern

    # ---- types -----------------------------------------------------------------------------------------------------

    def _read_object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Pattern:
        where = "/".join(("#", *path))
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise UserError(f"The JSON schema at {where} needs an object of properties and a list of required ones.")
        if missing := [name for name in required if name not in properties]:
            raise UserError(f"The JSON schema at {where} requires {shorten(missing[0])}, which is not in properties.")
        if schema.get("additionalProperties", False) not in (False, True):
            raise UserError(f"additionalProperties of the JSON schema at {where} must be true or false.")
        members = [
            (join(quote(name), COLON, self.read(value, (*path, "properties", name))), name in required)
            for name, value in properties.items()
        ]
        return join("{", _list_members(members), "}")

    def _read_array(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Pattern:
        least, most = _bounds(schema, "minItems", "maxItems", path)
        if most == 0:
            return literal("[]")
        if "items" not in schema:
            raise UserError(f"The JSON schema at {'/'.join(('#', *path))} is an array without items; describe them.")
        item = self.read(schema["items"], (*path, "items"))
        rest = Repetition(join(COMMA, item), max(least - 1, 0), None if most is None else most - 1)
        filled = join(item, rest)
        return join("[", filled if least else optional(filled), "]")

    def _read_string(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Pattern:
        least, most = _bounds(schema, "minLength", "maxLength", path)
        if "pattern" not in schema:
            return join('"', Repetition(ANY_CHARACTER, least, most), '"')
        if "minLength" in schema or "maxLength" in schema:
            raise UserError(
                f"The JSON schema at {'/'.join(('#', *path))} has both a pattern and a length; write the length into "
                "the pattern, as in ^[a-z]{1,8}$."
            )
        return join('"', in_string(parse_regex(schema["pattern"], search=True)), '"')

    def _read_integer(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Pattern:
        if "minimum" not in schema and "maximum" not in schema:
            return INTEGER
        low, high = schema.get("minimum"), schema.get("maximum")
        where = "/".join(("#", *path))
        if type(low) is not int or type(high) is not int or not 0 <= high - low < MAX_INTEGERS:
            raise UserError(
                f"The JSON schema at {where} needs both a minimum and a maximum, whole numbers with at most "
                f"{MAX_INTEGERS:,} integers between them, not {shorten(low)} and {shorten(high)}."
            )
        return _write_integers(low, high)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _list_members(members: Sequence[tuple[Pattern, bool]]) -> Pattern:
    """Members (pattern, whether it is required) in order, with commas between those that are there.

    Built from the end: what follows with and without a member before it.
    """
    alone: Pattern = EMPTY
    after: Pattern = EMPTY
    for member, required in reversed(members):
        first, following = join(member, after), join(COMMA, member)
        alone = first if required else Alternatives((first, alone))
        after = join(following if required else optional(following), after)
    return alone


def _write_integers(low: int, high: int) -> Pattern:
    """The integers from low to high, with shared first digits."""
    negative = [str(-number) for number in range(low, min(high, -1) + 1)]
    positive = [str(number) for number in range(max(low, 0), high + 1)]
    options = [join("-", _write_prefixes(negative))] if negative else []
    return Alternatives((*options, *([_write_prefixes(positive)] if positive else [])))


def _write_prefixes(words: list[str]) -> Pattern:
    """Words by their first letters."""
    letters = sorted({word[0] for word in words if word})
    options = [join(letter, _write_prefixes([word[1:] for word in words if word[:1] == letter])) for letter in letters]
    return Alternatives((*([EMPTY] if "" in words else []), *options))


def _write_values(values: list[Any], kinds: object, where: str) -> Pattern:
    """The values of const or enum that have one of the types, if any are named."""
    names = kinds if isinstance(kinds, list) else [kinds]
    if kinds is not None:
        values = [value for value in values if any(_has_type(value, name) for name in names)]
    try:
        return Alternatives(tuple(literal(json.dumps(value, ensure_ascii=False, allow_nan=False)) for value in values))
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"The JSON schema at {where} has a constant that is no JSON value.") from None


def _has_type(value: object, name: object) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return name == "number" or (name == "integer" and value == int(value))
    kinds = {"string": str, "array": list, "object": Mapping}
    return isinstance(name, str) and name in kinds and isinstance(value, kinds[name])


def _bounds(schema: Mapping[str, Any], low: str, high: str, path: tuple[str, ...]) -> tuple[int, int | None]:
    least, most = schema.get(low, 0), schema.get(high)
    whole = type(least) is int and least >= 0 and (most is None or (type(most) is int and most >= least))
    if not whole:
        raise UserError(
            f"{low} and {high} of the JSON schema at {'/'.join(('#', *path))} must be whole numbers with "
            f"0 ≤ {low} ≤ {high}, not {shorten(least)} and {shorten(most)}."
        )
    return least, most


def _have_distinct_types(options: list[Any]) -> bool:
    """Whether no value can meet two options: their types are different, or they are different constants."""
    types: list[str] = []
    for option in options:
        if not isinstance(option, Mapping):
            return False
        if "const" in option or "enum" in option:
            values = [option["const"]] if "const" in option else option["enum"]
            types += [json.dumps(value, sort_keys=True, default=str) for value in values]
        elif isinstance(option.get("type"), str):
            types.append("number" if option["type"] == "integer" else option["type"])
        else:
            return False
    names = {name for name in types if name in OF_TYPE}
    return len(set(types)) == len(types) and (not names or len(names) == len(types))
