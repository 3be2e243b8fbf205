"""The training objective in one process, in several that average gradients (DDP), or that shard all state (FSDP)."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.noise import Noise
from logosphere.parallel.process_group import ProcessGroup
from logosphere.types import Batch, Bound


class Objective(ABC):
    """The bound of a part of a batch. After the last part every process holds the mean gradient of all."""

    bound: Callable[[Batch, Noise], Bound]
    """`Model.bound`, wrapped where gradients are synchronised."""

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
    if not sharded:
        return DDP(model)
    fsdp: Objective = sharding().FSDP(model, group)
    return fsdp


class SingleProcess(Objective):
    """One process holds everything."""

    def __init__(self, model: Model):
        self.bound = model.bound

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


class DDP(Objective):
    """Every process has all weights (DistributedDataParallel)."""

    def __init__(self, model: Model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a new name for an option, which older versions lack
            # Buffers need no synchronisation: all processes update their statistics by the same sums. Not every
            # parameter is used in every step, for example when all conditions of a batch are dropped.
            wrapped = DistributedDataParallel(_Call(model), broadcast_buffers=False, find_unused_parameters=True)
        self.bound, self.wrapped = wrapped, wrapped

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class _Call(nn.Module):
    """The bound as a call, which is what torch can wrap."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, noise: Noise) -> Bound:
        return self.model.bound(batch, noise)


def sharding() -> ModuleType:
    """The module for sharded weights and checkpoints, which is slow to import and seldom used."""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        from logosphere.training import sharded
    except ImportError:
        raise UserError(_NO_SHARDS) from None
    if "save_distributed" not in inspect.signature(HuggingFaceStorageWriter).parameters:
        raise UserError(_NO_SHARDS)
    return sharded


_NO_SHARDS = f"torch {torch.__version__} cannot save shards as safetensors; install a newer one, or leave out --shard."
