"""DDiT against an independent forward pass of its formulas in float64, and the sizes of the published networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ddit_fixtures import CONVENTIONS, Reference, Shape, random_tensors
from torch import Tensor

from logosphere.checkpoints.ddit_tensors import map_tensors
from logosphere.networks.attention import block_causal_mask
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.ddit import DDiT

SMALL = Shape()
CAUSAL = Shape(modulated=False)
STATES = Shape(rows=5, states=True)


def config_of(shape: Shape, **changes: object) -> PublishedConfig:
    return PublishedConfig(
        **{
            "layout": "ddit",
            "rows": shape.rows,
            "width": shape.width,
            "depth": shape.depth,
            "heads": shape.heads,
            "kv_heads": shape.heads,
            "head_width": shape.width // shape.heads,
            "inner": 4 * shape.width,
            "positions": shape.length,
            "reads": "sigma" if shape.modulated else "nothing",
            "modulated": shape.modulated,
            "condition_width": shape.condition,
            "reads_states": shape.states,
        }
        | changes  # type: ignore[arg-type]
    )


def load(shape: Shape, tensors: dict[str, Tensor], dtype: torch.dtype, **changes: object) -> DDiT:
    config = config_of(shape, **changes)
    network = DDiT(config).to(dtype)
    pieces = map_tensors(config, "")
    state = {ours: tensors[piece.names[0]] for ours, piece in pieces.items()}
    network.load_state_dict(state, strict=True)
    return network.eval().requires_grad_(False)


def run(network: DDiT, inputs: Tensor, condition: Tensor | None, **options: object) -> Tensor:
    return network.head(network.features(inputs, condition, **options))  # type: ignore[arg-type]


def draw_ids(shape: Shape, batch: int, seed: int = 1) -> Tensor:
    return torch.randint(shape.rows, (batch, shape.length), generator=torch.Generator().manual_seed(seed))


def draw_sigma(shape: Shape, batch: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.rand(batch, shape.length, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
class TestAgainstTheFormulas:
    """One sequence after another, at every position its own σ."""

    def check(self, found: Tensor, expected: list[np.ndarray], error: float) -> None:
        expected_all = np.stack(expected)
        assert np.abs(found.double().numpy() - expected_all).max() < error * max(1.0, np.abs(expected_all).max())
        assert np.abs(expected_all).max() > 0.5

    def test_each_position_has_its_sigma(self, dtype: torch.dtype, error: float) -> None:
        tensors, ids, sigma = random_tensors(SMALL), draw_ids(SMALL, 3), draw_sigma(SMALL, 3)
        network, reference = load(SMALL, tensors, dtype), Reference(tensors, SMALL)
        found = run(network, ids, sigma.to(dtype))
        self.check(found, [reference.logits(i.numpy(), s.numpy()) for i, s in zip(ids, sigma, strict=True)], error)

    def test_positions_share_sigma(self, dtype: torch.dtype, error: float) -> None:
        tensors, ids = random_tensors(SMALL), draw_ids(SMALL, 3)
        sigma = draw_sigma(SMALL, 3)[:, :1].expand(-1, SMALL.length)
        network, reference = load(SMALL, tensors, dtype), Reference(tensors, SMALL)
        expected = [reference.logits(i.numpy(), s.numpy()) for i, s in zip(ids, sigma, strict=True)]
        self.check(run(network, ids, sigma.to(dtype)), expected, error)
        self.check(run(network, ids, sigma.to(dtype).contiguous()), expected, error)

    def test_without_time_sigma_is_zero(self, dtype: torch.dtype, error: float) -> None:
        tensors, ids = random_tensors(SMALL), draw_ids(SMALL, 3)
        network, reference = load(SMALL, tensors, dtype, reads="zero"), Reference(tensors, SMALL)
        expected = [reference.logits(i.numpy(), np.zeros(SMALL.length)) for i in ids]
        for told in (torch.zeros(3, SMALL.length), draw_sigma(SMALL, 3), None):
            self.check(run(network, ids, told), expected, error)

    def test_causal_without_modulation(self, dtype: torch.dtype, error: float) -> None:
        tensors, ids = random_tensors(CAUSAL), draw_ids(CAUSAL, 3)
        network, reference = load(CAUSAL, tensors, dtype, attention="causal"), Reference(tensors, CAUSAL)
        visible = np.tril(np.ones((CAUSAL.length, CAUSAL.length), dtype=bool))
        expected = [reference.logits(i.numpy(), None, visible=visible) for i in ids]
        self.check(run(network, ids, None, causal=True), expected, error)

    def test_states_of_the_sphere(self, dtype: torch.dtype, error: float) -> None:
        """RDLM reads the coordinates of tokens and not that of the mask."""
        tensors = random_tensors(STATES)
        network, reference = load(STATES, tensors, dtype, reads="time"), Reference(tensors, STATES)
        generator = torch.Generator().manual_seed(3)
        z = torch.randn(3, STATES.length, STATES.rows + 1, generator=generator, dtype=torch.float64)
        t = torch.rand(3, STATES.length, generator=generator, dtype=torch.float64)
        expected = [reference.logits(s.numpy(), a.numpy()) for s, a in zip(z, t, strict=True)]
        self.check(run(network, z.to(dtype), t.to(dtype)), expected, error)

    def test_blocks_with_positions_twice(self, dtype: torch.dtype, error: float) -> None:
        """[noisy ; clean] under the mask of block diffusion."""
        tensors, z, x = random_tensors(SMALL), draw_ids(SMALL, 2), draw_ids(SMALL, 2, 5)
        network, reference = load(SMALL, tensors, dtype, reads="zero"), Reference(tensors, SMALL)
        mask, positions = block_causal_mask(SMALL.length, 4), torch.arange(SMALL.length).repeat(2)
        both = torch.cat([z, x], 1)
        visible = np.zeros((16, 16), dtype=bool)
        for i in range(16):
            for j in range(16):
                b, c = i % 8 // 4, j % 8 // 4
                if i < 8 and j < 8:
                    visible[i, j] = b == c
                elif i < 8:
                    visible[i, j] = c < b
                else:
                    visible[i, j] = j >= 8 and c <= b
        expected = [
            reference.logits(i.numpy(), np.zeros(16), positions=positions.numpy(), visible=visible) for i in both
        ]
        self.check(run(network, both, None, positions=positions, mask=mask), expected, error)


@pytest.mark.parametrize("dropped", CONVENTIONS)
def test_every_convention_matters(dropped: str) -> None:
    """A reference without one of the conventions differs by far more than the tolerance of the comparison."""
    tensors, ids, sigma = random_tensors(SMALL), draw_ids(SMALL, 1), draw_sigma(SMALL, 1)
    other = Reference(tensors, SMALL, dropped=dropped).logits(ids[0].numpy(), sigma[0].numpy())
    found = run(load(SMALL, tensors, torch.float64), ids, sigma)[0].numpy()
    assert np.abs(found - other).max() > 1e-4


class TestCaches:
    """Keys and values of earlier positions."""

    def test_token_by_token(self) -> None:
        tensors, ids = random_tensors(CAUSAL), draw_ids(CAUSAL, 2)
        network = load(CAUSAL, tensors, torch.float64, attention="causal")
        whole, caches = run(network, ids, None, causal=True), network.new_caches(2, CAUSAL.length)
        pieces = [ids[:, :3], ids[:, 3:4], ids[:, 4:]]  # a prompt, one token, several tokens
        found = torch.cat([run(network, piece, None, causal=True, caches=caches) for piece in pieces], 1)
        assert torch.allclose(found, whole, atol=1e-12, rtol=0)

    def test_block_by_block(self) -> None:
        """A noisy block with cached clean blocks is that of the joint pass over [noisy ; clean]."""
        tensors, z, x = random_tensors(SMALL), draw_ids(SMALL, 2), draw_ids(SMALL, 2, 5)
        network = load(SMALL, tensors, torch.float64, reads="zero")
        mask, positions = block_causal_mask(SMALL.length, 4), torch.arange(SMALL.length).repeat(2)
        joint = run(network, torch.cat([z, x], 1), None, positions=positions, mask=mask)[:, :8]
        first, caches = run(network, z[:, :4], None), network.new_caches(2, SMALL.length)
        network.features(x[:, :4], None, caches=caches)
        second = run(network, z[:, 4:], None, caches=caches)
        assert torch.allclose(torch.cat([first, second], 1), joint, atol=1e-12, rtol=0)


def test_bfloat16_keeps_rotary_angles() -> None:
    """Weights in bfloat16: angles at late positions stay exact, so the error is that of the weights alone."""
    shape = replace(SMALL, length=1024)
    tensors = random_tensors(shape, scale=0.2)
    rounded = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    ids, sigma = draw_ids(shape, 1), torch.zeros(1, 1024)
    found = run(load(shape, tensors, torch.bfloat16), ids, sigma).float()
    expected = run(load(shape, rounded, torch.float32), ids, sigma)
    assert (found - expected)[:, -64:].abs().mean() < 0.02 * expected.abs().mean()


@pytest.mark.parametrize(
    ("rows", "width", "depth", "heads", "modulated", "parameters"),
    [
        (50_258, 768, 12, 12, True, 169_627_218),  # mdlm-owt, sedd-small, duo
        (50_258, 1024, 24, 16, True, 424_477_010),  # sedd-medium
        (50_259, 768, 12, 12, True, 169_628_755),  # gidd-small
        (50_259, 1024, 24, 16, True, 424_479_059),  # gidd-base
        (50_258, 768, 12, 12, False, 162_246_482),  # ar-noeos-owt
    ],
)
def test_parameters_of_published_networks(
    rows: int, width: int, depth: int, heads: int, modulated: bool, parameters: int
) -> None:
    shape = Shape(rows, width, depth, heads, condition=128, length=1024, modulated=modulated)
    with torch.device("meta"):
        network = DDiT(config_of(shape))
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_parameters_of_rdlm() -> None:
    shape = Shape(27, 768, 12, 12, condition=128, length=256, states=True)
    with torch.device("meta"):
        network = DDiT(config_of(shape))
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e6, 2) == 92.42
