"""A team of processes that work on one model, and the few things they tell each other.

Every process makes its own part of each batch. Sums of losses, gradients and observations are shared, decisions are
made from shared numbers, and only the first process writes. A team of one needs no network and no library for it.
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

from logosphere.errors import UserError
from logosphere.parallel.launch import Deserted

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long the team waits for its first process, which may tokenise a large text. Who dies is noticed at once."""
WHY = "why"
"""Where the team finds the reason of a process that gives up alone."""


class FailedElsewhere(UserError):
    """Another process of the team has failed and says why."""


@dataclass(frozen=True)
class Team:
    """The place of this process in its team."""

    rank: int = 0
    size: int = 1
    waiting: Any = None
    """The group of processes for waits that may be long; by default the one for everything."""

    @property
    def leads(self) -> bool:
        """Is this the process that writes, logs and shows?"""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The rows of this process; parts differ by one row at most."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def total(self, *numbers: float | int) -> list[float]:
        """The sum of each number over the team, in float64."""
        if self.size == 1:
            return [float(number) for number in numbers]
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(number) for number in sums]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over the team into each of these tensors."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def joined(self, rows: Tensor, total: int) -> Tensor:
        """The rows of all processes, in their order; each has its `share` of `total` rows."""
        if self.size == 1:
            return rows
        whole = rows.new_zeros(total, *rows.shape[1:])
        whole[self.share(total)] = rows
        dist.all_reduce(whole)  # parts may differ in size, which gathering does not allow; zeros change nothing
        return whole

    def told(self, text: str) -> str:
        """What the first process says."""
        if self.size == 1:
            return text
        said = [text]
        dist.broadcast_object_list(said)
        return said[0]

    def first(self, work: Callable[[], T]) -> T | None:
        """Let the first process do this while the others wait; if it fails, all fail."""
        if self.size == 1:
            return work()
        result: T | None = None
        problem: BaseException | None = None
        if self.leads:
            try:
                result = work()
            except BaseException as raised:
                problem = raised
        failed = torch.tensor(float(problem is not None))
        dist.all_reduce(failed, group=self.waiting)
        if problem is not None:
            raise problem
        if failed.item():
            raise FailedElsewhere("The first process has failed.")
        return result


ALONE = Team()


@contextmanager
def assembled() -> Iterator[Team]:
    """The team that torchrun or `logosphere train --nproc` has set up in the environment; alone otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    store, rank, size = next(iter(rendezvous("env://")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=PrefixStore("team", store), rank=rank, world_size=size)
    try:
        yield Team(rank, size, dist.new_group(backend="gloo", timeout=PATIENCE))
    except FailedElsewhere:
        raise
    except UserError as problem:
        store.set(WHY, str(problem))  # the others will only see that we are gone
        raise
    except RuntimeError as problem:
        if not _lost(problem):
            raise
        if rank == 0 and store.check([WHY]):
            raise UserError(store.get(WHY).decode()) from None
        raise Deserted(
            "Another process of the team was killed or has failed. What was saved is whole; run this again, a training "
            "with --resume."
        ) from None
    finally:
        dist.destroy_process_group()


def _lost(problem: RuntimeError) -> bool:
    """Does this say that another process could not be reached? gloo has no kind of exception of its own."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()
