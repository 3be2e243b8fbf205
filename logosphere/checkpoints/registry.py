"""The families of published checkpoints, and which of them a checkpoint belongs to."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from logosphere.checkpoints.families import Family, Tensors
from logosphere.errors import UserError, shorten

MODULES = ("ddit", "llama", "gpt2")
"""Modules of logosphere/checkpoints; each has a tuple FAMILIES."""
SHOWN = 4
"""Tensors of an unknown checkpoint that an error names."""


@cache
def families() -> tuple[Family, ...]:
    """All families, in the order in which they are asked."""
    found: list[Family] = []
    for name in MODULES:
        if find_spec(module := f"logosphere.checkpoints.{name}") is not None:
            found += import_module(module).FAMILIES
    return tuple(found)


def find_family(config: Mapping[str, Any], tensors: Tensors, source: str) -> Family:
    """The family of a checkpoint; an unknown one is refused with what it has and what is known."""
    for family in families():
        if family.recognises(config, tensors):
            return family
    known = "; ".join(f"{family.name} ({', '.join(family.models)})" for family in families())
    names = ", ".join(shorten(name) for name in sorted(tensors)[:SHOWN])
    raise UserError(
        f"{source} has the model_type {shorten(config.get('model_type'))}, architectures "
        f"{shorten(config.get('architectures'))} and {len(tensors)} tensors such as {names}, which no family knows; "
        f"known are: {known}."
    )


def family_named(name: str) -> Family:
    """The family of this name."""
    for family in families():
        if family.name == name:
            return family
    raise UserError(f"There is no family '{name}'; known are {', '.join(family.name for family in families())}.")
