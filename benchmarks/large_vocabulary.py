"""Training with 30,522 tokens without dimension splitting: rdlm (projected) and mdlm.

    python benchmarks/large_vocabulary.py [steps]             # peak memory and time of a step, 16 × 128 tokens
    python benchmarks/large_vocabulary.py --learn [minutes]   # the bound of a small network after this CPU time

Each system trains in its own process on the same tokens: words with a Zipf distribution, each twice in a row. A unigram
model needs the entropy of a word for each token, a model of pairs half of it. Peak memory is the largest resident set
of the process. The bound of rdlm is measured along the any-order and the joint path.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import print_table

import logosphere as ls
from logosphere.processes.capabilities import SeveralPaths
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

V = 30_522
LARGE = {"batch": 16, "length": 128, "width": 256, "depth": 4, "heads": 4}
SMALL = {"batch": 8, "length": 32, "width": 64, "depth": 2, "heads": 2}
SYSTEMS: dict[str, dict[str, Any]] = {"mdlm": {}, "rdlm": {"projected": True, "path": "any-order"}}


def zipf_distribution() -> torch.Tensor:
    p = 1 / torch.arange(1, V + 1).double()
    return p / p.sum()


def draw_tokens(seed: int, batch: int, length: int) -> torch.Tensor:
    """Draw pairs of equal words with a Zipf distribution."""
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.multinomial(zipf_distribution(), batch * length // 2, True, generator=rng)
        .view(batch, -1)
        .repeat_interleave(2, 1)
    )


def build_model(system: str, shape: dict[str, int]) -> ls.Model:
    torch.manual_seed(0)
    network: dict[str, Any] = {name: shape[name] for name in ("width", "depth", "heads")}
    return ls.build(system, vocab_size=V, length=shape["length"], **network, **SYSTEMS[system])


def measure_cost(system: str, steps: int) -> dict[str, float]:
    """Return peak memory and time of training steps."""
    built = build_model(system, LARGE)
    batches = (draw_tokens(step, LARGE["batch"], LARGE["length"]) for step in range(steps))
    started = time.process_time()
    for _ in ls.fit(built, batches, steps=steps, optim=ls.OptimizerConfig(lr=1e-3, warmup=10)):
        pass
    seconds = (time.process_time() - started) / steps
    return {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "CPU s per step": seconds}


def measure_bounds(system: str, minutes: float) -> dict[str, float]:
    """Return the bound on new tokens, nats per token, before and after this number of CPU minutes of training."""
    built = build_model(system, SMALL)
    fresh = draw_tokens(10**6, 32, SMALL["length"])

    def bound() -> torch.Tensor:
        """The path is any-order, also that of rdlm."""
        parts = [built.eval().nelbo(part, torch.Generator().manual_seed(0), draws=4).total for part in fresh.split(4)]
        return torch.cat(parts).double() / SMALL["length"]

    before = float(bound().mean())
    joint = float(_joint_bound(built, bound).mean())
    trainer, started, step = Trainer(built, optim=ls.OptimizerConfig(lr=3e-3, warmup=30)), time.process_time(), 0
    while (done := (time.process_time() - started) / (60 * minutes)) < 1:
        batch = Batch.of(draw_tokens(step, SMALL["batch"], SMALL["length"]), first=step * SMALL["batch"])
        trainer.train_step(batch, done)
        step += 1
    after, entropy = bound(), float(torch.special.entr(zipf_distribution()).sum())
    return {
        "steps": step, "log V": math.log(V), "bound before": before, "bound after": float(after.mean()),
        "s.e.": float(after.std() / len(after) ** 0.5), "joint before": joint,
        "joint after": float(_joint_bound(built, bound).mean()), "unigram entropy": entropy,
        "pair entropy per token": entropy / 2,
    }  # fmt: skip


def _joint_bound(built: ls.Model, bound: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The bound of the joint path; mdlm has only one path."""
    process = built.process
    if not isinstance(process, SeveralPaths):
        return bound()
    built.process = process.with_path("joint")
    found = bound()
    built.process = process
    return found


def main() -> None:
    learn = sys.argv[1:2] == ["--learn"]
    numbers = sys.argv[2:] if learn else sys.argv[1:]
    what, amount = ("bounds", "1.5") if learn else ("cost", "30")
    rows = {}
    for system in SYSTEMS:
        command = [sys.executable, __file__, "--child", what, system, numbers[0] if numbers else amount]
        rows[system] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if not learn:
        for row in rows.values():
            row["memory / mdlm"] = row["peak MB"] / rows["mdlm"]["peak MB"]
            row["time / mdlm"] = row["CPU s per step"] / rows["mdlm"]["CPU s per step"]
    print_table(f"{V:,} tokens, {SMALL if learn else LARGE}", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        kind, name, number = sys.argv[2:5]
        print(json.dumps(measure_cost(name, int(number)) if kind == "cost" else measure_bounds(name, float(number))))
    else:
        main()
