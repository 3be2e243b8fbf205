"""Training with 30,522 tokens and no splitting: rdlm (projected) beside mdlm.

    python benchmarks/large_vocabulary.py [steps]             # peak memory and time of a step, 16 × 128 tokens
    python benchmarks/large_vocabulary.py --learn [minutes]   # what a small network learns in so much processor time

Each system trains in a process of its own, on the same tokens: words drawn by Zipf's law, each twice in a row, so that
there is something to learn: a model that knows frequencies alone needs the entropy of a word for each, one that also
looks at neighbours half of it. Peak memory is the process's largest resident set. Learning is measured by the bound,
that of rdlm also along the path on which all positions move together.
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
from harness import present

import logosphere as ls
from logosphere.processes.capabilities import SeveralPaths
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

V = 30_522
LARGE = {"batch": 16, "length": 128, "width": 256, "depth": 4, "heads": 4}
LITTLE = {"batch": 8, "length": 32, "width": 64, "depth": 2, "heads": 2}
SYSTEMS: dict[str, dict[str, Any]] = {"mdlm": {}, "rdlm": {"projected": True, "path": "any-order"}}


def zipf() -> torch.Tensor:
    p = 1 / torch.arange(1, V + 1).double()
    return p / p.sum()


def words(seed: int, batch: int, length: int) -> torch.Tensor:
    """Pairs of equal words, Zipf-distributed."""
    rng = torch.Generator().manual_seed(seed)
    return torch.multinomial(zipf(), batch * length // 2, True, generator=rng).view(batch, -1).repeat_interleave(2, 1)


def model(system: str, shape: dict[str, int]) -> ls.Model:
    torch.manual_seed(0)
    network: dict[str, Any] = {name: shape[name] for name in ("width", "depth", "heads")}
    return ls.build(system, vocab_size=V, length=shape["length"], **network, **SYSTEMS[system])


def cost(system: str, steps: int) -> dict[str, float]:
    """Memory and time of training steps."""
    built = model(system, LARGE)
    batches = (words(step, LARGE["batch"], LARGE["length"]) for step in range(steps))
    started = time.process_time()
    for _ in ls.fit(built, batches, steps=steps, optim=ls.OptimizerConfig(lr=1e-3, warmup=10)):
        pass
    seconds = (time.process_time() - started) / steps
    return {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "CPU s per step": seconds}


def learned(system: str, minutes: float) -> dict[str, float]:
    """The bound on fresh words, nats per token, before and after so many minutes of processor time."""
    built = model(system, LITTLE)
    fresh = words(10**6, 32, LITTLE["length"])

    def bound() -> torch.Tensor:
        """In turn for rdlm, as mdlm is bounded by nature."""
        parts = [built.eval().nelbo(part, torch.Generator().manual_seed(0), draws=4).total for part in fresh.split(4)]
        return torch.cat(parts).double() / LITTLE["length"]

    before = float(bound().mean())
    together = float(_together(built, bound).mean())
    trainer, started, step = Trainer(built, optim=ls.OptimizerConfig(lr=3e-3, warmup=30)), time.process_time(), 0
    while (done := (time.process_time() - started) / (60 * minutes)) < 1:
        batch = Batch.of(words(step, LITTLE["batch"], LITTLE["length"]), first=step * LITTLE["batch"])
        trainer.train_step(batch, done)
        step += 1
    after, entropy = bound(), float(torch.special.entr(zipf()).sum())
    return {
        "steps": step, "log V": math.log(V), "bound before": before, "bound after": float(after.mean()),
        "s.e.": float(after.std() / len(after) ** 0.5), "together before": together,
        "together after": float(_together(built, bound).mean()), "frequencies alone": entropy, "entropy": entropy / 2,
    }  # fmt: skip


def _together(built: ls.Model, bound: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The bound when all positions move at once; that of mdlm has no such path."""
    process = built.process
    if not isinstance(process, SeveralPaths):
        return bound()
    built.process = process.with_path("joint")
    found = bound()
    built.process = process
    return found


def main() -> None:
    learns = sys.argv[1:2] == ["--learn"]
    given = sys.argv[2:] if learns else sys.argv[1:]
    what, amount = ("learned", "1.5") if learns else ("cost", "30")
    rows = {}
    for system in SYSTEMS:
        command = [sys.executable, __file__, "--child", what, system, given[0] if given else amount]
        rows[system] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if not learns:
        for row in rows.values():
            row["memory / mdlm"] = row["peak MB"] / rows["mdlm"]["peak MB"]
            row["time / mdlm"] = row["CPU s per step"] / rows["mdlm"]["CPU s per step"]
    present(f"{V:,} tokens, {LITTLE if learns else LARGE}", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        kind, name, number = sys.argv[2:5]
        print(json.dumps(cost(name, int(number)) if kind == "cost" else learned(name, float(number))))
    else:
        main()
