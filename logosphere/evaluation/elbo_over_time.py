"""The bound over time: its bits per bin of the quantiles of the time distribution."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.evaluation.likelihood import ratio_with_error
from logosphere.model import Model
from logosphere.rng import CounterNoise, Noise
from logosphere.types import Batch


class TimeRestrictedNoise(Noise):
    """Noise whose time quantiles all lie between `low` and `high`."""

    def __init__(self, inner: Noise, low: float, high: float):
        self.inner, self.low, self.high, self.device = inner, low, high, inner.device

    def uniform(self, *shape: int) -> Tensor:
        return self.inner.uniform(*shape)

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        return self.low + (self.high - self.low) * self.inner.low_discrepancy_times(draws, blocks)


@dataclass(frozen=True)
class TimeBin:
    """Bits per token at quantiles between `low` and `high`, 0 being data; the mean over equal bins is the bound."""

    low: float
    high: float
    bits: float
    error: float


def elbo_over_time(
    model: Model,
    batches: Callable[[], Sequence[Batch]],
    *,
    bins: int,
    seed: int = 0,
    units_per_token: float = 1.0,
    watch: Callable[[TimeBin], None] = lambda time_bin: None,
) -> list[TimeBin]:
    """The bound as an integral over the quantiles of time, bin by bin from data to noise.

    Exact likelihoods have no bins. `watch` is called with every bin as soon as it is computed.
    """
    if model.process.kind == "exact":
        return []
    found, was_training = [], model.training
    scale = 1 / (math.log(2) * units_per_token)
    model.eval()
    try:
        decreasing = has_decreasing_times(model, batches()[0])
        for number in range(bins):
            low, high = number / bins, (number + 1) / bins
            quantiles = (1 - high, 1 - low) if decreasing else (low, high)
            totals, counts = [], []
            for batch in batches():
                batch = batch.to(model.device)
                noise = TimeRestrictedNoise(
                    CounterNoise(seed, number, batch.ids, batch.global_index, batch.total), *quantiles
                )
                with torch.no_grad():
                    bound = model.bound(batch, noise)
                totals.append(bound.total.double().cpu())
                counts.append(bound.count.cpu())
            value, error = ratio_with_error(torch.cat(totals), torch.cat(counts))
            found.append(TimeBin(low, high, scale * value, scale * error))
            watch(found[-1])
    finally:
        model.train(was_training)
    return found


def has_decreasing_times(model: Model, batch: Batch) -> bool:
    """Whether times decrease as the quantile w grows; a process may order its quantiles either way."""
    process, batch = model.process, batch.to(model.device)
    noise, free = CounterNoise(0, 0, batch.ids, batch.global_index, batch.total), process.codec.spread(batch.free)

    def time(quantile: float) -> float:
        w = torch.full((len(batch), model.length // model.block), quantile, dtype=torch.float64, device=model.device)
        return float(process.sample_zt(process.encode(batch, noise).u, w, free, noise).t.mean())

    with torch.no_grad():
        return time(0.1) > time(0.9)
