"""A classifier of noisy states, for guidance by edits (sampling/guidance.py): log p(y | z_t)."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import TokenCodec
from logosphere.denoisers.network import Network
from logosphere.denoisers.trunk import Head, Trunk
from logosphere.errors import UserError
from logosphere.shapes import Float


class NoisyClassifier(nn.Module):
    """A few blocks over one-hot rows and times, and a logit for each class from the features of all positions.

    It reads rows of numbers and not states, so that it has a gradient with respect to each of them. The head has
    weights for every position: blocks only know how far apart positions are, and a mean would forget where they are.
    """

    def __init__(self, codec: Codec, length: int, classes: int, network: Network | None = None):
        super().__init__()
        if not isinstance(codec, TokenCodec):
            raise UserError("A classifier of noisy states needs discrete diffusion such as mdlm or udlm.")
        if classes < 2:
            raise UserError(f"A classifier needs at least 2 classes, not {classes}.")
        network = replace(network or Network(width=96, depth=2, heads=4), labels=0, source=0, signal=0)
        self.states = codec.states
        self.stem = nn.Linear(codec.states, network.width, bias=False)
        nn.init.normal_(self.stem.weight, std=0.2)
        self.trunk = Trunk(network, length, reads_time=True)
        self.head = Head(length * network.width, classes)

    def forward(self, rows: Float[Tensor, "B L K"], t: Float[Tensor, "B L"]) -> Float[Tensor, "B C"]:
        logits: Tensor = self.head(self.trunk(self.stem(rows), t).flatten(1) / rows.shape[1] ** 0.5)
        return torch.log_softmax(logits, -1)
