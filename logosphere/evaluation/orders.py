"""Likelihoods of models that unmask one token at a time in a given order.

A sampler that reveals one position at a time, at a position σ(n) that is a function of what is already revealed, is an
autoregressive model. Given x its order can be reproduced, so that its likelihood is exact (the chain rule):

    -log p(x) = -Σ_n log p(x_{σ(n)} | x_{σ(1)}, …, x_{σ(n-1)})

It takes as many network evaluations as a sequence has positions. In a uniformly random order p(x) is the mean of
p(x | σ) over all orders (Uria et al. 2014), and K of them give

    -log p(x) ≤ E[-log (1/K) Σ_k p(x | σ_k)],

by Jensen's inequality; the right side does not increase with K (Burda et al. 2016, IWAE). K = 1 has the mean of the
NELBO of masked diffusion.

Every order acts within each block of a model, and blocks follow each other from left to right. Given x, all blocks are
evaluated at once, because a block reads clean states of the blocks before it and its own states alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from logosphere.errors import UserError, suggest
from logosphere.evaluation.likelihood import Estimate, estimate_each
from logosphere.model import Model, bind_condition
from logosphere.networks.base import Denoiser
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.processes.base import Process
from logosphere.processes.bound import CHUNK
from logosphere.processes.capabilities import MixtureOfPaths, SeveralPaths, Unmasking
from logosphere.rng import CounterNoise, Noise
from logosphere.sampling.steppers.unmasking import (
    Order,
    entropy_order,
    margin_order,
    max_probability_order,
    select_best,
    unpack,
)
from logosphere.types import Batch, Bound, ChunkedPredict, Float, Logits, Positions, Predict

Progress = Callable[[float], None]
"""Takes the completed fraction of a batch."""


@dataclass(frozen=True)
class UnmaskingOrder:
    """An order of positions, and the sampler whose distribution it has with one position per step."""

    name: str
    sampler: str
    score: Order | None = None
    """Score of a prediction, the highest first and ties to the left; None for orders that do not depend on it."""
    drawn: bool = False
    """Whether the order is drawn for each sequence."""


ORDERS = {
    order.name: order
    for order in (
        UnmaskingOrder("left-to-right", "left-to-right"),
        UnmaskingOrder("entropy", "entropy", entropy_order),
        UnmaskingOrder("margin", "margin", margin_order),
        UnmaskingOrder("confidence", "max-confidence", max_probability_order),
        UnmaskingOrder("random", "random", drawn=True),
    )
}


def find_order(name: str) -> UnmaskingOrder:
    """An order by its name."""
    if name not in ORDERS:
        raise UserError(f"There is no order '{name}'.{suggest(name, ORDERS)}")
    return ORDERS[name]


def estimate_orders(
    model: Model,
    batches: Iterable[Batch],
    order: str,
    *,
    orders: int = 1,
    seed: int = 0,
    predict: Predict | None = None,
    precision: str = "float32",
    group: ProcessGroup = SINGLE,
    progress: Progress = lambda fraction: None,
) -> Iterator[Estimate]:
    """The likelihoods of each batch in an order; `orders` is K of the random order.

    Random orders depend on (seed, sample id), and the first ones are the same for every K.
    """
    found = find_order(order)
    if orders < 1 or (orders > 1 and not found.drawn):
        raise UserError(f"orders must be at least 1, and 1 unless the order is random, not {orders} for {order}.")

    def measure(batch: Batch, predict: Predict) -> Bound:
        noise = CounterNoise(seed, 0, batch.ids, batch.global_index, batch.total)
        return order_likelihood(model, batch, predict, found, orders, noise, progress)

    check_orders(model, model.denoiser if predict is None else predict)
    return estimate_each(model, batches, measure, predict=predict, precision=precision, group=group)


def check_orders(model: Model, predict: Predict | None) -> None:
    """Raise UserError for models without a likelihood by order."""
    process, system = model.process, "this model" if model.spec is None else model.spec.system
    if process.kind == "exact":
        raise UserError(f"{system} has one order, left to right, and its likelihood is exact; leave out the order.")
    if not isinstance(process, Unmasking) or not process.unmasks_tokens:
        if isinstance(process, SeveralPaths) and process.path_name == "joint" and "any-order" in process.path_names:
            raise UserError(f"On the joint path of {system} all positions move at once; use path=any-order.")
        raise UserError(
            f"An order needs whole tokens that are unmasked and never change, as in mdlm, or in rdlm-heat with "
            f"path=any-order and without base; {system} has no such order."
        )
    if not process.begins_masked:
        raise UserError("Samples of this model begin with some random tokens instead of masks; use another schedule.")
    if not isinstance(predict, Denoiser):
        return
    if predict.reads_time and not process.times_follow_masks:
        raise UserError(f"The network of {system} reads the time, which an order does not have; use time-free mdlm.")
    if any(isinstance(part, SelfConditioning) for part in predict.modules()):
        raise UserError("A self-conditioned network depends on earlier steps and not only on the revealed tokens.")


def order_likelihood(
    model: Model,
    batch: Batch,
    predict: Predict,
    order: UnmaskingOrder,
    orders: int,
    noise: Noise,
    progress: Progress = lambda fraction: None,
) -> Bound:
    """-log p(x | known positions) of each sequence in an order, or the bound by `orders` random ones."""
    if batch.tokens.shape[1] != model.length and model.block != model.length:
        raise UserError("A model that generates block by block is evaluated on whole sequences.")
    if batch.condition is not None:
        predict = bind_condition(predict, batch.condition)
    block = min(model.block, batch.tokens.shape[1])
    priorities = [noise.uniform(*batch.tokens.shape) for _ in range(orders)] if order.drawn else [None]
    passes = list(product(priorities, _components(model.process)))
    found = []
    for index, (priority, component) in enumerate(passes):
        report = partial(_report, progress, index, len(passes))
        found.append(_Chain(component, predict, batch, block, noise).log_likelihood(order, priority, report))
    total = math.log(len(found)) - torch.stack(found).logsumexp(0)
    zeros = torch.zeros_like(total)
    return Bound(zeros, total, zeros, total, batch.scored_tokens, "bound" if order.drawn else "exact")


def _report(progress: Progress, index: int, count: int, fraction: float) -> None:
    """Report the progress of one pass of `count`."""
    progress((index + fraction) / count)


def _components(process: Process) -> list[Process]:
    """The equally likely components of a mixture, such as starts on the sphere; for others the process itself."""
    if not isinstance(process, MixtureOfPaths) or process.num_components == 1:
        return [process]
    return [process.select_component(component) for component in range(process.num_components)]


class _Chain:
    """The states of a batch while its positions are revealed one after another."""

    def __init__(self, process: Process, predict: Predict, batch: Batch, block: int, noise: Noise):
        self.process, self.predict, self.batch, self.block = process, predict, batch, block
        self.clean = process.codec.encode(batch.tokens)
        self.start = process.prior(len(batch), batch.tokens.shape[1], noise)
        self.masked = batch.free

    def log_likelihood(
        self, order: UnmaskingOrder, priority: Float[Tensor, "B L"] | None, progress: Progress
    ) -> Float[Tensor, " B"]:
        """Σ_n log p(x_{σ(n)} | x_{σ(<n)}); `priority` defines σ if the order does not depend on predictions."""
        if priority is None:
            place = torch.arange(self.masked.shape[1], device=self.masked.device)
            priority = -place.double().expand(self.masked.shape)
        total = torch.zeros(len(self.batch), dtype=torch.float64, device=priority.device)
        steps = int(self.masked.view(-1, self.block).sum(1).amax())
        for step in range(steps):
            if order.score is None:
                chosen = self._select(priority)
                log_p = unpack(chosen, self._evaluate(chosen, None)[0], 0.0)
            else:
                found, scores = self._evaluate(self.masked, order.score)
                chosen = self._select(unpack(self.masked, scores, -torch.inf))
                log_p = torch.where(chosen, unpack(self.masked, found, 0.0), 0.0)
            total, self.masked = total + log_p.sum(1), self.masked & ~chosen
            progress((step + 1) / steps)
        return total

    def _select(self, scores: Float[Tensor, "B L"]) -> Positions:
        """The masked position of the highest score in each block, the leftmost of equal ones."""
        scores = torch.where(self.masked, scores, -torch.inf).view(-1, self.block)
        one = torch.ones(len(scores), 1, dtype=torch.long, device=scores.device)
        return select_best(scores, one).view(self.masked.shape) & self.masked

    def _evaluate(self, where: Positions, score: Order | None) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """log p(x_i) at the positions `where`, and their scores; only sequences with such a position are evaluated."""
        predict, rows = self.predict, where.any(1)
        if not isinstance(predict, Denoiser) or bool(rows.all()):
            rows = torch.ones_like(rows)
        else:
            predict = predict.select_rows(rows)
        masked, clean, at = self.masked[rows], self.clean[rows], where[rows]
        z = torch.where(masked.view(*masked.shape, *[1] * (clean.dim() - 2)), self.start[rows], clean)
        t = masked.float()  # read only where times follow masks (check_orders)
        tokens = self.batch.tokens[where]

        def reduce(out: Logits, part: slice) -> tuple[Tensor, Tensor]:
            log_p = out.double().log_softmax(-1).gather(-1, tokens[part, None]).squeeze(-1)
            return log_p, log_p if score is None else score(out, tokens[part])

        count, size = len(tokens), max(1, CHUNK // self.process.codec.num_classes)
        if count <= size or not isinstance(predict, ChunkedPredict):
            return reduce(predict(z, t, context=clean, where=at), slice(None))
        chunks = predict.logit_chunks(z, t, context=clean, where=at)
        found = [reduce(chunks(part), part) for part in (slice(i, i + size) for i in range(0, count, size))]
        return torch.cat([log_p for log_p, _ in found]), torch.cat([scores for _, scores in found])
