"""Flows on the simplex with growing vocabularies: the toy problem of Stark et al. 2024 and Davis et al. 2024.

    python benchmarks/flows_toy.py --updates 300 --seeds 3

The target is a sequence of four independent tokens of one random distribution. Every flow trains the same small network
for the same number of updates. KL(samples || target) of tokens is estimated from samples and corrected for their finite
number (Miller and Madow); draws from the target itself are the reference. Weights, data and draws depend on the seed,
the target does not. Rows are means over seeds, followed by their standard errors. The networks are those of the papers,
without the posterior head, which solves independent tokens almost without training.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from harness import print_table

import logosphere as ls

LENGTH, SAMPLES, STEPS, BATCH = 4, 1000, 50, 128
NETWORK: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2}
PUBLISHED = {"posterior_head": False, "input": "state"}
FLOWS: dict[str, dict[str, Any]] = {
    "bfn": {"posterior_head": False},
    "linear flow": PUBLISHED | {"geometry": "flat"},
    "fisher-flow": PUBLISHED,
    "fisher-flow, optimal coupling": PUBLISHED | {"coupling": "optimal"},
    "dirichlet-flow": PUBLISHED | {"churn": 0},
    "ddsm": PUBLISHED,
}
REFERENCE = "draws from the target itself"


def estimate_kl(tokens: torch.Tensor, target: torch.Tensor) -> float:
    """Return KL(samples || target), nats per token."""
    p = tokens.flatten().bincount(minlength=len(target)).double() / tokens.numel()
    present = p > 0
    return float((p[present] * (p[present] / target[present]).log()).sum()) - (int(present.sum()) - 1) / (
        2 * tokens.numel()
    )


def draw_tokens(target: torch.Tensor, count: int, rng: torch.Generator) -> torch.Tensor:
    return torch.multinomial(target, count * LENGTH, replacement=True, generator=rng).view(count, LENGTH)


def train(name: str, target: torch.Tensor, updates: int, seed: int) -> ls.Model:
    rng = torch.Generator().manual_seed(1000 + seed)
    torch.manual_seed(seed)
    system = "fisher-flow" if name == "linear flow" else name.split(",")[0]
    model = ls.build(system, vocab_size=len(target), length=LENGTH, **NETWORK, **FLOWS[name])
    batches = (draw_tokens(target, BATCH, rng) for _ in range(updates))
    for _ in ls.fit(model, batches, steps=updates, optim=ls.OptimizerConfig(lr=5e-3, warmup=20)):
        pass
    return model.eval()


def measure_kl(name: str, target: torch.Tensor, updates: int, seed: int) -> float:
    rng = torch.Generator().manual_seed(seed)
    if name == REFERENCE:
        return estimate_kl(draw_tokens(target, SAMPLES, rng), target)
    return estimate_kl(ls.sample(train(name, target, updates, seed), n=SAMPLES, steps=STEPS, rng=rng), target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300, help="updates of each training")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4, 20, 40, 80, 160])
    parser.add_argument("--flows", nargs="+", choices=FLOWS, default=list(FLOWS), metavar="FLOW")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {name: {} for name in [REFERENCE, *args.flows]}
    for size in args.tokens:
        target = torch.randn(size, generator=torch.Generator().manual_seed(size)).double().softmax(0)
        for name in found:
            started, column = time.process_time(), f"K = {size}"
            found[name][column] = [measure_kl(name, target, args.updates, seed) for seed in range(args.seeds)]
            spent = time.process_time() - started
            print(f"{name}, {column}: {found[name][column]} ({spent:.1f} CPU s)", file=sys.stderr, flush=True)
    title = f"KL(samples || target) in nats, {args.updates} updates, {STEPS} steps, {args.seeds} seeds"
    print_table(title, {name: {K: statistics.fmean(seeds) for K, seeds in row.items()} for name, row in found.items()})
    if args.seeds > 1:
        spread = {name: {K: statistics.stdev(seeds) for K, seeds in row.items()} for name, row in found.items()}
        print_table("standard error over seeds", {
            name: {K: s / args.seeds**0.5 for K, s in row.items()} for name, row in spread.items()
        })  # fmt: skip


if __name__ == "__main__":
    main()
