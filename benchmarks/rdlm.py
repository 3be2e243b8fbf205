"""What RDLM costs, in CPU seconds of one thread: `python benchmarks/rdlm.py --run runs/rdlm`, about five minutes.

Tables of bridges from an empty cache; one draw of X_t as in training; a training step beside the bare network's, as in
step_overhead.py; and the bound at equal standard error. Ours draws X_t from a table at stratified times of a learned
clock, and reads the token off at the end. The published protocol (Jo and Hwang 2025) draws independent times in its
geometric clock and reaches X_t by 500 steps of the geodesic random walk in all d dimensions, to 1 - 10⁻⁴ of its time;
near its end a network that is not sharp has an integrand that grows without bound, so it is also stopped where ours
stops (s*), which leaves it without its last, wildest part. All ask the same denoiser about the same sequences. Seconds
at equal standard error are variance × seconds of a draw.
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
from harness import present
from step_overhead import BATCH, LENGTH, VOCABULARY, overheads
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
"""β₁/β₀ of the published clock, s = (200^t - 1)/199."""
UNTIL, WALK = 1 - 1e-4, 500
SEQUENCES = 256


def fresh_cache() -> None:
    os.environ["LOGOSPHERE_CACHE"] = tempfile.mkdtemp(prefix="rdlm-tables-")


def tables() -> dict[str, dict[str, float]]:
    """Seconds to make a table; the first one also pays for what torch sets up once."""
    d = LETTERS + 1
    kinds: dict[str, Callable[[], Bridge]] = {
        "log": lambda: LogBridge(default_noise(d)),
        "heat": lambda: HeatBridge.on(d, default_noise(d)),
    }
    rows = {}
    for name, bridge in kinds.items():
        seconds = []
        for _ in range(3):
            fresh_cache()
            started = time.process_time()
            tabulate_bridges(bridge(), d, [0.0])
            seconds.append(time.process_time() - started)
        rows[name] = {"first": seconds[0], "median of 3": statistics.median(seconds), "target": 2.0}
    return rows


def draws() -> dict[str, dict[str, float]]:
    """Milliseconds for the states of a batch at times that differ by sequence, noise included."""
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


def steps() -> dict[str, dict[str, float]]:
    """As step_overhead.py does it."""
    return {name: row | {"target": 1.10} for name, row in overheads(["mdlm", "rdlm", "rdlm-heat"]).items()}


class Published:
    """The published estimate of the bound, for the log bridge from the mask."""

    def __init__(self, length: int) -> None:
        """The denoiser reads what a state says from a table, which here goes on to the last time of the clock."""
        self.bridge = LogBridge(NOISE)
        last = 1 - (RATIO**UNTIL - 1) / (RATIO - 1)
        times = 1 - last ** torch.linspace(0, 1, 401, dtype=torch.float64)
        start = Start(start_point("mask", LETTERS), simulate_bridge(self.bridge, LETTERS + 1, 0.0, times, 4096))
        self.process = SphericalDiffusion(
            VertexCodec(LETTERS), self.bridge, [start], TimeSampler(uniform_density(len(times)))
        )
        self.model = Model(self.process, None, length=length, block=length)

    def states(self, u: Tensor, t: Tensor, rng: torch.Generator) -> Tensor:
        """X_t [B, L, d] by WALK equal steps in t from 0 to t [B], each exp_X(log_X(e)/(1 - s) ds + √(V ds) z)."""
        z = self.process.origins[0].expand_as(u)
        for i in range(WALK):
            s, then = (_share(t * (i / WALK)), _share(t * ((i + 1) / WALK)))
            ds = (then - s)[:, None, None]
            cosine = sphere.dot(z, u)
            pull = self.bridge.drift_strength(cosine, s[:, None].expand(cosine.shape[:2])) * ds
            ambient = pull * u + (NOISE * ds).sqrt() * torch.randn(u.shape, generator=rng)
            z = sphere.normalise(sphere.exp(z, sphere.project(z, ambient)))
        return z

    def bound(self, tokens: Tensor, predict: Denoiser, rng: torch.Generator, until: float = UNTIL) -> Tensor:
        """One draw for each sequence: the integrand at one time, and no term for reading the token off."""
        u = self.process.codec.encode(tokens)
        t = until * torch.rand(len(tokens), generator=rng)
        z, s = self.states(u, t, rng), _share(t)
        out = predict(z, self._process_time(s)[:, None].expand(tokens.shape), context=u)
        cosine = z[..., :LETTERS]
        pull = self.bridge.drift_strength(cosine, s[:, None].expand(tokens.shape))
        excess = (out.softmax(-1) - u[..., :LETTERS]) * pull
        apart = excess.square().sum(-1) - (excess * cosine).sum(-1).square()
        speed = math.log(RATIO) * RATIO**t / (RATIO - 1)
        return apart.sum(1) / (2 * NOISE) * speed * until

    def _process_time(self, s: Tensor) -> Tensor:
        times = self.process.times
        right = torch.searchsorted(times, s).clamp(1, len(times) - 1)
        place = right - 1 + (s - times[right - 1]) / (times[right] - times[right - 1])
        return (1 - place / len(times)).clamp(1e-6, 1)


def _share(t: Tensor) -> Tensor:
    return (RATIO**t - 1) / (RATIO - 1)


def calibrate(model: Model, predict: Denoiser | None, language: Language) -> None:
    """Let the clock measure where the nats are, in several passes."""
    rng = torch.Generator().manual_seed(1)
    model.process.train()
    for _ in range(4):
        model.nelbo(language.sample(500, rng), rng, denoiser=predict, draws=4)
        assert isinstance(model.process, OnlineStatistics)
        model.process.update_statistics()
    model.process.eval()


def repeated(work: Callable[[], Tensor], log_p: Tensor, repeats: int) -> dict[str, float]:
    """Mean and variances of a draw for each sequence, and its seconds.

    `variance` counts the spread between sequences too, `of the draw` is that of one sequence's draws, `of the mean` is
    the number of sequences times the variance of their mean over repeated draws, where stratified times count as well.
    """
    work()
    started = time.process_time()
    rows = torch.stack([work().double() for _ in range(repeats)])
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
    """The same denoiser for both protocols, and sequences to ask it about."""

    model: Model
    ours: Denoiser
    theirs: Denoiser
    published: "Published"
    tokens: Tensor
    log_p: Tensor
    repeats: tuple[int, int]


def oracle() -> Case:
    """The exact posterior of a chain of 27 letters."""
    length = 16
    torch.manual_seed(27)
    transition = (2.0 * torch.randn(LETTERS, LETTERS)).softmax(1)
    language = ls.languages.markov(transition, torch.full((LETTERS,), 1 / LETTERS), length)
    tokens = language.sample(SEQUENCES, torch.Generator().manual_seed(0))
    model = ls.build("rdlm", vocab_size=LETTERS, length=length, total_noise=NOISE, denoiser=None)
    ours, published = Oracle(model, language), Published(length)
    calibrate(model, ours, language)
    theirs = Oracle(published.model, language)
    return Case(model, ours, theirs, published, tokens, language.log_prob(tokens), (200, 30))


def trained(run: Path) -> Case:
    """A network of `rdlm` trained on text8, asked about the test split; the clock is the one it has learnt."""
    model = Run(run).model("ema", {"path": "joint"})
    tokens = next(iter(windows(ls.open_corpus("text8").test, model.length, 64, 64))).tokens
    published = Published(model.length)
    theirs = BeliefInput(model.denoiser.inner, published.process.log_likelihood)  # type: ignore[union-attr, arg-type]
    return Case(model, model.denoiser, theirs, published, tokens, torch.zeros(64), (120, 30))  # type: ignore[arg-type]


def bounds(case: Case) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Both protocols, ours along both paths, and how they compare."""
    case.model.eval(), case.theirs.eval(), case.published.process.eval()
    rng = torch.Generator().manual_seed(2)

    def our_draw() -> Tensor:
        return case.model.nelbo(case.tokens, rng, denoiser=case.ours).total

    process = case.model.process
    assert isinstance(process, SphericalDiffusion)
    stop = math.log1p((RATIO - 1) * float(process.times[-1])) / math.log(RATIO)

    def their_draw(until: float = UNTIL) -> Tensor:
        with torch.no_grad():
            return case.published.bound(case.tokens, case.theirs, rng, until)

    ours, theirs = case.repeats
    opponents = {
        "published": repeated(their_draw, case.log_p, theirs),
        "published, to s*": repeated(lambda: their_draw(stop), case.log_p, theirs),
    }
    own = {"joint": repeated(our_draw, case.log_p, ours)}
    case.model.process = process.with_path("any-order")
    own["in turn"] = repeated(our_draw, case.log_p, ours)
    pairs = [(name, other) for name in own for other in opponents]
    return opponents | own, {f"{name} / {other}": compared(own[name], opponents[other]) for name, other in pairs}


