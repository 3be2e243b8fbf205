"""The systems by name: a card that says what each one is, and the function that builds it.

This module knows no torch, so that listing systems and checking names is instant; builders are imported when needed.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from logosphere.errors import UserError, nearest

if TYPE_CHECKING:
    from logosphere.denoisers.base import Denoiser
    from logosphere.model import Model
    from logosphere.types import Kind


@dataclass(frozen=True)
class Card:
    """What a system is and what kind of number it reports."""

    name: str
    title: str
    paper: str
    family: Literal["autoregressive", "discrete", "continuous", "latent"]
    kind: "Kind"
    difference: str
    """What sets it apart from its neighbours, in one line."""
    builder: str
    """module:function; called with vocab_size, length and the system's own options."""


CARDS = [
    Card(
        name="ar",
        title="Autoregressive transformer",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        family="autoregressive",
        kind="exact",
        difference="writes from left to right; the bar to reach",
        builder="logosphere.recipes.discrete:ar",
    ),
    Card(
        name="d3pm-absorbing",
        title="D3PM with an absorbing state",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        difference="masks in T = 1000 steps; the network reads the time; bound plus 0.01 cross-entropy is trained",
        builder="logosphere.recipes.discrete:d3pm_absorbing",
    ),
    Card(
        name="d3pm-uniform",
        title="D3PM with uniform noise",
        paper="Austin et al. 2021, arXiv:2107.03006",
        family="discrete",
        kind="bound",
        difference="replaces tokens by random ones in T = 1000 steps, so every token may still change",
        builder="logosphere.recipes.discrete:d3pm_uniform",
    ),
    Card(
        name="mdlm",
        title="Masked diffusion language model",
        paper="Sahoo et al. 2024, arXiv:2406.07524",
        family="discrete",
        kind="bound",
        difference="masks in continuous time; revealed tokens are copied; trains on cross-entropy (or loss=bound)",
        builder="logosphere.recipes.discrete:mdlm",
    ),
    Card(
        name="rdlm",
        title="Riemannian diffusion language model",
        paper="Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        difference="tokens are vertices of a sphere and log bridges lead to them; states drawn exactly, learned clock",
        builder="logosphere.recipes.spherical:rdlm",
    ),
    Card(
        name="rdlm-heat",
        title="Riemannian diffusion with Brownian bridges",
        paper="after Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        difference="as rdlm, with true Brownian bridges (heat kernel): exact posterior head, bound tight for any noise",
        builder="logosphere.recipes.spherical:rdlm_heat",
    ),
]
_BY_NAME = {card.name: card for card in CARDS}

FRESH: Any = object()
"""Stands for 'a new network' in `build`, because None means 'no network'."""


def systems() -> list[str]:
    """The names of all systems."""
    return sorted(_BY_NAME)


def system(name: str) -> Card:
    """The card of a system."""
    if name not in _BY_NAME:
        raise UserError(f"There is no system '{name}'.{nearest(name, _BY_NAME)}")
    return _BY_NAME[name]


def build(name: str, *, vocab_size: int, length: int, denoiser: "Denoiser | None" = FRESH, **options: Any) -> "Model":
    """A model of a system: with a fresh network, with a denoiser of your own, or (None) without any.

    Options are those of the network (width, depth, heads, dropout) and those of the system; see `options(name)`.
    """
    from logosphere.denoisers.network import Network
    from logosphere.model import Spec

    if vocab_size < 2:
        raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    builder, known = _builder(name), _options(name)
    for option in options:
        if option not in known:
            raise UserError(f"'{name}' has no option '{option}'.{nearest(option, known)}")
    network_fields = {f.name for f in fields(Network)}
    network = Network(**{key: value for key, value in options.items() if key in network_fields})
    own = {key: value for key, value in options.items() if key not in network_fields}
    model = builder(vocab_size, length, None if denoiser is None else network, **own)
    if denoiser is not FRESH:
        model.denoiser = denoiser
    model.spec = Spec(name, vocab_size, length, options)
    return model


def options(name: str) -> dict[str, Any]:
    """The options of a system with their defaults."""
    return dict(_options(name))


def _builder(name: str) -> Callable[..., "Model"]:
    module, function = system(name).builder.split(":")
    found: Callable[..., Model] = getattr(import_module(module), function)
    return found


def _options(name: str) -> dict[str, Any]:
    from logosphere.denoisers.network import Network

    own = {
        parameter.name: parameter.default
        for parameter in inspect.signature(_builder(name)).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return {f.name: f.default for f in fields(Network)} | own
