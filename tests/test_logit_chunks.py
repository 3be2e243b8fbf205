"""Logit chunks: logits of large vocabularies in chunks give the same numbers and are never in memory at once."""

import pytest
import torch
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.processes import bound as bounds
from logosphere.rng import CounterNoise
from logosphere.types import Batch

NAMES = ["mdlm", "md4", "genmd4", "bd3lm", "sedd-absorb", "sedd-uniform", "udlm", "gidd", "d3pm-uniform", "ar"]


WEIGHTS = {"equal": torch.ones(6), "unequal": torch.arange(6.0)}
"""Weights of the losses: the gradient computed with each chunk is that of a plain sum."""


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_chunks_give_the_same_bound_and_gradients(
    name: str, weights: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound, loss and every gradient, with 3 rows per chunk and with all rows in one."""
    language = skewed_chain(5, 8)
    model = random_network(name, language).train()
    batch = Batch.of(language.sample(6, generator(1)))
    results = []
    for largest in (15, 1 << 24):
        monkeypatch.setattr(bounds, "CHUNK", largest)
        model.zero_grad()
        bound = model.bound(batch, CounterNoise(1, 2, batch.ids, batch.global_index, batch.total))
        (bound.loss * weights).sum().backward()
        results.append([bound.total.detach(), bound.loss.detach(), *[weight.grad for weight in model.parameters()]])
    for chunked, whole in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=2e-4, atol=2e-5)


def largest_tensor(model: ls.Model, batch: Batch) -> int:
    """The number of elements of the largest tensor that one training step creates."""
    largest = 0

    class SizeRecorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    with SizeRecorder():
        model.bound(batch, CounterNoise(1, 2, batch.ids, batch.global_index, batch.total)).loss.sum().backward()
    return largest


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd-absorb"])
def test_no_tensor_holds_all_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CHUNK", 1 << 16)
    model = ls.build(name, vocab_size=4000, length=64, width=8, depth=1, heads=1).train()
    batch = Batch.of(torch.randint(4000, (8, 64), generator=generator(1)))
    assert largest_tensor(model, batch) <= 1 << 16
    monkeypatch.setattr(bounds, "CHUNK", 1 << 30)
    assert largest_tensor(model, batch) > 10 << 16
