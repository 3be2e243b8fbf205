"""PLANNER and COSMOS as a whole against a float64 reference: from tokens and noise to the loss of each stage.

The reference is numpy and takes nothing from the package but the weights and the noise that was drawn. It computes the
networks from their definitions (pre-norm transformer, rotary positions, ReLU², Perceiver with cross-attention) and the
losses from the equations of the papers:

    PLANNER   L = -log p(x | z) + β KL(N(μ, σ²) || N(0, 1)),  z = μ + σ ε,  μ = tanh of a linear map
    COSMOS    L = -log p(x | D(z)) + L · mean |D(z) - h|²,  z = (standardised compression of augmented h) with zeros
    stage 2   PLANNER: α² |x0 - x̂0|²;  COSMOS: |x0 - x̂0|², both per feature
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny_encoder import TinyEncoder, use_tiny_encoder
from toy_languages import generator

import logosphere as ls
from logosphere.model import Model
from logosphere.rng import GeneratorNoise
from logosphere.types import Batch

Array = npt.NDArray[np.float64]
VOCABULARY, LENGTH, HEADS = 11, 16, 2
TOKENS = torch.randint(VOCABULARY, (6, LENGTH), generator=generator(4))
X = TOKENS.numpy()


class Recorded(GeneratorNoise):
    """Noise whose draws are kept in order."""

    def __init__(self, seed: int):
        super().__init__(generator(seed), len(TOKENS))
        self.drawn: list[Array] = []

    def normal(self, *shape: int) -> torch.Tensor:
        before = len(self.drawn)
        values = super().normal(*shape)
        del self.drawn[before:]  # uniform numbers that it was made of
        return self._keep(values)

    def uniform(self, *shape: int) -> torch.Tensor:
        return self._keep(super().uniform(*shape))

    def _keep(self, values: torch.Tensor) -> torch.Tensor:
        self.drawn.append(values.double().numpy())
        return values


# ---- networks -------------------------------------------------------------------------------------------------------


class Weights:
    """The weights of a module by name, in float64."""

    def __init__(self, module: torch.nn.Module, prefix: str = ""):
        self.found = {name: value.detach().double().numpy() for name, value in module.state_dict().items()}
        self.prefix = prefix

    def at(self, name: str) -> "Weights":
        part = object.__new__(Weights)
        part.found, part.prefix = self.found, f"{self.prefix}{name}."
        return part

    def __getitem__(self, name: str) -> Array:
        return self.found[self.prefix + name]

    def linear(self, x: Array) -> Array:
        bias = self.found.get(f"{self.prefix}bias", 0.0)
        return x @ self["weight"].T + bias

    def norm(self, x: Array) -> Array:
        return layer_norm(x) * self["weight"]


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def split_heads(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def attend(q: Array, k: Array, v: Array, visible: Array) -> Array:
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    mixed = softmax(np.where(visible, scores, -1e30)) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(len(q), q.shape[2], -1)


def rotated(x: Array) -> Array:
    """Features i and i + h/2 of a head, turned by position · 10000^(-2i/h)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[2])[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def backbone(w: Weights, h: Array, visible: Array, memory: tuple[Array, Array] | None = None) -> Array:
    """Pre-norm blocks; `memory` has the vectors of cross-attention and which of them are visible."""
    block = 0
    while f"{w.prefix}blocks.{block}.attention.out.weight" in w.found:
        part = w.at(f"blocks.{block}")
        q, k, v = np.split(part.at("attention.qkv").linear(part.at("attention_norm").norm(h)), 3, -1)
        mixed = attend(rotated(split_heads(q)), rotated(split_heads(k)), split_heads(v), visible)
        h = h + part.at("attention.out").linear(mixed)
        if memory is not None:
            cross = part.at("memory_attention")
            k, v = np.split(cross.at("key_value").linear(memory[0]), 2, -1)
            q = split_heads(cross.at("query").linear(part.at("memory_norm").norm(h)))
            found = attend(q, split_heads(k), split_heads(v), memory[1][:, None, None, :])
            h = h + cross.at("out").linear(found)
        up = part.at("expand").linear(part.at("feed_norm").norm(h))
        h = h + part.at("contract").linear(np.maximum(up, 0) ** 2)
        block += 1
    return w.at("norm").norm(h)


ALL = np.ones((1, 1, 1, 1), dtype=bool)


def own_parts(w: Weights, memory: Array, count: int) -> Array:
    """One linear map of the vectors that belong to each query."""
    rows, vectors = len(memory), memory.shape[1]
    parts = memory.reshape(rows, min(vectors, count), -1)
    return w.at("map").linear(parts).reshape(rows, count, -1)


def perceiver(w: Weights, memory: Array, visible: Array, count: int) -> Array:
    memory = memory * visible[..., None]
    keys = w.at("enter").linear(memory) + w["places"]
    return backbone(w.at("trunk"), own_parts(w.at("begin"), memory, count) + w["queries"], ALL, (keys, visible))


def cross_entropy(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    normaliser = top[..., 0] + np.log(np.exp(logits - top).sum(-1))
    return normaliser - np.take_along_axis(logits, X[..., None], -1)[..., 0]


# ---- models ---------------------------------------------------------------------------------------------------------


def built(name: str, preset: str, **options: object) -> Model:
    torch.manual_seed(2)
    size = {"width": 16, "depth": 2, "heads": HEADS, "autoencoder_depth": 2}
    model = ls.build(name, vocab_size=VOCABULARY, length=LENGTH, preset=preset, **size | options)
    with torch.no_grad():  # heads begin at zero
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(5)))
    return model


