"""Reading the fields of a request: each of one type, within its limits, or an error that names it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from logosphere.errors import shorten
from logosphere.serving.errors import APIError


def refuse(name: str, allowed: str, value: object) -> APIError:
    """The error for a value that is not allowed."""
    return APIError(f"{name} must be {allowed}, not {shorten(value)}.", param=name)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. NaN, infinities and numbers beyond float64 are no JSON."""
    try:
        content = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_short_int)
    except (ValueError, RecursionError):
        raise APIError("The request is not valid JSON.", code="invalid_json") from None
    if not isinstance(content, dict):
        raise APIError(f"The request must be a JSON object, not {shorten(content)}.", code="invalid_json")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _short_int(text: str) -> int:
    if len(text) > 40:  # Python refuses to read more than 4,300 digits, and none of the fields needs them
        raise ValueError("a number is too large")
    return int(text)


class Fields:
    """The fields of a request. null stands for a field that is not given."""

    def __init__(self, content: Mapping[str, Any], known: frozenset[str]):
        unknown = [name for name in content if name not in known]
        if unknown:
            name = shorten(unknown[0])
            raise APIError(f"Unrecognized request argument: {name}.", param=unknown[0][:80], code="unknown_parameter")
        self.content = {name: value for name, value in content.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self.content

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number; 3.0 is one as well, since JSON has only one kind of number."""
        value = self.content.get(name, default)
        if type(value) is float and value == int(value):
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise refuse(name, f"a whole number from {low} to {high}", value)
        return value

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        value = self.content.get(name, default)
        if value is None:
            return None
        if type(value) not in (int, float) or not low <= value <= high:
            raise refuse(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.content.get(name, default)
        if type(value) is not bool:
            raise refuse(name, "true or false", value)
        return value

    def text(self, name: str, default: str, limit: int) -> str:
        return check_text(name, self.content.get(name, default), limit)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.content.get(name, {})
        if not isinstance(value, dict):
            raise refuse(name, "an object", value)
        return value

    def only(self, name: str, allowed: Sequence[Any], reason: str) -> None:
        """Refuse any other value of a field that OpenAI's API has and this server does not."""
        if name in self.content and not any(_equals(self.content[name], value) for value in allowed):
            raise APIError(f"{name} is not supported: {reason}; leave it out.", param=name, code="unsupported")


def _equals(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def check_text(name: str, value: object, limit: int) -> str:
    """A text of at most `limit` characters that can be encoded."""
    if not isinstance(value, str) or len(value) > limit:
        raise refuse(name, f"a text of at most {limit:,} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise APIError(
            f"The character at position {problem.start} of {name} is half of a surrogate pair; remove it.", param=name
        ) from None
    return value
