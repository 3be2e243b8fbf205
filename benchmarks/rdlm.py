"""Costs of RDLM in CPU seconds of one thread: `python benchmarks/rdlm.py --run runs/rdlm`, about five minutes.

Four tables: bridge tables from an empty cache; one draw of X_t as in training; a training step relative to that of the
bare network, as in step_overhead.py; and the bound at equal standard error. This package draws X_t from a table at
stratified times of a learned time sampler and ends with a decoding term. The published protocol (Jo and Hwang 2025)
draws independent times of its geometric schedule and simulates X_t by 500 steps of the geodesic random walk in all d
dimensions, up to 1 - 10⁻⁴ of its time. Near the end the integrand of an imperfect network grows without bound, so the
protocol is also measured up to the decoding time of this package (s*), without that part of highest variance. All use
the same denoiser and the same sequences. Seconds at equal standard error are variance × seconds of a draw.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import print_table
from step_overhead import BATCH, LENGTH, VOCABULARY, measure_overheads
from torch import Tensor

import logosphere as ls
from logosphere.codecs.tokens import VertexCodec
from logosphere.data.batches import windows
from logosphere.data.languages import Language, Oracle
from logosphere.geometry import sphere
from logosphere.geometry.bridge_tables import tabulate_bridges
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge, simulate_bridge
from logosphere.model import Model
from logosphere.networks.base import BeliefInput, Denoiser
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.spherical.diffusion import SphericalDiffusion, Start
from logosphere.processes.time_sampler import TimeSampler, uniform_density
from logosphere.rng import CounterNoise
from logosphere.runs.run import Run
from logosphere.systems.spherical_parts import default_noise, start_point

LETTERS = 27
NOISE = 0.0376
RATIO = 200.0
"""β₁/β₀ of the published schedule, s = (200^t - 1)/199."""
LAST_TIME, WALK_STEPS = 1 - 1e-4, 500
SEQUENCES = 256


def use_empty_cache() -> None:
    os.environ["LOGOSPHERE_CACHE"] = tempfile.mkdtemp(prefix="rdlm-tables-")


def measure_tables() -> dict[str, dict[str, float]]:
    """Return the seconds to compute a table; the first also includes the initialisation of torch."""
    d = LETTERS + 1
    kinds: dict[str, Callable[[], Bridge]] = {
        "log": lambda: LogBridge(default_noise(d)),
        "heat": lambda: HeatBridge.on(d, default_noise(d)),
    }
    rows = {}
    for name, bridge in kinds.items():
        seconds = []
        for _ in range(3):
            use_empty_cache()
            started = time.process_time()
            tabulate_bridges(bridge(), d, [0.0])
            seconds.append(time.process_time() - started)
        rows[name] = {"first": seconds[0], "median of 3": statistics.median(seconds), "target": 2.0}
    return rows


def measure_draws() -> dict[str, dict[str, float]]:
    """Return the milliseconds to draw the states of a batch with one time a sequence, including noise."""
    rows = {}
    ids = torch.arange(32)
    for name in ("rdlm", "rdlm-heat"):
        process = ls.build(name, vocab_size=LETTERS, length=128, denoiser=None).process
        rng = torch.Generator().manual_seed(0)
        u = process.codec.encode(torch.randint(0, LETTERS, (32, 128), generator=rng))
        t = torch.rand(32, 1, generator=rng).clamp_min(0.01).expand(32, 128)
        seconds = []
        for step in range(55):
            started = time.process_time()
            process.corrupt(u, t, CounterNoise(0, step, ids, ids, 32))
            seconds.append(time.process_time() - started)
        quarter = statistics.quantiles(seconds[5:], n=4)
        rows[name] = {"ms": 1e3 * quarter[1], "ms_quartile_1": 1e3 * quarter[0], "ms_quartile_3": 1e3 * quarter[2]}
        rows[name]["target"] = 6.0
    return rows


def measure_steps() -> dict[str, dict[str, float]]:
    """Return the overheads of training steps, as in step_overhead.py."""
    return {name: row | {"target": 1.10} for name, row in measure_overheads(["mdlm", "rdlm", "rdlm-heat"]).items()}


class PublishedBound:
    """The published estimate of the bound, for the log bridge from the mask."""

    def __init__(self, length: int) -> None:
        """The table of the log-likelihood extends to the last time of the published schedule."""
        self.bridge = LogBridge(NOISE)
        last = 1 - (RATIO**LAST_TIME - 1) / (RATIO - 1)
        times = 1 - last ** torch.linspace(0, 1, 401, dtype=torch.float64)
        start = Start(start_point("mask", LETTERS), simulate_bridge(self.bridge, LETTERS + 1, 0.0, times, 4096))
        self.process = SphericalDiffusion(
            VertexCodec(LETTERS), self.bridge, [start], TimeSampler(uniform_density(len(times)))
        )
        self.model = Model(self.process, None, length=length, block=length)

    def simulate_states(self, u: Tensor, t: Tensor, rng: torch.Generator) -> Tensor:
        """Return X_t [B, L, d] after WALK_STEPS equal steps from 0 to t [B]: exp_X(log_X(e)/(1 - s) ds + √(V ds) z)."""
        z = self.process.origins[0].expand_as(u)
        for i in range(WALK_STEPS):
            s, then = (_schedule(t * (i / WALK_STEPS)), _schedule(t * ((i + 1) / WALK_STEPS)))
            ds = (then - s)[:, None, None]
            cosine = sphere.dot(z, u)
            strength = self.bridge.drift_strength(cosine, s[:, None].expand(cosine.shape[:2])) * ds
            ambient = strength * u + (NOISE * ds).sqrt() * torch.randn(u.shape, generator=rng)
            z = sphere.normalise(sphere.exp(z, sphere.project(z, ambient)))
        return z

    def bound(self, tokens: Tensor, predict: Denoiser, rng: torch.Generator, until: float = LAST_TIME) -> Tensor:
        """Return one draw for each sequence: the integrand at one time, without a decoding term."""
        u = self.process.codec.encode(tokens)
        t = until * torch.rand(len(tokens), generator=rng)
        z, s = self.simulate_states(u, t, rng), _schedule(t)
        out = predict(z, self._process_time(s)[:, None].expand(tokens.shape), context=u)
        cosine = z[..., :LETTERS]
        strength = self.bridge.drift_strength(cosine, s[:, None].expand(tokens.shape))
        excess = (out.softmax(-1) - u[..., :LETTERS]) * strength
        squared = excess.square().sum(-1) - (excess * cosine).sum(-1).square()
        speed = math.log(RATIO) * RATIO**t / (RATIO - 1)
        return squared.sum(1) / (2 * NOISE) * speed * until

    def _process_time(self, s: Tensor) -> Tensor:
        times = self.process.times
        right = torch.searchsorted(times, s).clamp(1, len(times) - 1)
        place = right - 1 + (s - times[right - 1]) / (times[right] - times[right - 1])
        return (1 - place / len(times)).clamp(1e-6, 1)


def _schedule(t: Tensor) -> Tensor:
    return (RATIO**t - 1) / (RATIO - 1)


def calibrate(model: Model, predict: Denoiser | None, language: Language) -> None:
    """Calibrate the time sampler in several passes."""
    rng = torch.Generator().manual_seed(1)
    model.process.train()
    for _ in range(4):
        model.nelbo(language.sample(500, rng), rng, denoiser=predict, draws=4)
        assert isinstance(model.process, OnlineStatistics)
        model.process.update_statistics()
    model.process.eval()


def measure_estimator(draw: Callable[[], Tensor], log_p: Tensor, repeats: int) -> dict[str, float]:
    """Return mean and variances of one draw for each sequence, and its time.

    `variance` includes that between sequences, `of the draw` is the variance of draws of one sequence, `of the mean`
    is the number of sequences times the variance of their mean over repeated draws, which stratified times reduce.
    """
    draw()
    started = time.process_time()
    rows = torch.stack([draw().double() for _ in range(repeats)])
    seconds = (time.process_time() - started) / rows.numel()
    return {
        "mean": float(rows.mean()),
        "s.e.": float(rows.mean(1).std() / repeats**0.5),
        "mean + log p": float((rows + log_p).mean()),
        "variance": float(rows.var(1).mean()),
        "of the draw": float(rows.var(0).mean()),
        "of the mean": float(rows.mean(1).var() * rows.shape[1]),
        "ms / draw": 1e3 * seconds,
    }


class Case(NamedTuple):
    """A denoiser for both protocols, and the sequences of the bounds."""

    model: Model
    ours: Denoiser
    theirs: Denoiser
    published: "PublishedBound"
    tokens: Tensor
    log_p: Tensor
    repeats: tuple[int, int]


def build_oracle_case() -> Case:
    """Return the case of the exact posterior of a Markov chain of 27 letters."""
    length = 16
    torch.manual_seed(27)
    transition = (2.0 * torch.randn(LETTERS, LETTERS)).softmax(1)
    language = ls.languages.markov(transition, torch.full((LETTERS,), 1 / LETTERS), length)
    tokens = language.sample(SEQUENCES, torch.Generator().manual_seed(0))
    model = ls.build("rdlm", vocab_size=LETTERS, length=length, total_noise=NOISE, denoiser=None)
    ours, published = Oracle(model, language), PublishedBound(length)
    calibrate(model, ours, language)
    theirs = Oracle(published.model, language)
    return Case(model, ours, theirs, published, tokens, language.log_prob(tokens), (200, 30))


def load_network_case(run: Path) -> Case:
    """Return the case of a network of `rdlm` trained on text8, with its own time sampler, on the test split."""
    model = Run(run).model("ema", {"path": "joint"})
    tokens = next(iter(windows(ls.open_corpus("text8").test, model.length, 64, 64))).tokens
    published = PublishedBound(model.length)
    theirs = BeliefInput(model.denoiser.inner, published.process.belief)  # type: ignore[union-attr, arg-type]
    return Case(model, model.denoiser, theirs, published, tokens, torch.zeros(64), (120, 30))  # type: ignore[arg-type]


def compare_bounds(case: Case) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return the estimators of both protocols, ours along both paths, and their ratios."""
    case.model.eval(), case.theirs.eval(), case.published.process.eval()
    rng = torch.Generator().manual_seed(2)

    def our_draw() -> Tensor:
        return case.model.nelbo(case.tokens, rng, denoiser=case.ours).total

    process = case.model.process
    assert isinstance(process, SphericalDiffusion)
    stop = math.log1p((RATIO - 1) * float(process.times[-1])) / math.log(RATIO)

    def their_draw(until: float = LAST_TIME) -> Tensor:
        with torch.no_grad():
            return case.published.bound(case.tokens, case.theirs, rng, until)

    ours, theirs = case.repeats
    published = {
        "published": measure_estimator(their_draw, case.log_p, theirs),
        "published, to s*": measure_estimator(lambda: their_draw(stop), case.log_p, theirs),
    }
    ours_by_path = {"joint": measure_estimator(our_draw, case.log_p, ours)}
    case.model.process = process.with_path("any-order")
    ours_by_path["any-order"] = measure_estimator(our_draw, case.log_p, ours)
    pairs = [(name, other) for name in ours_by_path for other in published]
    return published | ours_by_path, {
        f"{name} / {other}": compare_costs(ours_by_path[name], published[other]) for name, other in pairs
    }


