"""The systems by name: the card of each, and models built by it.

This module knows no torch, so that listing systems and checking names is instant; builders are imported when needed.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logosphere.cards import CARDS, Card
from logosphere.errors import UserError, suggest
from logosphere.presets import DEFAULT, presets
from logosphere.presets import preset as find_preset

if TYPE_CHECKING:
    from logosphere.model import Model
    from logosphere.networks.base import Denoiser


_BY_NAME = {card.name: card for card in CARDS}

__all__ = ["build", "options", "presets", "system", "systems"]

FRESH: Any = object()
"""Stands for 'a new network' in `build`, because None means 'no network'."""
MOST = 1 << 24
"""Tokens of a vocabulary, and positions; more is a slip of the pen or a damaged file."""


def systems() -> list[str]:
    """The names of all systems."""
    return sorted(_BY_NAME)


def system(name: str) -> Card:
    """The card of a system."""
    if name not in _BY_NAME:
        raise UserError(f"There is no system '{name}'.{suggest(name, _BY_NAME)}")
    return _BY_NAME[name]


def build(
    name: str,
    *,
    vocab_size: int,
    length: int,
    denoiser: "Denoiser | None" = FRESH,
    preset: str = DEFAULT,
    **options: Any,
) -> "Model":
    """A model of a system: with a fresh network, with a denoiser of your own, or (None) without any.

    Options are those of the network (width, depth, heads, dropout) and those of the system; see `options(name)`.
    preset="paper" is the published system (see `presets(name)`); options given beside a preset take its place.
    """
    from logosphere.model import Spec
    from logosphere.networks.config import NetworkConfig

    if vocab_size < 2:
        raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if max(vocab_size, length) > MOST:
        raise UserError(f"A model has at most {MOST:,} tokens and {MOST:,} positions, not {max(vocab_size, length):,}.")
    builder, known = _builder(name), _options(name)
    for option in options:
        if option not in known:
            raise UserError(f"'{name}' has no option '{option}'.{suggest(option, known)}")
    chosen = find_preset(name, preset)
    options = chosen.options | options
    network_fields = {f.name for f in fields(NetworkConfig)}
    network = NetworkConfig(**{key: value for key, value in options.items() if key in network_fields})
    own = {key: value for key, value in options.items() if key not in network_fields}
    model = builder(vocab_size, length, None if denoiser is None else network, **own)
    if denoiser is not FRESH:
        model.denoiser = denoiser
    model.spec = Spec(name, vocab_size, length, options, preset)
    if denoiser is FRESH:  # around an oracle samples are to be draws from the model, whatever its network likes
        model.sampler = chosen.sampler or system(name).sampler
    return model


def options(name: str) -> dict[str, Any]:
    """The options of a system with their defaults."""
    return dict(_options(name))


def _builder(name: str) -> Callable[..., "Model"]:
    module, function = system(name).builder.split(":")
    found: Callable[..., Model] = getattr(import_module(module), function)
    return found


def _options(name: str) -> dict[str, Any]:
    from logosphere.networks.config import NetworkConfig

    own = {
        parameter.name: parameter.default
        for parameter in inspect.signature(_builder(name)).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return {f.name: f.default for f in fields(NetworkConfig)} | own
