"""Backbones: positions with several axes, convolutions, the U-Net; and images."""

import struct
import zlib

import numpy as np
import pytest
import torch
from toy_languages import generator
from toy_models import SMALL, fill_zero_weights

import logosphere as ls
from logosphere import UserError
from logosphere.networks.attention import Attention, plane_frequencies, rotary_table, rotate
from logosphere.networks.config import NetworkConfig
from logosphere.networks.convolution import ConvolutionBackbone, UNetBackbone, UNetStage
from logosphere.report.images import encode_png, make_image_grid
from logosphere.rng import GeneratorNoise


def test_one_axis_gives_the_standard_rotary_table() -> None:
    i = torch.arange(4)
    torch.testing.assert_close(plane_frequencies(8, 1)[0], 10_000.0 ** (-2 * i / 8))
    angles = torch.arange(5)[:, None] * 10_000.0 ** (-2 * i / 8)
    torch.testing.assert_close(rotary_table(5, 8)[0], torch.cat([angles.cos()] * 2, 1))
    torch.testing.assert_close(rotary_table(6, 8, (6,)), rotary_table(6, 8))


def test_attention_scores_of_images_depend_on_displacement_only() -> None:
    """<R_p q, R_p' k> is the same for all pairs of pixels with the same displacement along each axis."""
    axes = (4, 5, 3)
    table = rotary_table(60, 12, axes).double()
    q, k = torch.randn(2, 1, 1, 1, 12, generator=generator(1), dtype=torch.float64)
    scores = (rotate(q.expand(1, 1, 60, 12), table) @ rotate(k.expand(1, 1, 60, 12), table).mT)[0, 0].view(*axes, *axes)
    torch.testing.assert_close(scores[0, 0, 0, 1, 2, 1], scores[2, 1, 1, 3, 3, 2])
    assert abs(scores[0, 0, 0, 1, 2, 1] - scores[0, 0, 0, 2, 1, 1]) > 1e-6  # rows are not columns


def test_heads_are_initialised_to_neighbours_along_each_axis() -> None:
    attention = Attention(48, 4, 0.0)
    attention.init_to_neighbours(ahead=True, axes=2)
    table = rotary_table(25, 12, (5, 5))
    q, k, _ = attention.qkv.bias.detach().view(3, 4, 12)
    q, k = (rotate(part[None, :, None].expand(1, 4, 25, 12), table) for part in (q, k))
    scores = (q @ k.mT)[0]
    middle = scores[:, 12].view(4, 5, 5)
    rows = middle[0].mean(1), middle[2].mean(1)  # heads 0 and 2 attend along rows, one back and one ahead
    columns = middle[1].mean(0), middle[3].mean(0)
    assert [int(part.argmax()) for part in (*rows, *columns)] == [1, 3, 1, 3]


@pytest.mark.parametrize("name", ["mdlm", "d3pm-uniform", "rdlm-heat", "ar"])
def test_systems_accept_images(name: str) -> None:
    model = ls.build(name, vocab_size=5, length=12, width=24, depth=2, heads=2, shape="2x3x2")
    tokens = torch.randint(5, (4, 12), generator=generator(2))
    assert bool(model.nelbo(tokens, generator(3)).total.isfinite().all())
    assert ls.sample(model, n=2, steps=4, rng=generator(4)).shape == (2, 12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mdlm", "d3pm-uniform", "rdlm-heat"])
def test_convolutions_learn_a_motif(name: str) -> None:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=4, length=16, width=32, depth=3, heads=2, body="convolution")
    tokens = torch.arange(16).expand(16, -1) // 4 % 4
    list(ls.fit(model, [tokens] * 60, steps=60, optim=ls.OptimizerConfig(lr=1e-2, warmup=5)))
    assert model.nelbo(tokens, generator(1), draws=4).total.mean() < 0.5 * 16 * np.log(4)


