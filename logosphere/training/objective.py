"""What training differentiates, on one process or on several that add up their gradients."""

import warnings
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from logosphere.model import Model
from logosphere.noise import Noise
from logosphere.parallel.team import Team
from logosphere.types import Batch, Bound


class Objective(nn.Module):
    """The bound as a call, which is what torch can wrap."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)


class Shared:
    """The objective of a team: after the last part of a batch every process holds the mean gradient of all."""

    def __init__(self, model: Model, team: Team):
        self.plain = Objective(model)
        self.wrapped: DistributedDataParallel | None = None
        if team.size > 1 and any(p.requires_grad for p in model.parameters()):
            self.wrapped = _wrapped(self.plain)

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        bound: Bound = (self.wrapped or self.plain)(batch, noise)
        return bound

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one part: gradients travel once a batch, not once a part."""
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()


def _wrapped(objective: Objective) -> DistributedDataParallel:
    """Buffers are no business of torch's, because all processes settle the same sums of what they have observed.

    Not every parameter is used in every step, for example when all conditions of a batch are withheld.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a new name for this option, which older versions lack
        return DistributedDataParallel(objective, broadcast_buffers=False, find_unused_parameters=True)
