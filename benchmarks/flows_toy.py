"""How flows on the simplex fare as the number of tokens grows: the toy of Stark et al. 2024 and Davis et al. 2024.

    python benchmarks/flows_toy.py --updates 300 --seeds 3

The target is a sequence of four independent tokens of one random law; every flow trains the same small network for the
same number of updates. Then KL(drawn || target) of tokens is estimated from samples and corrected for their finite
number (Miller and Madow), beside the same for draws from the target itself. Weights, data and draws change with the
seed, the target does not; rows are means over seeds with their standard errors below. The networks are those of the
papers, without the posterior head: with it, independent tokens would be solved almost before training.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from harness import present

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


def divergence(tokens: torch.Tensor, law: torch.Tensor) -> float:
    """KL(drawn || target), nats per token."""
    p = tokens.flatten().bincount(minlength=len(law)).double() / tokens.numel()
    met = p > 0
    return float((p[met] * (p[met] / law[met]).log()).sum()) - (int(met.sum()) - 1) / (2 * tokens.numel())


def drawn_from(law: torch.Tensor, count: int, rng: torch.Generator) -> torch.Tensor:
    return torch.multinomial(law, count * LENGTH, replacement=True, generator=rng).view(count, LENGTH)


def trained(name: str, law: torch.Tensor, updates: int, seed: int) -> ls.Model:
    rng = torch.Generator().manual_seed(1000 + seed)
    torch.manual_seed(seed)
    system = "fisher-flow" if name == "linear flow" else name.split(",")[0]
    model = ls.build(system, vocab_size=len(law), length=LENGTH, **NETWORK, **FLOWS[name])
    batches = (drawn_from(law, BATCH, rng) for _ in range(updates))
    for _ in ls.fit(model, batches, steps=updates, optim=ls.OptimizerConfig(lr=5e-3, warmup=20)):
        pass
    return model.eval()


def kl(name: str, law: torch.Tensor, updates: int, seed: int) -> float:
    rng = torch.Generator().manual_seed(seed)
    if name == "target":
        return divergence(drawn_from(law, SAMPLES, rng), law)
    return divergence(ls.sample(trained(name, law, updates, seed), n=SAMPLES, steps=STEPS, rng=rng), law)


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--updates", type=int, default=300, help="updates of each training")
    read.add_argument("--tokens", type=int, nargs="+", default=[4, 20, 40, 80, 160])
    read.add_argument("--flows", nargs="+", num_classes=FLOWS, default=list(FLOWS), metavar="FLOW")
    read.add_argument("--seeds", type=int, default=1)
    given = read.parse_args()
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ["target", *given.flows]}
    for num_classes in given.tokens:
        law = torch.randn(num_classes, generator=torch.Generator().manual_seed(num_classes)).double().softmax(0)
        for name in found:
            started, column = time.process_time(), f"K = {num_classes}"
            found[name][column] = [kl(name, law, given.updates, seed) for seed in range(given.seeds)]
            spent = time.process_time() - started
            print(f"{name}, {column}: {found[name][column]} ({spent:.1f} CPU s)", file=sys.stderr, flush=True)
    title = f"KL(drawn || target) in nats, {given.updates} updates, {STEPS} steps, {given.seeds} seeds"
    present(title, {name: {K: statistics.fmean(seeds) for K, seeds in row.items()} for name, row in found.items()})
    if given.seeds > 1:
        spread = {name: {K: statistics.stdev(seeds) for K, seeds in row.items()} for name, row in found.items()}
        present("standard error over seeds", {
            name: {K: s / given.seeds**0.5 for K, s in row.items()} for name, row in spread.items()
        })  # fmt: skip


if __name__ == "__main__":
    main()