def compared(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """How many times fewer seconds ours needs at equal standard error.

    The figure that counts is that of the mean over a batch at fixed sequences: our times are stratified over it, and
    the spread between sequences is the same for all. The published draws are independent of each other, so the variance
    of their mean is that of a draw over their number, which is known better than from a few repetitions. By single
    draws: as if ours were independent too.
    """
    faster = theirs["ms / draw"] / ours["ms / draw"]
    return {
        "seconds alone": faster,
        "single draws": faster * theirs["of the draw"] / ours["of the draw"],
        "mean over a batch": faster * theirs["of the draw"] / ours["of the mean"],
        "target": 50.0,
    }


def costs() -> None:
    present("tables for d = 28 from an empty cache, CPU seconds", tables())
    fresh_cache()
    present("one draw of X_t, 32 × 128 tokens of 27, keyed noise, CPU milliseconds", draws())
    present(f"training step / bare step, width 256, 4 blocks, {BATCH} × {LENGTH} tokens of {VOCABULARY}", steps())


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--run", type=Path, help="a trained run of rdlm on text8: the bound is measured with it too")
    read.add_argument("--bounds", action="store_true", help="only the bounds")
    given = read.parse_args()
    if not given.bounds:
        costs()
    cases = {"oracle": oracle} | ({} if given.run is None else {"network": lambda: trained(given.run)})
    ratios: dict[str, Any] = {}
    for name, case in cases.items():
        rows, found = bounds(case())
        ratios |= {f"{name}, {way}": row for way, row in found.items()}
        present(f"one draw of the bound with the {name}, nats per sequence, log bridge, V = 0.0376, mask", rows)
    present("CPU seconds at equal standard error, published / ours", ratios)


if __name__ == "__main__":
    main()
