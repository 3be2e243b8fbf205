"""What RDLM costs, in CPU seconds of one thread: `python benchmarks/rdlm.py`, about five minutes.

Tables of bridges from an empty cache; one draw of X_t as in training; a training step beside the bare network's, as in
step_overhead.py; and the bound at equal standard error. Ours draws X_t from a table at stratified times of a learned
clock, and reads the token off at the end. The published protocol (Jo and Hwang 2025) draws independent times in its
geometric clock and reaches X_t by 500 steps of the geodesic random walk in all d dimensions. Both ask the same denoiser
about the same sequences. Seconds at equal standard error are variance × seconds of a draw.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from harness import present
from step_overhead import BATCH, LENGTH, VOCABULARY
from torch import Tensor

import logosphere as ls
from logosphere.codecs.vertices import VertexCodec
from logosphere.data.languages import Language, Oracle
from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.wrappers import Believing
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge, simulate
from logosphere.geometry.laws import bridge_laws
from logosphere.model import Model
from logosphere.noise import Keyed
from logosphere.processes.clock import Clock, even_law
from logosphere.processes.spherical import Spherical, Start
from logosphere.recipes.spherical import default_noise, start_point

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
            bridge_laws(bridge(), d, [0.0])
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
            process.corrupt(u, t, Keyed(0, step, ids, ids, 32))
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
        start = Start(start_point("mask", LETTERS), simulate(self.bridge, LETTERS + 1, 0.0, times, 4096))
        self.process = Spherical(VertexCodec(LETTERS), self.bridge, [start], Clock(even_law(len(times))))
        self.model = Model(self.process, None, length=length, block=length)

    def states(self, u: Tensor, t: Tensor, rng: torch.Generator) -> Tensor:
        """X_t [B, L, d] by WALK equal steps in t from 0 to t [B], each exp_X(log_X(e)/(1 - s) ds + √(V ds) z)."""
        z = self.process.origins[0].expand_as(u)
        for i in range(WALK):
            s, then = (_share(t * (i / WALK)), _share(t * ((i + 1) / WALK)))
            ds = (then - s)[:, None, None]
            cosine = sphere.dot(z, u)
            pull = self.bridge.pull(cosine, s[:, None].expand(cosine.shape[:2])) * ds
            ambient = pull * u + (NOISE * ds).sqrt() * torch.randn(u.shape, generator=rng)
            z = sphere.normalised(sphere.exp(z, sphere.project(z, ambient)))
        return z

    def bound(self, tokens: Tensor, predict: Denoiser, rng: torch.Generator) -> Tensor:
        """One draw for each sequence: the integrand at one time, and no term for reading the token off."""
        u = self.process.codec.encode(tokens)
        t = UNTIL * torch.rand(len(tokens), generator=rng)
        z, s = self.states(u, t, rng), _share(t)
        out = predict(z, self._process_time(s)[:, None].expand(tokens.shape), context=u)
        cosine = z[..., :LETTERS]
        pull = self.bridge.pull(cosine, s[:, None].expand(tokens.shape))
        excess = (out.softmax(-1) - u[..., :LETTERS]) * pull
        apart = excess.square().sum(-1) - (excess * cosine).sum(-1).square()
        speed = math.log(RATIO) * RATIO**t / (RATIO - 1)
        return apart.sum(1) / (2 * NOISE) * speed * UNTIL

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
        model.process.settle()
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


def bounds() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Both protocols, with the oracle and with an untrained network of the size of text8-tiny."""
    length = 16
    torch.manual_seed(27)
    transition = (2.0 * torch.randn(LETTERS, LETTERS)).softmax(1)
    language = ls.languages.markov(transition, torch.full((LETTERS,), 1 / LETTERS), length)
    tokens = language.sample(SEQUENCES, torch.Generator().manual_seed(0))
    log_p = language.log_prob(tokens)
    published = Published(length)
    settings = {"vocab_size": LETTERS, "length": length, "total_noise": NOISE}
    bare = ls.build("rdlm", denoiser=None, **settings)
    network = ls.build("rdlm", width=160, depth=4, heads=5, **settings)
    inner = network.denoiser.inner  # type: ignore[union-attr]
    process = published.process
    cases = {
        "oracle": (bare, Oracle(bare, language), Oracle(published.model, language)),
        "network": (network, network.denoiser, Believing(inner, process)),
    }
    rows, ratios = {}, {}
    for name, (model, ours, theirs) in cases.items():
        calibrate(model, ours, language)
        model.eval(), theirs.eval(), published.process.eval()
        rng = torch.Generator().manual_seed(2)

        def our_draw(model: Model = model, ours: Denoiser = ours, rng: torch.Generator = rng) -> Tensor:
            return model.nelbo(tokens, rng, denoiser=ours).total

        def their_draw(theirs: Denoiser = theirs, rng: torch.Generator = rng) -> Tensor:
            with torch.no_grad():
                return published.bound(tokens, theirs, rng)

        rows[f"{name}, ours"] = repeated(our_draw, log_p, 200)
        rows[f"{name}, published"] = repeated(their_draw, log_p, 30)
        ratios[name] = compared(rows[f"{name}, ours"], rows[f"{name}, published"])
    return rows, ratios


def compared(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """How many times fewer seconds ours needs at equal standard error, by each notion of variance."""
    faster = theirs["ms / draw"] / ours["ms / draw"]
    columns = {"variance": "whole", "of the draw": "of the draw", "of the mean": "of the mean"}
    ratios = {title: faster * theirs[column] / ours[column] for column, title in columns.items()}
    return {"seconds alone": faster} | ratios | {"target": 50.0}


def main() -> None:
    present("tables for d = 28 from an empty cache, CPU seconds", tables())
    fresh_cache()
    present("one draw of X_t, 32 × 128 tokens of 27, keyed noise, CPU milliseconds", draws())
    present(f"training step / bare step, width 256, 4 blocks, {BATCH} × {LENGTH} tokens of {VOCABULARY}", steps())
    rows, ratios = bounds()
    present("one draw of the bound, nats per sequence of 16 letters of 27, log bridge, V = 0.0376, mask", rows)
    present("CPU seconds at equal standard error, published / ours, by the variance that counts", ratios)


if __name__ == "__main__":
    main()
