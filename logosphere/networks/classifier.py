"""A classifier of noisy states, log p(y | z_t), for classifier guidance (sampling/guidance.py)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.processes.base import Process
from logosphere.processes.gaussian.diffusion import GaussianDiffusion
from logosphere.shapes import Float
from logosphere.types import Predict, State, Times


class NoisyClassifier(nn.Module):
    """A small backbone over one vector per position, and a linear head over the features of all positions.

    It reads vectors (`classifier_input`) and not states, so that gradients with respect to them exist. The head has
    separate weights for every position: attention knows relative positions only, and a mean would lose absolute ones.
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
        reads_time = isinstance(process.codec, TokenCodec) and process.time_conditional
        self.trunk = Backbone(self.network, positions, reads_time=reads_time)
        self.head = LinearHead(positions * self.network.width, classes)

    def forward(self, rows: Float[Tensor, "B M K"], t: Float[Tensor, "B M"] | None = None) -> Float[Tensor, "B C"]:
        logits: Tensor = self.head(self.trunk(self.stem(rows), t).flatten(1) / rows.shape[1] ** 0.5)
        return torch.log_softmax(logits, -1)


def classifier_input(process: Process, predict: Predict | None, z: State, t: Times) -> Float[Tensor, "B M K"]:
    """Return the input of a classifier for noisy states.

    For discrete states they are one-hot vectors. For continuous ones they are the denoiser's prediction, token
    probabilities or clean states: their gradients tell how to change the prediction, and they show the noise level.
    """
    if isinstance(process.codec, TokenCodec):
        return F.one_hot(z, process.codec.states).float()
    if predict is None:
        raise UserError("A classifier of continuous states reads what a network expects; build the model with one.")
    out, path = predict(z, t, context=z), state_path(process)
    return out.softmax(-1) if path is None else path.predict_x0(out, z, t)


def state_path(process: Process) -> GaussianDiffusion | None:
    """Return the Gaussian path of a process whose network predicts clean states; None if it predicts tokens."""
    return process if isinstance(process, GaussianDiffusion) and process.predicts_states else None


def _shape(process: Process, length: int) -> tuple[int, int]:
    """Return the width of `classifier_input` and its number of positions."""
    codec = process.codec
    positions = codec.spread(torch.zeros(length)).shape[-1]
    if isinstance(codec, TokenCodec):
        return codec.states, positions
    if isinstance(codec, Embeddings) and state_path(process) is not None:
        return codec.width, positions
    return codec.choices, positions
