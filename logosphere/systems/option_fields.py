"""The fields of settings as options: their documentation and the types of their values."""

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args

from logosphere.errors import UserError, shorten
from logosphere.networks.config import NetworkConfig

PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", NoneType: "None"}


def field_docs(settings: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(settings.__mro__[:-1]):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # defined in an interactive session
            continue
        (tree,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(tree, ast.ClassDef)
        for line, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
                if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    docs[line.target.id] = inspect.cleandoc(below.value.value).replace("\n", " ")
    return docs


def check_settings(name: str, settings: object) -> None:
    """Refuse settings of a system that `build` could not make from options."""
    if not isinstance(settings, type) or not is_dataclass(settings):
        raise UserError(f"The settings of the system '{name}' must be a dataclass, not {shorten(settings)}.")
    for option in fields(settings):
        if option.default is MISSING:
            raise UserError(f"The option '{option.name}' of the system '{name}' needs a default.")
        if option.name in {f.name for f in fields(NetworkConfig)}:
            raise UserError(
                f"The option '{option.name}' of the system '{name}' is one of its network; choose another name."
            )


def check_option_type(system: str, option: str, value: object, annotation: Any) -> None:
    """Refuse a value of another type than the field has; other types than those of `PLAIN` are not checked."""
    allowed = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if not all(kind in PLAIN for kind in allowed):
        return
    accepted = {*allowed, int} if float in allowed else {*allowed}
    if type(value) not in accepted:
        described = " or ".join(PLAIN[kind] for kind in allowed)
        raise UserError(f"The option '{option}' of '{system}' must be {described}, not {shorten(value)}.")
