"""Block diffusion on the sphere: bridges within a block, clean blocks before it."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from toy_languages import conditional_log_prob, enumerate_sequences, generator, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, calibrated_model, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.networks.backbone import Block
from logosphere.networks.encoder_decoder import BlockMixing
from logosphere.processes.spherical.times import AnyOrder
from logosphere.rng import GeneratorNoise

LANGUAGES = {"sticky": sticky_chain(3, 4), "skewed": skewed_chain(5, 4), "table": random_joint()}
PATHS = ("joint", "any-order")


def block_model(name: str, language: Language, block: int, path: str, **options: object) -> ls.Model:
    return calibrated_model(name, language, block=block, path=path, any_order_fraction=0.0, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [2, 1, 4])
@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_oracle_bound_is_the_entropy(language: Language, block: int, path: str) -> None:
    model = block_model("rdlm-heat", language, block, path)
    mean, error = mean_and_error(bound_excess(model, language, n=6000, draws=16))
    assert error < 0.02 * language.entropy()
    assert abs(mean) < 3 * error + 1e-6


def test_blocks_of_one_in_any_order_are_the_chain_rule() -> None:
    """The value of every single sequence is -log p(x), as for `ar`."""
    language = LANGUAGES["skewed"]
    model = block_model("rdlm-heat", language, 1, "any-order")
    assert bound_excess(model, language, n=200, draws=1).abs().max() < 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_one_block_is_the_model_without_blocks(path: str) -> None:
    language = LANGUAGES["sticky"]
    models = [random_network("rdlm-heat", language, path=path, **block) for block in ({}, {"block": 4})]
    tokens = language.sample(50, generator(1))
    values = [model.eval().nelbo(tokens, 2, draws=2).total for model in models]
    assert torch.equal(*values)
    assert torch.equal(*(ls.sample(model, n=20, steps=8, rng=3) for model in models))


def test_any_order_bound_is_that_of_masked_blocks() -> None:
    """With the exact posterior of the language both are draws of the same bound; here over equal counts of masks."""
    language = LANGUAGES["skewed"]
    sphere, masked = (
        block_model("rdlm-heat", language, 2, "any-order"),
        ls.build("bd3lm", vocab_size=5, length=4, denoiser=None, block=2),
    )
    wrong = skewed_chain(5, 4, seed=8)
    means = []
    for model in (sphere, masked):
        excess = bound_excess(model, language, n=8000, draws=8, denoiser=Oracle(model, wrong))
        means.append(mean_and_error(excess))
    (a, ea), (b, eb) = means
    assert a > 10 * ea and abs(a - b) < 3 * (ea**2 + eb**2) ** 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_samples_have_the_distribution_of_the_language(language: Language, path: str) -> None:
    model = block_model("rdlm-heat", language, 2, path)
    tokens = ls.sample(model, 3000, 128, generator(3), Oracle(model, language))
    assert sequence_p_value(tokens, language) > MIN_P_VALUE


@pytest.mark.parametrize("path", PATHS)
def test_continuations_have_the_conditional_distribution(path: str) -> None:
    language = LANGUAGES["skewed"]
    model = block_model("rdlm-heat", language, 2, path)
    known, given = torch.tensor([True, True, True, False]), torch.tensor([2, 0, 1, 0])
    tokens = ls.sample(model, 3000, 64, generator(5), Oracle(model, language), known=known, tokens=given)
    assert torch.equal(tokens[:, :3], given[:3].expand(3000, 3))
    sequences, _ = enumerate_sequences(language)
    agree = (sequences[:, :3] == given[:3]).all(1)
    p = torch.where(agree, conditional_log_prob(language, sequences, known).exp(), 0.0)
    assert sequence_p_value(tokens, language, p) > MIN_P_VALUE


def test_known_positions_cost_nothing_and_condition() -> None:
    language = LANGUAGES["sticky"]
    known = torch.tensor([True, True, False, False])
    for path in PATHS:
        model = block_model("rdlm-heat", language, 2, path)
        mean, error = mean_and_error(bound_excess(model, language, n=4000, draws=16, known=known))
        assert abs(mean) < 3 * error + 1e-6


def test_positions_wait_within_their_block() -> None:
    """Each block has its own count of waiting positions, and the weight of a position is n over that count."""
    free = torch.ones(64, 12).bool()
    w = torch.rand(64, 3, generator=generator(1)).double()
    waiting, weight = AnyOrder(blocks=3).waiting(w, free, GeneratorNoise(generator(2), 64))
    counts = waiting.view(64, 3, 4).sum(2)
    assert torch.equal(counts, 4 - (w * 4).floor().long())
    torch.testing.assert_close(weight.view(64, 3, 4)[..., 0], 4 / counts.float())


def test_a_rising_share_grows_to_all_sequences_by_half_of_the_training() -> None:
    language = sticky_chain(3, 8)
    model = random_network("rdlm-heat", language, path="any-order", any_order_fraction="rising")
    model.train()
    tokens = model.process.codec.encode(language.sample(4000, generator(1)))
    free, w = torch.ones(4000, 8).bool(), torch.rand(4000, 1, generator=generator(2)).double()
    for progress, expected in ((0.0, 0.0), (0.2, 0.4), (0.5, 1.0), (0.9, 1.0)):
        model.process.on_step_start(progress)
        t = model.process.sample_zt(tokens, w, free, GeneratorNoise(generator(3), 4000)).t
        any_order = ((t == 0) | (t == 1)).all(1)
        assert abs(float(any_order.float().mean()) - expected) < 0.03


def test_own_embedding_does_not_reach_the_head() -> None:
    """With one block of zero weights the features are those of h - h₀ = local mixing, whatever the own state is."""
    language = sticky_chain(3, 6)
    model = random_network(
        "rdlm-heat", language, path="joint", posterior_head=True, subtract_input_embedding=True, any_order_fraction=0.0
    )
    network = next(module for module in model.modules() if type(module).__name__ == "FullTransformer")
    for block in network.trunk.blocks:
        block.attention.out.weight.data.zero_()
        block.contract.weight.data.zero_()
        block.contract.bias.data.zero_()
    z = model.corrupt(language.sample(2, generator(1)), 0.5, 2)
    other = z.clone()
    other[:, 3] = model.corrupt(language.sample(2, generator(3)), 0.5, 4)[:, 3]
    t = torch.full((2, 6), 0.5)
    beliefs = [model.process.belief(state, t) for state in (z, other)]
    out = [network(belief, t, belief) for belief in beliefs]
    torch.testing.assert_close(out[0][:, 3], out[1][:, 3])
    assert not torch.allclose(out[0][:, 2], out[1][:, 2], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 3}, "does not split into blocks of 3"),
        ({"block": 0}, "does not split into blocks of 0"),
        ({"block": 4, "base": 2}, "block=4 needs base=None"),
        ({"block": 4, "self_conditioning": True}, "block=4 needs self_conditioning=False"),
        ({"any_order_fraction": "rising"}, "use path=any-order"),
        ({"any_order_fraction": "growing", "path": "any-order"}, "not a choice for any_order_fraction"),
        ({"any_order_fraction": 1.5}, "must be from 0 to below 1"),
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build("rdlm-heat", vocab_size=5, length=8, **SMALL, **options)


@pytest.mark.parametrize(("block", "printed"), [(2, "bound, joint path, block 2;"), (1, "block 1, autoregressive;")])
def test_the_block_size_is_part_of_the_number(block: int, printed: str, tmp_path) -> None:
    model = random_network("rdlm-heat", LANGUAGES["sticky"], block=block)
    report = ls.evaluate(model, [LANGUAGES["sticky"].sample(4, generator(1))], draws=1, rng=0)
    assert printed in str(report) and report.summary()["block"] == block
    report.save(tmp_path / "report.json")
    assert ls.Report.load(tmp_path / "report.json") == report


def test_whole_sequences_and_ar_have_no_block() -> None:
    for name in ("rdlm-heat", "ar"):
        model = random_network(name, LANGUAGES["sticky"])
        assert "block" not in str(ls.evaluate(model, [LANGUAGES["sticky"].sample(4, generator(1))], draws=1, rng=0))


@pytest.mark.parametrize("options", [{}, {"block": 4}, {"block": 4, "depth": 2, "decoder_depth": 1}], ids=str)
def test_the_signal_of_a_position_reaches_the_head_although_its_state_does_not(options: dict[str, object]) -> None:
    language = sticky_chain(3, 8)
    model = random_network("rdlm-heat", language, signal=2, neighbours=0, **options)
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        for weight in (block.attention.out.weight, block.contract.weight, block.contract.bias):
            weight.data.zero_()
    for module in model.modules():
        if isinstance(module, BlockMixing):
            module.mix.weight.data.zero_()
    z, t = model.corrupt(language.sample(2, generator(1)), 0.5, 2), torch.full((2, 8), 0.5)
    u = model.process.codec.encode(language.sample(2, generator(3)))
    evidence, out = model.process.log_likelihood(z, t), []
    for seed in (1, 2):
        condition = ls.Condition.of(signal=torch.randn(2, 8, 2, generator=generator(seed)))
        out.append(model.denoiser.with_condition(condition)(z, t, u) - evidence)
    other = model.corrupt(language.sample(2, generator(5)), 0.5, 6)
    same = model.denoiser.with_condition(condition)(other, t, u) - model.process.log_likelihood(other, t)
    assert not torch.allclose(out[0], out[1], atol=1e-2)  # the signal is seen
    torch.testing.assert_close(out[1], same, rtol=1e-3, atol=1e-3)  # the state is not: its evidence is added apart
