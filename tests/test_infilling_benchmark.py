"""The infilling benchmark: with an oracle the numbers are those of the language; gaps, kinds, and the command line."""

import json
import math
from pathlib import Path

import pytest
import torch
from cli_helpers import error_line, read_json, train
from toy_languages import conditional_log_prob, enumerate_sequences, generator, skewed_chain
from toy_models import System, random_network

from logosphere.cli import main
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.evaluation.infilling import GapResult, cut_gaps, measure_infilling
from logosphere.types import SIGN, Batch, Condition


def exact_values(language: Language, gap: int) -> tuple[float, float, float]:
    """Nats per gap token, the probability of an exact match, and that of a single token, over all places of the gap.

    By enumeration: H(x_g | visible) / n, E Σ_g p(g | visible)², and E Σ_v p(x_i = v | visible)² for tokens.
    """
    sequences, p = enumerate_sequences(language)
    nats, match, token = [], [], []
    for start in range(1, language.length - gap):
        known = torch.ones(language.length, dtype=torch.bool)
        known[start : start + gap] = False
        conditional = conditional_log_prob(language, sequences, known)
        nats.append(float(-(p * conditional).sum()) / gap)
        match.append(float((p * conditional.exp()).sum()))
        agrees = (sequences[:, None, known] == sequences[None][..., known]).all(-1)  # same sides
        weight = agrees * conditional.exp()  # p(other gap | sides of this one)
        same = (sequences[:, None, ~known] == sequences[None][..., ~known]).double().mean(-1)
        token.append(float((p[:, None] * weight * same).sum()))
    return tuple(sum(values) / len(values) for values in (nats, match, token))


def measure(system: System, language: Language, count: int, gap: int, **how) -> GapResult:
    model = system.model(language)
    tokens = language.sample(count, generator(1))
    (row,) = measure_infilling(
        model, lambda: [Batch.of(tokens)], gaps=[gap], denoiser=Oracle(model, language), **({"seed": 5} | how)
    )
    return row


@pytest.mark.parametrize("gap", [1, 2])
def test_with_the_oracle_bits_are_the_conditional_entropy_and_matches_the_collision_probability(gap: int) -> None:
    language = skewed_chain(3, 5)
    nats, match, token = exact_values(language, gap)
    row = measure(System("mdlm"), language, 1600, gap, draws=6, steps=gap)
    assert abs(row.bits - nats / math.log(2)) < 4 * row.bits_error and row.kind == "bound"
    assert abs(row.exact_match - match) < 4 * row.exact_match_error
    assert abs(row.accuracy - token) < 4 * row.accuracy_error
    assert 0 < row.bits_error < 0.1 * row.bits and row.count == 1600 and row.skipped == 0
    # The numbers are those of gaps with both sides: the entropy of a token without its right side is another.
    assert nats < float(language.entropy()) / language.length - 0.02


def test_errors_shrink_with_the_number_of_gaps() -> None:
    language = skewed_chain(3, 5)
    few, many = (measure(System("mdlm"), language, count, 1, draws=1, steps=1) for count in (200, 3200))
    for error in ("exact_match_error", "accuracy_error", "bits_error"):
        assert getattr(few, error) / getattr(many, error) == pytest.approx(4, rel=0.25)
    p = many.exact_match
    assert many.exact_match_error == pytest.approx((p * (1 - p) / 3199) ** 0.5, rel=1e-3)


def test_a_bound_of_any_network_is_not_below_the_conditional_entropy() -> None:
    language = skewed_chain(3, 5)
    model = random_network("d3pm-uniform", language)
    tokens = language.sample(400, generator(1))
    (row,) = measure_infilling(model, lambda: [Batch.of(tokens)], gaps=[2], draws=8, steps=4)
    assert row.bits > exact_values(language, 2)[0] / math.log(2) + 3 * row.bits_error


@pytest.mark.parametrize("gap", [1, 3, 6])
def test_gaps_have_text_on_both_sides_and_uniform_places(gap: int) -> None:
    tokens = torch.zeros(4000, 8, dtype=torch.long)
    batch = cut_gaps(Batch.of(tokens), gap, seed=3)
    free = batch.free
    assert free.sum(1).eq(gap).all() and not free[:, 0].any() and not free[:, -1].any()
    places = torch.bincount(free.long().argmax(1), minlength=8)
    assert places.sum() == 4000 and set(places.nonzero().flatten().tolist()) == {*range(1, 8 - gap)}
    expected = 4000 / (7 - gap)
    assert float(((places[1 : 8 - gap] - expected) ** 2 / expected).sum()) < 25
    assert batch.scored_tokens.eq(gap).all()


