"""Plugins: systems, networks and samplers that are registered from outside of the package.

A module registers them by decorators when it is imported. An installed package may name such modules as entry points of
the group "logosphere.plugins"; they are imported when a name is looked up that the package itself does not have, and
for lists of all names. Nothing else is imported: a saved model names its plugins, but that only appears in errors.
"""

import re
from collections.abc import Mapping
from functools import cache

from logosphere.errors import UserError, shorten, suggest

GROUP = "logosphere.plugins"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@cache
def load_plugins() -> None:
    """Import the modules that installed packages name as entry points, once."""
    from importlib.metadata import entry_points  # not needed to import the package

    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as problem:  # whatever a foreign module raises
            package = "" if point.dist is None else f" of the package {point.dist.name}"
            raise UserError(
                f"The plugin {point.name}{package} ({point.value}) cannot be imported "
                f"({type(problem).__name__}: {problem}); repair or uninstall it."
            ) from problem


def place_of(made: object) -> str:
    """The module and the name of a class or function: 'my_package.networks.Recurrent'."""
    return f"{getattr(made, '__module__', '?')}.{getattr(made, '__qualname__', type(made).__qualname__)}"


def is_outside(place: str) -> bool:
    """Whether a place lies outside of the package."""
    return place.partition(".")[0] != "logosphere"


def check_name(kind: str, name: object, place: str, registered: Mapping[str, str]) -> None:
    """Refuse invalid names and those of something else; `registered` maps names to places.

    The same function or class may be registered again, as a notebook does in which a cell runs twice.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(f"The name of a {kind} must consist of a-z, 0-9, '-', '_' and '.', not be {shorten(name)}.")
    if name in registered and registered[name] != place:
        raise UserError(
            f"A {kind} named '{name}' is registered already, by {registered[name]}; choose another name for {place}."
        )


def missing(kind: str, name: str, known: Mapping[str, object]) -> UserError:
    """The error for a name that neither the package nor a plugin has registered."""
    return UserError(f"There is no {kind} '{name}'.{suggest(str(name), known)}")
