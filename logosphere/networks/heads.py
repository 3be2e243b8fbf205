"""Output heads: from the features of a position to logits, by weights of its own or by the embeddings of the tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.types import Float

LARGE_VOCABULARY = 1024
"""Logits from which the head computes in the precision of the network; below, float32 costs little."""


class LinearHead(nn.Linear):
    """Maps features to logits; its weights start at zero, which is a uniform prediction.

    Logits are float32. In networks of lower precision the product of a large vocabulary is computed in that precision.
    """

    def __init__(self, width: int, vocab_size: int):
        super().__init__(width, vocab_size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return project(h, self.weight, self.bias)


class TiedHead(nn.Module):
    """logits = s h Eᵀ + b with the input vectors E of the tokens (Press and Wolf 2017, tied embeddings).

    The scale s starts at 1/√D, so that first predictions are nearly uniform. A head of its own learns what each token
    means from its predictions alone; a tied one also learns it from the positions that read the token.
    """

    def __init__(self, width: int, vocab_size: int):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, h: Float[Tensor, "... D"], rows: Float[Tensor, "V D"]) -> Float[Tensor, "... V"]:
        return project(h * self.scale, rows, self.bias)


def project(
    h: Float[Tensor, "... D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"]
) -> Float[Tensor, "... V"]:
    """Return float32 logits; a large vocabulary is computed in the precision of the network."""
    if len(weight) >= LARGE_VOCABULARY:
        return F.linear(h, weight, bias).float()
    with torch.autocast(h.device.type, enabled=False):
        return F.linear(h.float(), weight, bias)


def build_head(width: int, vocab_size: int, *, tied: bool) -> LinearHead | TiedHead:
    """Return the output head of a network."""
    return TiedHead(width, vocab_size) if tied else LinearHead(width, vocab_size)
