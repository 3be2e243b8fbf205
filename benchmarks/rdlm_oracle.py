"""RDLM with the exact posterior of toy languages: `python benchmarks/rdlm_oracle.py`, about five minutes.

Three tables: the gap between the bound of the exact posterior and the entropy, by bridge, noise and start (paired with
-log p of the same sequences); the moments of pairs (a, b) against those of the d-dimensional random walk that they
represent; and -log p of samples of the exact posterior, by step, time grid and number of steps.
"""

import argparse
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import print_table
from torch import Tensor

import logosphere as ls
from logosphere.data.languages import Language, Markov, Oracle
from logosphere.geometry.bridge_tables import PARTICLES, decode_time
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge, simulate_bridge
from logosphere.model import Model
from logosphere.processes.base import uniform_grid
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.sampling.steppers import SphericalStepper
from logosphere.systems.spherical_parts import default_noise

LETTERS = 27
WALKERS = 100_000
CHUNK = 2000
"""Sequences of one evaluation."""


def make_rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_skewed_language(length: int) -> Markov:
    """Return a Markov chain with random rows and a start that is not stationary."""
    rows = torch.rand(LETTERS + 1, LETTERS, generator=make_rng(3), dtype=torch.float64) ** 3 + 0.01
    rows = rows / rows.sum(1, keepdim=True)
    return ls.languages.markov(rows[1:], rows[0], length)


def make_sharp_language(length: int) -> Markov:
    """Return a Markov chain of slightly less than 2 bits per letter, similar to text."""
    transition = (3.0 * torch.randn(LETTERS, LETTERS, generator=make_rng(7), dtype=torch.float64)).softmax(1)
    return ls.languages.markov(transition, torch.full((LETTERS,), 1 / LETTERS, dtype=torch.float64), length)


def build_calibrated(name: str, language: Language, **options: Any) -> Model:
    """Build a model without a network and calibrate its time sampler on the language in several passes."""
    size: dict[str, Any] = {"vocab_size": language.vocab_size, "length": language.length}
    model = ls.build(name, denoiser=None, path="joint", any_order_fraction=0.0, **size, **options)
    model.process.train()
    rng = make_rng(1)
    for _ in range(4):
        model.nelbo(language.sample(500, rng), rng, denoiser=Oracle(model, language), draws=4)
        assert isinstance(model.process, OnlineStatistics)
        model.process.update_statistics()
    model.process.eval()
    return model


