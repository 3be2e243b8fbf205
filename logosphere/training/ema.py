"""A running average of the weights, which predicts better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """θ̄ <- d θ̄ + (1 - d) θ with d = min(decay, (1 + n)/(10 + n)), so that early weights are soon forgotten."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.live: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.shadow = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.shadow, self.live, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Swap the live weights and the average."""
        for live, shadow in zip(self.live, self.shadow, strict=True):
            kept = live.clone()
            live.copy_(shadow)
            shadow.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module holds its averaged weights inside this block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """The state of the module as it would be with averaged weights."""
        with self.applied():
            return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
