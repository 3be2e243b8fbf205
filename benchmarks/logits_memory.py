"""Peak memory of a training step with 50,000 tokens, against that of the bare network and one array of logits.

    python benchmarks/logits_memory.py [SYSTEM …]

Each measurement is a process of its own; peak memory is its largest resident set. The bare network is the transformer
with its head, trained by AdamW on the sum of its features, so that weights, gradients, moments and activations of the
trunk are all there but no logits; one array of logits (8 × 256 × 50,000 float32) is added to it. The price is time: the
head is computed once more in the backward pass.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from harness import present

V, LENGTH, BATCH = 50_000, 256, 8
NETWORK: dict[str, Any] = {"width": 256, "depth": 4, "heads": 4}
LOGITS = BATCH * LENGTH * V * 4 / 2**20
SYSTEMS = ["mdlm", "udlm"]


def batch() -> torch.Tensor:
    return torch.randint(V, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bare(steps: int) -> dict[str, Any]:
    import logosphere as ls

    network: Any = ls.build("mdlm", vocab_size=V, length=LENGTH, **NETWORK).denoiser
    network = network.inner  # without the head that adds what the noisy tokens tell
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        h = network.trunk(network.stem(batch()))
        # One row of logits touches the head, so that its gradient and moments are there too.
        (h.sum() + network.head(h[0, 0]).sum()).backward()
        optimizer.step()
    return {"peak MiB": peak()}


def whole(system: str, steps: int, largest: int | None) -> dict[str, Any]:
    import logosphere as ls
    from logosphere.processes import base

    if largest is not None:
        base.CHUNK = largest
    model = ls.build(system, vocab_size=V, length=LENGTH, **NETWORK)
    started = time.process_time()
    for _ in ls.fit(model, (batch() for _ in range(steps)), steps=steps):
        pass
    return {"peak MiB": peak(), "CPU s per step": (time.process_time() - started) / steps}


def main() -> None:
    def measured(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", *arguments]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    rows = {"bare network": measured("bare")}
    limit = rows["bare network"]["peak MiB"] + LOGITS
    for system in sys.argv[1:] or SYSTEMS:
        rows[f"{system}, logits in parts"] = measured(system, "parts")
        rows[f"{system}, all logits at once"] = measured(system, "whole")
    for row in rows.values():
        row["over network + logits"] = row["peak MiB"] / limit
    present(f"{V:,} tokens, {BATCH} × {LENGTH}, logits {LOGITS:.0f} MiB", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "bare":
            print(json.dumps(bare(2)))
        else:
            print(json.dumps(whole(sys.argv[2], 2, None if sys.argv[3] == "parts" else 1 << 40)))
    else:
        main()
