"""Training, sampling and evaluation compared with bare torch steps of the same size and with the machine's peak.

    python benchmarks/peers.py [--parts train sample evaluate blocks memory growth] [--rounds 15]

The peers (peer_networks.py) are networks of the usual types, written as plainly as their authors do: GPT-2 (learned
positions, GELU, tied head), BERT (post-norm, separate projections, all logits) and DDiT (adaLN by time, rotary
positions, GELU), each with fused AdamW, gradient clipping and (DDiT) an EMA. A peer's step has the same width, depth,
heads, batch, length, vocabulary and precision as ours. Each round runs every contestant once; a ratio is the
median over rounds of ours / peer in CPU seconds of one thread, with quartiles. Memory is kept as the command line keeps
it, for all contestants.

Share of peak: FLOPs of the matrix products of a step (`count_step_flops`) / CPU seconds / the speed of a 1024³ product
in the same precision, measured in the same rounds. `evaluate` needs text8 (LOGOSPHERE_DATA, or a download).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peer_networks import Shape, peer_step
from torch import Tensor

import logosphere as ls
from logosphere.networks.precision import casts_kept, with_precision
from logosphere.rng import GeneratorNoise
from logosphere.runs.costs import count_step_flops, peak_memory_bytes, reset_peak_memory
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.settings import EvaluateConfig, Precision
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

torch.set_num_threads(1)  # with several threads CPU seconds include waiting
ls.keep_freed_memory()


SHAPES = (
    Shape("1.3M, V=28", 160, 4, 5, 28, 32),
    Shape("14.5M, V=28", 384, 8, 6, 28, 16),
    Shape("256x4, V=8192", 256, 4, 4, 8192, 16),
)
SYSTEMS = {"ar": "gpt2", "mdlm": "bert", "rdlm": "ddit-sphere", "rdlm-heat": "ddit-sphere"}
PRECISIONS: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


# ---- measurement -------------------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def interleave(contestants: dict[str, Callable[[], object]], rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Return CPU seconds of each contestant; each round runs all of them once."""
    for _ in range(warmup):
        for work in contestants.values():
            work()
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            found[name].append(cpu_seconds(work))
    return found


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def multiply(dtype: torch.dtype) -> Callable[[], object]:
    """Return a product of two 1024 x 1024 matrices, repeated four times."""
    a, b = (torch.randn(1024, 1024).to(dtype) for _ in range(2))

    def work() -> None:
        for _ in range(4):
            a @ b

    return work


MULTIPLY_FLOPS = 4 * 2 * 1024**3


def build_model(system: str, shape: Shape) -> ls.Model:
    """Return a model of a shape; its weights are the same in every call."""
    torch.manual_seed(0)
    return ls.build(
        system, vocab_size=shape.vocabulary, length=shape.length, width=shape.width, depth=shape.depth,
        heads=shape.heads,
    )  # fmt: skip


def our_step(system: str, shape: Shape, precision: str, tokens: Tensor) -> tuple[Callable[[], None], ls.Model]:
    """Return our training step, and its model."""
    model = build_model(system, shape)
    trainer = Trainer(model, ema=0.999, precision=precision)

    def step() -> None:
        trainer.train_step(Batch.of(tokens, first=trainer.step * len(tokens)), 0.0)

    return step, model


def measure_training(
    rounds: int, systems: list[str], shapes: list[Shape], precisions: list[Precision]
) -> list[dict[str, Any]]:
    """Return a row for each system, shape and precision: the ratio to its peer, and the share of peak of both."""
    rows = []
    for shape in shapes:
        for precision in precisions:
            dtype = PRECISIONS[precision]
            tokens = torch.randint(
                shape.vocabulary, (shape.batch, shape.length), generator=torch.Generator().manual_seed(0)
            )
            peers = sorted({SYSTEMS[system] for system in systems})
            steps = {system: our_step(system, shape, precision, tokens) for system in systems}
            contestants: dict[str, Callable[[], object]] = {system: step for system, (step, _) in steps.items()}
            contestants |= {peer: peer_step(peer, shape, dtype, tokens) for peer in peers}
            contestants["product"] = multiply(dtype)
            seconds = interleave(contestants, rounds)
            for system, (_, model) in steps.items():
                flops = count_step_flops(model, shape.batch)
                ratio = quartiles([a / b for a, b in zip(seconds[system], seconds[SYSTEMS[system]], strict=True)])
                peak = [MULTIPLY_FLOPS / s for s in seconds["product"]]
                share = quartiles([flops / a / p for a, p in zip(seconds[system], peak, strict=True)])
                rows.append(
                    {
                        "system": system, "peer": SYSTEMS[system], "shape": shape.name, "precision": precision,
                        "ratio": ratio, "share_of_peak": share, "seconds": statistics.median(seconds[system]),
                        "peer_seconds": statistics.median(seconds[SYSTEMS[system]]), "flops": flops,
                        "peak": statistics.median(peak),
                    }
                )  # fmt: skip
                print_training_row(rows[-1])
    return rows


