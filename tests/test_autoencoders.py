"""Autoencoders: inputs of the decoders, scale of the latents, and a loss that does not depend on the batch size."""

import pytest
import torch
from torch import Tensor
from toy_languages import generator, skewed_chain

import logosphere as ls
from logosphere.autoencoders.decoders import CausalDecoder, LocalQueryInit, ParallelDecoder, Perceiver, Standardiser
from logosphere.autoencoders.text import TextAutoencoder
from logosphere.networks.config import NetworkConfig
from logosphere.rng import CounterNoise, GeneratorNoise
from logosphere.types import Batch

SIZE = NetworkConfig(width=16, depth=1, heads=2)


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """Randomise all weights: those initialised to zero would hide dependencies."""
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.4, generator=generator(1))
    return module.eval()


def codec(name: str, **options: object) -> TextAutoencoder:
    torch.manual_seed(0)
    sizes = {} if name == "tencdm" else {"latents": 2, "latent_width": 6}
    small = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}
    autoencoder = ls.build(name, vocab_size=5, length=8, **small | sizes | options).process.codec
    assert isinstance(autoencoder, TextAutoencoder)
    return autoencoder


TOKENS = skewed_chain(5, 8).sample(6, generator(2))


def compute_loss(autoencoder: TextAutoencoder, tokens: Tensor = TOKENS, seed: int = 3):
    batch = Batch.of(tokens)
    return autoencoder.autoencoder_loss(
        batch, CounterNoise(seed, 0, batch.ids, batch.global_index, batch.total), lambda u: u
    )


# ---- decoders -------------------------------------------------------------------------------------------------------


def test_causal_decoder_depends_on_latents_and_earlier_tokens_only() -> None:
    decoder = randomise(CausalDecoder(5, 8, SIZE, latents=2, features=3))
    z, changed = torch.randn(6, 2, 3, generator=generator(4)), TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 5
    before, after = decoder(z, TOKENS).logits, decoder(z, changed).logits
    assert torch.allclose(before[:, :6], after[:, :6], atol=1e-5)
    assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-3)
    assert not torch.allclose(decoder(z.flip(1), TOKENS).logits[:, 0], before[:, 0], atol=1e-3)


def test_causal_decoding_is_greedy() -> None:
    """Decoding with the cache agrees with the full forward pass."""
    decoder = randomise(CausalDecoder(5, 8, SIZE, latents=2, features=3))
    z = torch.randn(6, 2, 3, generator=generator(4))
    decoded = decoder.decode(z)
    assert torch.equal(decoder(z, decoded).logits.argmax(-1), decoded)


def test_parallel_decoder_ignores_the_tokens() -> None:
    decoder = randomise(ParallelDecoder(5, 8, SIZE, latents=2, features=3, state_width=4))
    z = torch.randn(6, 2, 3, generator=generator(4))
    assert torch.equal(decoder(z, TOKENS).logits, decoder(z, TOKENS.flip(1)).logits)
    assert decoder(z, TOKENS).states.shape == (6, 8, 4)


@pytest.mark.parametrize("memory, count", [(8, 2), (8, 3), (2, 8), (3, 8), (5, 5)])
def test_perceiver_attends_to_visible_positions_only(memory: int, count: int) -> None:
    perceiver = randomise(Perceiver(SIZE, memory=memory, memory_width=3, count=count))
    states = torch.randn(2, memory, 3, generator=generator(5))
    changed = states.clone()
    changed[:, 1] += 1
    shown = torch.ones(2, memory, dtype=torch.bool)
    out = perceiver(states, shown)
    assert out.shape == (2, count, 16)
    difference = (perceiver(changed, shown) - out).abs().amax((0, 2))
    assert bool((difference > 1e-4).all()), "every query depends on every state"
    shown[:, 1] = False
    assert torch.allclose(perceiver(states, shown), perceiver(changed, shown), atol=1e-6)


@pytest.mark.parametrize("memory, count", [(8, 2), (8, 3), (2, 8), (3, 8), (5, 5)])
def test_local_query_init_partitions_the_memory(memory: int, count: int) -> None:
    init = randomise(LocalQueryInit(memory=memory, memory_width=3, count=count, width=4))
    states = torch.randn(1, memory, 3, generator=generator(5))
    reached = torch.zeros(memory, count, dtype=torch.bool)
    for i in range(memory):
        changed = states.clone()
        changed[:, i] += 1
        reached[i] = (init(changed) - init(states)).abs().sum((0, 2)) > 1e-4
    assert bool(reached.any(1).all()), "every memory state reaches a query"
    if memory >= count:
        assert bool((reached.sum(1) == 1).all())
    else:
        assert bool((reached.sum(0) == 1).all()), "every query has one memory state"


# ---- scales ---------------------------------------------------------------------------------------------------------


