"""The error predictor of G-Star (Meshchaninov et al. 2025), which finds wrong tokens in a finished sequence."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.types import Float, State


class Remasker(nn.Module):
    """Predicts for each position the logit of "this token is wrong", with a few blocks like those of the denoiser.

    One block does nearly as well as a whole copy. The head starts at 0: until it is trained, all positions have the
    same logit, and G-Star is Star with exact counts.
    """

    def __init__(self, codec: Codec, length: int, network: NetworkConfig, depth: int = 1):
        super().__init__()
        if not 1 <= depth <= network.depth:
            raise UserError(f"A remasker has from 1 to {network.depth} blocks, as the network does, not {depth}.")
        self.stem = codec.stem(network.width)
        config = replace(network, depth=depth, labels=0, source=0, signal=0, body="transformer")
        self.trunk = Backbone(config, length, reads_time=False, reach=network.neighbours)
        self.head = LinearHead(network.width, 1)
        self.requires_grad_(False)  # it is trained separately

    def forward(self, z: State) -> Float[Tensor, "B L"]:
        logits: Tensor = self.head(self.trunk(self.stem(z)))
        return logits.squeeze(-1)

    @torch.no_grad()
    def inherit(self, stem: nn.Module, backbone: Backbone) -> None:
        """Copy the first blocks of a trained denoiser."""
        self.stem.load_state_dict(stem.state_dict())
        if self.trunk.neighbours is not None and backbone.neighbours is not None:
            self.trunk.neighbours.load_state_dict(backbone.neighbours.state_dict())
        for own, trained in zip(self.trunk.blocks, backbone.blocks, strict=False):
            own.load_state_dict(trained.state_dict())