def print_training_row(row: dict[str, Any]) -> None:
    """Print one row of the table."""
    (low, middle, high), share = row["ratio"], row["share_of_peak"]
    columns = [
        f"{row['shape']:14} {row['precision']:9} {row['system']:10} / {row['peer']:12}",
        f"{middle:5.2f} [{low:.2f}, {high:.2f}]",
        f"share of peak {share[1]:.2f} [{share[0]:.2f}, {share[2]:.2f}]",
        f"{1000 * row['seconds']:7.1f} ms, peer {1000 * row['peer_seconds']:7.1f} ms",
    ]
    print("   ".join(columns), file=sys.stderr, flush=True)


# ---- sampling, evaluation, memory and growth -----------------------------------------------------------------------


@torch.no_grad()
def evaluate_network(network: Any, z: Tensor, t: Tensor, count: int, dtype: torch.dtype) -> None:
    """Evaluate a denoiser so many times."""
    with casts_kept(dtype, z.device):
        for _ in range(count):
            network(z, t, context=z)


def measure_sampling(rounds: int, steps: int = 32) -> list[dict[str, Any]]:
    """Return the ratio of sampling to NFE evaluations of its own network, in both precisions."""
    rows, shape = [], SHAPES[0]
    for system in ("mdlm", "rdlm", "rdlm-heat"):
        for precision, dtype in PRECISIONS.items():
            model = build_model(system, shape)
            noise = GeneratorNoise(torch.Generator().manual_seed(0), shape.batch)
            z, t = model.process.prior(shape.batch, shape.length, noise), torch.full((shape.batch, shape.length), 0.5)
            draw = partial(ls.generate, model, n=shape.batch, steps=steps, rng=0, precision=precision)
            nfe = round(draw().nfe)
            work = partial(evaluate_network, with_precision(model.denoiser, dtype), z, t, nfe, dtype)
            seconds = interleave({"sampling": draw, "network": work}, rounds, warmup=1)
            ratio = quartiles([a / b for a, b in zip(*seconds.values(), strict=True)])
            rows.append({"system": system, "precision": precision, "nfe": nfe, "ratio": ratio})
            print(
                f"sampling {system:10} {precision:9} {ratio[1]:.3f} [{ratio[0]:.3f}, {ratio[2]:.3f}] of NFE forwards",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return rows


def measure_evaluation() -> list[dict[str, Any]]:
    """Return CPU seconds in which the bundled models are evaluated on text8 to a standard error of 0.01."""
    rows = []
    for name in ("ar", "mdlm", "rdlm"):
        for precision in PRECISIONS:
            config = EvaluateConfig(data="text8", sequences=1024, draws=2, precision=precision)
            started = time.process_time()
            report = evaluate_run(f"pretrained:{name}", config, other_paths=False)
            seconds = time.process_time() - started
            needed = seconds * (report.error / 0.01) ** 2
            rows.append({"model": name, "bits": report.bits, "error": report.error, "precision": precision,
                         "seconds": seconds, "seconds_to_0.01": needed})  # fmt: skip
            text = f"evaluate {name:5} {report}: {seconds:.1f} CPU s, {needed:.1f} to ± 0.01"
            print(text, file=sys.stderr, flush=True)
    return rows


def measure_blocks(rounds: int) -> list[dict[str, Any]]:
    """Return the training step of block diffusion (block 16) relative to that of masked diffusion, by length."""
    rows = []
    for length in (128, 512, 1024):
        shape = Shape("blocks", 256, 4, 4, 28, 4096 // length // 2, length)
        for precision in PRECISIONS:
            tokens = torch.randint(28, (shape.batch, length), generator=torch.Generator().manual_seed(0))
            steps = {name: our_step(name, shape, precision, tokens)[0] for name in ("bd3lm", "mdlm")}
            seconds = interleave(dict(steps), rounds, warmup=1)
            ratio = quartiles([a / b for a, b in zip(*seconds.values(), strict=True)])
            rows.append({"length": length, "precision": precision, "ratio": ratio})
            print(f"bd3lm / mdlm, length {length:5} {precision:9} {ratio[1]:.2f} [{ratio[0]:.2f}, {ratio[2]:.2f}]",
                  file=sys.stderr, flush=True)  # fmt: skip
    return rows


def measure_memory() -> list[dict[str, Any]]:
    """Return the peak of resident memory of training steps with 50,257 tokens, each in a process of its own."""
    rows = []
    for system in ("ar", "mdlm"):
        for precision in PRECISIONS:
            command = [sys.executable, __file__, "--memory-of", system, precision]
            environment = os.environ | {"THP_MEM_ALLOC_ENABLE": "1"}  # as the command line sets it
            found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            rows.append({"system": system, "precision": precision, "peak_bytes": int(found)})
            print(f"memory {system:5} {precision:9} {int(found) / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return rows


def print_peak_memory(system: str, precision: str) -> None:
    """Print the peak of resident memory of four training steps: 256 x 4, 8 x 128 tokens of 50,257."""
    shape = Shape("memory", 256, 4, 4, 50_257, 8)
    tokens = torch.randint(shape.vocabulary, (8, 128), generator=torch.Generator().manual_seed(0))
    step, _ = our_step(system, shape, precision, tokens)
    reset_peak_memory()
    for _ in range(4):
        step()
    print(peak_memory_bytes())


def measure_growth(rounds: int) -> list[dict[str, Any]]:
    """Return the exponent b of cost ~ size^b, for vocabulary, sampling steps and number of texts; 1 is linear."""
    rows = []

    def compare(what: str, small: Callable[[], object], large: Callable[[], object], factor: float) -> None:
        seconds = interleave({"small": small, "large": large}, rounds, warmup=1)
        growth = quartiles([math.log(b / a) / math.log(factor) for a, b in zip(*seconds.values(), strict=True)])
        rows.append({"what": what, "factor": factor, "exponent": growth})
        print(f"growth {what:28} x {factor:g}: exponent {growth[1]:.2f}", file=sys.stderr, flush=True)

    for system in SYSTEMS:
        steps = []
        for vocabulary in (8192, 32_768):
            shape = Shape("growth", 160, 4, 5, vocabulary, 8)
            tokens = torch.randint(vocabulary, (8, 128), generator=torch.Generator().manual_seed(0))
            steps.append(our_step(system, shape, "bfloat16", tokens)[0])
        compare(f"{system}, vocabulary", steps[0], steps[1], 4)
    for system in ("mdlm", "rdlm-heat"):
        model = build_model(system, SHAPES[0])

        def draw(n: int, steps: int, model: ls.Model = model) -> Callable[[], object]:
            return lambda: ls.generate(model, n=n, steps=steps, rng=0, precision="bfloat16")

        compare(f"{system}, sampling steps", draw(8, 16), draw(8, 64), 4)
        compare(f"{system}, texts", draw(8, 16), draw(32, 16), 4)
    return rows


PARTS = ("train", "sample", "evaluate", "blocks", "memory", "growth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--shapes", nargs="*", type=int, default=list(range(len(SHAPES))))
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory_of:
        return print_peak_memory(*chosen.memory_of)
    shapes = [SHAPES[i] for i in chosen.shapes]
    measures: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "train": lambda: measure_training(chosen.rounds, chosen.systems, shapes, chosen.precisions),
        "sample": lambda: measure_sampling(chosen.rounds),
        "evaluate": measure_evaluation,
        "blocks": lambda: measure_blocks(chosen.rounds),
        "memory": measure_memory,
        "growth": lambda: measure_growth(chosen.rounds),
    }
    print(json.dumps({part: measures[part]() for part in chosen.parts}))


if __name__ == "__main__":
    main()
