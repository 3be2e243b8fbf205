"""The network classes of the published layouts, imported when one is built."""

from importlib import import_module

import torch

from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.config import PublishedConfig

CLASSES = {
    "ddit": "logosphere.networks.published.ddit:DDiT",
    "llama": "logosphere.networks.published.llama:Llama",
    "gpt2": "logosphere.networks.published.gpt2:GPT2",
}
"""Module and class of each layout."""


def build_network(config: PublishedConfig, device: torch.device | str = "cpu") -> PublishedNetwork:
    """A network of this size with random weights; on the device `meta` it has sizes and no memory."""
    module, _, name = CLASSES[config.layout].partition(":")
    with torch.device(device):
        network: PublishedNetwork = getattr(import_module(module), name)(config)
    return network
