"""How flows on the simplex fare as the number of tokens grows: the toy of Stark et al. 2024 and Davis et al. 2024.

    python benchmarks/flows_toy.py --seconds 5

The target is a sequence of four independent tokens, each with a random law of its own; every flow trains the same small
network for the same processor time. Then KL(drawn || target) of single tokens is estimated from samples, averaged over
positions and corrected for their finite number (Miller and Madow), beside the same for draws from the target itself.
The networks are those of the papers, without the posterior head: with it, independent tokens would be solved almost
before training.
"""

import argparse
import sys
import time

import torch
from harness import present

import logosphere as ls

LENGTH, SAMPLES, STEPS = 4, 2000, 50
NETWORK = {"width": 64, "depth": 2, "heads": 2}
PUBLISHED = {"posterior_head": False, "input": "state"}
FLOWS: dict[str, dict[str, object]] = {
    "bfn": {"posterior_head": False},
    "linear flow": PUBLISHED | {"geometry": "flat"},
    "fisher-flow": PUBLISHED,
    "fisher-flow, optimal coupling": PUBLISHED | {"coupling": "optimal"},
    "dirichlet-flow": PUBLISHED | {"churn": 0},
    "ddsm": PUBLISHED,
}


def divergence(tokens: torch.Tensor, laws: torch.Tensor) -> float:
    """KL(drawn || target), nats per position."""
    total = 0.0
    for i, law in enumerate(laws):
        p = tokens[:, i].bincount(minlength=len(law)).double() / len(tokens)
        met = p > 0
        total += float((p[met] * (p[met] / law[met]).log()).sum()) - (int(met.sum()) - 1) / (2 * len(tokens))
    return total / len(laws)


def trained(name: str, laws: torch.Tensor, seconds: float) -> ls.Model:
    rng = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    system = "fisher-flow" if name == "linear flow" else name.split(",")[0]
    model = ls.build(system, vocab_size=laws.shape[1], length=LENGTH, **NETWORK, **FLOWS[name])
    batches = (torch.multinomial(laws, 128, replacement=True, generator=rng).T for _ in iter(int, 1))
    started = time.process_time()
    for _ in ls.fit(model, batches, steps=10**9, optim=ls.Optim(lr=2e-3, warmup=20)):
        if time.process_time() - started > seconds:
            break
    return model.eval()


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--seconds", type=float, default=5.0, help="processor time of each training")
    read.add_argument("--tokens", type=int, nargs="+", default=[4, 20, 40, 80, 160])
    given = read.parse_args()
    rows: dict[str, dict[str, float]] = {name: {} for name in ["target", *FLOWS]}
    for choices in given.tokens:
        rng = torch.Generator().manual_seed(choices)
        laws = (torch.randn(LENGTH, choices, generator=rng)).double().softmax(1)
        own = torch.multinomial(laws, SAMPLES, replacement=True, generator=rng).T
        rows["target"][f"K = {choices}"] = divergence(own, laws)
        for name in FLOWS:
            model = trained(name, laws, given.seconds)
            drawn = ls.sample(model, n=SAMPLES, steps=STEPS, rng=torch.Generator().manual_seed(2))
            rows[name][f"K = {choices}"] = divergence(drawn, laws)
            print(f"{name}, K = {choices}: {rows[name][f'K = {choices}']:.4f}", file=sys.stderr, flush=True)
    present(f"KL(drawn || target) in nats, {given.seconds:g} CPU s of training, {STEPS} steps", rows)


if __name__ == "__main__":
    main()
