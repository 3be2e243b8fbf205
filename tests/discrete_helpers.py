"""Random states of a discrete process, to compare formulas on."""

import torch
from torch import Tensor
from toy_languages import generator

from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import GeneratorNoise

V, N = 5, 400


def random_states(process: DiscreteDiffusion, low: float = 0.1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random tokens, times, states and posterior logits, all in float64."""
    rng = generator(1)
    x = torch.randint(V, (N,), generator=rng)
    t = (low + (0.95 - low) * torch.rand(N, generator=rng)).double()
    z = process.corrupt(x[:, None], t[:, None], GeneratorNoise(rng, N))[:, 0]
    out = process.add_evidence(torch.randn(N, V, generator=rng).double(), z, t)
    keep = process.needs_prediction(z[:, None], torch.ones(N, 1).bool())[:, 0]
    return out[keep], x[keep], z[keep], t[keep]