def test_ld4lg_latents_are_normalised_to_the_sphere() -> None:
    """The decoder normalises its input, so it does not depend on the norm of the latents."""
    autoencoder = randomise(codec("ld4lg"))
    u = autoencoder.encode(TOKENS)
    assert torch.allclose(u.norm(dim=-1), torch.full((6, 2), 6**0.5))
    assert torch.allclose(
        autoencoder.reconstruction_nll(3 * u, TOKENS), autoencoder.reconstruction_nll(u, TOKENS), atol=1e-4
    )


@pytest.mark.parametrize("name", ["planner", "tencdm", "cosmos"])
def test_latents_are_standardised_by_training_statistics(name: str) -> None:
    autoencoder = codec(name, **{"substitution": 0.0} if name == "planner" else {})
    tokens = skewed_chain(5, 8).sample(400, generator(6))
    for seed in range(3):
        compute_loss(autoencoder, tokens, seed)
        autoencoder.update_statistics()
    u = autoencoder.encode(tokens)
    spread = u.std(0) if name != "tencdm" else u.flatten(0, 1).std(0)
    assert float(u.mean(0).abs().mean()) < 0.3 and 0.6 < float(spread.mean()) < 1.4


def test_statistics_do_not_depend_on_the_batch_split() -> None:
    x = 3 * torch.randn(10, 2, 4, generator=generator(7)) + 1
    whole, cut = Standardiser(2, 4), Standardiser(2, 4)
    whole.observe(x)
    cut.observe(x[:3]), cut.observe(x[3:])
    for standard in (whole, cut):
        standard.update_statistics()
    assert torch.allclose(whole(x), cut(x), atol=1e-6)
    assert torch.allclose(whole(x).mean(0), torch.zeros(2, 4), atol=1e-5)
    assert torch.allclose(whole(x).square().mean(0), torch.ones(2, 4), atol=1e-5)


def test_latents_do_not_depend_on_the_scale_of_encoder_states() -> None:
    autoencoder = codec("tencdm")
    before = autoencoder.encode(TOKENS)
    with torch.no_grad():
        autoencoder.reader.trunk.norm.weight *= 10
    assert torch.allclose(autoencoder.encode(TOKENS), before, atol=1e-4)


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_kl_is_a_mean_over_elements() -> None:
    """PLANNER's code sums the KL over the batch, so its weight grows with the batch size; here it is per sequence."""
    autoencoder = codec("planner", substitution=0.0, kl_weight=2.0)
    extra = compute_loss(autoencoder).extra
    assert torch.allclose(compute_loss(autoencoder, TOKENS[:2]).extra, extra[:2], atol=1e-5)
    raw = autoencoder._compress(autoencoder.reader(TOKENS), None)
    mean, log_variance = raw[..., :6].tanh(), raw[..., 6:]
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    kl = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0))
    assert torch.allclose(extra, 2.0 * 8 * kl.mean((1, 2)), atol=1e-4)


def test_state_matching_target_is_detached() -> None:
    """The target is detached: the error reaches the encoder only through the latents."""
    autoencoder = codec("cosmos", position_drop=0.0, feature_noise=0.0, latent_dropout=0.0)
    h = autoencoder.reader(TOKENS)
    loss = compute_loss(autoencoder)
    autoencoder.zero_grad()
    loss.extra.sum().backward()
    through_latents = autoencoder.reader.stem.weight.grad.clone()
    rebuilt = autoencoder.decoder(
        autoencoder.normalise(autoencoder._rescale(autoencoder._limit_scale(autoencoder._compress(h, None)))), TOKENS
    ).states
    autoencoder.zero_grad()
    (8 * (rebuilt - autoencoder.reader(TOKENS).detach()).square().mean((1, 2))).sum().backward()
    assert torch.allclose(through_latents, autoencoder.reader.stem.weight.grad, atol=1e-5)


@pytest.mark.parametrize("part", ["position_drop", "feature_noise", "latent_dropout"])
def test_each_augmentation_changes_the_loss(part: str) -> None:
    off = {"position_drop": 0.0, "feature_noise": 0.0, "latent_dropout": 0.0}
    plain, smooth = randomise(codec("cosmos", **off)), randomise(codec("cosmos", **off | {part: 0.5}))
    changed = ~torch.isclose(compute_loss(plain).nats, compute_loss(smooth).nats, atol=1e-4).all(1)
    assert bool(changed.any())
    if part != "latent_dropout":
        clean = torch.isclose(compute_loss(plain).u, compute_loss(smooth).u, atol=1e-4).flatten(1).all(1)
        assert bool(clean.any()) and not bool(clean.all()), "half of the sequences"


def test_substitution_affects_the_encoder_input_only() -> None:
    autoencoder = codec("planner", substitution=0.5)
    seen = autoencoder._substitute(TOKENS.repeat(200, 1), GeneratorNoise(generator(8), 1200))
    fraction = float((seen != TOKENS.repeat(200, 1)).float().mean())
    assert fraction == pytest.approx(0.5 * 4 / 5, abs=0.02)
    assert int(seen.max()) <= 4 and compute_loss(autoencoder).nats.shape == TOKENS.shape
