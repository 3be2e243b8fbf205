"""The training objective in one process, in several that average gradients (DDP), or that shard all state (FSDP)."""

import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logosphere.model import Model
from logosphere.noise import Noise
from logosphere.parallel.process_group import ProcessGroup
from logosphere.types import Batch, Bound


class Objective(ABC):
    """The bound of a part of a batch. After the last part every process holds the mean gradient of all."""

    @abstractmethod
    def __call__(self, batch: Batch, noise: Noise) -> Bound: ...

    @abstractmethod
    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one part: gradients are synchronised with the last part only."""

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """A parameter, or a value computed from parameters, gathered where it is sharded."""
        return tensor

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """The shard of a parameter that this process holds."""
        return tensor


def objective(model: Model, group: ProcessGroup, *, sharded: bool) -> Objective:
    """The objective of a model in a process group; `sharded` replaces the parameters of the model by shards."""
    if group.size == 1 or not any(p.requires_grad for p in model.parameters()):
        return SingleProcess(model)
    return FSDP(model, group) if sharded else DDP(model)


class SingleProcess(Objective):
    """One process holds everything."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


class DDP(Objective):
    """Every process has all weights (DistributedDataParallel)."""

    def __init__(self, model: Model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a new name for an option, which older versions lack
            # Buffers need no synchronisation: all processes update their statistics by the same sums. Not every
            # parameter is used in every step, for example when all conditions of a batch are withheld.
            self.wrapped = DistributedDataParallel(_Call(model), broadcast_buffers=False, find_unused_parameters=True)

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        bound: Bound = self.wrapped(batch, noise)
        return bound

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class FSDP(Objective):
    """Every process keeps a shard of the weights (FSDP2); those of a block are gathered while it computes."""

    def __init__(self, model: Model, group: ProcessGroup):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # slow to load, and seldom used

        mesh = init_device_mesh(model.device.type, (group.size,))  # torch itself would take a GPU wherever there is one
        for module in reversed(list(model.modules())):  # from the inside out, as stages hold blocks
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        # Weights are never left whole: whoever changes shares (the optimiser, averages) changes all there is.
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        for method in ("bound", "metrics"):
            register_fsdp_forward_method(model, method)
        self.model = model

    def __call__(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def local_tensor(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Call(nn.Module):
    """The bound as a call, which is what torch can wrap."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)
