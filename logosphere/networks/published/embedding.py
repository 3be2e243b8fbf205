"""The table of tokens of a published network, and a vector for masks that are no row of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.published.config import PublishedConfig
from logosphere.types import Float, Int64


class MaskEmbedding(nn.Embedding):
    """A table of tokens, and the vector of the id after its last row, which stands for masks.

    The table keeps the shape that it has in the autoregressive source, so that the head, which may be the same table,
    computes what it did there.
    """

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.mask = nn.Parameter(torch.zeros(width))

    def forward(self, input: Int64[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
        x = F.embedding(input.clamp_max(self.num_embeddings - 1), self.weight)
        return torch.where((input == self.num_embeddings)[..., None], self.mask.to(x.dtype), x)


def token_embedding(config: PublishedConfig) -> nn.Embedding:
    """The table of a network, with a vector for masks where they have one of their own."""
    return (MaskEmbedding if config.mask_vector else nn.Embedding)(config.rows, config.width)


@torch.no_grad()
def initialise_mask(network: nn.Module, row: int | None) -> None:
    """Begin the vector of masks as this row of the table, or as the mean of all rows."""
    for part in network.modules():
        if isinstance(part, MaskEmbedding):
            start = part.weight.float().mean(0) if row is None else part.weight[row].float()
            part.mask = nn.Parameter(start.clone())
