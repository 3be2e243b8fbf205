"""Training of an auxiliary network, such as a remasker or a classifier of noisy states; the model stays as it is."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from logosphere.model import Model
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Optimizer, decay_groups, take_steps
from logosphere.types import Batch, Float, Tokens


@dataclass(frozen=True)
class AuxiliaryStep:
    """The result of one step."""

    step: int
    loss: float
    """The mean loss, in nats."""
    seconds: float


class AuxiliaryTrainer:
    """Minimises a loss of batches over the weights of one network."""

    def __init__(
        self, network: nn.Module, model: Model, loss: Callable[[Batch], Float[Tensor, ""]], optim: OptimizerConfig
    ):
        self.network, self.device, self.loss, self.step = network, model.device, loss, 0
        parameters = [p.requires_grad_(True) for p in network.parameters()]
        self.optimizer = Optimizer(decay_groups(parameters, optim), parameters, optim)

    def train_step(self, batch: Batch, done: float) -> AuxiliaryStep:
        started = time.perf_counter()
        batch = batch.to(self.device)
        self.network.train()
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.clip()
        self.optimizer.step(self.optimizer.config.rate(self.step, done))
        self.network.eval()
        self.step += 1
        return AuxiliaryStep(self.step, loss.item(), time.perf_counter() - started)


def train_auxiliary(
    network: nn.Module,
    model: Model,
    batches: Iterable[Batch | Tokens],
    loss: Callable[[Batch], Float[Tensor, ""]],
    *,
    steps: int,
    optim: OptimizerConfig,
) -> Iterator[AuxiliaryStep]:
    """Minimise the loss of batches over the weights of `network` alone, for `steps` steps."""
    model.eval()
    yield from take_steps(AuxiliaryTrainer(network, model, loss, optim), batches, steps)
    network.requires_grad_(False)
