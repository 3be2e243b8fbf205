"""Auxiliary networks: a classifier of noisy states log p(y | z_t) for guidance, and the error predictor of G-Star."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.processes.base import Process
from logosphere.types import Float, Predict, State, Times


class NoisyClassifier(nn.Module):
    """A small backbone over one vector per position, and a linear head over the features of all positions.

    It reads vectors (`classifier_input`) and not states, so that gradients with respect to them exist. The head has
    separate weights for every position, because attention uses relative positions only.
    The time is an input where the states do not show by themselves how noisy they are.
    """

    def __init__(self, process: Process, length: int, classes: int, network: NetworkConfig | None = None):
        super().__init__()
        if classes < 2:
            raise UserError(f"A classifier needs at least 2 classes, not {classes}.")
        width, positions = _shape(process, length)
        network = replace(network or NetworkConfig(width=96, depth=2, heads=4), labels=0, source=0, signal=0)
        if positions != length:  # digits and latents have no image shape
            network = replace(network, shape="")
        self.network = network
        self.stem = nn.Linear(width, self.network.width, bias=False)
        nn.init.normal_(self.stem.weight, std=0.2)
        reads_time = process.codec.is_discrete and process.time_conditional
        self.trunk = Backbone(self.network, positions, reads_time=reads_time)
        self.head = LinearHead(positions * self.network.width, classes)

    def forward(self, rows: Float[Tensor, "B M K"], t: Float[Tensor, "B M"] | None = None) -> Float[Tensor, "B C"]:
        logits: Tensor = self.head(self.trunk(self.stem(rows), t).flatten(1) / rows.shape[1] ** 0.5)
        return torch.log_softmax(logits, -1)


def classifier_input(process: Process, predict: Predict | None, z: State, t: Times) -> Float[Tensor, "B M K"]:
    """Return the input of a classifier for noisy states.

    For discrete states they are one-hot vectors. For continuous ones they are the denoiser's prediction, token
    probabilities or clean states: gradients with respect to them guide the prediction, and they show the noise level.
    """
    if isinstance(process.codec, TokenCodec):
        return F.one_hot(z, process.codec.states).float()
    if predict is None:
        raise UserError("A classifier of continuous states needs the predictions of a denoiser; build one.")
    out, path = predict(z, t, context=z), process.state_path
    return out.softmax(-1) if path is None else path.predict_x0(out, z, t)


def _shape(process: Process, length: int) -> tuple[int, int]:
    """Return the width of `classifier_input` and its number of positions."""
    codec = process.codec
    positions = codec.expand_to_states(torch.zeros(length)).shape[-1]
    if isinstance(codec, TokenCodec):
        return codec.states, positions
    if isinstance(codec, Embeddings) and process.state_path is not None:
        return codec.width, positions
    return codec.num_classes, positions


class Remasker(nn.Module):
    """Predicts for each position the logit of "this token is wrong", with a few blocks like those of the denoiser.

    One block does nearly as well as a whole copy. The head starts at 0: until it is trained, all positions have the
    same logit, and G-Star is Star with exact counts.
    """

    def __init__(self, codec: Codec, length: int, network: NetworkConfig, depth: int = 1):
        super().__init__()
        if not 1 <= depth <= network.depth:
            raise UserError(f"A remasker has from 1 to {network.depth} blocks, as the network does, not {depth}.")
        self.stem = codec.build_stem(network.width)
        config = replace(network, depth=depth, decoder_depth=None, labels=0, source=0, signal=0, body="transformer")
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