def measure_gaps(sequences: int) -> dict[str, dict[str, float]]:
    """Return (bound - H)/H in percent."""
    language, rows = make_skewed_language(4), {}
    entropy = language.entropy()
    for name, start in (("rdlm", "mask"), ("rdlm-heat", "mask"), ("rdlm-heat", "uniform")):
        for noise in (0.01, 0.04, 0.1, 0.15, 0.2, 0.3):
            model = build_calibrated(name, language, start=start, total_noise=noise)
            rng, parts = make_rng(11), []
            for _ in range(sequences // CHUNK):
                tokens = language.sample(CHUNK, rng)
                bound = model.nelbo(tokens, rng, denoiser=Oracle(model, language), draws=64).total.double()
                parts.append(bound + language.log_prob(tokens))
            excess = torch.cat(parts)
            mean, error = float(excess.mean()), float(excess.std() / len(excess) ** 0.5)
            rows[f"{name}, {start}, V = {noise}"] = {
                "gap, % of H": 100 * mean / entropy,
                "s.e., % of H": 100 * error / entropy,
                "gap / s.e.": mean / error,
            }
    return rows


def simulate_walks(bridge: Bridge, d: int, times: Tensor, chunk: int) -> Tensor:
    """Return mean and variance of a, a², b, b² at each time [N, 2, 4] over WALKERS walks from the mask in d dimensions.

    The vertex is the first axis and the mask the last, so a and b are coordinates.
    """
    rng, sums = make_rng(13), torch.zeros(len(times), 2, 4, dtype=torch.float64)
    shift = torch.zeros(len(times), 4, dtype=torch.float64)  # variances are summed about the mean of the first chunk
    for number in range(WALKERS // chunk):
        x = torch.zeros(chunk, d)
        x[:, -1] = 1.0
        for i in range(len(times)):
            a, b = x[:, 0].double(), x[:, -1].double()
            values = torch.stack([a, a.square(), b, b.square()], 1)
            if number == 0:
                shift[i] = values.mean(0)
            values -= shift[i]
            sums[i] += torch.stack([values.sum(0), values.square().sum(0)])
            if i + 1 < len(times):
                ds = float(times[i + 1] - times[i])
                v = torch.randn(chunk, d, generator=rng).mul_((bridge.total_noise * ds) ** 0.5)
                v[:, 0] += bridge.drift_strength(x[:, :1], times[i].expand(chunk))[:, 0].float() * ds
                v -= (v * x).sum(1, keepdim=True) * x
                length = v.norm(dim=1, keepdim=True).clamp_min(1e-20)
                x = length.cos() * x + (length.sin() / length) * v
                x /= x.norm(dim=1, keepdim=True)
    mean = sums[:, 0] / WALKERS
    return torch.stack([shift + mean, sums[:, 1] / WALKERS - mean.square()], 1)


def compare_moments() -> dict[str, dict[str, float]]:
    """Return the largest difference of pairs and walks over times and E a, E a², E b, E b², in s.e. of the walks."""
    rows = {}
    for d, steps, chunk in ((4, 100, 20_000), (28, 100, 10_000), (256, 32, 5000)):
        noise = default_noise(d)
        for bridge in (LogBridge(noise), HeatBridge.on(d, noise)):
            end = decode_time(bridge, d, 0.0)
            times = 1 - (1 - end) ** torch.linspace(0, 1, steps + 1, dtype=torch.float64)
            mean, variance = simulate_walks(bridge, d, times, chunk)[1:].unbind(1)
            error = (variance / WALKERS).sqrt()
            row: dict[str, float] = {"steps": steps}
            for particles in (PARTICLES, 16 * PARTICLES):
                table = simulate_bridge(bridge, d, 0.0, times, particles, geodesic_walk=True)
                a, b = table.a[1:].double(), table.b[1:].double()
                pairs = torch.stack([a.mean(1), a.square().mean(1), b.mean(1), b.square().mean(1)], 1)
                off = ((pairs - mean) / error).abs()
                row[f"max, {particles}"], row[f"end, {particles}"] = float(off.max()), float(off[-1].max())
                row[f"rms, {particles}"] = float(off.square().mean().sqrt())
            rows[f"{bridge.name}, d = {d}"] = row
    return rows


def measure_samples() -> tuple[str, dict[str, dict[str, float]]]:
    """Return -log p of samples under the language per letter, and its excess over the entropy."""
    language, n = make_sharp_language(16), 1024
    model = build_calibrated("rdlm-heat", language)
    oracle, entropy = Oracle(model, language), language.entropy()
    rows = {}
    true = -language.log_prob(language.sample(100_000, make_rng(17)))
    for name, step in SPHERICAL_STEPS.items():
        for grid in ("uniform", "information"):
            for steps in (16, 64, 256):
                rng = make_rng(steps)
                drawn = ls.sample(
                    model, n=n, steps=steps, rng=rng, denoiser=oracle, stepper=SphericalStepper(step),
                    grid=uniform_grid if grid == "uniform" else model.process.grid,
                )  # fmt: skip
                nats = -language.log_prob(drawn)
                off, error = float(nats.mean()) - entropy, float(nats.std() / n**0.5)
                rows[f"{name}, {grid}, {steps}"] = {
                    "bits / letter": float(nats.mean()) / 16 / math.log(2),
                    "excess, %": 100 * off / entropy,
                    "s.e., %": 100 * error / entropy,
                    "excess / s.e.": off / error,
                    "worst, nats": float(nats.max()),
                }
    title = (
        f"samples of the oracle of rdlm-heat, {n} × 16 letters of 27, H = {entropy / 16 / math.log(2):.4f} bits per "
        f"letter (s.d. of -log p {float(true.std()):.2f} nats)"
    )
    return title, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=4000, help="sequences of the bounds")
    parser.add_argument("--gaps", action="store_true", help="only the bounds")
    args = parser.parse_args()
    os.environ["LOGOSPHERE_CACHE"] = str(Path(tempfile.gettempdir()) / "rdlm-oracle-tables")
    print_table("bound of the exact posterior, 4 letters of 27, correlated", measure_gaps(args.sequences))
    if args.gaps:
        return
    print_table(f"pairs (a, b) against {WALKERS} walks in d dimensions, |difference| in s.e.", compare_moments())
    print_table(*measure_samples())


if __name__ == "__main__":
    main()