def compare_costs(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """Return the ratio of the seconds of both protocols at equal standard error.

    The main figure is that of the mean over a batch at fixed sequences: our times are stratified over the batch, and
    the variance between sequences is the same for both. The published draws are independent, so the variance of their
    mean follows from that of a draw more precisely than from a few repetitions. `single draws` treats our draws as
    independent too.
    """
    faster = theirs["ms / draw"] / ours["ms / draw"]
    return {
        "seconds of a draw": faster,
        "single draws": faster * theirs["of the draw"] / ours["of the draw"],
        "mean over a batch": faster * theirs["of the draw"] / ours["of the mean"],
        "target": 50.0,
    }


def print_costs() -> None:
    print_table("tables for d = 28 from an empty cache, CPU seconds", measure_tables())
    use_empty_cache()
    print_table("one draw of X_t, 32 × 128 tokens of 27, counter-based noise, CPU milliseconds", measure_draws())
    print_table(
        f"training step / bare step, width 256, 4 blocks, {BATCH} × {LENGTH} tokens of {VOCABULARY}", measure_steps()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of rdlm on text8, whose bound is measured too")
    parser.add_argument("--bounds", action="store_true", help="only the bounds")
    args = parser.parse_args()
    if not args.bounds:
        print_costs()
    cases = {"oracle": build_oracle_case} | (
        {} if args.run is None else {"network": lambda: load_network_case(args.run)}
    )
    ratios: dict[str, Any] = {}
    for name, case in cases.items():
        rows, found = compare_bounds(case())
        ratios |= {f"{name}, {pair}": row for pair, row in found.items()}
        print_table(f"one draw of the bound with the {name}, nats per sequence, log bridge, V = 0.0376, mask", rows)
    print_table("CPU seconds at equal standard error, published / ours", ratios)


if __name__ == "__main__":
    main()
