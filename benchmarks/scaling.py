"""Scaling: the cost model against measured steps, two processes against one, and the cost of checkpoints.

    python benchmarks/scaling.py [--steps 12]

Prints a table and JSON. Times are CPU seconds unless stated, because the machine may be shared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from logosphere.data.corpora import open_corpus
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.rng import CounterNoise
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import ACTIVATIONS, cost
from logosphere.runs.costs import machine_speed
from logosphere.runs.create import build_model, create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.systems import build
from logosphere.training.checkpoint import save_checkpoint
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

SIZES = ((64, 2), (96, 3), (160, 4), (256, 4))
LENGTH, BATCH, VOCABULARY = 128, 16, 27


def measure_sizes(steps: int) -> list[dict[str, float]]:
    """Return CPU seconds and estimated FLOPs of a step at four sizes, and the numbers saved for the backward pass."""
    rows = []
    for width, depth in SIZES:
        recipe = TrainConfig(
            length=LENGTH, batch=BATCH, steps=steps, network=NetworkConfig(width=width, depth=depth, heads=4)
        )
        estimate = cost(recipe, VOCABULARY)
        model = build("mdlm", vocab_size=VOCABULARY, length=LENGTH, **vars(recipe.network))
        trainer = Trainer(model, optim=recipe.optim)
        batch = Batch.of(torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0)))
        trainer.train_step(batch, 0.0)
        started = time.process_time()
        for _ in range(steps):
            trainer.train_step(batch, 0.0)
        seconds = (time.process_time() - started) / steps
        flops = estimate.flops_per_token * estimate.tokens_per_step
        rows.append({
            "width": width, "depth": depth, "parameters": estimate.parameters, "flops": flops, "seconds": seconds,
            "gflops_per_second": flops / seconds / 1e9,
            "saved": count_saved_numbers(model, batch) / (BATCH * LENGTH * depth * width),
        })  # fmt: skip
    return rows


def count_saved_numbers(model: Model, batch: Batch) -> float:
    """Return the numbers that the forward pass saves for the backward pass, each storage once, without parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, float] = {}
    alive: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes() / 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        model.train().bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total))
    return sum(seen.values())


def fit_cost_model(rows: list[dict[str, float]]) -> dict[str, float]:
    """Fit seconds = a + FLOPs / speed to the three smaller sizes, and predict the largest."""
    small, large = rows[:-1], rows[-1]
    x = torch.tensor([[1.0, row["flops"]] for row in small], dtype=torch.float64)
    y = torch.tensor([row["seconds"] for row in small], dtype=torch.float64)
    a, b = torch.linalg.lstsq(x, y[:, None]).solution[:, 0].tolist()
    predicted = a + b * large["flops"]
    speed = machine_speed()
    return {
        "overhead_seconds": a, "gflops_per_second": 1e-9 / b, "matmul_gflops_per_second": speed / 1e9,
        "fraction_of_matmul": 1 / b / speed, "largest_predicted": predicted, "largest_measured": large["seconds"],
    }  # fmt: skip


def measure_processes(steps: int) -> dict[str, float]:
    """Return wall seconds a step of one process and of two, with one thread each, on the same run."""
    argv = ["train", "text8-tiny", "--data", "pydoc", "--steps", str(steps), "--validations", "1", "--json"]
    argv += ["--validation-sequences", "2"]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in (1, 2):
            command = [sys.executable, "-m", "logosphere", *argv, "--out", f"{folder}/{number}", "--nproc", str(number)]
            subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
            lines = [line for line in Run(f"{folder}/{number}").metrics() if "train/loss" in line]
            found[f"wall_{number}"] = (lines[-1]["seconds"] - lines[2]["seconds"]) / (len(lines) - 3)
            found[f"cpu_{number}"] = (lines[-1]["cpu_seconds"] - lines[2]["cpu_seconds"]) / (len(lines) - 3)
    found["efficiency"] = found["wall_1"] / found["wall_2"]
    found["load"] = os.getloadavg()[0]
    return found


def measure_saving(steps: int) -> dict[str, float]:
    """Return wall seconds to save and to resume text8-tiny, and the fraction of time at one checkpoint every 300 s."""
    recipe = TrainConfig(length=128, batch=32, steps=steps, validations=1, validation_sequences=2,
                    network=NetworkConfig(width=160, depth=4, heads=5))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = f"{folder}/cache"
        corpus = open_corpus("pydoc")
        run = create_run(recipe, corpus, Path(folder, "run"))
        trainer = Trainer(build_model(recipe, corpus), ema=0.99)
        times = []
        for step in range(1, 6):
            trainer.step = step
            started = time.perf_counter()
            run.link_latest(save_checkpoint(run.state, trainer, {"seconds": 0.0, "cpu_seconds": 0.0, "best": 9.0}))
            times.append(time.perf_counter() - started)
        started = time.perf_counter()
        next(run_training(Run(run.path), corpus, lambda: True))
        resumed = time.perf_counter() - started
    median = sorted(times)[2]
    return {"save_seconds": median, "fraction_at_300_s": median / 300, "resume_seconds": resumed}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", choices=["sizes", "processes", "saving"], help="only this part")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {}
    if args.only in (None, "sizes"):
        rows = measure_sizes(args.steps)
        for row in rows:
            print(
                f"{row['depth']:.0f} × {row['width']:.0f}  {row['parameters']:>9,.0f} parameters  "
                f"{row['flops']:.3g} FLOPs  {row['seconds']:.3f} s  {row['gflops_per_second']:.1f} GFLOP/s  "
                f"saved {row['saved']:.1f} (cost model: {ACTIVATIONS})"
            )
        result |= {"sizes": rows, "fit": fit_cost_model(rows)}
    if args.only in (None, "saving"):
        result["saving"] = measure_saving(args.steps)
    if args.only in (None, "processes"):
        result["processes"] = measure_processes(3 * args.steps)
    print(json.dumps(result))
