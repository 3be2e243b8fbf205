"""Constrained sampling: restricted products are exact, and so are samples where positions are independent.

For independent tokens the restricted product is p(x | z_t, language), so samples have the distribution p(x | language)
after any number of steps, for every process whose step with the true token is exact. For dependent tokens the
look-ahead has an error, which particles remove; every text is in the language in any case.
"""

import math
import re

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, skewed_chain
from toy_models import SMALL, System

import logosphere as ls
from logosphere.data.languages import Joint, Language, Oracle
from logosphere.data.tokenizers import CharacterTokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.rng import GeneratorNoise
from logosphere.sampling.structured.pieces import Pieces
from logosphere.sampling.structured.product import RestrictedProduct
from logosphere.sampling.structured.regex import parse_regex
from logosphere.sampling.structured.token_automaton import build_token_automaton

LETTERS, MATCH, N = "abc", "a*(b|ca)*", 4000


def product_language(seed: int = 3) -> Joint:
    """Independent positions, each with a distribution of its own."""
    p = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2
    return Joint(torch.einsum("a,b,c,d->abcd", *(p / p.sum(1, keepdim=True))))


PRODUCT, CHAIN = product_language(), skewed_chain(3, 4)


def with_letters(model: Model) -> Model:
    model.tokenizer = CharacterTokenizer(LETTERS)
    return model


def spell(row: Tensor) -> str:
    return "".join(LETTERS[token] for token in row.tolist())


def restricted(language: Language, match: str = MATCH) -> Tensor:
    """p(x) of the sequences that match, 0 for the others."""
    sequences, p = enumerate_sequences(language)
    return p * torch.tensor([bool(re.fullmatch(match, spell(row))) for row in sequences])


def draw(system: System, language: Language, steps: int, n: int = N, seed: int = 1, **how: object) -> Tensor:
    model = with_letters(system.model(language))
    constraint = ls.constrain(model, match=MATCH)
    return ls.sample(
        model, n, steps, seed, Oracle(model, language), constraint=constraint, **({"sampler": "ancestral"} | how)
    )


def total_variation(tokens: Tensor, p: Tensor) -> float:
    index = (tokens * 3 ** torch.arange(3, -1, -1)).sum(1)
    return float((torch.bincount(index, minlength=len(p)) / len(tokens) - p / p.sum()).abs().sum()) / 2


# ---- one pass --------------------------------------------------------------------------------------------------------


def product_of(log_p: Tensor, match: str = MATCH, copies: int = 1, **fields: Tensor) -> RestrictedProduct:
    pieces = tuple(letter.encode() for letter in LETTERS)
    automaton = build_token_automaton(parse_regex(match), Pieces(pieces, pieces, None), "It")
    shape = (copies, len(log_p))
    defaults = {
        "predicted": torch.ones(shape, dtype=torch.bool), "tokens": torch.zeros(shape, dtype=torch.long),
        "open": torch.zeros(shape, dtype=torch.bool),
    }  # fmt: skip
    given = defaults | fields
    return RestrictedProduct(
        automaton, given["predicted"], log_p.expand(copies, -1, -1)[given["predicted"]], given["tokens"], given["open"],
        torch.zeros(copies, dtype=torch.long), automaton.accepting.expand(copies, -1),
    )  # fmt: skip


def marginals_of(language: Language) -> Tensor:
    """log p_l(x) of independent positions."""
    sequences, p = enumerate_sequences(language)
    rows = [torch.zeros(3, dtype=torch.float64).index_add_(0, sequences[:, i], p) for i in range(4)]
    return torch.stack(rows).log()


def test_the_normaliser_and_the_marginals_are_those_of_enumeration() -> None:
    sequences, _ = enumerate_sequences(PRODUCT)
    p = restricted(PRODUCT)
    product = product_of(marginals_of(PRODUCT))
    assert float(product.log_z) == pytest.approx(float(p.sum().log()), abs=1e-9)
    expected = torch.stack(
        [torch.zeros(3, dtype=torch.float64).index_add_(0, sequences[:, i], p / p.sum()) for i in range(4)]
    )
    assert torch.allclose(product.log_marginals().exp(), expected, atol=1e-9)


