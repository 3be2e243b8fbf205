"""What a cache of keys and values gains and costs, measured while it is used.

A few evaluations of a run, drawn uniformly from all of them, are repeated without the cache at its end.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.networks.base import Denoiser, Wrapper
from logosphere.types import Logits, Rows, State, Times, Where

COMPARED = 4
"""Evaluations that are repeated."""


@dataclass(frozen=True)
class CacheReport:
    """A cache against exact evaluations of the same states."""

    speed_up: float
    """Time of an exact evaluation of a sequence over that of one with the cache, refreshed ones among them."""
    kl: float
    """Mean of KL(exact || cached) over positions, in nats."""
    kl_error: float
    """Its standard error by the evaluations; NaN for a single one."""
    total_variation: float
    """Mean of ½ Σ |exact - cached| over positions: the probability that has moved."""
    evaluations: int
    compared: int

    def __str__(self) -> str:
        error = "" if self.compared < 2 else f" ± {self.kl_error:.2g}"
        return (
            f"evaluations are {self.speed_up:.2g} times as fast as exact ones, and predictions differ from theirs by "
            f"{self.kl:.3g}{error} nats (KL), {self.total_variation:.1%} of the probability (total variation), "
            f"measured at {self.compared} of {self.evaluations} evaluations"
        )


@dataclass(frozen=True)
class _Repeated:
    exact: Denoiser
    z: State
    t: Times
    context: State
    where: Where
    out: Logits


class CacheRecord:
    """Evaluations of a run with a cache; some are kept to be repeated (reservoir sampling with a seed of its own)."""

    def __init__(self) -> None:
        self.seconds, self.sequences, self.seen = 0.0, 0, 0
        self.kept: list[_Repeated] = []
        self._rng = torch.Generator().manual_seed(0)

    def add(self, one: _Repeated, seconds: float) -> None:
        """Record an evaluation."""
        self.seconds, self.sequences, self.seen = self.seconds + seconds, self.sequences + len(one.z), self.seen + 1
        if len(self.kept) < COMPARED:
            self.kept.append(one)
        elif (place := int(torch.randint(self.seen, (), generator=self._rng))) < COMPARED:
            self.kept[place] = one

    @torch.no_grad()
    def report(self) -> CacheReport | None:
        """Repeat what was kept without the cache; None if nothing was evaluated."""
        if not self.kept or not self.sequences:
            return None
        seconds, sequences = 0.0, 0
        divergences, variations, sizes = [], [], []
        for one in self.kept:
            started = _now(one.out)
            exact = one.exact(one.z, one.t, one.context, one.where)
            seconds, sequences = seconds + _now(exact) - started, sequences + len(one.z)
            p, q = exact.double().log_softmax(-1), one.out.double().log_softmax(-1)
            divergences.append(float((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).mean()))
            variations.append(float((p.exp() - q.exp()).abs().sum(-1).mean() / 2))
            sizes.append(p.shape[:-1].numel())
        weights, kl = torch.tensor(sizes).double(), torch.tensor(divergences).double()
        weights = weights / weights.sum()
        mean = float(weights @ kl)
        error = float("nan") if len(kl) < 2 else float((weights.square() @ (kl - mean).square()).sqrt())
        return CacheReport(
            speed_up=(seconds / sequences) / max(self.seconds / self.sequences, 1e-12),
            kl=max(0.0, mean),
            kl_error=error,
            total_variation=float(weights @ torch.tensor(variations).double()),
            evaluations=self.seen,
            compared=len(self.kept),
        )


class CacheProbe(Wrapper):
    """A denoiser with a cache whose evaluations are recorded; `exact` is the same without the cache."""

    def __init__(self, inner: Denoiser, exact: Denoiser, record: CacheRecord):
        super().__init__(inner)
        self.exact, self.record = exact, record

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        started = _now(z)
        out = self.inner(z, t, context, where)
        if out.numel():
            seconds, selected = _now(out) - started, where.clone() if isinstance(where, Tensor) else where
            self.record.add(_Repeated(self.exact, z.clone(), t.clone(), context.clone(), selected, out), seconds)
        return out

    def select_rows(self, kept: Rows) -> Denoiser:
        return CacheProbe(self.inner.select_rows(kept), self.exact.select_rows(kept), self.record)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return CacheProbe(inner, self.exact, self.record)


def _now(after: Tensor) -> float:
    """The time when a tensor is computed."""
    if after.is_cuda:
        torch.cuda.synchronize(after.device)
    return time.perf_counter()
