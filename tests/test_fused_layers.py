"""Fused layers on CPUs: equal to the plain operations in float32, close to exact values in bfloat16."""

import pytest
import torch
from torch import Tensor
from toy_languages import generator

from logosphere.networks.attention import (
    attend,
    attend_by_operations,
    attend_in_groups,
    attend_plainly,
    block_causal_mask,
    rotary_table,
    rotate_queries_and_keys,
    split_and_rotate,
)
from logosphere.networks.backbone import feed_forward, square_relu

B, M, H, h = 3, 12, 2, 8


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((out * normal(*out.shape, seed=2)).sum(), inputs)


def test_rotation_is_that_of_plain_operations_to_the_last_bit() -> None:
    table, results = rotary_table(M, h), []
    for rotate in (split_and_rotate, rotate_queries_and_keys):
        qkv = normal(B, M, 3 * H * h).requires_grad_()
        out = torch.stack(rotate(qkv, table, H))
        results.append((out, *gradients(out, qkv)))
    for plain, fused in zip(*results, strict=True):
        assert torch.equal(plain, fused)


def test_squared_relu_is_that_of_plain_operations_to_the_last_bit() -> None:
    x, y = (normal(50).requires_grad_() for _ in range(2))
    plain, fused = torch.relu(x).square(), square_relu(1 * y)
    assert torch.equal(plain, fused)
    assert torch.equal(*gradients(plain, x), *gradients(fused, y))
    with torch.no_grad():
        assert torch.equal(square_relu(x.clone()), plain)


MASKS = {"full": None, "causal": torch.ones(M, M).tril().bool(), "blocks": block_causal_mask(M // 2, 2)}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("attention", [attend_plainly, attend_by_operations])
def test_bfloat16_attention_is_close_to_that_in_float64(attention, mask: Tensor | None) -> None:
    """Inputs have 8 significant bits, and so has every intermediate result."""
    table, qkv = rotary_table(M, h), normal(B, M, 3 * H * h).bfloat16()
    exact = qkv.double().requires_grad_()
    mixed = attend(*split_and_rotate(exact, table.double(), H), mask).transpose(1, 2).flatten(2)
    rounded = qkv.clone().requires_grad_()
    out = attention(rounded, table, H, mask)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), mixed, rtol=0, atol=0.03)
    (expected,), (found,) = gradients(mixed, exact), gradients(out, rounded)
    assert (found.double() - expected).norm() < 0.02 * expected.norm()


def test_bfloat16_feed_forward_is_close_to_that_in_float64() -> None:
    shapes = [(B, M, 16), (64, 16), (64,), (16, 64), (16,)]
    values = [normal(*shape, seed=seed).bfloat16() for seed, shape in enumerate(shapes)]
    exact = [value.double().requires_grad_() for value in values]
    x, w1, b1, w2, b2 = exact
    expected = torch.relu(x @ w1.T + b1).square() @ w2.T + b2
    inputs = [value.float().requires_grad_() for value in values]
    out = feed_forward(*inputs)
    assert (out.double() - expected).norm() < 0.01 * expected.norm()
    for wanted, found in zip(gradients(expected, *exact), gradients(out.float(), *inputs), strict=True):
        assert (found.double() - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize("block", [4, 64, 320])
def test_attention_in_groups_of_queries_is_masked_attention(block: int) -> None:
    length, values = 320, normal(3, 2, 2, 640, 8)
    mask, results = block_causal_mask(length, block), []
    for function in (attend, attend_in_groups):
        inputs = values.clone().requires_grad_()
        out = function(*inputs, mask)
        results.append((out, *gradients(out, inputs)))
    for whole, grouped in zip(*results, strict=True):
        torch.testing.assert_close(grouped, whole, rtol=1e-4, atol=1e-5)
