"""Training batches of which some sequences are conditioned on the network's own estimate, and the others are not.

Each group is a bound of its own: their numbers of evaluations differ, and in Plaid the parameters that they train
(Gulrajani and Hashimoto 2023: conditioned sequences give no gradient to the embeddings and the schedule).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from logosphere.denoisers.base import Denoiser
from logosphere.noise import Noise
from logosphere.processes.base import Process, bound
from logosphere.shapes import Float
from logosphere.types import Batch, Bound


def bound_of_rows(
    process: Process, denoiser: Denoiser, batch: Batch, w: Float[Tensor, "B J"], noise: Noise, every: int
) -> Bound:
    """A draw of the bound, in which every n-th sequence of the whole batch is conditioned on its own estimate.

    Which comes first is drawn from torch's generator, which training sets by the seed and the step: all parts of a
    batch and all processes of a team agree. They also agree on how often the network is evaluated, so that groups
    without sequences are no exception.
    """
    first = int(torch.randint(every, ()))
    conditioned = batch.place % every == first
    parts = []
    for rows, on in ((~conditioned, False), (conditioned, True)):
        part = denoiser.rows(rows).conditioning(on)
        with _held(process.held_parameters() if on else []):
            parts.append(bound(process, part, batch.part(rows), w[rows], noise.select(rows)))
    order = torch.cat([(~conditioned).nonzero(), conditioned.nonzero()])[:, 0].argsort()
    plain, other = parts
    return Bound(
        recon=torch.cat([plain.recon, other.recon])[order],
        diffusion=torch.cat([plain.diffusion, other.diffusion])[order],
        prior=torch.cat([plain.prior, other.prior])[order],
        loss=torch.cat([plain.loss, other.loss])[order],
        count=torch.cat([plain.count, other.count])[order],
        kind=plain.kind,
    )


@contextmanager
def _held(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Parameters that get no gradient from what is computed inside."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, learns in zip(parameters, before, strict=True):
            parameter.requires_grad_(learns)
