"""Training with 30,522 tokens and no splitting: peak memory of rdlm (projected) against that of mdlm.

    python benchmarks/large_vocabulary.py [steps]

Each system trains in a process of its own, on the same tokens: words drawn by Zipf's law, each twice in a row, so that
there is something to learn. Peak memory is the process's largest resident set.
"""

import json
import resource
import subprocess
import sys
import time

import torch
from harness import present

V, LENGTH, BATCH = 30_522, 128, 16
NETWORK = {"width": 256, "depth": 4, "heads": 4}
SYSTEMS = {"mdlm": {}, "rdlm": {"projected": True}}


def batch(step: int) -> torch.Tensor:
    """Pairs of equal words, Zipf-distributed."""
    rng = torch.Generator().manual_seed(step)
    p = 1 / torch.arange(1, V + 1).double()
    return torch.multinomial(p, BATCH * LENGTH // 2, True, generator=rng).view(BATCH, -1).repeat_interleave(2, 1)


def child(system: str, steps: int) -> None:
    import logosphere as ls

    torch.manual_seed(0)
    model = ls.build(system, vocab_size=V, length=LENGTH, **NETWORK, **SYSTEMS[system])
    optim = ls.Optim(lr=1e-3, warmup=10)
    started, losses = time.process_time(), []
    for progress in ls.fit(model, (batch(step) for step in range(steps)), steps=steps, optim=optim):
        losses.append(progress.loss)
    third = max(1, steps // 3)
    row = {
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "CPU s per step": (time.process_time() - started) / steps,
        "loss, first third": sum(losses[:third]) / third,
        "loss, last third": sum(losses[-third:]) / third,
    }
    print(json.dumps(row))


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    rows = {}
    for system in SYSTEMS:
        command = [sys.executable, __file__, "--child", system, str(steps)]
        rows[system] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    for row in rows.values():
        row["memory / mdlm"] = row["peak MB"] / rows["mdlm"]["peak MB"]
    present(f"{V:,} tokens, {BATCH} × {LENGTH}, {NETWORK['depth']} × {NETWORK['width']}, {steps} steps", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main()
