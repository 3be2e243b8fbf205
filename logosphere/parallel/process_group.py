"""Process groups: processes that train or evaluate one model together, and what they communicate.

Every process computes its own part of each batch. Sums of losses, gradients and statistics are shared, decisions are
made from shared numbers, and only the main process writes. A single process needs no communication.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from logosphere.errors import UserError, plural, shorten
from logosphere.parallel.launch import PeerLost

T = TypeVar("T")
TIMEOUT = timedelta(days=7)
"""How long processes wait for the main one, which may tokenise a large text. A dead process is noticed at once."""
REASON = "why"
"""Key of the store under which a failing process leaves its reason."""
GPU_NAMES = ("gpu", "nvidia", "cuda", "hip", "rocm")
"""What is typed for 'cuda', which torch also calls the GPUs of AMD."""


class RemoteError(UserError):
    """Another process of the group has failed and reports why."""


@dataclass(frozen=True)
class ProcessGroup:
    """The place of this process in its group."""

    rank: int = 0
    size: int = 1
    waiting: Any = None
    """The torch process group for waits that may be long; by default the one for everything."""

    @property
    def is_main(self) -> bool:
        """Is this the process that writes files, logs and prints?"""
        return self.rank == 0

    def local_slice(self, rows: int) -> slice:
        """The rows that this process computes; slices differ by one row at most."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def all_reduce(self, *numbers: float | int) -> list[float]:
        """The sum of each number over the group, in float64."""
        if self.size == 1:
            return [float(number) for number in numbers]
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(number) for number in sums]

    def all_reduce_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """The rows of all processes, in their order; each holds its `local_slice` of `total` rows."""
        if self.size == 1:
            return rows
        whole = rows.new_zeros(total, *rows.shape[1:])
        whole[self.local_slice(total)] = rows
        dist.all_reduce(whole)  # parts may differ in size, which gathering does not allow; zeros change nothing
        return whole

    def broadcast(self, text: str) -> str:
        """The text of the main process."""
        if self.size == 1:
            return text
        texts = [text]
        dist.broadcast_object_list(texts)
        return texts[0]

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Do this in the main process while the others wait; if it fails, all fail."""
        if self.size == 1:
            return work()
        result: T | None = None
        problem: BaseException | None = None
        if self.is_main:
            try:
                result = work()
            except BaseException as raised:
                problem = raised
        failed = torch.tensor(float(problem is not None))
        dist.all_reduce(failed, group=self.waiting)
        if problem is not None:
            raise problem
        if failed.item():
            raise RemoteError("The main process has failed.")
        return result


SINGLE = ProcessGroup()


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """The process group that torchrun or `logosphere train --nproc` has set up in the environment, or a single one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield SINGLE
        return
    store, rank, size = next(iter(rendezvous("env://")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size)
    try:
        yield ProcessGroup(rank, size, dist.new_group(backend="gloo", timeout=TIMEOUT))
    except RemoteError:
        raise
    except UserError as problem:
        store.set(REASON, str(problem))  # without it the others only notice that this process has ended
        raise
    except RuntimeError as problem:
        if not _is_connection_lost(problem):
            raise
        if rank == 0 and store.check([REASON]):
            raise UserError(store.get(REASON).decode()) from None
        raise PeerLost(
            "Another process was killed or has failed. Saved checkpoints are complete; run this again, a training "
            "with --resume."
        ) from None
    finally:
        dist.destroy_process_group()


def _is_connection_lost(problem: RuntimeError) -> bool:
    """Could another process not be reached? gloo has no exception class of its own."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()


def find_device(name: str) -> torch.device:
    """A device by name; 'auto' takes a GPU where there is one, and of several processes each takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    device = _parse_device(name)
    if missing := _why_missing(device):
        raise UserError(f"The device '{name}' cannot be used here: {missing}; set the device to auto or cpu.")
    try:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # the default device, which FSDP uses
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as problem:
        reason = str(problem).splitlines()[0].partition(". ")[0].rstrip(".")
        if "aten::" in reason or isinstance(problem, ImportError):  # says nothing to those who do not know torch
            reason = "torch was installed without support for it"
        raise UserError(f"The device '{name}' cannot be used here ({reason}); set the device to auto or cpu.") from None
    return device


def _parse_device(name: str) -> torch.device:
    """The device of a name; tensors on torch's device 'meta' have no content, so it is none here."""
    try:
        device = torch.device(name)
        if device.type != "meta":
            return device
    except RuntimeError:
        pass  # the error below covers this, too
    hint = " Did you mean 'cuda'?" if name.lower().partition(":")[0] in GPU_NAMES else ""
    raise UserError(f"There is no device {shorten(name)}; choose auto, cpu, cuda, cuda:NUMBER, mps or xpu.{hint}")


def _why_missing(device: torch.device) -> str:
    """Why this machine lacks a device, in words for those who do not know its libraries; empty if it has it."""
    match device.type:
        case "cuda":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if not count:
                return "torch finds no GPU of NVIDIA or AMD, or was installed without support for it"
            return "" if (device.index or 0) < count else f"there are {plural(count, 'GPU')}, numbered from 0"
        case "mps" if not torch.backends.mps.is_available():
            return "it is the GPU of a Mac with Apple silicon, and torch finds none"
        case "xpu" if not torch.xpu.is_available():
            return "torch finds no GPU of Intel, or was installed without support for it"
        case _:
            return ""