def test_samples_of_one_pass_have_the_restricted_distribution() -> None:
    product = product_of(marginals_of(PRODUCT), copies=20_000)
    drawn = product.sample(GeneratorNoise(torch.Generator().manual_seed(2), 20_000))
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT)) > MIN_P_VALUE


def test_known_positions_are_conditioned_on() -> None:
    predicted = torch.tensor([[True, False, True, True]]).expand(20_000, -1)
    tokens = torch.tensor([[0, 2, 0, 0]]).expand(20_000, -1)
    product = product_of(marginals_of(PRODUCT), copies=20_000, predicted=predicted, tokens=tokens)
    drawn = product.sample(GeneratorNoise(torch.Generator().manual_seed(2), 20_000))
    sequences, _ = enumerate_sequences(PRODUCT)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT) * (sequences[:, 1] == 2)) > MIN_P_VALUE


def test_of_open_positions_only_matters_that_a_token_exists() -> None:
    """After a 'c' there is one continuation, after an 'a' or 'b' there are many; each counts once."""
    log_p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log().expand(4, -1)
    rest = torch.tensor([[False, True, True, True]])
    product = product_of(log_p, predicted=~rest, open=rest)
    assert float(product.log_z) == pytest.approx(0.0, abs=1e-12)
    assert torch.allclose(product.log_marginals().exp(), log_p[:1].exp())


def test_probabilities_beyond_float64_are_summed_as_logarithms() -> None:
    """30 tokens that are all but impossible: Z is far below the smallest number, and samples still match."""
    log_p = torch.tensor([0.0, -79.0, -79.0], dtype=torch.float64).expand(100, -1)
    product = product_of(log_p, "[bc]{30}a*")
    assert product.scaled is None
    assert float(product.log_z) == pytest.approx(30 * (-79 + math.log(2)), rel=1e-9)
    drawn = product.sample(GeneratorNoise(torch.Generator().manual_seed(2), 1))
    assert set(drawn[0, :30].tolist()) == {1, 2} and set(drawn[0, 30:].tolist()) == {0}
    assert torch.allclose(product.log_marginals()[:30, 1:].exp(), torch.full((30, 2), 0.5).double())


def test_both_ways_of_summing_agree() -> None:
    product = product_of(marginals_of(PRODUCT))
    assert torch.allclose(product.log_beta.exp(), product._backward_of_logarithms().exp(), atol=1e-12)


# ---- the law ---------------------------------------------------------------------------------------------------------

EXACT = [
    System("mdlm"), System("udlm"), System("rdlm"), System("gaussian-ce"), System("fisher-flow"), System("bfn"),
    System("d3pm-uniform"), System("d3pm-absorbing"), System("d3pm-gaussian"), System("gidd"), System("genmd4"),
    System("multinomial"), System("sedd-absorb"), System("rdlm-heat"), System("simplex"), System("plaid"),
    System("cdcd"), System("dirichlet-flow", {"churn": 0.0}), System("llada"), System("md4"), System("bd3lm"),
]  # fmt: skip
IN_THE_LIMIT = [System("ddsm"), System("dirichlet-flow"), System("sedd-uniform")]
"""Their step with the true token is exact only as steps become small; ratios are not known without any signal."""


@pytest.mark.thorough
@pytest.mark.parametrize("system", EXACT, ids=str)
@pytest.mark.parametrize("steps", [3, 1, 8])
def test_independent_tokens_given_the_language_after_any_number_of_steps(system: System, steps: int) -> None:
    drawn = draw(system, PRODUCT, steps)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT)) > MIN_P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("system", IN_THE_LIMIT, ids=str)
def test_independent_tokens_given_the_language_in_the_limit(system: System) -> None:
    drawn = draw(system, PRODUCT, 256)
    assert total_variation(drawn, restricted(PRODUCT)) < 0.05 < total_variation(drawn, enumerate_sequences(PRODUCT)[1])


@pytest.mark.parametrize("sampler", ["first-hitting", "star", "left-to-right", "margin", "remdm-cap"])
def test_samplers_of_masked_models_have_the_same_law(sampler: str) -> None:
    drawn = draw(System("mdlm"), PRODUCT, 8, sampler=sampler)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT)) > MIN_P_VALUE


