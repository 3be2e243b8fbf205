"""Bounds of the exact posterior of a toy language, which equal its entropy: |E[NELBO] - H| in standard errors.

The difference is estimated against H itself and, with a smaller error, against -log p of the same sequences.
"""

from typing import Any

import torch
from harness import print_table

import logosphere as ls

SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ar": ("ar", {}),
    "mdlm": ("mdlm", {}),
    "mdlm, independent masks": ("mdlm", {"exact_count": False}),
    "d3pm-uniform, continuous": ("d3pm-uniform", {"timesteps": None}),
    "d3pm-absorbing, T=1000": ("d3pm-absorbing", {}),
    "d3pm-uniform, T=1000": ("d3pm-uniform", {}),
}


def main() -> None:
    rows = {}
    for size, length, sharpness, sequences, draws in ((2, 8, 3.0, 20_000, 64), (27, 8, 2.0, 10_000, 32)):
        torch.manual_seed(size)
        transition = (sharpness * torch.randn(size, size)).softmax(1)
        language = ls.languages.markov(transition, torch.full((size,), 1 / size), length)
        rng = torch.Generator().manual_seed(0)
        tokens = language.sample(sequences, rng)
        truth, entropy = -language.log_prob(tokens), language.entropy()
        for title, (name, options) in SYSTEMS.items():
            model = ls.build(name, vocab_size=size, length=length, denoiser=None, **options)
            total = model.nelbo(tokens, rng, denoiser=ls.languages.oracle(model, language), draws=draws).total
            paired = total - truth
            error, paired_error = total.std() / sequences**0.5, paired.std() / sequences**0.5
            rows[f"{title}, K={size}"] = {
                "H": entropy,
                "bound": float(total.mean()),
                "s.e. / H": float(error) / entropy,
                "(bound-H)/s.e.": float((total.mean() - entropy) / error),
                "bound+log p": float(paired.mean()),
                "in s.e.": float(paired.mean() / paired_error.clamp_min(1e-6)),
            }
    print_table("bound of the exact posterior, nats per sequence", rows)


if __name__ == "__main__":
    main()
