"""Report: a likelihood with its error, its kind, and the data and settings needed to compare it with another."""

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.data.corpus import Corpus
from logosphere.data.units import TEXT_UNITS, known_units
from logosphere.errors import UserError, check_count, check_number, plural
from logosphere.evaluation.baselines import token_frequencies
from logosphere.evaluation.likelihood import Estimate, concatenate, estimate_bounds, ratio_with_error
from logosphere.evaluation.orders import Progress, estimate_orders, find_order
from logosphere.evaluation.protocols import apply_protocol
from logosphere.inputs import DataLike
from logosphere.io import json_safe, write_json
from logosphere.model import Model
from logosphere.networks.precision import find_precision, precision_name
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import as_seed
from logosphere.systems import DEFAULT, preset_label
from logosphere.types import SIGN, Batch, Float, Kind, Predict
from logosphere.untrusted import read_object

LARGEST_EXPONENT = 700.0
"""Nats per token whose perplexity is finite."""


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
    units: dict[str, float] = field(default_factory=dict)
    """How many of each known unit (token, character, byte) a scored token has."""
    blind: float = math.nan
    """Bits per unit of blind guessing: log₂ of the size of the vocabulary per token."""
    frequencies: float = math.nan
    """Bits per unit of a code by the frequencies of tokens in the training text; NaN where it is not at hand."""
    protocol: str = "full"
    """full, or paper (evaluation/protocols.py)."""
    text_sha256: str = ""
    """Hash of the text, where models with different tokenizers are measured on one text; else empty."""

    def __str__(self) -> str:
        value = f"{SIGN[self.kind]} {self.bits:.4f} ± {self.error:.4f} bits per {self.unit}{self._beside()}"
        if self.protocol == "paper":
            value += f", perplexity {SIGN[self.kind]} {self.perplexity[0]:.2f} ± {self.perplexity[1]:.2f}"
        preset = "" if self.preset == DEFAULT else f"; preset {self.preset}"
        precision = "" if self.precision == "float32" else f"; {self.precision}"
        poor = f"; worse than blind guessing, {self.blind:.4f}" if self.worse_than_blind else ""
        return f"{value} ({self.kind_and_path}; {self.sample_size}{preset}{precision}{poor})"

    def _beside(self) -> str:
        """The same number per character (or byte) where it is per token of a text."""
        others = self.in_units() if self.unit == "token" else {}
        for unit in ("character", "byte"):
            if unit in others:
                bits, error = others[unit]
                return f", {bits:.4f} ± {error:.4f} per {unit}"
        return ""

    def in_units(self) -> dict[str, tuple[float, float]]:
        """Bits and their standard error in every known unit."""
        if self.unit not in self.units:
            return {self.unit: (self.bits, self.error)}
        own = self.units[self.unit]
        return {unit: (self.bits * own / each, self.error * own / each) for unit, each in self.units.items()}

    @property
    def perplexity(self) -> tuple[float, float]:
        """exp(nats per counted token) and its standard error."""
        mean, error = ratio_with_error(torch.tensor(self.nats).double(), torch.tensor(self.counts))
        value = math.exp(mean) if mean < LARGEST_EXPONENT else math.inf
        return value, value * error

    @property
    def baselines(self) -> str:
        """Blind guessing and frequencies of tokens, in the unit of the bound; empty where neither is known."""
        letters = {"character": "letter", "byte": "byte", "dimension": "value"}.get(self.unit, "token")
        rows = {"blind guessing": self.blind, f"{letters} frequencies of the training text": self.frequencies}
        known = [f"{name} {bits:.4f}" for name, bits in rows.items() if bits == bits]
        return f"{', '.join(known)} bits per {self.unit}" if known else ""

    @property
    def worse_than_blind(self) -> bool:
        """Whether the number is above that of blind guessing by more than a standard error."""
        return self.bits - (self.error if self.error == self.error else 0.0) > self.blind

    @property
    def kind_and_path(self) -> str:
        """The kind of the number; and its order, or the path it is of if the process has several."""
        if self.order:
            sampler = f"the sampler {find_order(self.order).sampler}, one position per step"
            return f"{self.order} order, {self.kind} for {sampler}"
        described = describe_kind(self.kind, self.path, self.block)
        return described if self.protocol == "full" else f"{described}, {self.protocol} protocol"

    @property
    def sample_size(self) -> str:
        """The numbers of sequences and of draws; exact likelihoods have no draws."""
        sequences = plural(self.sequences, "sequence")
        drawn = plural(self.draws, "order" if self.order else "draw")
        return sequences if self.kind == "exact" else f"{sequences}, {drawn} each"

    def summary(self) -> dict[str, Any]:
        """All fields but those per sequence, and the number in every known unit."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("nats", "counts")}
        per = {unit: {"bits": bits, "error": error} for unit, (bits, error) in self.in_units().items()}
        perplexity, error = self.perplexity
        return kept | {
            "per_unit": per, "perplexity": perplexity, "perplexity_error": error,
            "worse_than_blind": self.worse_than_blind,
        }  # fmt: skip

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
            return Report.from_dict(read_object(Path(path)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{path} is not a report; make one with: logosphere evaluate RUN") from None

    @staticmethod
    def from_dict(content: dict[str, Any]) -> "Report":
        """A report from its fields as plain data, in which tuples are lists and NaN is null."""
        older: dict[str, Any] = {
            "preset": DEFAULT,
            "path": "",
            "other_paths": [],
            "precision": "float32",
            "order": "",
            "block": 0,
            "units": {},
            "blind": None,
            "frequencies": None,
            "text_sha256": "",
            "protocol": "full",
        }
        content = older | content  # older reports have none of them
        found = {field.name: _null_to_nan(content[field.name]) for field in fields(Report)}
        found["other_paths"] = tuple(PathBound(**path) for path in found["other_paths"])
        return Report(**found)


def _null_to_nan(value: Any) -> Any:
    """NaN where JSON has null."""
    if isinstance(value, dict):
        return {name: _null_to_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_null_to_nan(one) for one in value]
    return math.nan if value is None else value


def evaluate(
    model: Model,
    batches: DataLike,
    *,
    batch: int = 32,
    draws: int = 1,
    rng: torch.Generator | int | None = None,
    denoiser: Predict | nn.Module | None = None,
    name: str = "model",
    unit: str = "",
    units_per_token: float | None = None,
    corpus: Corpus | None = None,
    split: str = "test",
    data: str = "",
    tokenizer: str = "",
    weights: str = "",
    precision: str = "float32",
    protocol: str = "full",
    order: str | None = None,
    orders: int = 1,
    watch: Callable[[Estimate], None] | None = None,
    watch_order: Progress = lambda fraction: None,
    group: ProcessGroup = SINGLE,
) -> Report:
    """Measure the bound of a model on every sequence of `batches`, averaged over `draws` draws of time and noise.

    `batches` is an iterable of batches or a data set, in the forms that `fit` takes; a data set is divided into batches
    of `batch` sequences. `rng` may be a seed.

    The network computes in `precision`: float32, bfloat16, or auto (bfloat16 where the processor has it).
    With the `corpus` whose `split` the batches are from, bits are per `unit` of its text: that of its tokenizer unless
    another is given, and the report has the number in all units, and what its frequencies of tokens cost. Without a
    corpus bits are per token, unless `units_per_token` says how many of `unit` a token has. `watch` is called after
    each batch. The processes of a `group` divide the sequences, and each gets the report.

    With the `protocol` "paper" the time below 0.001 is left out as in published perplexities (evaluation/protocols.py),
    and `batches` should hold windows between BOS and EOS (data/wrapping.py).

    With an `order` ("left-to-right", "entropy", "margin", "confidence" or "random", see evaluation/orders.py) it is the
    likelihood of samples that reveal one position at a time in this order: exact, or for "random" a bound by `orders`
    orders. `watch_order` is called with the completed fraction of a batch.
    """
    check_count("The number of draws", draws)
    unit, units = _resolve_units(unit, units_per_token, corpus, split, model)
    started = time.perf_counter()
    seed = int(group.broadcast(str(_choose_seed(rng))))
    digest = hashlib.sha256()
    parts: list[Estimate] = []
    frequencies = token_frequencies(corpus)
    model = apply_protocol(model, protocol)
    given = model.sequence_format.read_all(batches, check_count("batch", batch))
    hashed = _hash_batches(given if frequencies is None else frequencies.watched(given), digest.update)
    predict = model.as_predict(denoiser)
    settings: dict[str, Any] = {"seed": seed, "predict": predict, "precision": precision, "group": group}
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
    if not bool(estimate.count.sum()):
        raise UserError("Every position of this data is known or padding, so there is nothing to evaluate.")
    scale = 1 / (math.log(2) * units[unit])
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
        data=data or ("" if corpus is None else f"{corpus.name} {split}"),
        data_sha256=digest.hexdigest(),
        tokenizer=tokenizer or ("" if corpus is None else corpus.tokenizer.fingerprint),
        weights=weights,
        seconds=time.perf_counter() - started,
        nats=estimate.total.tolist(),
        counts=estimate.count.tolist(),
        preset=DEFAULT if model.spec is None else preset_label(model.spec),
        path=model.process.path_name,
        precision=precision_name(find_precision(precision, model.network_device)),
        order=order or "",
        block=0 if model.block == model.length or model.process.kind == "exact" else model.block,
        units=units,
        blind=math.log2(model.vocab_size) / units[unit],
        frequencies=math.nan if frequencies is None else frequencies.per_token / units[unit],
        protocol=protocol,
    )


def _resolve_units(
    unit: str, units_per_token: float | None, corpus: Corpus | None, split: str, model: Model
) -> tuple[str, dict[str, float]]:
    """The unit of the report, and how many of each known unit a scored token has."""
    if corpus is not None:
        if units_per_token is not None:
            raise UserError("The corpus determines the units per token; give either corpus or units_per_token.")
        units = known_units(corpus, split, model.length)
        unit = unit or corpus.tokenizer.unit
        if unit not in units:
            raise UserError(f"unit must be one of {', '.join(units)} for {corpus.name}, not '{unit}'.")
        return unit, units
    unit = unit or "token"
    if units_per_token is not None:
        check_number("units_per_token", units_per_token)
        if units_per_token <= 0:
            raise UserError(f"units_per_token must be above 0, not {units_per_token}.")
        return unit, {"token": 1.0, unit: units_per_token}
    if unit in TEXT_UNITS:
        raise UserError(
            f"unit='{unit}' needs the number of {unit}s per token: pass corpus=…, whose split the batches are from, or "
            f"units_per_token=…, which is 1 where every token is a {unit}."
        )
    if unit not in ("token", "dimension"):
        raise UserError(
            f"unit must be token, {', '.join(TEXT_UNITS)} or dimension, not '{unit}'; for another unit, pass "
            "units_per_token=…, how many of it a token has."
        )
    return unit, {"token": 1.0, unit: 1.0}


def _hash_batches(batches: Iterable[Batch], update: Callable[[bytes], None]) -> Iterator[Batch]:
    for batch in batches:
        for tokens, free in zip(batch.tokens.cpu().numpy(), batch.free.cpu().numpy(), strict=True):
            update(tokens.tobytes())  # row by row, so that the hash does not depend on the division into batches
            update(free.tobytes())
        yield batch


def _choose_seed(rng: torch.Generator | int | None) -> int:
    if rng is None:
        return secrets.randbits(62)
    if isinstance(rng, torch.Generator):
        return int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
    return as_seed(rng)
