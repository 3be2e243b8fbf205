"""A classifier of noisy states: log p(y | z_t), which steers what is written (sampling/guidance.py)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.tokens import TokenCodec
from logosphere.denoisers.network import Network
from logosphere.denoisers.trunk import Head, Trunk
from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.gaussian import Gaussian
from logosphere.processes.latent import Latent
from logosphere.shapes import Float
from logosphere.types import Predict, State, Times


class NoisyClassifier(nn.Module):
    """A few blocks over rows of numbers, and a logit for each class from the features of all positions.

    It reads rows and not states, so that it has a gradient with respect to each of them; which rows, `rows_of` tells.
    The head has weights for every position: blocks only know how far apart positions are, and a mean would forget where
    they are. Times are read where states do not show by themselves what is noise.
    """

    def __init__(self, process: Process, length: int, classes: int, network: Network | None = None):
        super().__init__()
        if classes < 2:
            raise UserError(f"A classifier needs at least 2 classes, not {classes}.")
        width, positions = _shape(process, length)
        network = replace(network or Network(width=96, depth=2, heads=4), labels=0, source=0, signal=0)
        self.network = network if positions == length else replace(network, shape="")  # digits, latents: no rows
        self.stem = nn.Linear(width, self.network.width, bias=False)
        nn.init.normal_(self.stem.weight, std=0.2)
        reads_time = isinstance(process.codec, TokenCodec) and process.needs_time
        self.trunk = Trunk(self.network, positions, reads_time=reads_time)
        self.head = Head(positions * self.network.width, classes)

    def forward(self, rows: Float[Tensor, "B M K"], t: Float[Tensor, "B M"] | None = None) -> Float[Tensor, "B C"]:
        logits: Tensor = self.head(self.trunk(self.stem(rows), t).flatten(1) / rows.shape[1] ** 0.5)
        return torch.log_softmax(logits, -1)


def rows_of(process: Process, predict: Predict | None, z: State, t: Times) -> Float[Tensor, "B M K"]:
    """What a classifier reads of noisy states.

    Of discrete ones themselves, one-hot. Of continuous ones what the network expects of them, the law of the tokens or
    the clean states: gradients with respect to these say what to write instead, and they show how much is still noise.
    """
    if isinstance(process.codec, TokenCodec):
        return F.one_hot(z, process.codec.states).float()
    if predict is None:
        raise UserError("A classifier of continuous states reads what a network expects; build the model with one.")
    out, path = predict(z, t, context=z), path_of_states(process)
    return out.softmax(-1) if path is None else path.clean(out, z, t)


def path_of_states(process: Process) -> Gaussian | None:
    """The Gaussian path of a process whose network answers with clean states; None where it answers with tokens."""
    path = process.path if isinstance(process, Latent) else process
    return path if isinstance(path, Gaussian) and path.predicts is not None else None


def _shape(process: Process, length: int) -> tuple[int, int]:
    """How many numbers `rows_of` gives for each state, and for how many states."""
    codec = process.codec
    positions = codec.spread(torch.zeros(length)).shape[-1]
    if isinstance(codec, TokenCodec):
        return codec.states, positions
    if isinstance(codec, Embeddings) and path_of_states(process) is not None:
        return codec.width, positions
    return codec.choices, positions