def test_convolutions_use_conditions_and_have_a_wide_receptive_field() -> None:
    model = ls.build("mdlm", vocab_size=4, length=300, **SMALL | {"depth": 5}, body="convolution", labels=2)
    fill_zero_weights(model)
    z = torch.full((2, 300), 4)
    other = z.clone()
    other[:, 280] = 1
    t, far = torch.ones(2, 300), torch.zeros(2, 300, dtype=torch.bool)
    far[:, 10] = True  # 270 positions away: 4 · (1 + 1 + 4 + 16 + 64) = 344
    with torch.no_grad():
        conditioned = model.denoiser.with_condition(ls.Condition.of(labels=torch.tensor([0, 1])))
        assert (conditioned(z, t, z, far) != conditioned(other, t, other, far)).any()
        near = conditioned(z, t, z, far)
        assert (near[0] != near[1]).any()


def stripes(n: int, seed: int, channels: int = 1) -> torch.Tensor:
    """Images of 8 × 8 pixels with broad vertical or horizontal stripes of two levels: [n, 64 · channels]."""
    position = torch.arange(8)
    phase = torch.randint(4, (n, 1, 1), generator=generator(seed))
    upright = torch.arange(n)[:, None, None] % 2 == 0
    lines = torch.where(upright, position, position[:, None]) + phase
    return ((lines // 2) % 2).flatten(1).repeat_interleave(channels, 1)


IMAGES = ["mdlm", "d3pm-uniform", "d3pm-gaussian", "sedd-absorb", "rdlm-heat", "gaussian-ce", "bit-diffusion",
          "fisher-flow"]  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_u_net_works_for_every_bidirectional_system(name: str) -> None:
    model = ls.build(name, vocab_size=3, length=192, width=16, depth=1, heads=2, shape="8x8x3", body="unet", labels=2)
    conditioned = ls.Condition.of(labels=torch.tensor([0, 1]))
    assert bool(model.nelbo(stripes(2, 1, channels=3), generator(3), condition=conditioned).total.isfinite().all())
    assert ls.sample(model, n=2, steps=2, rng=generator(4), condition=conditioned).shape == (2, 192)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mdlm", "rdlm-heat"])
def test_u_net_learns_stripes(name: str) -> None:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=2, length=64, width=16, depth=1, heads=2, shape="8x8", body="unet")
    list(
        ls.fit(model, [stripes(16, seed) for seed in range(40)], steps=40, optim=ls.OptimizerConfig(lr=1e-2, warmup=5))
    )
    assert model.nelbo(stripes(32, 99), generator(1), draws=2).total.mean() < 0.5 * 64 * np.log(2)


def u_net(**more: object) -> tuple[ls.Model, torch.Tensor]:
    """A time-conditional U-Net without zero weights, and an input for it."""
    options = SMALL | {"depth": 1, "shape": "8x16x3", "body": "unet"} | more
    model = ls.build("d3pm-uniform", vocab_size=4, length=384, **options)
    fill_zero_weights(model)
    return model.eval(), torch.randint(4, (2, 384), generator=generator(5))


def test_u_net_depends_on_all_pixels_times_and_conditions() -> None:
    model, z = u_net(labels=2, signal=1)
    t, changed = torch.full((2, 384), 0.5), z.clone()
    changed[:, -1] = (z[:, -1] + 1) % 4
    later, one_later = t + 0.2, t.clone()
    one_later[:, -1] += 0.2  # one position has another time
    with torch.no_grad():
        plain = model.denoiser(z, t, z)
        assert (model.denoiser(changed, t, z)[:, 0] != plain[:, 0]).any()  # the last pixel reaches the first
        assert (model.denoiser(z, later, z) != plain).any() and (
            model.denoiser(z, one_later, z)[:, 0] != plain[:, 0]
        ).any()
        fields = {"labels": torch.tensor([0, 1]), "signal": torch.ones(2, 384, 1)}
        for name, field in fields.items():
            conditioned = model.denoiser.with_condition(ls.Condition.of(**{name: field}))
            assert (conditioned(z, t, z) != plain).any()


def test_u_net_with_equal_times_matches_one_time() -> None:
    model, z = u_net()
    backbone = model.denoiser.inner.trunk
    h = torch.randn(2, 384, 16, generator=generator(6))
    with torch.no_grad():
        torch.testing.assert_close(backbone(h, torch.full((2, 384), 0.3)), backbone(h, torch.full((2, 1), 0.3)))
        with pytest.raises(UserError, match="whole images"):
            backbone(h[:, :100], torch.full((2, 1), 0.3))


@pytest.mark.parametrize("body", ["unet", "convolution"])
def test_activation_checkpointing_recomputes_every_block(body: str) -> None:
    """The backward pass evaluates each block once more and gives the same gradient."""
    torch.manual_seed(0)
    model = ls.build(
        "mdlm", vocab_size=3, length=64, width=8, depth=1, heads=1, body=body, shape="8x8" if body == "unet" else ""
    )
    tokens, gradients, calls = torch.arange(128).view(2, 64) % 3, [], [0]
    blocks = [
        block
        for module in model.modules()
        if isinstance(module, ConvolutionBackbone | UNetStage)
        for block in module.blocks
    ]
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    for recompute in (False, True):
        for module in model.modules():
            if isinstance(module, ConvolutionBackbone | UNetStage):
                module.recompute = recompute
        calls[0] = 0
        model.zero_grad()
        model.bound(ls.Batch.of(tokens), GeneratorNoise(generator(1), 2)).loss.sum().backward()
        assert calls[0] == len(blocks) * (2 if recompute else 1)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("shape, halvings", [("8x8", 1), ("32x32x3", 3), ("28x28", 2), ("16x8x1", 1), ("24x12", 1)])
def test_u_net_downsamples_while_sides_are_even(shape: str, halvings: int) -> None:
    network = NetworkConfig(**SMALL, shape=shape, body="unet")
    assert network.halvings == halvings
    backbone = UNetBackbone(network, int(np.prod(network.axes)), reads_time=False)
    assert backbone(torch.randn(1, int(np.prod(network.axes)), 16)).shape == (1, int(np.prod(network.axes)), 16)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"shape": "9x9", "body": "unet"}, "odd"),
        ({"shape": "4x4", "body": "unet"}, "below 8"),
        ({"shape": "8x8", "body": "unet"}, "64 positions"),
        ({"body": "unet"}, "shape=32x32"),
        ({"shape": "2x2x8x8", "body": "unet"}, "shape=32x32"),
        ({"shape": "3x3"}, "9 positions"),
        ({"shape": "3,4"}, "32x32x3"),
        ({"body": "recurrent"}, "transformer, convolution or unet"),
        ({"shape": "1x2x2x3", "heads": 8}, "too small"),
    ],
)
def test_invalid_backbones_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build("mdlm", vocab_size=4, length=12, **SMALL | options)


