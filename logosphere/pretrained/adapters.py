"""The base weights of adapters: where they are, and how they are read into a network.

A run with adapters (networks/published/lora.py) saves what it trains and no more. Its recipe has the sha256 of the base
weights. They lie in the folder of the run as base.safetensors, a link to the file of the parent where the system has
links, or else where the recipe says they were.
"""

from pathlib import Path

import torch

from logosphere.errors import UserError
from logosphere.io import load_strict, read_tensors
from logosphere.model import Model, Spec
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.embedding import initialise_mask
from logosphere.networks.published.lora import LoRAConfig, add_adapters, frozen_names
from logosphere.networks.published.registry import build_network

BASE = "base.safetensors"
"""The base weights in the folder of a run with adapters."""
MASKS = ("embed.mask", "embedding.mask")
"""Names of the vector of masks, by layout."""


def build_adapted(spec: Spec, device: torch.device | str = "meta") -> PublishedNetwork:
    """The network of a specification, with its adapters if it has some."""
    network = build_network(PublishedConfig.from_dict(spec.published), device)
    if spec.adapters is not None:
        adapters = LoRAConfig.from_dict(spec.adapters)
        add_adapters(network, adapters.rank, adapters.alpha)
    return network


def find_base(folder: Path, adapters: LoRAConfig, *, trusted: bool) -> Path:
    """The file of the base weights of a run with adapters; its hash is checked when it is read."""
    recorded = Path(adapters.base)
    if (folder / BASE).exists():
        return folder / BASE
    if trusted and adapters.base and recorded.is_file():  # a stranger's path is not opened
        return recorded
    raise UserError(
        f"The base weights of the adapters in {folder} are missing; put the file with the sha256 "
        f"{adapters.base_sha256[:12]}… there as {BASE}."
    )


def published_network(model: Model) -> PublishedNetwork:
    """The network of a model in a published layout."""
    for module in model.modules():
        if isinstance(module, PublishedNetwork):
            return module
    raise UserError("This model has no network in a published layout.")


def load_base(model: Model, file: Path, sha256: str | None) -> None:
    """Read base weights into the network of a model: all that adapters leave frozen, and what else the file has.

    The file may be that of another system, whose denoiser has other names around the same network. A vector of masks
    that the base lacks begins as a row of its table. Frozen weights take the place of those of the network, with their
    own type; others are copied.
    """
    network = published_network(model)
    found = {name.partition("network.")[2]: tensor for name, tensor in read_tensors(file, sha256).items()}
    read = {name: tensor for name, tensor in found.items() if name}
    frozen, state = frozen_names(network), network.state_dict()
    own = {name for name in state if name not in frozen} if frozen else {*MASKS}
    load_strict(network, read, file, assign=bool(frozen), absent=own - read.keys())
    if not {*MASKS} & read.keys():
        initialise_mask(network, network.config.mask_id)
