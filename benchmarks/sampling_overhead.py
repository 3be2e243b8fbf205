"""How much sampling costs beyond NFE × one bare evaluation of the network."""

from functools import partial
from typing import Any

import torch
from harness import paired_ratio, present

import logosphere as ls
from logosphere.sampling.steppers import OrderedUnmasking, ancestral, first_hitting

LENGTH, BATCH, VOCABULARY, STEPS, ROUNDS = 64, 16, 27, 32, 5


def main() -> None:
    model = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, width=256, depth=4, heads=4).eval()
    tokens = torch.randint(0, VOCABULARY + 1, (BATCH, LENGTH))
    times = torch.zeros(BATCH, LENGTH)
    network: Any = model.denoiser
    network = network.inner  # without wrappers

    @torch.no_grad()
    def bare(evaluations: int) -> None:
        for _ in range(evaluations):
            network(tokens, times, tokens)

    rows = {}
    for name, stepper, cached in (
        ("ancestral", ancestral, False),
        ("cached", ancestral, True),
        ("confidence", OrderedUnmasking(), False),
        ("first-hitting", first_hitting, False),
    ):

        def ours(stepper: Any = stepper, cached: bool = cached) -> Any:
            rng = torch.Generator().manual_seed(0)
            return ls.generate(model, n=BATCH, steps=STEPS, rng=rng, stepper=stepper, cached=cached)

        nfe = round(ours().nfe)
        rows[name] = {"nfe": nfe} | paired_ratio(ours, partial(bare, nfe), ROUNDS, warmup=1)
    present(f"sampling / (NFE × bare forward), {BATCH} × {LENGTH}, {STEPS} steps", rows)


if __name__ == "__main__":
    main()
