"""Where in time the bound is spent: bits per quantile of the law of time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.likelihood import ratio
from logosphere.model import Model
from logosphere.noise import Keyed, Noise
from logosphere.types import Batch


class Within(Noise):
    """Noise whose quantiles of time all lie between two of them."""

    def __init__(self, inner: Noise, low: float, high: float):
        self.inner, self.low, self.high, self.device = inner, low, high, inner.device

    def uniform(self, *shape: int) -> Tensor:
        return self.inner.uniform(*shape)

    def quantiles(self, draws: int, clocks: int) -> Tensor:
        return self.low + (self.high - self.low) * self.inner.quantiles(draws, clocks)


@dataclass(frozen=True)
class Slice:
    """Bits per token at quantiles between `low` and `high`, 0 being data; the mean over equal slices is the bound."""

    low: float
    high: float
    bits: float
    error: float


def integrand(
    model: Model,
    batches: Callable[[], Sequence[Batch]],
    *,
    slices: int,
    seed: int = 0,
    units_per_token: float = 1.0,
    watch: Callable[[Slice], None] = lambda slice: None,
) -> list[Slice]:
    """The bound as an integral over the quantiles of time, slice by slice from data to noise.

    There is nothing for exact likelihoods. `watch` is told of every slice as soon as it is known.
    """
    if model.process.kind == "exact":
        return []
    found, was_training = [], model.training
    scale = 1 / (math.log(2) * units_per_token)
    model.eval()
    try:
        falling = times_fall(model, batches()[0])
        for number in range(slices):
            low, high = number / slices, (number + 1) / slices
            within = (1 - high, 1 - low) if falling else (low, high)
            totals, counts = [], []
            for batch in batches():
                batch = batch.to(model.device)
                noise = Within(Keyed(seed, number, batch.ids, batch.place, batch.total), *within)
                with torch.no_grad():
                    bound = model.bound(batch, noise)
                totals.append(bound.total.double().cpu())
                counts.append(bound.count.cpu())
            value, error = ratio(torch.cat(totals), torch.cat(counts))
            found.append(Slice(low, high, scale * value, scale * error))
            watch(found[-1])
    finally:
        model.train(was_training)
    return found


def times_fall(model: Model, batch: Batch) -> bool:
    """Do times fall as w grows? A process may count the quantiles of its times from either end."""
    process, batch = model.process, batch.to(model.device)
    noise, free = Keyed(0, 0, batch.ids, batch.place, batch.total), process.codec.spread(batch.free)

    def time(quantile: float) -> float:
        w = torch.full((len(batch), model.length // model.block), quantile, dtype=torch.float64, device=model.device)
        return float(process.noised(process.encode(batch, noise).u, w, free, noise).t.mean())

    with torch.no_grad():
        return time(0.1) > time(0.9)
