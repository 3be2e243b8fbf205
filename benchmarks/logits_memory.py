"""Peak memory of a training step with 50,000 tokens, relative to the bare network and one array of logits.

    python benchmarks/logits_memory.py [SYSTEM …]

Each measurement runs in its own process; peak memory is its largest resident set. The bare network is the transformer
with its head, trained by AdamW on the sum of its features: it has weights, gradients, moments and activations, but no
logits. One array of logits (8 × 256 × 50,000 float32) is added to its memory. Chunked logits take more time, because
the head is evaluated again in the backward pass.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from harness import print_table

V, LENGTH, BATCH = 50_000, 256, 8
NETWORK: dict[str, Any] = {"width": 256, "depth": 4, "heads": 4}
LOGITS = BATCH * LENGTH * V * 4 / 2**20
SYSTEMS = ["mdlm", "udlm"]


def make_batch() -> torch.Tensor:
    return torch.randint(V, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_bare(steps: int) -> dict[str, Any]:
    import logosphere as ls

    network: Any = ls.build("mdlm", vocab_size=V, length=LENGTH, **NETWORK).denoiser
    network = network.inner  # without the posterior head
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        h = network.trunk(network.stem(make_batch()))
        # One row of logits, so that the head has a gradient and moments too.
        (h.sum() + network.head(h[0, 0]).sum()).backward()
        optimizer.step()
    return {"peak MiB": peak_memory()}


def measure_training(system: str, steps: int, chunk: int | None) -> dict[str, Any]:
    import logosphere as ls
    from logosphere.processes import bound as bounds

    if chunk is not None:
        bounds.CHUNK = chunk
    model = ls.build(system, vocab_size=V, length=LENGTH, **NETWORK)
    started = time.process_time()
    for _ in ls.fit(model, (make_batch() for _ in range(steps)), steps=steps):
        pass
    return {"peak MiB": peak_memory(), "CPU s per step": (time.process_time() - started) / steps}


def main() -> None:
    def measure(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", *arguments]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    rows = {"bare network": measure("bare")}
    limit = rows["bare network"]["peak MiB"] + LOGITS
    for system in sys.argv[1:] or SYSTEMS:
        rows[f"{system}, chunked logits"] = measure(system, "chunked")
        rows[f"{system}, all logits at once"] = measure(system, "whole")
    for row in rows.values():
        row["ratio to network + logits"] = row["peak MiB"] / limit
    print_table(f"{V:,} tokens, {BATCH} × {LENGTH}, logits {LOGITS:.0f} MiB", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "bare":
            print(json.dumps(measure_bare(2)))
        else:
            print(json.dumps(measure_training(sys.argv[2], 2, None if sys.argv[3] == "chunked" else 1 << 40)))
    else:
        main()
