"""The encoder-decoder of block diffusion: what each block sees, its cache, its cost and its precision."""

import pytest
import torch
from toy_languages import generator, skewed_chain
from toy_models import SMALL, random_network

import logosphere as ls
from logosphere.errors import UserError
from logosphere.networks.encoder_decoder import BlockEncoderDecoder, EncoderDecoderSession
from logosphere.rng import CounterNoise
from logosphere.runs.costs import count_step_flops
from logosphere.types import Batch

LANGUAGE = skewed_chain(5, 12)
SYSTEMS = {
    "bd3lm": {},
    "udlm": {},
    "rdlm-heat": {"path": "joint"},
    "rdlm": {"input": "state"},
}


def model_of(name: str, block: int, **options: object) -> ls.Model:
    sizes = {"depth": 3, "decoder_depth": 1, "block": block}
    return random_network(name, LANGUAGE, **SYSTEMS[name] | sizes | options).eval().requires_grad_(False)


def states(model: ls.Model, seed: int) -> torch.Tensor:
    return model.corrupt(LANGUAGE.sample(4, generator(seed)), 0.5, seed)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("block", [1, 3, 4])
def test_a_block_sees_itself_and_the_clean_blocks_before_it(name: str, block: int) -> None:
    model, t = model_of(name, block), torch.full((4, 12), 0.5)
    z, clean = states(model, 1), model.process.codec.encode(LANGUAGE.sample(4, generator(2)))
    base = model.denoiser(z, t, clean)
    for index in range(12 // block):
        here = slice(index * block, (index + 1) * block)
        changed = clean.clone()
        changed[:, here] = clean.roll(1, 0)[:, here]
        difference = (model.denoiser(z, t, changed) - base).abs().amax((0, 2))
        assert difference[: here.stop].max() == 0  # no leak of a block's own clean tokens, nor of later ones
        assert here.stop == 12 or difference[here.stop :].min() > 0
        noisy = z.clone()
        noisy[:, here] = states(model, 3)[:, here]
        difference = (model.denoiser(noisy, t, clean) - base).abs().amax((0, 2))
        assert difference[: here.start].sum() == 0 and difference[here.stop :].sum() == 0
        assert difference[here].min() > 0 or torch.equal(noisy, z)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("block", [1, 3, 4])
@pytest.mark.parametrize(("neighbours", "hollow"), [(0, False), (1, False), (2, False), (1, True)])
def test_logits_are_equal_with_and_without_the_cache(name: str, block: int, neighbours: int, hollow: bool) -> None:
    model = model_of(name, block, neighbours=neighbours, hollow=hollow)
    session = model.denoiser.begin_sampling()
    clean = model.process.codec.encode(LANGUAGE.sample(4, generator(1)))
    for index in range(12 // block):
        z, t = states(model, index), torch.full((4, 12), 0.5)
        where = torch.arange(12).expand(4, -1) // block == index
        torch.testing.assert_close(session(z, t, clean, where), model.denoiser(z, t, clean, where))
    assert any(isinstance(module, EncoderDecoderSession) for module in session.modules())


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("block", [1, 3, 4])
@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_a_hollow_decoder_predicts_from_the_other_positions_alone(name: str, block: int, neighbours: int) -> None:
    model = model_of(name, block, neighbours=neighbours, hollow=True)
    network = next(module for module in model.modules() if isinstance(module, BlockEncoderDecoder))
    z, other = torch.randn(4, 12, 8), torch.randn(4, 12, 8)
    network.stem, t = torch.nn.Linear(8, network.trunk.network.width), torch.full((4, 12), 0.5)
    clean = torch.randn(4, 12, 8)
    base = network.features(z, t, clean, None)
    for index in range(12):
        changed = z.clone()
        changed[:, index] = other[:, index]
        difference = (network.features(changed, t, clean, None) - base).abs().amax((0, 2))
        same = torch.arange(12) // block == index // block
        assert difference[index] == 0 and difference[~same].sum() == 0
        same[index] = False
        assert block == 1 or difference[same].min() > 0


def test_the_cache_is_filled_again_when_the_context_changes() -> None:
    model = model_of("bd3lm", 3)
    session, where, t = model.denoiser.begin_sampling(), torch.arange(12).expand(4, -1) // 3 == 2, torch.ones(4, 12)
    for seed in (1, 2):
        text = LANGUAGE.sample(4, generator(seed))
        torch.testing.assert_close(session(text, t, text, where), model.denoiser(text, t, text, where))


def test_a_step_of_the_sampler_evaluates_the_decoder_on_one_block() -> None:
    model, decoded, encoded = model_of("bd3lm", 3), [], []
    network = next(module for module in model.modules() if isinstance(module, BlockEncoderDecoder))
    network.trunk.register_forward_pre_hook(lambda module, inputs: decoded.append(inputs[0].shape[1]))
    network.encoder.register_forward_pre_hook(lambda module, inputs: encoded.append(inputs[0].shape[1]))
    ls.sample(model, n=2, steps=8, rng=0)
    assert decoded == [3] * 8 and encoded == [3] * 3


@pytest.mark.parametrize("decoder_depth", [1, 2])
def test_training_costs_about_as_much_as_without_blocks(decoder_depth: int) -> None:
    size = {"vocab_size": 27, "length": 128, "width": 64, "depth": 4, "heads": 2}
    whole = count_step_flops(ls.build("mdlm", **size), 4)
    both = count_step_flops(ls.build("bd3lm", block=4, **size), 4)
    ours = count_step_flops(ls.build("bd3lm", block=4, decoder_depth=decoder_depth, **size), 4)
    assert ours < 1.3 * whole < 2 * whole < both


def test_bfloat16_gradients_agree_with_float32() -> None:
    torch.manual_seed(0)
    model = ls.build("bd3lm", vocab_size=27, length=16, width=64, depth=3, heads=2, block=4, decoder_depth=2)
    batch, found = Batch.of(torch.randint(27, (8, 16), generator=generator(1))), []
    for precision in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)).loss.sum()
        loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert float(torch.cosine_similarity(*found, dim=0)) > 0.999


