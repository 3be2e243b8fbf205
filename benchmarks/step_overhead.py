"""CPU time of a training step, relative to that of the bare network: forward and backward pass and optimiser step.

    python benchmarks/step_overhead.py [SYSTEM…]      # default: seven systems of all families

A training step also has crops, times, noise, masks, the bound, gradient clipping, the EMA and the checks for NaN.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from harness import measure_paired_ratio, print_table

import logosphere as ls
from logosphere.data.batches import Crops
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.training.trainer import Trainer

LENGTH, BATCH, VOCABULARY, ROUNDS = 128, 32, 28, 15
NETWORK = NetworkConfig(width=256, depth=4, heads=4)


class Bare(torch.nn.Module):
    """Embedding, blocks, head and cross-entropy at every position, without diffusion."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY + 1, NETWORK.width)
        self.trunk = Backbone(NETWORK, LENGTH, reads_time=False, reach=0 if causal else NETWORK.neighbours)
        self.head = LinearHead(NETWORK.width, VOCABULARY)
        self.causal = causal

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.trunk(self.embedding(tokens), causal=self.causal))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def measure_overheads(systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the ratio of a training step to a bare step for each system."""
    text = np.random.default_rng(0).integers(0, VOCABULARY, 1_000_000).astype(np.uint8)
    crops = Crops(text, LENGTH, BATCH, seed=0)
    tokens = crops.at(0).tokens
    rows = {}
    for system in systems:
        model = ls.build(system, vocab_size=VOCABULARY, length=LENGTH, **vars(NETWORK))
        trainer = Trainer(model, ema=0.999)
        bare = Bare(causal=system == "ar")
        optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-4, fused=True)

        def our_step(trainer: Trainer = trainer) -> None:
            trainer.train_step(crops.at(trainer.step), 0.0)

        def bare_step(bare: Bare = bare, optimizer: torch.optim.AdamW = optimizer) -> None:
            optimizer.zero_grad()
            bare(tokens).backward()
            optimizer.step()

        rows[system] = measure_paired_ratio(our_step, bare_step, ROUNDS)
    return rows


def main() -> None:
    rows = measure_overheads(
        sys.argv[1:] or ["mdlm", "ar", "gaussian-ce", "bfn", "fisher-flow", "dirichlet-flow", "ddsm"]
    )
    print_table(f"training step / bare step, width 256, 4 blocks, {BATCH} × {LENGTH} tokens of {VOCABULARY}", rows)


if __name__ == "__main__":
    main()
