"""Structured output of `logosphere sample`: the constraint of its options, and texts without what follows them."""

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.runs.settings import SampleConfig
from logosphere.sampling.structured.constraint import Constraint, constrain


def find_constraint(model: Model, config: SampleConfig, start: int) -> Constraint | None:
    """The constraint on the printed text: on the answer of a chat, else on the text with all that is known of it.

    `start` tokens precede it: those of the conversation, or the one before every text of a model that has one.
    """
    if not config.constrained:
        return None
    length = config.length
    if length is not None and length > model.length:
        raise UserError(
            f"A text of {length:,} tokens is made of several windows, which cannot be matched together; with --match "
            f"and --json-schema, --length is at most {model.length:,}."
        )
    if config.json_schema is not None:
        return constrain(model, json_schema=config.json_schema, length=length, start=start)
    return constrain(model, match=config.match, length=length, start=start)


def cut_text(row: list[int], constraint: Constraint) -> list[int]:
    """The tokens of a text without those after it."""
    row = row[: constraint.stop]
    if constraint.end is None or constraint.end not in row[constraint.start :]:
        return row
    return row[: row.index(constraint.end, constraint.start)]
