"""Training of a small network beside a model that stays as it is: remaskers, classifiers of noisy states."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.shapes import Float
from logosphere.training.fit import decaying
from logosphere.training.optim import Optim
from logosphere.types import Batch, Tokens


@dataclass(frozen=True)
class Taught:
    """What one step did."""

    step: int
    loss: float
    """The mean loss, in nats."""
    seconds: float


def taught(
    network: nn.Module,
    model: Model,
    batches: Iterable[Batch | Tokens],
    loss: Callable[[Batch], Float[Tensor, ""]],
    *,
    steps: int,
    optim: Optim,
) -> Iterator[Taught]:
    """Minimise the loss of batches with AdamW over the weights of `network` alone."""
    parameters = [p.requires_grad_(True) for p in network.parameters()]
    optimizer = torch.optim.AdamW(
        decaying(parameters, optim), lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True
    )
    model.eval()
    done = 0
    for step, given in enumerate(islice(batches, steps)):
        started = time.perf_counter()
        batch = (Batch.of(given) if isinstance(given, Tensor) else given).to(model.device)
        network.train()
        found = loss(batch)
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        nn.utils.clip_grad_norm_(parameters, optim.largest_norm)
        for group in optimizer.param_groups:
            group["lr"] = optim.rate(step, step / steps)
        optimizer.step()
        network.eval()
        done = step + 1
        yield Taught(done, found.item(), time.perf_counter() - started)
    network.requires_grad_(False)
    if done < steps:
        raise UserError(f"The data ended after {done} batches, but training needs {steps}.")
