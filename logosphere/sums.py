"""Running sums that are the same every time."""

import torch
from torch import Tensor


def running_sum(values: Tensor, dim: int = -1) -> Tensor:
    """Σ_{j <= i} values_j along a dimension.

    GPUs add up in an order that chance decides, so that torch refuses to where determinism is asked for; there the sum
    is taken on the processor.
    """
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim).to(values.device)
    return values.cumsum(dim)
