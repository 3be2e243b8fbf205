"""Tasks: which positions of a training sequence are known and which are generated."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from logosphere.errors import UserError, suggest
from logosphere.rng import CounterNoise
from logosphere.types import Batch


class Task(ABC):
    """Marks the known positions of a batch, depending on the seed and the sample ids alone."""

    shortens: ClassVar[bool] = False
    """Whether it may shorten sequences."""

    @abstractmethod
    def apply(self, batch: Batch, seed: int) -> Batch:
        """The batch of this task."""


@dataclass(frozen=True)
class Unconditional(Task):
    """No position is known."""

    def apply(self, batch: Batch, seed: int) -> Batch:
        return batch


@dataclass(frozen=True)
class Continuation(Task):
    """A prefix of random length is known, in a `fraction` of the sequences."""

    fraction: float = 0.5

    def apply(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = CounterNoise(seed, 1, batch.ids, batch.global_index, batch.total).uniform(B, 2)
        ends = torch.where(u[:, :1] < self.fraction, (u[:, 1:] * L).long(), 0)
        return replace(batch, known=torch.arange(L) < ends)


@dataclass(frozen=True)
class Infilling(Task):
    """All but one span of random position and length is known, in a `fraction` of the sequences."""

    fraction: float = 0.5

    def apply(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = CounterNoise(seed, 1, batch.ids, batch.global_index, batch.total).uniform(B, 3)
        ends = (u[:, 1:] * (L + 1)).long().sort(1).values
        inside = (torch.arange(L) >= ends[:, :1]) & (torch.arange(L) < ends[:, 1:])
        chosen = (u[:, :1] < self.fraction) & inside.any(1, keepdim=True)
        return replace(batch, known=chosen & ~inside)


@dataclass(frozen=True)
class RandomLength(Task):
    """No position is known; in a `fraction` of the steps the batch is cut to a random length (Nie et al. 2025, LLaDA).

    A model trained on one length repeats itself under samplers that unmask by confidence.
    """

    shortens = True
    fraction: float = 0.01

    def apply(self, batch: Batch, seed: int) -> Batch:
        first = (batch.ids - batch.global_index)[:1]  # the same for all parts of a batch
        chance, position = CounterNoise(seed, 2, first, torch.zeros_like(first), 1).uniform(1, 2)[0].tolist()
        end = 1 + int(position * batch.tokens.shape[1]) if chance < self.fraction else batch.tokens.shape[1]
        if end == batch.tokens.shape[1]:
            return batch
        condition, count = batch.condition, batch.token_count
        if condition is not None and condition.signal is not None:
            condition = replace(condition, signal=condition.signal[:, :end])
        return replace(
            batch,
            tokens=batch.tokens[:, :end],
            known=batch.known[:, :end],
            valid=batch.valid[:, :end],
            condition=condition,
            token_count=None if count is None else count.clamp_max(end),
        )


TASKS: dict[str, Task] = {
    "unconditional": Unconditional(),
    "continuation": Continuation(),
    "infilling": Infilling(),
    "varied": RandomLength(),
}


def find_task(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}'.{suggest(name, TASKS)}")
    return TASKS[name]
