"""Scripted attacks on everything that reads what others wrote: python -m attacks (in tools/) runs them all.

Each module of this package is an area. Its attacks are functions of a variant and of the world that the module's
`open_world` opens (by default an empty folder); they are registered by `attack` with all their variants. An attack
fails, by raising, where it does harm: then there is a defect to fix.
"""

import os
import pkgutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

AttackFunction = Callable[[Any, Any], None]
"""(variant, world)"""


@dataclass(frozen=True)
class Attack:
    """One variant of an attack."""

    area: str
    name: str
    variant: str
    about: str
    """What it tries."""
    run: Callable[[Any], None]


REGISTRY: list[Attack] = []


def attack(*variants: Any) -> Callable[[AttackFunction], AttackFunction]:
    """Register an attack with its variants; its docstring says in one line what it tries."""

    def register(function: AttackFunction) -> AttackFunction:
        area = function.__module__.rpartition(".")[2]
        about = (function.__doc__ or "").strip()
        for number, variant in enumerate(variants):
            shown = f"{number}: {ascii(variant)[:80]}"
            REGISTRY.append(Attack(area, function.__name__, shown, about, partial(function, variant)))
        return function

    return register


def find_areas() -> list[str]:
    """Return the modules of this package, and register their attacks."""
    areas = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    for area in areas:
        import_module(f"{__name__}.{area}")
    return areas


@contextmanager
def open_folder(folder: Path) -> Iterator[Path]:
    """The world of areas that need no more than a folder."""
    yield folder


@dataclass
class Outcome:
    """What an area's attacks came to."""

    attacks: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def replay(area: str, only: str = "") -> Outcome:
    """Run the attacks of an area whose names contain `only`, in a temporary folder that is also the cache."""
    module = import_module(f"{__name__}.{area}")
    open_world: Callable[[Path], AbstractContextManager[Any]] = getattr(module, "open_world", open_folder)
    outcome, started = Outcome(), time.monotonic()
    before = os.environ.get("LOGOSPHERE_CACHE")
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")
        try:
            with open_world(Path(folder)) as world:
                for one in [one for one in REGISTRY if one.area == area and only in one.name]:
                    outcome.attacks += 1
                    try:
                        one.run(world)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as problem:  # a panic of a library is no Exception
                        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
                        outcome.failures.append(f"{area}.{one.name} [{one.variant}] {reason[:300]}")
        finally:
            if before is None:
                del os.environ["LOGOSPHERE_CACHE"]
            else:
                os.environ["LOGOSPHERE_CACHE"] = before
    outcome.seconds = time.monotonic() - started
    return outcome
