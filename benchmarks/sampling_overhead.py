"""CPU time of sampling, relative to NFE × one evaluation of the bare network."""

from functools import partial
from typing import Any

import torch
from harness import measure_paired_ratio, print_table

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
        rows[name] = {"nfe": nfe} | measure_paired_ratio(ours, partial(bare, nfe), ROUNDS, warmup=1)
    print_table(f"sampling / (NFE × bare forward), {BATCH} × {LENGTH}, {STEPS} steps", rows)


if __name__ == "__main__":
    main()
