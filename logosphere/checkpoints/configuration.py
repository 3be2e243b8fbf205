"""config.json of a stranger: sizes under any of their names, checked for their kind and against the tensors."""

import math
from collections.abc import Mapping
from typing import Any

from logosphere.errors import UserError, shorten

OVERRIDES = "logosphere"
"""Entry of config.json with conventions that replace those of the family, such as {"mask_id": 5, "shift": true}."""
OVERRIDABLE = {"system": str, "mask_id": int, "shift": bool, "block": int, "length": int}


def find_value(config: Mapping[str, Any], *names: str) -> Any:
    """The first of these entries that is there and not null."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def read_size(config: Mapping[str, Any], *names: str) -> int | None:
    """A whole number of at least 1 under one of these names; None where none is there."""
    value = find_value(config, *names)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"config.json has {names[0]}={shorten(value)}, which must be a whole number of at least 1.")
    return value


def read_number(config: Mapping[str, Any], *names: str) -> float | None:
    """A positive finite number under one of these names; None where none is there."""
    value = find_value(config, *names)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UserError(f"config.json has {names[0]}={shorten(value)}, which must be a positive number.")
    return float(value)


def read_flag(config: Mapping[str, Any], *names: str) -> bool | None:
    """true or false under one of these names; None where none is there."""
    value = find_value(config, *names)
    if value is not None and type(value) is not bool:
        raise UserError(f"config.json has {names[0]}={shorten(value)}, which must be true or false.")
    return value


def read_ids(config: Mapping[str, Any], rows: int) -> dict[str, int]:
    """The ids of bos, eos and pad; of several ends of a sequence the first is eos, the next eos_2 and so on."""
    found: dict[str, int] = {}
    for name in ("bos", "eos", "pad"):
        value = config.get(f"{name}_token_id")
        for i, token in enumerate(value if isinstance(value, list) else [value]):
            if type(token) is int and 0 <= token < rows:
                found[name if i == 0 else f"{name}_{i + 1}"] = token
    return found


def read_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """The conventions that a user gives for a checkpoint that is not known, or not by its name."""
    given = config.get(OVERRIDES, {})
    if not isinstance(given, Mapping):
        raise UserError(f"'{OVERRIDES}' in config.json must hold names and values, not {shorten(given)}.")
    for name, value in given.items():
        if name not in OVERRIDABLE:
            raise UserError(f"'{OVERRIDES}' in config.json may set {', '.join(OVERRIDABLE)}, not {shorten(name)}.")
        if type(value) is not OVERRIDABLE[name]:
            raise UserError(f"{name} in '{OVERRIDES}' of config.json must be {OVERRIDABLE[name].__name__}, "
                            f"not {shorten(value)}.")  # fmt: skip
    return dict(given)


def check_size(what: str, stated: int | None, found: int) -> None:
    """Raise UserError where the configuration states another size than the tensors have."""
    if stated is not None and stated != found:
        raise UserError(
            f"config.json and the tensors disagree: {what} is {stated:,} in the one and {found:,} in the others; "
            "the files do not belong together."
        )


def refuse_values(config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UserError for a variant of the architecture that is not implemented."""
    for name, values in allowed.items():
        value = config.get(name)
        if value is not None and value not in values:
            raise UserError(
                f"config.json has {name}={shorten(value)}; of this architecture only {name}="
                f"{' or '.join(str(value).lower() if type(value) is bool else str(value) for value in values)} is "
                "available."
            )


def cut_length(positions: int, most: int, block: int, chosen: int | None) -> tuple[int, tuple[str, ...]]:
    """The length of the model, a multiple of the block, and a remark where it is less than the trained positions."""
    if chosen is not None:
        if chosen < 1 or chosen % block or chosen > positions:
            raise UserError(
                f"The length must be a multiple of the block of {block} and at most {positions:,}, not {chosen}."
            )
        return chosen, ()
    length = min(positions, most) // block * block
    if length < 1:
        raise UserError(f"config.json has {positions} positions, fewer than a block of {block}.")
    remark = f"The model has a length of {length:,}, of {positions:,} positions in its configuration."
    return length, (remark,) if length < positions else ()