def test_gaps_stay_inside_of_short_texts() -> None:
    counts = torch.tensor([8, 5, 4, 3, 1])
    everywhere = torch.ones(5, 8, dtype=torch.bool)
    batch = Batch(
        torch.arange(5)[:, None].expand(5, 8),
        ~everywhere,
        everywhere,
        torch.arange(5),
        torch.arange(5),
        5,
        None,
        counts,
    )
    for seed in range(20):
        cut = cut_gaps(batch, 2, seed)
        assert cut.tokens[:, 0].tolist() == [0, 1, 2]  # 4 tokens are the fewest with a gap of 2
        last = torch.where(cut.free, torch.arange(8), -1).amax(1)
        assert (last < counts[:3] - 1).all() and not cut.free[:, 0].any()


def test_results_depend_on_the_seed_and_not_on_the_batch() -> None:
    language = skewed_chain(3, 8)
    model = random_network("mdlm", language)
    tokens = language.sample(70, generator(1))

    def results(size: int, seed: int = 1) -> tuple[GapResult, ...]:
        def batches() -> list[Batch]:
            whole = Batch.of(tokens)
            return [whole.select(slice(first, first + size)) for first in range(0, 70, size)]

        return measure_infilling(model, batches, gaps=[1, 4], draws=2, steps=4, seed=seed)

    one, two, other = results(70), results(9), results(70, seed=2)
    for left, right in zip(one, two, strict=True):
        assert (left.exact_match, left.accuracy) == (right.exact_match, right.accuracy)
        assert left.bits == pytest.approx(right.bits, rel=1e-5)
    assert one == results(70) and [row.bits for row in one] != [row.bits for row in other]


def test_conditions_reach_the_bound_and_the_samples() -> None:
    """Sources of unequal widths in two batches."""
    language = skewed_chain(3, 6)
    model = random_network("mdlm", language, source=3)
    with torch.no_grad():  # strong enough to change tokens
        for weight in model.parameters():
            weight.mul_(3)
    tokens = language.sample(40, generator(1))

    def bits(value: int) -> GapResult:
        def batches() -> list[Batch]:
            parts = [(slice(0, 20), 2), (slice(20, 40), 4)]
            return [
                Batch.of(tokens[rows], first=rows.start, condition=Condition.of(source=torch.full((20, width), value)))
                for rows, width in parts
            ]

        return measure_infilling(model, batches, gaps=[3], draws=2, steps=3)[0]

    assert bits(0).bits != bits(2).bits and bits(0).accuracy != bits(2).accuracy


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (System("ar"), "generates token by token from left to right and does not see the text after a gap"),
        (System("mdlm", {"block": 2}), "generates in blocks of 2 tokens from left to right"),
    ],
)
def test_models_that_see_one_side_are_refused(system: System, message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(system, skewed_chain(2, 4), 4, 1)


@pytest.mark.parametrize(
    ("gap", "message"), [(3, "at most 2 tokens in sequences of 4, not 3"), (0, "at least 1, not 0")]
)
def test_gaps_that_do_not_fit_are_refused(gap: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(System("mdlm"), skewed_chain(2, 4), 4, gap)


def test_the_command_line(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    assert train(steps=2) == 0
    command = ["evaluate", "run", "--infilling", "--gaps", "1", "3", "--sequences", "8", "--steps", "4"]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = read_json(capsys)
    assert found["benchmark"] == "infilling" and found["unit"] == "token"
    assert [(row["tokens"], row["count"], row["kind"]) for row in found["rows"]] == [(1, 8, "bound"), (3, 8, "bound")]
    (saved,) = Path("run/eval").glob("*infilling*.json")
    assert json.loads(saved.read_text())["rows"] == found["rows"]
    assert main(command) == 0
    table = capsys.readouterr().out
    row = found["rows"][1]
    assert f"{SIGN['bound']} {row['bits']:.4f} ± {row['bits_error']:.4f} (bound)" in table and "exact match" in table
    assert "add --infilling" in error_line(capsys, ["evaluate", "run", "--gaps", "3"])
    assert "--order and --infilling are measures of their own" in error_line(capsys, [*command, "--order", "entropy"])
    assert "leave out --protocol paper" in error_line(capsys, [*command, "--protocol", "paper"])
    assert "--per must be token, not byte" in error_line(capsys, [*command, "--per", "byte"])
    assert "at most 14 tokens" in error_line(capsys, ["evaluate", "run", "--infilling", "--gaps", "15"])
