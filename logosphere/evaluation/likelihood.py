"""Estimates of bounds over many sequences, with their standard error."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import CounterNoise
from logosphere.types import Batch, Float, Int64, Kind, Predict


@dataclass(frozen=True)
class Estimate:
    """Bounds of N sequences, in nats and float64."""

    recon: Float[Tensor, " N"]
    diffusion: Float[Tensor, " N"]
    prior: Float[Tensor, " N"]
    count: Int64[Tensor, " N"]
    kind: Kind

    @property
    def total(self) -> Float[Tensor, " N"]:
        return self.recon + self.diffusion + self.prior

    def per_token(self) -> tuple[float, float]:
        """Nats per token R = Σ total / Σ count and its standard error over sequences.

        The error is that of a ratio, from the residuals total - R·count. It includes the variance between sequences
        and that of the drawn times and noise; because times are stratified over the batch it is conservative.
        """
        return ratio_with_error(self.total, self.count)


def ratio_with_error(values: Float[Tensor, " N"], count: Tensor) -> tuple[float, float]:
    """Σ values / Σ count and its standard error."""
    mean = float(values.sum() / count.sum())
    n = len(values)
    if n < 2:
        return mean, float("nan")
    residuals = values - mean * count
    return mean, float((residuals.square().sum() * n / (n - 1)).sqrt() / count.sum())


def estimate_bounds(
    model: Model,
    batches: Iterable[Batch],
    *,
    draws: int,
    seed: int,
    predict: Predict | None = None,
    group: ProcessGroup = SINGLE,
) -> Iterator[Estimate]:
    """The estimate of each batch; noise depends on (seed, sample id) and not on the division into batches.

    The processes of a group divide the rows of each batch, and each gets the estimates of all rows.
    """
    training = model.training
    model.eval()
    try:
        for batch in batches:
            model.check_vocabulary(batch.tokens)
            model.check_known(batch.known)
            rows = len(batch)
            sharing = group if rows >= group.size else SINGLE  # every process needs at least one row
            part = batch.select(sharing.local_slice(rows)).to(model.device)
            noise = CounterNoise(seed, 0, part.ids, part.global_index, part.total)
            with torch.no_grad():
                bound = model.bound(part, noise, draws, predict)
            yield Estimate(
                sharing.all_gather(bound.recon.double().cpu(), rows),
                sharing.all_gather(bound.diffusion.double().cpu(), rows),
                sharing.all_gather(bound.prior.double().cpu(), rows),
                sharing.all_gather(bound.count.cpu(), rows),
                bound.kind,
            )
    finally:
        model.train(training)


def concatenate(parts: list[Estimate]) -> Estimate:
    """Estimates of several batches as one."""
    return Estimate(
        torch.cat([part.recon for part in parts]),
        torch.cat([part.diffusion for part in parts]),
        torch.cat([part.prior for part in parts]),
        torch.cat([part.count for part in parts]),
        parts[0].kind,
    )
