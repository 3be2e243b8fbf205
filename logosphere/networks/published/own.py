"""The DDiT as a network that is trained here: body=ddit, whose weights can be written under the published names."""

from torch import nn

from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.ddit import DDiT
from logosphere.networks.published.denoiser import PublishedDenoiser
from logosphere.networks.registry import NetworkShape

CONDITION_WIDTH = 128
"""Features of the embedded time, as in all published networks."""
EMBEDDING_STD = 0.02


def build_ddit(shape: NetworkShape, network: NetworkConfig) -> PublishedDenoiser:
    """A DDiT over the tokens and, if there is one, the mask, which is the last row of the table."""
    if not shape.reads_ids or shape.outputs not in (shape.inputs, shape.inputs - 1):
        raise UserError(
            "body=ddit reads token ids and predicts tokens, and the states of this system are of another kind; use "
            "body=transformer."
        )
    config = PublishedConfig(
        layout="ddit",
        rows=shape.inputs,
        width=network.width,
        depth=network.depth,
        heads=network.heads,
        kv_heads=network.heads,
        head_width=network.width // network.heads,
        inner=4 * network.width,
        positions=shape.positions,
        mask_id=shape.outputs if shape.inputs > shape.outputs else None,
        reads="time" if shape.reads_time else "zero",
        condition_width=CONDITION_WIDTH,
    )
    made = DDiT(config, network.dropout)
    initialise(made)
    return PublishedDenoiser(made, shape.outputs, shape.positions, shape.positions)


def initialise(network: DDiT) -> None:
    """Draw initial weights: modulations and the head begin at 0, so that blocks do (adaLN-zero)."""
    assert isinstance(network.embedding, nn.Embedding)
    nn.init.normal_(network.embedding.weight, std=EMBEDDING_STD)
    zero = [network.out, network.modulation, *(block.modulation for block in network.blocks)]
    for layer in zero:
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