@pytest.fixture(autouse=True)
def encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_encoder(monkeypatch, VOCABULARY)


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_planner_stage_one(preset: str) -> None:
    skip = {} if preset == "paper" else {"local_skip": True, "compression": 8, "latent_width": 12}
    model = built("planner", preset, substitution=0.0, scale="none", **skip)
    codec, noise = model.process.codec, Recorded(1)
    with torch.no_grad():
        u, nats, extra = codec.autoencoder_loss(Batch.of(TOKENS), noise, lambda u: u)

    w, d, n = Weights(codec), codec.features, codec.latents
    h = layer_norm(backbone(w.at("reader.trunk"), w["reader.stem.weight"][X], ALL))
    raw = w.at("leave").linear(perceiver(w.at("compressor"), h, np.ones(h.shape[:2], dtype=bool), n))
    if skip:
        raw[..., :d] += own_parts(w.at("skip"), h, n)
    mean, log_variance = np.tanh(raw[..., :d]), np.clip(raw[..., d:], -10, 2)
    z = mean + np.exp(log_variance / 2) * noise.drawn[0]
    kl = 0.5 * (mean**2 + np.exp(log_variance) - 1 - log_variance)

    def logits(z: Array, x: npt.NDArray[np.int64]) -> Array:
        """All positions see the latents, a prefix; each has its part of a latent, and the token before it."""
        part = w.at("decoder")
        before = np.concatenate([np.full((len(x), 1), VOCABULARY), x[:, :-1]], 1)
        inputs = own_parts(part.at("begin"), z, LENGTH) + part["stem.weight"][before]
        prefix = part.at("enter").linear(z) + part["places"]
        i = np.arange(n + LENGTH)
        visible = (i[:, None] >= i) | (i < n)
        return part.at("head").linear(backbone(part.at("trunk"), np.concatenate([prefix, inputs], 1), visible)[:, n:])

    np.testing.assert_allclose(u.numpy(), z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nats.numpy(), cross_entropy(logits(z, X)), rtol=2e-4, atol=1e-4)
    rows = len(TOKENS)
    beta = 1e-5 * rows * LENGTH * kl.sum((1, 2)) if preset == "paper" else 1e-3 * LENGTH * kl.mean((1, 2))
    np.testing.assert_allclose(extra.numpy(), beta, rtol=1e-4)

    # p(x | z) is a product of conditionals: no logit depends on its own token or later ones.
    for position in (0, 5, LENGTH - 1):
        other = X.copy()
        other[:, position:] = (other[:, position:] + 3) % VOCABULARY
        np.testing.assert_allclose(logits(z, other)[:, position], logits(z, X)[:, position], atol=1e-12)
    greedy, decoded = np.zeros_like(X), codec.decode(u).numpy()
    for position in range(LENGTH):
        greedy[:, position] = logits(z, greedy)[:, position].argmax(-1)
    np.testing.assert_array_equal(decoded, greedy)


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_cosmos_stage_one(preset: str) -> None:
    own = {} if preset == "paper" else {"encoder": "tiny", "compression": 8, "latent_width": 6, "local_skip": True}
    model = built("cosmos", preset, **own)
    codec, noise = model.process.codec.train(), Recorded(2)
    for _ in range(2):  # statistics of the states, then of the latents
        with torch.no_grad():
            codec.autoencoder_loss(Batch.of(TOKENS), Recorded(3), lambda u: u)
        codec.update_statistics()
    with torch.no_grad():
        _, nats, extra = codec.autoencoder_loss(Batch.of(TOKENS), noise, lambda u: u)

    w, n, half = Weights(codec), codec.latents, noise.drawn[0] < 0.5
    deviation = np.sqrt(w["reader.standard.square"] - w["reader.standard.mean"] ** 2)
    h = (TinyEncoder(VOCABULARY).states(TOKENS).double().numpy() - w["reader.standard.mean"]) / deviation
    kept = noise.drawn[1] >= 0.3
    kept[:, 0] = True
    visible = kept | ~half[:, None]
    delta = math.sqrt(1 - 0.71**2)  # the paper's 0.7 of the state remains
    augmented = np.where(half[:, None, None], h, delta * h + 0.71 * noise.drawn[2])
    if preset == "paper":
        nu = codec.loss_config.feature_noise
        augmented = np.where(half[:, None, None], h, math.sqrt(1 - nu**2) * h + nu * noise.drawn[2])
        assert math.sqrt(1 - nu**2) == pytest.approx(0.7, abs=0.01)
    raw = w.at("leave").linear(perceiver(w.at("compressor"), augmented, visible, n))
    if own:
        raw = raw + own_parts(w.at("skip"), augmented * visible[..., None], n)
    latents = layer_norm(raw) if codec.layer_norm else raw
    std = np.sqrt(np.maximum(w["standard.square"] - w["standard.mean"] ** 2, 1e-6))
    dropped = noise.drawn[3] < 0.4
    if preset == "paper":  # features are set to 0, then all are standardised
        z = (np.where(dropped, 0.0, latents) - w["standard.mean"]) / std
    else:  # dropout of standardised latents
        z = np.where(dropped, 0.0, (latents - w["standard.mean"]) / std) / 0.6
    part = w.at("decoder")
    states = part.at("leave").linear(perceiver(part.at("decompress"), z, np.ones(z.shape[:2], dtype=bool), LENGTH))
    if own:
        states = states + own_parts(part.at("skip"), z, LENGTH)
    logits = part.at("head").linear(backbone(part.at("trunk"), part.at("enter").linear(states), ALL))
    np.testing.assert_allclose(nats.numpy(), cross_entropy(logits), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(extra.numpy(), LENGTH * ((states - h) ** 2).mean((1, 2)), rtol=2e-4)


@pytest.mark.parametrize("name", ["planner", "cosmos"])
def test_stage_two(name: str) -> None:
    """The minimised loss of a batch, from its latents, times and noise: E[w(t) |x0 - x̂0|²] per feature."""
    model = built(name, "paper", self_conditioning=0.0)
    process, codec = model.eval().process, model.process.codec
    u = codec.encode(TOKENS)
    shape = (len(TOKENS), codec.latents)
    t = torch.linspace(0.1, 0.9, len(TOKENS)).double()[:, None].expand(shape)
    epsilon = torch.randn(u.shape, generator=generator(6))
    turn = np.tan(np.pi / 2 * t.numpy())[..., None]
    d = 5.0 if name == "cosmos" else 1.0
    alpha, sigma = (part.double().numpy() for part in process.alpha_sigma(t))
    # Exactly up to the ends of the path, within which t runs (test_latent_paths.py compares these).
    assert np.abs(alpha**2 - 1 / (1 + d**2 * turn**2)).max() < 5e-3
    np.testing.assert_allclose(alpha**2 + sigma**2, 1, atol=1e-6)
    z = torch.from_numpy(alpha * u.double().numpy() + sigma * epsilon.double().numpy()).float()
    with torch.no_grad():
        out = model.denoiser(z, t.float(), context=u).view(u.shape)
        rate = process.elbo_rate(out, u, z, t.float())
        loss = process.loss(rate, out, u, z, t.float(), torch.ones(shape)).double().numpy()
    error = ((u - out).double().numpy() ** 2).mean(-1)
    weight = alpha[..., 0] ** 2 if name == "planner" else 1.0
    np.testing.assert_allclose(loss, weight * error * LENGTH / codec.latents, rtol=2e-3)
