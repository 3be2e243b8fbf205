"""A training step of rdlm for growing vocabularies, against a bare step of the published kind.

    python benchmarks/rdlm_vocabulary.py [SYSTEM]      # rdlm (default) or rdlm-heat

The bare step has the shape of the authors' code: times, states exp_μ(ρ z) of a Riemannian normal from tables of α and ρ
in float32, a linear embedding of the states, DDiT blocks of the same width and depth (adaLN from the time, rotary
positions, GELU), cross-entropy at all positions, AdamW, an EMA, and nothing else of a usable training loop.
Both run in turns in one process. The growth exponent is log(seconds ratio) / log(vocabulary ratio) between neighbouring
vocabularies, scaled to the same number of positions; where a step is linear in the vocabulary it is at most 1.
"""

import math
import sys
from copy import deepcopy

import torch
import torch.nn.functional as F
from harness import measure_paired_ratio, print_table
from torch import Tensor, nn

import logosphere as ls
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

LENGTH, WIDTH, DEPTH, HEADS, CONDITION, ROWS = 128, 160, 4, 4, 128, 10_001
SHAPES = ((28, 8), (1024, 8), (8192, 8), (30_522, 4))
"""Vocabulary and batch."""
ROUNDS = 9


class PeerBlock(nn.Module):
    """A DDiT block: attention and a GELU layer, both modulated by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))
        self.modulation = nn.Linear(CONDITION, 6 * WIDTH)
        nn.init.zeros_(self.modulation.weight)

    def forward(self, h: Tensor, c: Tensor, rotary: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c)[:, None].chunk(6, -1)
        B, L, _ = h.shape
        qkv = self.qkv(self.norm1(h) * (1 + scale_a) + shift_a).view(B, L, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = (x * rotary[0] + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * rotary[1] for x in qkv[:2])
        mixed = F.scaled_dot_product_attention(q, k, qkv[2]).transpose(1, 2).reshape(B, L, WIDTH)
        h = h + gate_a * self.out(mixed)
        return h + gate_f * self.mlp(self.norm2(h) * (1 + scale_f) + shift_f)


class Peer(nn.Module):
    """Simulation-free training states, and a DDiT network that reads them; the coordinate of the mask is not read."""

    rotary: Tensor
    alpha: Tensor
    rho: Tensor
    frequencies: Tensor

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Linear(vocab_size, WIDTH)
        self.time = nn.Sequential(nn.Linear(256, CONDITION), nn.SiLU(), nn.Linear(CONDITION, CONDITION))
        self.blocks = nn.ModuleList(PeerBlock() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, vocab_size)
        self.modulation = nn.Linear(CONDITION, 2 * WIDTH)
        angles = torch.arange(LENGTH)[:, None] * 10_000.0 ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        self.register_buffer("rotary", torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2))
        self.register_buffer("alpha", torch.linspace(0, 1, ROWS))
        self.register_buffer("rho", 0.5 * (1 - torch.linspace(0, 1, ROWS)) / math.sqrt(vocab_size) + 1e-4)
        self.register_buffer("frequencies", torch.exp(-math.log(10_000) * torch.arange(128) / 128))

    def sample_states(self, tokens: Tensor, t: Tensor) -> Tensor:
        """exp_μ(ρ z) at the interpolated α and ρ, from the mask."""
        place = t * (ROWS - 1)
        low = place.floor().long().clamp_max(ROWS - 2)
        alpha, rho = (torch.lerp(x[low], x[low + 1], place - low)[:, None, None] for x in (self.alpha, self.rho))
        mean = alpha * F.one_hot(tokens, self.vocab_size + 1).float()
        mean[..., -1:] += (1 - alpha.square()).sqrt()
        noise = rho * torch.randn_like(mean)
        tangent = noise - (noise * mean).sum(-1, keepdim=True) * mean
        length = tangent.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return length.cos() * mean + length.sin() / length * tangent

    def forward(self, tokens: Tensor) -> Tensor:
        t = torch.rand(len(tokens)) * (1 - 1e-4)
        with torch.no_grad():
            x = self.sample_states(tokens, t)
        angles = t[:, None] * self.frequencies
        c = F.silu(self.time(torch.cat([angles.cos(), angles.sin()], -1)))
        h = self.embedding(x[..., : self.vocab_size])
        for block in self.blocks:
            h = block(h, c, self.rotary)
        shift, scale = self.modulation(c)[:, None].chunk(2, -1)
        logits = self.head(self.norm(h) * (1 + scale) + shift)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class PeerTraining:
    """AdamW, gradient clipping and an EMA of the weights, as published."""

    def __init__(self, vocab_size: int) -> None:
        self.model = Peer(vocab_size)
        self.average = deepcopy(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.0)

    def step(self, tokens: Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for kept, live in zip(self.average.parameters(), self.model.parameters(), strict=True):
                kept.lerp_(live, 1e-4)


def measure(system: str, vocab_size: int, batch: int) -> dict[str, float]:
    """Return the seconds of both steps and their ratio."""
    torch.manual_seed(0)
    model = ls.build(system, vocab_size=vocab_size, length=LENGTH, width=WIDTH, depth=DEPTH, heads=HEADS)
    trainer, peer = Trainer(model, ema=0.9999), PeerTraining(vocab_size)
    tokens = torch.randint(vocab_size, (batch, LENGTH), generator=torch.Generator().manual_seed(0))
    found = measure_paired_ratio(
        lambda: trainer.train_step(Batch.of(tokens), 0.1), lambda: peer.step(tokens), rounds=ROUNDS, warmup=2
    )
    return {"batch": batch, **found}


def main() -> None:
    system = sys.argv[1] if len(sys.argv) > 1 else "rdlm"
    rows: dict[str, dict[str, float]] = {}
    before: tuple[int, float] | None = None
    for vocab_size, batch in SHAPES:
        row = measure(system, vocab_size, batch)
        now = (vocab_size, row["seconds"] / batch)
        row["growth exponent"] = 0.0 if before is None else math.log(now[1] / before[1]) / math.log(now[0] / before[0])
        rows[f"V = {vocab_size:,}"], before = row, now
    print_table(f"A training step of {system} / a bare step of the published kind, CPU seconds", rows)


if __name__ == "__main__":
    main()
