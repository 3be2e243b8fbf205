"""The registry of networks, most of them from outside of the package; it does not import torch.

A registered network is chosen by its name as the option `body` of any system (`--network.body NAME`), so that recipes
name it and saved models are loaded again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from logosphere.errors import UserError
from logosphere.plugins import check_name, load_plugins, place_of

if TYPE_CHECKING:
    from torch import nn

    from logosphere.networks.config import NetworkConfig


@dataclass(frozen=True)
class NetworkShape:
    """What a network reads and predicts; it depends on the system."""

    positions: int
    """The number of states of a sequence, M: of tokens, digits or latents."""
    inputs: int
    """The number of values of a token id, the mask among them; or the features of a state that is a vector."""
    outputs: int
    """The numbers to predict at each position: the logits of the tokens, or the features of a state."""
    reads_ids: bool
    """Whether states are token ids [B, M]; otherwise they are vectors [B, M, inputs]."""
    reads_time: bool
    """Whether the prediction may depend on the times; otherwise they are all 0."""


BuildNetwork = Callable[[NetworkShape, "NetworkConfig"], "nn.Module"]
"""A class or function: (shape, size and options) -> a module with forward(z, t) -> predictions [B, M, outputs]."""
Built = TypeVar("Built", bound=BuildNetwork)


@dataclass(frozen=True)
class NetworkEntry:
    """A registered network."""

    place: str
    """The module and name of what builds it."""
    build: BuildNetwork


def _build_ddit(shape: NetworkShape, network: "NetworkConfig") -> "nn.Module":
    from logosphere.networks.published.own import build_ddit  # imports torch

    return build_ddit(shape, network)


NETWORKS = {"ddit": NetworkEntry("logosphere.networks.published.own.build_ddit", _build_ddit)}
"""Registered networks by name; that of the package is the transformer of published models."""
BUILT_IN = ("transformer", "convolution", "unet")


def register_network(name: str) -> Callable[[Built], Built]:
    """A decorator that registers a network, which is then a choice for the option `body` of every system.

    It decorates a class of modules or a function, called with a `NetworkShape` and a `NetworkConfig`.
    """

    def add(build: Built) -> Built:
        if not callable(build):
            raise UserError(f"A network is registered by a class or function that builds it, not by {build!r}.")
        place = place_of(build)
        taken = dict.fromkeys(BUILT_IN, "logosphere") | {key: entry.place for key, entry in NETWORKS.items()}
        check_name("network", name, place, taken)
        NETWORKS[name] = NetworkEntry(place, build)
        return build

    return add


def is_registered(body: str) -> bool:
    """Whether this body is a registered network; transformer, convolution and unet are not."""
    if body not in BUILT_IN and body not in NETWORKS:
        load_plugins()
    return body in NETWORKS
