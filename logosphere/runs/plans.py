"""Plans: trainings in several phases with the figures expected of them, and what every phase costs.

A recipe without a plan is a plan of one phase. Expected figures are computed from published or measured ones and are
no results: each has its kind, its reason, its source and what it assumes.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from logosphere.report.comparison import PublishedResult, load_published_results
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import GPUS, REACHED, Cost, estimates
from logosphere.runs.recipes import recipe
from logosphere.runs.settings import SILENT, Display
from logosphere.types import Kind

MACHINE = (
    "accumulate", "device", "compile", "shard", "recompute", "deterministic", "seed", "validations",
    "validation_sequences",
)  # fmt: skip
"""Settings in which a training may differ from its recipe and still have its plan."""

BLOCKS = (16, 8, 4)
BLOCK_STEPS = 50_000
"""Steps for each size of blocks."""

MD4, AR = 1.37, 1.23
"""Bits per character on text8 as published: the bound of MD4 and the exact value of an autoregressive model."""
ANY_ORDER = (MD4, 1.38)
"""Expected of the first phase."""
GAP_CLOSED = {16: (0.11, 0.12), 8: (0.19, 0.22), 4: (0.27, 0.38)}
"""Fraction of the difference between one block and AR that blocks of this size close, the least and the most of: LM1B
and OpenWebText in BD3-LM (log perplexities 31.78, 30.60, 29.83, 28.2, AR 22.83; 22.98, 22.27, 21.68, 20.73, AR 17.54)
and, for blocks of 4, the probe of docs/LOG.md (2.770, 2.577, AR 2.042 bits)."""


@dataclass(frozen=True)
class Phase:
    """A training of a plan, which begins with the weights of the one before it."""

    name: str
    config: TrainConfig
    command: str


@dataclass(frozen=True)
class Expected:
    """A figure that a plan is expected to reach, in bits per character on the test split; no result."""

    phase: str
    low: float
    high: float
    kind: Kind
    reason: str
    source: str
    assumes: str


@dataclass(frozen=True)
class Plan:
    """Phases, the figures expected of them, and published figures to compare them with."""

    phases: tuple[Phase, ...]
    expected: tuple[Expected, ...] = ()
    published: tuple[PublishedResult, ...] = ()


@dataclass(frozen=True)
class PhaseCost:
    """A phase and its cost for each number of devices."""

    phase: Phase
    by_devices: dict[int, Cost]

    @property
    def cost(self) -> Cost:
        """What does not depend on the number of devices."""
        return next(iter(self.by_devices.values()))

    def fits(self, devices: int) -> bool:
        """Whether the batch has a row for each device and accumulated part."""
        return devices * self.phase.config.accumulate <= self.phase.config.batch

    def hours(self, gpu: str, devices: int) -> float | None:
        days = self.cost.days(gpu, devices)
        return None if days is None or not self.fits(devices) else 24 * days


def find_plan(name: str, config: TrainConfig) -> Plan:
    """The plan of a recipe by name, as far as the configuration is still that of the recipe; else one phase."""
    if name in PLANS:
        named = recipe(name)
        if replace(config, **{key: getattr(named, key) for key in MACHINE}) == named:
            return PLANS[name](config)
    command = f"logosphere train {name}".rstrip()
    return Plan((Phase(config.system, config, command),))


def text8_paper(config: TrainConfig) -> Plan:
    """Any-order training on the sphere in one block, then in blocks of 16, 8 and 4."""
    out, command = "runs/t8-one-block", "logosphere train text8-paper --nproc 8"
    phases = [Phase("one block", config, f"{command} --out {out}")]
    for number, block in enumerate(BLOCKS, start=1):
        parent, out = out, f"runs/t8-blocks-{block}"
        options = ("path=any-order", "any_order_fraction=0.99", f"block={block}")  # it has risen in the first phase
        own = replace(config, options=options, steps=BLOCK_STEPS, begin=parent, seed=config.seed + number)
        settings = f"--options {' '.join(options)} --steps {BLOCK_STEPS} --seed {own.seed}"
        phases.append(Phase(f"blocks of {block}", own, f"{command} --begin {parent} {settings} --out {out}"))
    published = load_published_results("text8", "character")
    return Plan(tuple(phases), _expected(), tuple(sorted(published, key=lambda result: result.value)))


def _expected() -> tuple[Expected, ...]:
    low, high = ANY_ORDER
    first = Expected(
        "one block", low, high, "bound",
        "The any-order bound of the sphere is the bound of masked diffusion, which MD4 published for 12 blocks of 768 "
        "and 1M steps. The upper end is a judgement: in a probe rdlm-heat was 0.02 bits above mdlm, both tied.",
        "Shi et al. 2024, arXiv:2406.04329; probe of 96 × 3 networks, 1,000 steps, one seed (docs/LOG.md)",
        "that a tied head and a rising any-order fraction help at this size as in the probe, and 850k steps suffice",
    )  # fmt: skip
    blocks = [
        Expected(
            f"blocks of {block}", round(low - most * (low - AR), 2), round(high - least * (high - AR), 2), "bound",
            f"Blocks of {block} close {least:.0%} to {most:.0%} of the difference between one block and AR.",
            "Arriola et al. 2025, arXiv:2503.09573, LM1B and OpenWebText" + (", and the probe" if block == 4 else ""),
            "the phase before it, and fractions measured on subwords or at small size" if block == 4
            else "the phase before it, and fractions measured on subwords after 150k steps of one block size",
        )
        for block, (least, most) in GAP_CLOSED.items()
    ]  # fmt: skip
    return first, *blocks


PLANS: dict[str, Callable[[TrainConfig], Plan]] = {"text8-paper": text8_paper}
"""Plans by the name of the recipe of their first phase."""


def plan_costs(plan: Plan, devices: Iterable[int], display: Display = SILENT) -> list[PhaseCost]:
    """The cost of each phase for each number of devices."""
    sizes = tuple(devices)
    return [PhaseCost(phase, estimates(phase.config, sizes, display)) for phase in plan.phases]


def total_hours(costs: list[PhaseCost], gpu: str, devices: int) -> float | None:
    """Hours of all phases; None if one has no number of steps or does not fit."""
    hours = [one.hours(gpu, devices) for one in costs]
    known = [one for one in hours if one is not None]
    return sum(known) if len(known) == len(hours) else None


def summarise(plan: Plan, costs: list[PhaseCost]) -> dict[str, Any]:
    """A plan and its costs as plain data."""
    devices = list(costs[0].by_devices)
    steps, tokens, flops = (
        [getattr(one.cost, name) for one in costs] for name in ("steps", "tokens", "flops")
    )  # fmt: skip
    return {
        "phases": [_summary(one) for one in costs],
        "total": {
            "steps": None if None in steps else sum(steps),
            "tokens": None if None in tokens else sum(tokens),
            "flops": None if None in flops else sum(flops),
            "disk_bytes": sum(one.cost.disk_bytes for one in costs),
            "hours": {gpu: {number: total_hours(costs, gpu, number) for number in devices} for gpu in GPUS},
        },
        "assumptions": {"utilisation": REACHED, "peak_flops_per_second": GPUS, "measured": False},
        "expected": [asdict(one) | {"unit": "bits per character"} for one in plan.expected],
        "published": [asdict(one) for one in plan.published],
    }


def _summary(one: PhaseCost) -> dict[str, Any]:
    devices, bill = list(one.by_devices), one.cost
    return {
        "name": one.phase.name,
        "system": one.phase.config.system,
        "command": one.phase.command,
        "parameters": bill.parameters,
        "steps": bill.steps,
        "tokens": bill.tokens,
        "flops_per_token": bill.flops_per_token,
        "flops": bill.flops,
        "memory": {number: one.by_devices[number].memory if one.fits(number) else None for number in devices},
        "disk_bytes": bill.disk_bytes,
        "hours": {gpu: {number: one.hours(gpu, number) for number in devices} for gpu in GPUS},
    }