@pytest.mark.parametrize(
    ("name", "sampler"),
    [("gaussian-ce", "heun"), ("gaussian-ce", "dpm++"), ("fisher-flow", "heun"), ("rdlm", "geodesic")],
)
def test_samplers_of_continuous_models_have_the_same_law(name: str, sampler: str) -> None:
    drawn = draw(System(name), PRODUCT, 32, n=2000, sampler=sampler)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT)) > MIN_P_VALUE


@pytest.mark.parametrize("system", [System("mdlm"), System("rdlm"), System("gaussian-ce")], ids=str)
def test_infilling_within_the_language(system: System) -> None:
    known, tokens = torch.tensor([False, True, False, False]), torch.tensor([0, 2, 0, 0])
    drawn = draw(system, PRODUCT, 3, known=known, tokens=tokens)
    sequences, _ = enumerate_sequences(PRODUCT)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT) * (sequences[:, 1] == 2)) > MIN_P_VALUE


def test_one_step_is_exact_for_the_product_of_marginals_of_any_language() -> None:
    drawn = draw(System("mdlm"), CHAIN, 1)
    product = Joint(torch.einsum("a,b,c,d->abcd", *marginals_of(CHAIN).exp()))
    assert sequence_p_value(drawn, CHAIN, restricted(product)) > MIN_P_VALUE


# ---- dependent tokens ------------------------------------------------------------------------------------------------


def test_look_ahead_by_independent_predictions_has_an_error() -> None:
    """Power of the tests above: for a chain the restricted product at every step is not p(x | language)."""
    assert sequence_p_value(draw(System("mdlm"), CHAIN, 32), CHAIN, restricted(CHAIN)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("system", "steps"), [(System("mdlm"), 64), (System("udlm"), 64), (System("ar"), 4)], ids=str)
def test_particles_remove_the_error(system: System, steps: int) -> None:
    p = restricted(CHAIN)
    alone, four, many = (total_variation(draw(system, CHAIN, steps, 2000, particles=count), p) for count in (1, 4, 32))
    floor = 0.03  # of 2000 samples of 8 sequences
    assert many < floor and many <= four <= max(alone, floor)


@pytest.mark.slow
def test_many_particles_pass_the_chi_square_test() -> None:
    drawn = draw(System("mdlm"), CHAIN, 64, 1500, particles=64)
    assert sequence_p_value(drawn, CHAIN, restricted(CHAIN)) > MIN_P_VALUE


@pytest.mark.parametrize("system", [System("mdlm"), System("udlm")], ids=str)
def test_particles_change_nothing_for_independent_tokens(system: System) -> None:
    drawn = draw(system, PRODUCT, 3, 2000, particles=4)
    assert sequence_p_value(drawn, PRODUCT, restricted(PRODUCT)) > MIN_P_VALUE


def test_left_to_right_models_are_corrected_by_particles() -> None:
    """Each token of `ar` is restricted to what has a continuation, which is not p(x | language) even for independent
    tokens."""
    p = restricted(PRODUCT)
    assert total_variation(draw(System("ar"), PRODUCT, 4, 1000, particles=16), p) < 0.1
    assert total_variation(draw(System("ar"), PRODUCT, 4, 1000), p) > 0.2


# ---- every system and sampler ----------------------------------------------------------------------------------------


def random_model(name: str, **options: object) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return with_letters(ls.build(name, vocab_size=3, length=8, **SMALL, **options))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rdlm", {"base": 2}), ("ar", {}), ("bd3lm", {"block": 2}), ("cosmos", {}), ("rdlm-heat", {"block": 4}),
        ("tencdm", {}), ("udlm", {}), ("gaussian-ce", {}), ("fisher-flow", {}), ("sedd-uniform", {}),
    ],
)  # fmt: skip
def test_every_text_is_in_the_language(name: str, options: dict[str, object]) -> None:
    model = random_model(name, **options)
    for match in (MATCH, "(abc|b)*a?", "c{8}"):
        drawn = ls.sample(model, 50, 8, 0, constraint=ls.constrain(model, match=match))
        assert all(re.fullmatch(match, spell(row)) for row in drawn)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mdlm", "udlm", "rdlm", "gaussian-ce", "fisher-flow", "bfn"])
