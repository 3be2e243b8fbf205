"""Selected positions: indices, all positions, and static shapes give the same bound and gradient."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import logosphere as ls
from logosphere.model import Model
from logosphere.rng import CounterNoise
from logosphere.training.trainer import Trainer
from logosphere.types import Batch, Bound

V, L, B = 11, 8, 6


def build(system: str) -> Model:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": V, "length": L, "width": 16, "depth": 1, "heads": 2}
    model = ls.build(system, **size)
    with torch.no_grad():  # heads start at zero, where gradients of most weights vanish
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model.train()


def batches(model: Model) -> Iterator[Batch]:
    """A batch of free positions, and one with a prompt and padding."""
    tokens = torch.randint(V, (B, model.length), generator=torch.Generator().manual_seed(1))
    yield Batch.of(tokens)
    if model.process.codec.local:
        known = torch.zeros_like(tokens, dtype=torch.bool)
        known[::2, :3] = True
        yield Batch.of(tokens, known)


def evaluate(model: Model, batch: Batch, *, static: bool) -> tuple[Bound, list[Tensor]]:
    model.process.static_shapes = static
    model.zero_grad()
    torch.manual_seed(3)
    bound = model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total))
    bound.loss.sum().backward()
    return bound, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("system", ls.systems())
def test_static_shapes_give_the_same_bound_and_gradient(system: str) -> None:
    model = build(system)
    for batch in batches(model):
        (found, gradient), (expected, reference) = (evaluate(model, batch, static=static) for static in (True, False))
        for term in ("recon", "diffusion", "prior", "loss"):
            torch.testing.assert_close(getattr(found, term), getattr(expected, term), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-4)


class Shapes(TorchDispatchMode):
    """Records the shapes of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("system", ["mdlm", "md4", "sedd-absorb"])
def test_shapes_do_not_depend_on_the_number_of_masks(system: str, static: bool) -> None:
    model = build(system)
    model.process.static_shapes = static
    batch, seen = next(batches(model)), []
    for step in range(4):
        with Shapes() as recorded:
            model.bound(batch, CounterNoise(0, step, batch.ids, batch.global_index, batch.total)).loss.sum().backward()
        seen.append(recorded.shapes)
    assert all(shapes == seen[0] for shapes in seen) == static


def test_a_batch_that_is_all_free_is_recognised_on_the_host() -> None:
    tokens = torch.zeros(2, 4, dtype=torch.long)
    known = torch.zeros_like(tokens, dtype=torch.bool)
    assert Batch.of(tokens).all_free and not Batch.of(tokens, known).all_free
    assert Batch.of(tokens, known).to("cpu").all_free
    known[1, 2] = True
    assert not Batch.of(tokens, known).to("cpu").all_free
    assert Batch.of(tokens).select(slice(1)).all_free


@pytest.mark.parametrize("system", ["mdlm", "gidd", "ar"])
def test_all_positions_are_the_selection_of_all_positions(system: str) -> None:
    model = build(system)
    whole = next(batches(model))
    same = Batch.of(whole.tokens, whole.known)  # all free, but not known to be
    (found, gradient), (expected, reference) = (evaluate(model, batch, static=False) for batch in (whole, same))
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-5)


def test_the_losses_of_accumulated_parts_add_up() -> None:
    model = build("gidd")
    batch = next(batches(model))
    progress = Trainer(model, accumulate=3).train_step(batch, 0.0)
    whole = Trainer(build("gidd")).train_step(batch, 0.0)
    assert progress.loss == pytest.approx(whole.loss, rel=1e-5) and progress.nats == pytest.approx(whole.nats, rel=1e-5)
