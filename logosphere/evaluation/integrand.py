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
    """Bits per token at quantiles between `low` and `high`, counted from data to noise; their mean is the bound."""

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
    """The bound as an integral over the quantile w of time, slice by slice; nothing for exact likelihoods.

    `watch` is told of every slice as soon as it is known.
    """
    if model.process.kind == "exact":
        return []
    found, was_training = [], model.training
    scale = 1 / (math.log(2) * units_per_token)
    model.eval()
    try:
        turned = from_noise(model, next(iter(batches())))
        for number in range(slices):
            low, high = number / slices, (number + 1) / slices
            totals, counts = [], []
            for batch in batches():
                batch = batch.to(model.device)
                inner = Keyed(seed, number, batch.ids, batch.place, batch.total)
                noise = Within(inner, 1 - high, 1 - low) if turned else Within(inner, low, high)
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


@torch.no_grad()
def from_noise(model: Model, batch: Batch) -> bool:
    """Do the quantiles of this process run from noise to data, as on the sphere, rather than from data to noise?"""
    process, batch = model.process, batch.to(model.device)
    noise = Keyed(0, 0, batch.ids, batch.place, batch.total)
    u, _, _ = process.encode(batch, noise)
    free, w = process.codec.spread(batch.free), noise.quantiles(1, model.length // model.block)[:, 0]
    early, late = (float(process.noised(u, torch.full_like(w, at), free, noise).t.mean()) for at in (0.1, 0.9))
    return early > late
