"""Report: a likelihood with its error, its kind, and the data and settings needed to compare it with another."""

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

from logosphere.errors import UserError, plural
from logosphere.evaluation.likelihood import Estimate, concatenate, estimate_bounds, ratio_with_error
from logosphere.evaluation.orders import Progress, estimate_orders, find_order
from logosphere.io import json_safe, write_json
from logosphere.model import Model
from logosphere.networks.precision import find_precision, precision_name
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.systems import DEFAULT, preset_label
from logosphere.types import SIGN, Batch, Float, Kind, Predict, Tokens


def describe_kind(kind: Kind, path: str, block: int) -> str:
    """The kind of a number with its path and block size. Blocks of one position are an autoregressive model."""
    described = f"{kind}, {path} path" if path else str(kind)
    if block == 0:
        return described
    return f"{described}, block {block}" + (", autoregressive" if block == 1 else "")


@dataclass(frozen=True)
class PathBound:
    """Bits per unit of the same model and text along another path of the process."""

    path: str
    kind: Kind
    bits: float
    error: float

    def __str__(self) -> str:
        return f"{SIGN[self.kind]} {self.bits:.4f} ± {self.error:.4f} ({self.kind}, {self.path} path)"


@dataclass(frozen=True)
class Report:
    """Bits per unit of text, ± one standard error over sequences."""

    name: str
    kind: Kind
    unit: str
    """Bits are per character, byte, token or dimension."""
    bits: float
    error: float
    recon: float
    diffusion: float
    prior: float
    """The three terms of `bits`."""
    draws: int
    """Times drawn per sequence, or random orders."""
    sequences: int
    tokens: int
    """Tokens counted; known and padded ones are not."""
    length: int
    seed: int
    data: str
    """The text and the split."""
    data_sha256: str
    """Hash of the evaluated tokens."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    weights: str
    seconds: float
    nats: list[float]
    """Per sequence, for paired comparisons."""
    counts: list[int]
    """Scored tokens per sequence."""
    preset: str = DEFAULT
    """The preset of the system, and the options that differ from it."""
    path: str = ""
    """Which path of the process the bound is of, "joint" or "any-order"; empty if the process has only one."""
    other_paths: tuple[PathBound, ...] = ()
    """Bounds along the other paths that the network was trained on."""
    precision: str = "float32"
    """The precision in which the network computed."""
    block: int = 0
    """Positions of a block where a diffusion generates block by block; 0 for whole sequences."""
    order: str = ""
    """The order of positions that the likelihood is of (evaluation/orders.py); empty for the bound of the process."""

    def __str__(self) -> str:
        value = f"{SIGN[self.kind]} {self.bits:.4f} ± {self.error:.4f} bits per {self.unit}"
        preset = "" if self.preset == DEFAULT else f"; preset {self.preset}"
        precision = "" if self.precision == "float32" else f"; {self.precision}"
        return f"{value} ({self.kind_and_path}; {self.sample_size}{preset}{precision})"

    @property
    def kind_and_path(self) -> str:
        """The kind of the number; and its order, or the path it is of if the process has several."""
        if self.order:
            sampler = f"the sampler {find_order(self.order).sampler}, one position per step"
            return f"{self.order} order, {self.kind} for {sampler}"
        return describe_kind(self.kind, self.path, self.block)

    @property
    def sample_size(self) -> str:
        """The numbers of sequences and of draws; exact likelihoods have no draws."""
        sequences = plural(self.sequences, "sequence")
        drawn = plural(self.draws, "order" if self.order else "draw")
        return sequences if self.kind == "exact" else f"{sequences}, {drawn} each"

    def summary(self) -> dict[str, Any]:
        """All fields but those per sequence."""
        return {name: value for name, value in asdict(self).items() if name not in ("nats", "counts")}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), json_safe(asdict(self)))

    def per_unit(self, nats: Float[Tensor, " N"]) -> tuple[float, float]:
        """Nats of each sequence as bits per unit of text over all of them, ± one standard error."""
        counts = torch.tensor(self.counts)
        scale = (
            self.bits / ratio_with_error(torch.tensor(self.nats).double(), counts)[0]
        )  # bits and nats differ by one factor
        value, error = ratio_with_error(nats, counts)
        return scale * value, scale * error

    @staticmethod
    def load(path: str | Path) -> "Report":
        try:
            content = json.loads(Path(path).read_bytes())
            older: dict[str, Any] = {
                "preset": DEFAULT,
                "path": "",
                "other_paths": [],
                "precision": "float32",
                "order": "",
                "block": 0,
            }
            content = older | content  # older reports have none of them
            found = {field.name: _null_to_nan(content[field.name]) for field in fields(Report)}
            found["other_paths"] = tuple(PathBound(**path) for path in found["other_paths"])
            return Report(**found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{path} is not a report; make one with: logosphere evaluate RUN") from None


def _null_to_nan(value: Any) -> Any:
    """NaN where JSON has null."""
    if isinstance(value, dict):
        return {name: _null_to_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_null_to_nan(one) for one in value]
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
    precision: str = "float32",
    order: str | None = None,
    orders: int = 1,
    watch: Callable[[Estimate], None] | None = None,
    watch_order: Progress = lambda fraction: None,
    group: ProcessGroup = SINGLE,
) -> Report:
    """Measure the bound of a model on every sequence of `batches`, averaged over `draws` draws of time and noise.

    The network computes in `precision`: float32, bfloat16, or auto (bfloat16 where the processor has it).
    `units_per_token` converts bits per token into bits per character or byte. `watch` is called after each batch. The
    processes of a `group` divide the sequences, and each gets the report.

    With an `order` ("left-to-right", "entropy", "margin", "confidence" or "random", see evaluation/orders.py) it is the
    likelihood of samples that reveal one position at a time in this order: exact, or for "random" a bound by `orders`
    orders. `watch_order` is called with the completed fraction of a batch.
    """
    if draws < 1:
        raise UserError(f"The number of draws must be at least 1, not {draws}.")
    started = time.perf_counter()
    seed = int(group.broadcast(str(_as_seed(rng))))
    digest = hashlib.sha256()
    parts: list[Estimate] = []
    hashed = _hash_batches(_as_batches(batches), digest.update)
    settings: dict[str, Any] = {"seed": seed, "predict": denoiser, "precision": precision, "group": group}
    if order is None:
        estimates = estimate_bounds(model, hashed, draws=draws, **settings)
    else:
        estimates = estimate_orders(model, hashed, order, orders=orders, progress=watch_order, **settings)
    for part in estimates:
        parts.append(part)
        if watch is not None:
            watch(part)
    if not parts:
        raise UserError("There is nothing to evaluate: the data holds no batch.")
    estimate = concatenate(parts)
    scale = 1 / (math.log(2) * units_per_token)
    bits, error = (scale * value for value in estimate.per_token())

    def term(values: Tensor) -> float:
        return scale * ratio_with_error(values, estimate.count)[0]

    return Report(
        name=name,
        kind=estimate.kind,
        unit=unit,
        bits=bits,
        error=error,
        recon=term(estimate.recon),
        diffusion=term(estimate.diffusion),
        prior=term(estimate.prior),
        draws=draws if order is None else orders,
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
        preset=DEFAULT if model.spec is None else preset_label(model.spec),
        path=model.process.path_name,
        precision=precision_name(find_precision(precision, model.device)),
        order=order or "",
        block=0 if model.block == model.length or model.process.kind == "exact" else model.block,
    )


def _as_batches(batches: Iterable[Batch | Tokens]) -> Iterator[Batch]:
    first = 0
    for item in batches:
        batch = Batch.of(item, first=first) if isinstance(item, Tensor) else item
        first += len(batch)
        yield batch


def _hash_batches(batches: Iterable[Batch], update: Callable[[bytes], None]) -> Iterator[Batch]:
    for batch in batches:
        for tokens, free in zip(batch.tokens.cpu().numpy(), batch.free.cpu().numpy(), strict=True):
            update(tokens.tobytes())  # row by row, so that the hash does not depend on the division into batches
            update(free.tobytes())
        yield batch


def _as_seed(rng: torch.Generator | int | None) -> int:
    if rng is None:
        return secrets.randbits(62)
    return rng if isinstance(rng, int) else int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
