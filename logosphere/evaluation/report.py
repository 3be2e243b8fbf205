"""Report: a likelihood with its error, its kind, and everything one must know to compare it with another."""

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.atomic import plain, write_json
from logosphere.errors import UserError
from logosphere.likelihood import Estimate, bounds, joined, ratio
from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.presets import DEFAULT
from logosphere.shapes import Float
from logosphere.types import SIGN, Batch, Kind, Predict, Tokens


@dataclass(frozen=True)
class Report:
    """Bits per unit of text, ± one standard error over sequences."""

    name: str
    kind: Kind
    unit: str
    """What the bits are counted per: character, byte or token."""
    bits: float
    error: float
    recon: float
    diffusion: float
    prior: float
    """The three terms of `bits`."""
    draws: int
    """Times drawn per sequence."""
    sequences: int
    tokens: int
    """Tokens counted; known and padded ones are not."""
    length: int
    seed: int
    data: str
    """Which text and which split."""
    data_sha256: str
    """Of the very tokens that were evaluated."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    weights: str
    seconds: float
    nats: list[float]
    """Of each sequence, for paired comparisons."""
    counts: list[int]
    """Of its tokens that count."""
    preset: str = DEFAULT
    """The preset of the system, and options that were set in place of its own."""

    def __str__(self) -> str:
        value = f"{SIGN[self.kind]} {self.bits:.4f} ± {self.error:.4f} bits per {self.unit}"
        preset = "" if self.preset == DEFAULT else f"; preset {self.preset}"
        return f"{value} ({self.kind}; {self.measured}{preset})"

    @property
    def measured(self) -> str:
        """On how much: what is exact has nothing to draw."""
        sequences = f"{self.sequences:,} sequences"
        draws = f"{self.draws} draw{'s' if self.draws > 1 else ''} each"
        return sequences if self.kind == "exact" else f"{sequences}, {draws}"

    def summary(self) -> dict[str, Any]:
        """All but what is said of single sequences."""
        return {name: value for name, value in asdict(self).items() if name not in ("nats", "counts")}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), plain(asdict(self)))

    def per_unit(self, nats: Float[Tensor, "N"]) -> tuple[float, float]:
        """Nats of each sequence as bits per unit of text over all of them, ± one standard error."""
        counts = torch.tensor(self.counts)
        scale = self.bits / ratio(torch.tensor(self.nats).double(), counts)[0]  # bits and nats differ by one factor
        value, error = ratio(nats, counts)
        return scale * value, scale * error

    @staticmethod
    def load(path: str | Path) -> "Report":
        try:
            content = json.loads(Path(path).read_bytes())
            content.setdefault("preset", DEFAULT)  # reports of models from before there were presets
            found: dict[str, Any] = {field.name: content[field.name] for field in fields(Report)}
            return Report(**{name: _number(value) for name, value in found.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{path} is not a report; make one with: logosphere evaluate RUN") from None


def _number(value: Any) -> Any:
    """Nan where JSON has null."""
    if isinstance(value, list):
        return [_number(one) for one in value]
    return math.nan if value is None else value


def evaluate(
    model: Model,
    batches: Iterable[Batch | Tokens],
    *,
    draws: int = 1,
    rng: torch.Generator | int | None = None,
    denoiser: Predict | None = None,
    name: str = "model",
    unit: str = "token",
    units_per_token: float = 1.0,
    data: str = "",
    tokenizer: str = "",
    weights: str = "",
    watch: Callable[[Estimate], None] | None = None,
    group: ProcessGroup = SINGLE,
) -> Report:
    """Measure the bound of a model on every sequence of `batches`, averaged over `draws` draws of time and noise.

    `units_per_token` turns bits per token into bits per character or byte. `watch` is called after each batch. The
    processes of a `team` share out the sequences and all get the report.
    """
    if draws < 1:
        raise UserError(f"The number of draws must be at least 1, not {draws}.")
    started = time.perf_counter()
    seed = int(group.broadcast(str(_seed(rng))))
    digest = hashlib.sha256()
    parts: list[Estimate] = []
    read = _digested(_batches(batches), digest.update)
    for part in bounds(model, read, draws=draws, seed=seed, predict=denoiser, group=group):
        parts.append(part)
        if watch is not None:
            watch(part)
    if not parts:
        raise UserError("There is nothing to evaluate: the data holds no batch.")
    estimate = joined(parts)
    scale = 1 / (math.log(2) * units_per_token)
    bits, error = (scale * value for value in estimate.per_token())

    def term(values: Tensor) -> float:
        return scale * ratio(values, estimate.count)[0]

    return Report(
        name=name,
        kind=estimate.kind,
        unit=unit,
        bits=bits,
        error=error,
        recon=term(estimate.recon),
        diffusion=term(estimate.diffusion),
        prior=term(estimate.prior),
        draws=draws,
        sequences=len(estimate.count),
        tokens=int(estimate.count.sum()),
        length=model.length,
        seed=seed,
        data=data,
        data_sha256=digest.hexdigest(),
        tokenizer=tokenizer,
        weights=weights,
        seconds=time.perf_counter() - started,
        nats=estimate.total.tolist(),
        counts=estimate.count.tolist(),
        preset=DEFAULT if model.spec is None else model.spec.preset_label,
    )


def _batches(given: Iterable[Batch | Tokens]) -> Iterator[Batch]:
    first = 0
    for item in given:
        batch = Batch.of(item, first=first) if isinstance(item, Tensor) else item
        first += len(batch)
        yield batch


def _digested(batches: Iterable[Batch], update: Callable[[bytes], None]) -> Iterator[Batch]:
    for batch in batches:
        for tokens, free in zip(batch.tokens.cpu().numpy(), batch.free.cpu().numpy(), strict=True):
            update(tokens.tobytes())  # row by row, so that the digest does not depend on how batches are cut
            update(free.tobytes())
        yield batch


def _seed(rng: torch.Generator | int | None) -> int:
    if rng is None:
        return secrets.randbits(62)
    return rng if isinstance(rng, int) else int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
