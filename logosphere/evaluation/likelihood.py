"""Estimates of the bound with standard errors, the bound over time, and the information in latents."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from logosphere.codecs.base import Autoencoder
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.finite import REMEDY, first_place
from logosphere.networks.precision import casts_kept, find_precision, with_precision
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import CounterNoise, Noise, as_generator
from logosphere.types import Batch, Bool, Bound, Float, Int64, Kind, Predict


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
    precision: str = "float32",
    group: ProcessGroup = SINGLE,
) -> Iterator[Estimate]:
    """The estimate of each batch; noise depends on (seed, sample id) and not on the division into batches."""

    def measure(batch: Batch, predict: Predict) -> Bound:
        return model.bound(batch, CounterNoise(seed, 0, batch.ids, batch.global_index, batch.total), draws, predict)

    return estimate_each(model, batches, measure, predict=predict, precision=precision, group=group)


def estimate_each(
    model: Model,
    batches: Iterable[Batch],
    measure: Callable[[Batch, Predict], Bound],
    *,
    predict: Predict | None = None,
    precision: str = "float32",
    group: ProcessGroup = SINGLE,
) -> Iterator[Estimate]:
    """What `measure` finds for each batch with the denoiser of the model, or with `predict` in its place.

    The network computes in `precision` (networks/precision.py). The processes of a group divide the rows of each
    batch, and each gets the estimates of all rows.
    """
    training, dtype = model.training, find_precision(precision, model.network_device)
    predict = model.denoiser if predict is None else predict
    if predict is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    predict = with_precision(predict, dtype)
    model.eval()
    try:
        for batch in batches:
            model.check_vocabulary(batch.tokens)
            model.check_known(batch.known)
            rows = len(batch)
            sharing = group if rows >= group.size else SINGLE  # every process needs at least one row
            part = batch.select(sharing.local_slice(rows)).to(model.device)
            with torch.no_grad(), casts_kept(dtype, model.device):
                bound = measure(part, predict)
                if not is_known(bound.total):
                    place = first_place(predict, partial(measure, part, predict))
                    if place or bool(bound.total.isnan().any()):
                        raise UserError(
                            f"The likelihood of {count_unknown(bound.total)} of {len(part)} sequences is not a finite "
                            f"number{place}; {REMEDY}."
                        )
            yield Estimate(
                sharing.all_gather(bound.recon.double().cpu(), rows),
                sharing.all_gather(bound.diffusion.double().cpu(), rows),
                sharing.all_gather(bound.prior.double().cpu(), rows),
                sharing.all_gather(bound.count.cpu(), rows),
                bound.kind,
            )
    finally:
        model.train(training)


def is_known(total: Tensor) -> bool:
    """Whether all likelihoods are finite numbers. An infinite one is valid where a token has probability 0."""
    return bool(total.isfinite().all())


def count_unknown(total: Tensor) -> int:
    """How many likelihoods are not finite."""
    return int((~total.isfinite()).sum())


def concatenate(parts: list[Estimate]) -> Estimate:
    """Estimates of several batches as one."""
    return Estimate(
        torch.cat([part.recon for part in parts]),
        torch.cat([part.diffusion for part in parts]),
        torch.cat([part.prior for part in parts]),
        torch.cat([part.count for part in parts]),
        parts[0].kind,
    )


class TimeRestrictedNoise(Noise):
    """Noise whose time quantiles all lie between `low` and `high`."""

    def __init__(self, inner: Noise, low: float, high: float):
        self.inner, self.low, self.high, self.device = inner, low, high, inner.device

    def uniform(self, *shape: int) -> Tensor:
        return self.inner.uniform(*shape)

    def normal(self, *shape: int) -> Tensor:
        return self.inner.normal(*shape)

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
    noise, free = (
        CounterNoise(0, 0, batch.ids, batch.global_index, batch.total),
        process.codec.expand_to_states(batch.free),
    )

    def time(quantile: float) -> float:
        w = torch.full((len(batch), model.length // model.block), quantile, dtype=torch.float64, device=model.device)
        return float(process.sample_zt(process.encode(batch, noise).u, w, free, noise).t.mean())

    with torch.no_grad():
        return time(0.1) > time(0.9)


@dataclass(frozen=True)
class Reconstruction:
    """Accuracy and negative log-likelihood of a decoder given latents."""

    accuracy: float
    """Fraction of tokens reconstructed from clean latents; padding is not counted."""
    exact_match: float
    """Fraction of sequences reconstructed exactly."""
    nats: dict[str, float]
    """-log p(text | latents) per token: own latents, another text's (shuffled), the batch mean, and noise (random)."""
    error: float = 0.0
    """Standard error of the accuracy, over texts."""
    sequences: int = 0

    def __str__(self) -> str:
        return (
            f"{self.accuracy:.2%} ± {self.error:.2%} of the tokens and {self.exact_match:.1%} of {self.sequences} "
            "held-out texts reconstructed"
        )


@torch.no_grad()
def measure_reconstruction(model: Model, batches: Iterable[Batch], rng: torch.Generator | int) -> Reconstruction:
    """Measure a latent system on the sequences of `batches`; the text after the last one is the first."""
    codec = model.process.codec
    if not isinstance(codec, Autoencoder):
        raise UserError("Reconstruction needs a latent system; use ld4lg, planner, tencdm or cosmos.")
    rng = as_generator(rng, model.device)
    matches: list[Tensor] = []
    counted: list[Tensor] = []
    nats: dict[str, list[Tensor]] = {"own": [], "shuffled": [], "mean": [], "random": []}
    training = model.training
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(model.device)
            tokens = batch.tokens
            counted.append(counted_positions(batch))
            u = codec.encode(tokens)
            matches.append(codec.decode(u) == tokens)
            noise = torch.randn(u.shape, generator=rng, device=rng.device).to(u)
            variants = {"own": u, "shuffled": u.roll(1, 0), "mean": u.mean(0).expand_as(u), "random": noise}
            for name, latents in variants.items():
                nats[name].append(codec.reconstruction_nll(latents, tokens))
    finally:
        model.train(training)
    if not matches:
        raise UserError("There is nothing to evaluate: the data holds no batch.")
    agree, counts = torch.cat(matches), torch.cat(counted)
    means = {name: float(torch.cat(parts).sum() / counts.sum()) for name, parts in nats.items()}
    accuracy = float(agree[counts].float().mean())
    # Of a ratio of sums over texts: the standard error of Σ correct / Σ counted (linearised).
    residual = ((agree & counts).sum(1) - accuracy * counts.sum(1)).double()
    error = float(residual.square().sum().sqrt() / counts.sum())
    exact = float((agree | ~counts).all(1).float().mean())
    return Reconstruction(accuracy, exact, means, error, len(agree))


def counted_positions(batch: Batch) -> Bool[Tensor, "B L"]:
    """The positions of real tokens and of the first EOS, without padding."""
    if batch.token_count is None:
        return torch.ones_like(batch.tokens, dtype=torch.bool)
    return torch.arange(batch.tokens.shape[1], device=batch.token_count.device) < batch.token_count[:, None]
