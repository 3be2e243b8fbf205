"""Board: all that a comparison found, as plain data that JSON can hold. Every page is made from it alone."""

from dataclasses import dataclass, field
from typing import Any

from logosphere.types import Kind


@dataclass(frozen=True)
class Value:
    """A figure and its standard error; None where there is no error."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Measure:
    """A sample metric: how it is called and what it means."""

    name: str
    title: str
    unit: str
    better: str
    definition: str


@dataclass(frozen=True)
class Seed:
    """One training of an entry."""

    seed: int
    folder: str
    bits: float
    error: float
    weights_sha256: str
    step: int


@dataclass(frozen=True)
class Point:
    """The bound on the validation split during training."""

    step: int
    tokens: int
    cpu_seconds: float
    bits: float


@dataclass(frozen=True)
class Share:
    """Bits per unit spent between two quantiles of time; their mean over all is the bound."""

    low: float
    high: float
    bits: float
    error: float


@dataclass(frozen=True)
class Sampling:
    """Samples made in one way, what they cost and what they are worth."""

    steps: int
    temperature: float
    samples: int
    nfe: float
    seconds: float
    """Wall-clock seconds for all samples."""
    cpu_seconds: float
    figures: dict[str, Value]


@dataclass(frozen=True)
class Film:
    """Samples while they condense: frames of changes (position, symbol); symbol -1 is hidden."""

    length: int
    symbols: list[str]
    frames: list[list[list[int]]]
    """Of each frame, flat lists position, symbol, position, symbol … for every sample."""
    sure: list[list[str]] = field(default_factory=list)
    """Of each frame and sample, a digit for every position: how sure the network was, in tenths. Empty if unknown."""
    guesses: list[list[list[int]]] = field(default_factory=list)
    """As `frames`, what the network would write where nothing is written yet. Empty if unknown."""


@dataclass(frozen=True)
class Portrait:
    """What a model is like beyond its bound."""

    shares: list[Share]
    samplings: list[Sampling]
    texts: list[str]
    film: Film


def read_portrait(content: dict[str, Any]) -> Portrait:
    """A portrait out of plain data."""
    samplings = [
        Sampling(**one | {"figures": {name: Value(**figure) for name, figure in one["figures"].items()}})
        for one in content["samplings"]
    ]
    shares = [Share(**share) for share in content["shares"]]
    return Portrait(shares, samplings, content["texts"], Film(**content["film"]))


@dataclass(frozen=True)
class Costs:
    """What training took; None where nobody measured it."""

    parameters: int
    step_flops: float
    steps: int
    tokens: int
    seconds: float | None
    cpu_seconds: float
    peak_bytes: int | None
    evaluation_seconds: float


@dataclass(frozen=True)
class Entry:
    """A system in a comparison, over all its seeds."""

    name: str
    system: str
    title: str
    kind: Kind
    options: list[str]
    bits: float
    error: float
    """Over sequences, of the mean over seeds."""
    spread: float | None
    """Standard deviation over seeds; None with one seed."""
    above: float
    """Paired difference to the best of those it may be ranked with."""
    above_error: float
    recon: float
    diffusion: float
    prior: float
    seeds: list[Seed]
    curve: list[Point]
    shares: list[Share]
    samplings: list[Sampling]
    texts: list[str]
    film: Film | None
    costs: Costs


@dataclass(frozen=True)
class Published:
    """A figure from the literature."""

    system: str
    dataset: str
    value: float
    kind: Kind
    unit: str
    protocol: str
    source: str


@dataclass(frozen=True)
class Board:
    """A comparison."""

    title: str
    created: str
    command: list[str]
    data: str
    data_sha256: str
    corpus_sha256: str
    tokenizer: str
    unit: str
    length: int
    sequences: int
    draws: int
    budget: str
    """Of every training; empty where trainings differ in more than system, options, seed and learning rate."""
    entries: list[Entry]
    """Ranked: exact values and bounds first, surrogates after them."""
    measures: list[Measure]
    real: dict[str, Value]
    real_texts: list[str]
    own_rates: bool = False
    """Have systems learning rates of their own?"""
    literature: list[Published] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=dict)
