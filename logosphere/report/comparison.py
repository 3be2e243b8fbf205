"""The data of a comparison report, from which all pages are rendered. The fields are the keys of its JSON file."""

import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from logosphere.evaluation.likelihood import TimeBin
from logosphere.evaluation.report import describe_kind
from logosphere.report.page import Animation
from logosphere.types import Kind


@dataclass(frozen=True)
class PublishedResult:
    """One result quoted from a paper."""

    system: str
    dataset: str
    value: float
    kind: Kind
    unit: str
    protocol: str
    source: str


def load_published_results(dataset: str, unit: str) -> list[PublishedResult]:
    """Load what papers report on a dataset in a unit."""
    return [result for result in load_all_published_results() if result.dataset == dataset and result.unit == unit]


def load_all_published_results() -> list[PublishedResult]:
    """Load what papers report, on all datasets."""
    rows = json.loads(files("logosphere.report").joinpath("published_results.json").read_text(encoding="utf-8"))
    return [PublishedResult(**row) for row in rows]


@dataclass(frozen=True)
class Value:
    """A number with its standard error; None if there is no error."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class MetricInfo:
    """Name and meaning of a sample metric."""

    name: str
    title: str
    unit: str
    better: str
    definition: str


@dataclass(frozen=True)
class SeedResult:
    """One training of an entry."""

    seed: int
    folder: str
    bits: float
    error: float
    weights_sha256: str
    step: int


@dataclass(frozen=True)
class CurvePoint:
    """The bound on the validation split at one step of training."""

    step: int
    tokens: int
    cpu_seconds: float
    bits: float


@dataclass(frozen=True)
class SamplingResult:
    """Cost and metrics of samples drawn with one number of steps and temperature."""

    steps: int
    temperature: float
    samples: int
    nfe: float
    seconds: float
    """Wall-clock seconds for all samples."""
    cpu_seconds: float
    metrics: dict[str, Value]
    """Sample metrics by name."""


@dataclass(frozen=True)
class SampleReport:
    """The bound over time, the samples and an animation of one model."""

    time_bins: list[TimeBin]
    samplings: list[SamplingResult]
    texts: list[str]
    animation: Animation


def parse_sample_report(content: dict[str, Any]) -> SampleReport:
    """Read a sample report from JSON content."""
    samplings = [
        SamplingResult(**one | {"metrics": {name: Value(**value) for name, value in one["metrics"].items()}})
        for one in content["samplings"]
    ]
    time_bins = [TimeBin(**time_bin) for time_bin in content["time_bins"]]
    return SampleReport(time_bins, samplings, content["texts"], Animation(**content["animation"]))


@dataclass(frozen=True)
class Costs:
    """Costs of training and evaluation; None where they were not measured."""

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
    """The results of one system over all its seeds."""

    name: str
    system: str
    title: str
    kind: Kind
    options: list[str]
    bits: float
    error: float
    """Standard error over sequences, of the mean over seeds."""
    spread: float | None
    """Standard deviation over seeds; None with one seed."""
    above: float
    """Paired difference to the best entry of its ranking."""
    above_error: float
    recon: float
    diffusion: float
    prior: float
    seeds: list[SeedResult]
    curve: list[CurvePoint]
    time_bins: list[TimeBin]
    """Bits per unit in equal bins of the quantile of time; their mean is the bound."""
    samplings: list[SamplingResult]
    texts: list[str]
    animation: Animation | None
    costs: Costs
    path: str = ""
    """Which path of the process the bound is of, "joint" or "any-order"; empty if the process has only one."""

    block: int = 0
    """Positions of a block where a diffusion generates block by block; 0 for whole sequences."""

    @property
    def kind_and_path(self) -> str:
        """The kind of the number, the path it is of if the process has several, and the size of blocks."""
        return describe_kind(self.kind, self.path, self.block)


@dataclass(frozen=True)
class ComparisonReport:
    """All results of a comparison."""

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
    """Budget of every training; empty if trainings differ in more than system, options, seed and learning rate."""
    entries: list[Entry]
    """Ranked: exact values and bounds first, then surrogates."""
    metrics: list[MetricInfo]
    real: dict[str, Value]
    """Sample metrics of held-out text."""
    real_texts: list[str]
    own_rates: bool = False
    """Whether systems were trained with different learning rates."""
    published: list[PublishedResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks on the sample metrics, such as those that need more samples."""
    environment: dict[str, object] = field(default_factory=dict)