@pytest.mark.parametrize("body", [{"body": "convolution"}, {"body": "unet", "shape": "8x8"}])
@pytest.mark.parametrize("name, options", [("ar", {}), ("mdlm", {"block": 8}), ("bd3lm", {"block": 8})])
def test_convolutions_refuse_autoregressive_and_block_systems(name: str, options: dict, body: dict) -> None:
    with pytest.raises(UserError, match="block by block"):
        ls.build(name, vocab_size=4, length=64, **options, **body)


def test_image_grid_contains_every_pixel() -> None:
    tokens = np.arange(2 * 12).reshape(2, 12) % 5
    image = make_image_grid(tokens, (2, 2, 3), levels=5)
    assert image.shape == (4, 7, 3)
    assert (image[1, 1] == [0, 63, 127]).all() and (image[1, 4] == tokens[1, :3] * 255 // 4).all()
    assert make_image_grid(tokens[:, :4], (2, 2), levels=5)[1, 2].tolist() == [63] * 3
    with pytest.raises(UserError, match="no images"):
        make_image_grid(tokens, (3, 3), levels=5)


def test_png_encoding_round_trips() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    content = encode_png(pixels)
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24]) == (7, 5)
    start = content.index(b"IDAT")
    size = struct.unpack(">I", content[start - 4 : start])[0]
    rows = np.frombuffer(zlib.decompress(content[start + 4 : start + 4 + size]), dtype=np.uint8).reshape(5, 22)
    assert (rows[:, 0] == 0).all() and (rows[:, 1:].reshape(5, 7, 3) == pixels).all()
