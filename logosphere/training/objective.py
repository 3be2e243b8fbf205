"""What training differentiates: on one process, on several that add up their gradients, or on several that share out
weights, gradients and moments as well.
"""

import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logosphere.model import Model
from logosphere.noise import Noise
from logosphere.parallel.team import Team
from logosphere.types import Batch, Bound


class Objective(ABC):
    """The bound of a part of a batch. After the last part every process holds the mean gradient of its team."""

    @abstractmethod
    def __call__(self, batch: Batch, noise: Noise) -> Bound: ...

    @abstractmethod
    def part(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one part: gradients travel once a batch, not once a part."""

    def whole(self, tensor: Tensor) -> Tensor:
        """A parameter, or what was made of parameters, put together where it is shared out."""
        return tensor

    def own(self, tensor: Tensor) -> Tensor:
        """What this process has of a parameter."""
        return tensor


def objective(model: Model, team: Team, *, sharded: bool) -> Objective:
    """The objective of a model in a team; `sharded` changes the parameters of the model into shares of them."""
    if team.size == 1 or not any(p.requires_grad for p in model.parameters()):
        return Alone(model)
    return Sharded(model, team) if sharded else Replicated(model)


class Alone(Objective):
    """One process has it all."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


class Replicated(Objective):
    """Every process has all weights (DistributedDataParallel)."""

    def __init__(self, model: Model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a new name for an option, which older versions lack
            # Buffers need no synchronisation: all processes settle the same sums of what they have observed. Not every
            # parameter is used in every step, for example when all conditions of a batch are withheld.
            self.wrapped = DistributedDataParallel(_Call(model), broadcast_buffers=False, find_unused_parameters=True)

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        bound: Bound = self.wrapped(batch, noise)
        return bound

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class Sharded(Objective):
    """Every process keeps its share of the weights (FSDP2); those of a block are put together while it computes."""

    def __init__(self, model: Model, team: Team):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # slow to load, and seldom used

        mesh = init_device_mesh(model.device.type, (team.size,))  # torch itself would take a GPU wherever there is one
        for module in reversed(list(model.modules())):  # from the inside out, as stages hold blocks
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        # Weights are never left whole: whoever changes shares (the optimiser, averages) changes all there is.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        for method in ("bound", "figures"):
            register_fsdp_forward_method(model, method)
        self.model = model

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def whole(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def own(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Call(nn.Module):
    """The bound as a call, which is what torch can wrap."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)