def test_every_sampler_stays_in_the_language(name: str) -> None:
    model = random_model(name)
    constraint, seen = ls.constrain(model, match=MATCH), 0
    for sampler in ls.samplers():
        try:
            drawn = ls.sample(model, 20, 6, 0, sampler=sampler, constraint=constraint)
        except UserError as error:
            assert "needs" in str(error), (sampler, error)
            continue
        seen += 1
        assert all(re.fullmatch(MATCH, spell(row)) for row in drawn), sampler
    assert seen > 1


@pytest.mark.parametrize("how", [{"top_k": 1}, {"temperature": 0.1}, {"top_p": 0.1}, {"min_p": 0.9}])
def test_filters_cannot_lead_out_of_the_language(how: dict[str, object]) -> None:
    model = random_model("mdlm")
    drawn = ls.sample(model, 50, 4, 0, constraint=ls.constrain(model, match="c{4}b{4}"), **how)
    assert {spell(row) for row in drawn} == {"ccccbbbb"}


def test_latents_are_weighted_by_what_their_decoder_leaves() -> None:
    model = random_model("cosmos")
    drawn = ls.sample(model, 10, 4, 0, constraint=ls.constrain(model, match=MATCH), particles=4)
    assert drawn.shape == (10, 8) and all(re.fullmatch(MATCH, spell(row)) for row in drawn)


def test_a_sample_depends_on_its_seed_and_number_only() -> None:
    model = random_model("mdlm")
    constraint = ls.constrain(model, match=MATCH)
    first, second = (ls.sample(model, n, 4, 7, constraint=constraint) for n in (6, 3))
    assert torch.equal(first[:3], second)


def test_a_length_shorter_than_the_sequence() -> None:
    model = random_model("mdlm")
    drawn = ls.sample(model, 20, 4, 0, constraint=ls.constrain(model, match=MATCH, length=3))
    assert all(re.fullmatch(MATCH, spell(row[:3])) for row in drawn)
    drawn = ls.sample(model, 20, 4, 0, constraint=ls.constrain(model, match=MATCH, start=5))
    assert all(re.fullmatch(MATCH, spell(row[5:])) for row in drawn)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"match": "a{3}"}, "no text of 8 tokens; its shortest text has 3"), ({"match": "[xyz]+"}, "cannot be spelled"),
        ({"match": "a{9}"}, "shortest text has 9"), ({"match": "a", "length": 9}, "do not lie within"),
        ({"match": "a", "json_schema": {}}, "either match"), ({}, "either match"), ({"match": "a("}, "not a regular"),
        ({"json_schema": "{"}, "not JSON"), ({"json_schema": {"type": "object", "minProperties": 1}}, "minProperties"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_said_in_one_sentence(how: dict[str, object], said: str) -> None:
    model = random_model("mdlm")
    with pytest.raises(UserError, match=said):
        ls.sample(model, 2, 2, 0, constraint=ls.constrain(model, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [("diffusion-lm", "predicts states"), ("bit-diffusion", "predicts states"), ("ld4lg", "left to right")],
)
def test_models_that_do_not_predict_tokens_are_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ls.constrain(random_model(name), match="a*")


def test_known_tokens_outside_of_the_language_are_refused() -> None:
    model = random_model("mdlm")
    known, tokens = torch.arange(8) == 2, torch.full((8,), 2)
    with pytest.raises(UserError, match="agrees with the known tokens"):
        ls.sample(model, 2, 2, 0, constraint=ls.constrain(model, match="[ab]*"), known=known, tokens=tokens)


def test_particles_and_what_they_do_not_go_together_with() -> None:
    model, continuous = random_model("mdlm"), random_model("rdlm")
    with pytest.raises(UserError, match="belong to a constraint"):
        ls.sample(model, 2, 2, 0, particles=2)
    with pytest.raises(UserError, match="ancestral"):
        ls.sample(model, 2, 2, 0, particles=2, sampler="entropy", constraint=ls.constrain(model, match="a*"))
    with pytest.raises(UserError, match="states that are tokens"):
        ls.sample(continuous, 2, 2, 0, particles=2, constraint=ls.constrain(continuous, match="a*"))


def test_automata_are_kept_for_further_calls() -> None:
    first, second = (ls.constrain(random_model("mdlm"), match="a+b+").automaton for _ in range(2))
    assert first is second
    assert ls.constrain(random_model("mdlm"), match="a+b*").automaton is not first
