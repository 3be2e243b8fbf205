"""Tasks: which positions of a training sequence are given and which are to be written."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from logosphere.errors import UserError, nearest
from logosphere.noise import Keyed
from logosphere.types import Batch


class Task(ABC):
    """Marks known positions in a batch, by a seed and the samples' numbers."""

    cuts: ClassVar[bool] = False
    """Does it make sequences shorter, now and then?"""

    @abstractmethod
    def pose(self, batch: Batch, seed: int) -> Batch: ...


@dataclass(frozen=True)
class Unconditional(Task):
    """Nothing is given."""

    def pose(self, batch: Batch, seed: int) -> Batch:
        return batch


@dataclass(frozen=True)
class Continuation(Task):
    """A start of random length is given, in `share` of the sequences."""

    share: float = 0.5

    def pose(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = Keyed(seed, 1, batch.ids, batch.place, batch.total).uniform(B, 2)
        ends = torch.where(u[:, :1] < self.share, (u[:, 1:] * L).long(), 0)
        return replace(batch, known=torch.arange(L) < ends)


@dataclass(frozen=True)
class Infilling(Task):
    """All but one span of random place and length is given, in `share` of the sequences."""

    share: float = 0.5

    def pose(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = Keyed(seed, 1, batch.ids, batch.place, batch.total).uniform(B, 3)
        ends = (u[:, 1:] * (L + 1)).long().sort(1).values
        inside = (torch.arange(L) >= ends[:, :1]) & (torch.arange(L) < ends[:, 1:])
        chosen = (u[:, :1] < self.share) & inside.any(1, keepdim=True)
        return replace(batch, known=chosen & ~inside)


@dataclass(frozen=True)
class Varied(Task):
    """Nothing is given; in `share` of the steps the whole batch is cut to a random length (Nie et al. 2025, LLaDA).

    A model that has only seen one length repeats itself where confidence decides what comes next.
    """

    cuts = True
    share: float = 0.01

    def pose(self, batch: Batch, seed: int) -> Batch:
        first = (batch.ids - batch.place)[:1]  # the same for all parts of a batch
        chance, place = Keyed(seed, 2, first, torch.zeros_like(first), 1).uniform(1, 2)[0].tolist()
        end = 1 + int(place * batch.tokens.shape[1]) if chance < self.share else batch.tokens.shape[1]
        if end == batch.tokens.shape[1]:
            return batch
        told, units = batch.condition, batch.units
        return replace(
            batch,
            tokens=batch.tokens[:, :end],
            known=batch.known[:, :end],
            valid=batch.valid[:, :end],
            condition=told if told is None or told.signal is None else replace(told, signal=told.signal[:, :end]),
            units=None if units is None else units.clamp_max(end),
        )


TASKS: dict[str, Task] = {
    "unconditional": Unconditional(),
    "continuation": Continuation(),
    "infilling": Infilling(),
    "varied": Varied(),
}


def task(name: str) -> Task:
    """A task by its name, for recipes."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}'.{nearest(name, TASKS)}")
    return TASKS[name]