def test_conditions_are_read_by_encoder_and_decoder() -> None:
    model = random_network("bd3lm", LANGUAGE, depth=2, decoder_depth=1, block=4, labels=3).eval()
    tokens = LANGUAGE.sample(4, generator(1))
    values = [
        model.nelbo(tokens, 2, condition=ls.Condition.of(labels=torch.full((4,), label))).total for label in (0, 1)
    ]
    assert not torch.allclose(*values)


@pytest.mark.parametrize("depth", [0, 2, 5])
def test_bad_depths_are_one_sentence(depth: int) -> None:
    with pytest.raises(UserError, match="decoder_depth must be at least 1 and below the depth of 2"):
        ls.build("bd3lm", vocab_size=5, length=8, decoder_depth=depth, **SMALL)


def test_a_model_without_blocks_has_no_decoder() -> None:
    with pytest.raises(UserError, match="decoder_depth=1 needs blocks"):
        ls.build("mdlm", vocab_size=5, length=8, decoder_depth=1, **SMALL)


@pytest.mark.parametrize("name", SYSTEMS)
def test_several_noisy_copies_share_one_reading_of_the_clean_text(name: str) -> None:
    model = model_of(name, 3).train()
    network = next(module for module in model.modules() if isinstance(module, BlockEncoderDecoder))
    encoded: list[int] = []
    network.encoder.register_forward_pre_hook(lambda module, inputs: encoded.append(len(inputs[0])))
    batch = Batch.of(LANGUAGE.sample(4, generator(1)))
    shared = model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total), draws=3)
    assert encoded == [4]
    network.with_context = lambda context: network  # type: ignore[method-assign]
    apart = model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total), draws=3)
    assert encoded == [4] * 4
    torch.testing.assert_close(shared.loss, apart.loss)
    torch.testing.assert_close(shared.total, apart.total)


def test_a_further_noisy_copy_costs_the_decoder_alone() -> None:
    model = ls.build("bd3lm", vocab_size=5, length=32, block=4, width=32, heads=2, depth=4, decoder_depth=1)
    one, four = (count_step_flops(model, 4, draws) for draws in (1, 4))
    assert 1.5 < four / one < 2.2
    stated = [model.denoiser.evaluations(draws).positions for draws in (1, 4)]
    assert stated[1] / stated[0] == pytest.approx(four / one, rel=0.15)


def test_training_with_several_noisy_copies_gives_gradients_to_both_parts() -> None:
    model = ls.build("rdlm-heat", vocab_size=5, length=12, block=4, width=16, heads=2, depth=3, decoder_depth=1)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    steps = list(ls.fit(model, [LANGUAGE.sample(8, generator(step)) for step in range(2)], steps=2, draws=3))
    assert all(torch.isfinite(torch.tensor(step.loss)) for step in steps)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert any("encoder" in name for name in moved) and any("trunk" in name for name in moved)


@pytest.mark.parametrize(
    ("name", "options", "draws"),
    [
        ("plaid", {"preset": "paper"}, 2),
        ("genmd4", {}, 2),
        ("mdlm", {}, 0),
        ("mdlm", {}, 1000),
    ],
)
def test_draws_that_a_training_cannot_have_are_refused(name: str, options: dict[str, object], draws: int) -> None:
    model = ls.build(name, vocab_size=5, length=12, width=16, heads=2, depth=1, **options)
    with pytest.raises(UserError, match="draws"):
        next(ls.fit(model, [LANGUAGE.sample(2, generator(0))], steps=1, draws=draws))
