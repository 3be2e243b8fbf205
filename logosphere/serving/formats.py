"""The format of texts that a request asks for, and the constraint on sampling that keeps it."""

import json
from dataclasses import dataclass, replace
from threading import BoundedSemaphore

from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.sampling.structured.constraint import Constraint, constrain
from logosphere.serving.errors import APIError
from logosphere.serving.fields import Fields, check_text, refuse
from logosphere.serving.limits import MAX_CHARACTERS, MAX_FORMATS
from logosphere.types import Batch

FIELD = "response_format"
_building = BoundedSemaphore(MAX_FORMATS)


@dataclass(frozen=True)
class TextFormat:
    """A regular expression, or a JSON schema as text."""

    match: str | None = None
    json_schema: str | None = None


def parse_format(fields: Fields) -> TextFormat | None:
    """The format of a request; None for texts of any form."""
    if FIELD not in fields:
        return None
    match fields.mapping(FIELD):
        case {"type": "text", **others} if not others:
            return None
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return TextFormat(json_schema=json.dumps(schema))
        case {"type": "regex", "regex": pattern, **others} if not others:
            return TextFormat(match=check_text(FIELD, pattern, MAX_CHARACTERS))
        case {"type": "json_object"}:
            raise APIError(
                f"{FIELD} json_object is not supported: a text of a fixed length needs a schema; use json_schema.",
                param=FIELD,
                code="unsupported",
            )
        case value:
            allowed = (
                '{"type": "text"}, {"type": "json_schema", "json_schema": {"schema": {…}}} or '
                '{"type": "regex", "regex": "…"}'
            )
            raise refuse(FIELD, allowed, value)


def make_constraint(
    wanted: TextFormat, model: Model, known: Tensor, tokens: Tensor, start: int, stop: int
) -> Constraint:
    """The constraint on the positions from `start` to `stop`; raise APIError where the model cannot keep the format."""
    if not _building.acquire(timeout=5):
        raise APIError("Other formats are being prepared; try again later.", 429, code="queue_full", retry=5)
    try:
        found = constrain(model, match=wanted.match, json_schema=wanted.json_schema, start=start)
        found = replace(found, stop=stop)
        found.check(Batch.of(tokens[None], known[None]), len(tokens))
    except UserError as problem:
        raise APIError(str(problem), param=FIELD) from None
    finally:
        _building.release()
    return found
