"""Likelihoods by order: exact for deterministic orders, a bound over random ones, and those of the samplers."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import error_line, read_json, train
from statistical_checks import MIN_P_VALUE, mean_and_error, sequence_p_value
from torch import Tensor
from toy_languages import conditional_log_prob, enumerate_sequences, generator, skewed_chain
from toy_models import SMALL, System, fill_zero_weights, random_network

import logosphere as ls
from logosphere.cli import main
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.evaluation import orders
from logosphere.evaluation.leaderboard import compare
from logosphere.evaluation.likelihood import concatenate
from logosphere.evaluation.orders import ORDERS, estimate_orders
from logosphere.evaluation.report import Report
from logosphere.model import Model
from logosphere.networks.wrappers import CountedDenoiser, NFECounter
from logosphere.types import Batch, Condition, Predict

DETERMINISTIC = [name for name, order in ORDERS.items() if not order.drawn]
ANY_ORDER = {"path": "any-order"}
SYSTEMS = [
    System("mdlm"),
    System("mdlm", {"block": 2}),
    System("mdlm", {"schedule": "cosine"}),
    System("bd3lm", {"block": 3}),
    System("bd3lm", {"block": 1}),
    System("ardm"),
    System("llada"),
    System("rdlm", ANY_ORDER),
    System("rdlm-heat", ANY_ORDER),
    System("rdlm-heat", ANY_ORDER | {"start": "mask+uniform"}),
]


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


def measure(
    model: Model, batch: Batch | Tensor, order: str, *, size: int = 10_000, predict: Predict | None = None, **how: Any
) -> Tensor:
    """-log p of each sequence, in batches of `size`."""
    batch = Batch.of(batch) if isinstance(batch, Tensor) else batch
    parts = [batch.select(slice(first, first + size)) for first in range(0, len(batch), size)]
    return concatenate(list(estimate_orders(model, parts, order, predict=predict, **how))).total


def chain_rule(model: Model, x: Tensor, order: Any) -> float:
    """-log p(x) of one sequence by single evaluations; order(log p [L, V], masked positions) is the next position."""
    z, total = torch.full_like(x, model.vocab_size), 0.0
    while masked := (z == model.vocab_size).nonzero().flatten().tolist():
        log_p = model.log_posterior(z[None], 1.0)[0].double()
        i = order(log_p, masked)
        total, z[i] = total - float(log_p[i, x[i]]), x[i]
    return total


def in_order(sigma: tuple[int, ...]) -> Any:
    return lambda log_p, masked: next(i for i in sigma if i in masked)


# ---- exact values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_with_the_exact_posterior_every_order_is_the_likelihood(system: System) -> None:
    language = skewed_chain(4, 6)
    model, tokens = system.model(language), language.sample(60, generator(0))
    for order in ORDERS:
        nats = measure(model, tokens, order, predict=Oracle(model, language), orders=2 if order == "random" else 1)
        assert torch.allclose(nats, -language.log_prob(tokens), atol=2e-5), order


@pytest.mark.parametrize("system", [System("mdlm"), System("bd3lm", {"block": 2}), *SYSTEMS[-3:]], ids=str)
def test_probabilities_of_a_random_network_sum_to_one(system: System) -> None:
    language = skewed_chain(3, 4)
    model = random_network(system.name, language, **system.options)
    for order in DETERMINISTIC:
        nats = measure(model, enumerate_sequences(language)[0], order)
        assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-5), order
        assert float(nats.std()) > 0.1, "an untrained network that predicts every sequence alike shows nothing"


def test_orders_of_a_random_network_differ() -> None:
    language = skewed_chain(6, 6)
    model, tokens = random_network("mdlm", language), language.sample(200, generator(0))
    found = [measure(model, tokens, order) for order in DETERMINISTIC]
    assert all(float((a - b).abs().max()) > 0.01 for a, b in itertools.combinations(found, 2))


def test_orders_match_the_chain_rule_of_single_evaluations() -> None:
    language = skewed_chain(4, 5)
    model, tokens = random_network("mdlm", language, seed=1), language.sample(6, generator(3))

    def lowest_entropy(log_p: Tensor, masked: list[int]) -> int:
        return min(masked, key=lambda i: float(-(log_p[i].exp() * log_p[i]).sum()))

    def most_confident(log_p: Tensor, masked: list[int]) -> int:
        return max(masked, key=lambda i: float(log_p[i].max()))

    def largest_margin(log_p: Tensor, masked: list[int]) -> int:
        return max(masked, key=lambda i: float(-log_p[i].exp().topk(2).values.diff()))

    rules = {
        "left-to-right": in_order(tuple(range(5))),
        "entropy": lowest_entropy,
        "margin": largest_margin,
        "confidence": most_confident,
    }
    for order, rule in rules.items():
        expected = torch.tensor([chain_rule(model, x, rule) for x in tokens]).double()
        assert torch.allclose(measure(model, tokens, order), expected, atol=1e-5), order


def test_ties_go_to_the_left() -> None:
    """A network that predicts the same everywhere reveals from left to right in every order."""
    language = skewed_chain(3, 4)
    model, tokens = random_network("mdlm", language), language.sample(20, generator(0))

    def predict(z: Tensor, t: Tensor, context: Tensor, where: Tensor | None = None) -> Tensor:
        revealed = torch.where(z < 3, z * 7 ** torch.arange(4), 0).sum(1, keepdim=True)  # which tokens, and where
        out = torch.sin(revealed[..., None] + torch.arange(1, 4)).expand(-1, 4, -1).double()
        return out if where is None else out[where]

    first = measure(model, tokens, "left-to-right", predict=predict)
    assert all(torch.equal(measure(model, tokens, order, predict=predict), first) for order in DETERMINISTIC)


@pytest.mark.parametrize(
    "system", [System("mdlm"), System("bd3lm", {"block": 2}), System("rdlm-heat", ANY_ORDER)], ids=str
)
def test_samples_have_the_measured_distribution(system: System) -> None:
    """The number is exact for the sampler of the order with one position per step."""
    language = skewed_chain(2, 4)
    model = random_network(system.name, language, seed=2, **system.options)
    for order in DETERMINISTIC:
        p = (-measure(model, enumerate_sequences(language)[0], order)).exp()
        drawn = ls.sample(model, n=6000, steps=4, rng=5, sampler=ORDERS[order].sampler)
        assert sequence_p_value(drawn, language, p) > MIN_P_VALUE, order


def test_the_sampler_that_draws_first_has_another_distribution() -> None:
    """`confidence` prefers likely draws, so that its order is not a function of revealed tokens."""
    language = skewed_chain(2, 4)
    model = random_network("mdlm", language, seed=2)
    p = (-measure(model, enumerate_sequences(language)[0], "confidence")).exp()
    assert sequence_p_value(ls.sample(model, n=6000, steps=4, rng=5, sampler="confidence"), language, p) < 1e-6


# ---- blocks and known positions -------------------------------------------------------------------------------------


def test_blocks_of_one_position_need_one_evaluation() -> None:
    language = skewed_chain(4, 6)
    model, tokens = random_network("bd3lm", language, block=1), language.sample(8, generator(1))
    assert model.denoiser is not None
    masks = torch.full_like(tokens, model.vocab_size)
    log_p = model.denoiser.eval()(masks, torch.ones(8, 6), context=tokens).double().log_softmax(-1)
    expected = -log_p.gather(-1, tokens[..., None]).squeeze(-1).sum(1)
    for order in ORDERS:
        counter = NFECounter()
        nats = measure(model, tokens, order, predict=CountedDenoiser(model.denoiser, counter))
        assert torch.allclose(nats, expected, atol=1e-5) and counter.sequences == 8


def test_orders_act_within_blocks() -> None:
    """Given the first block, the second is the same whether or not the first is known."""
    language = skewed_chain(3, 4)
    model, tokens = random_network("bd3lm", language, block=2), enumerate_sequences(language)[0]
    known = torch.tensor([True, True, False, False]).expand_as(tokens)
    for order in DETERMINISTIC:
        whole, second = measure(model, tokens, order), measure(model, Batch.of(tokens, known), order)
        first = whole - second
        assert torch.allclose(first.view(9, 9).std(1), torch.zeros(9).double(), atol=1e-5)
        assert float((-second).exp().view(9, 9).sum(1).sub(1).abs().max()) < 1e-5


@pytest.mark.parametrize("system", [System("mdlm"), System("rdlm-heat", ANY_ORDER)], ids=str)
def test_known_positions_are_conditions(system: System) -> None:
    language, known = skewed_chain(3, 5), torch.tensor([False, True, False, False, True])
    model, tokens = system.model(language), language.sample(40, generator(0))
    batch = Batch.of(tokens, known.expand_as(tokens))
    for order in ORDERS:
        nats = measure(model, batch, order, predict=Oracle(model, language))
        assert torch.allclose(nats, -conditional_log_prob(language, tokens, known), atol=2e-5), order


def test_only_unfinished_sequences_are_evaluated() -> None:
    language = skewed_chain(3, 4)
    model, tokens = random_network("mdlm", language), language.sample(3, generator(0))
    known = torch.tensor([[False] * 4, [True, False, True, True], [True] * 4])
    assert model.denoiser is not None
    for order in ORDERS:
        counter = NFECounter()
        nats = measure(model, Batch.of(tokens, known), order, predict=CountedDenoiser(model.denoiser, counter))
        assert counter.sequences == 4 + 1 and float(nats[2]) == 0
        alone = measure(model, Batch.of(tokens[1:2], known[1:2], first=1), order)
        assert torch.allclose(nats[1:2], alone, atol=1e-5)


def test_conditions_belong_to_their_sequences() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ls.build("mdlm", vocab_size=3, length=4, labels=2, **SMALL)
        fill_zero_weights(model)
    tokens = skewed_chain(3, 4).sample(6, generator(0))
    known = torch.tensor([False, True, True, True]).expand_as(tokens).clone()
    known[3:] = False
    batch = Batch.of(tokens, known, condition=Condition.of(labels=torch.tensor([0, 1, 0, 1, 0, 1])))
    nats, single = measure(model, batch, "entropy"), measure(model, batch, "entropy", size=1)
    assert torch.allclose(nats, single, atol=1e-5)
    other = Batch.of(tokens, known, condition=Condition.of(labels=torch.tensor([1, 0, 1, 0, 1, 0])))
    assert float((measure(model, other, "entropy") - nats).abs().min()) > 1e-4


# ---- random orders ---------------------------------------------------------------------------------------------------


def test_random_orders_bound_the_mixture_of_all_orders() -> None:
    """By enumeration: the mean over one order is that of all, more orders are lower, and none is below the mixture."""
    language = skewed_chain(3, 3)
    model, x = random_network("mdlm", language, seed=4, tied=False), torch.tensor([2, 0, 1])
    each = torch.tensor([chain_rule(model, x, in_order(sigma)) for sigma in itertools.permutations(range(3))]).double()
    mixture = float(math.log(6) - (-each).logsumexp(0))
    assert float(each.mean()) > mixture + 0.01
    repeated = x.expand(4000, -1)
    found = {k: mean_and_error(measure(model, repeated, "random", orders=k)) for k in (1, 2, 8)}
    mean, error = found[1]
    assert abs(mean - float(each.mean())) < 3 * error
    assert found[1][0] > found[2][0] + 3 * found[2][1] > found[8][0] + 3 * found[8][1]
    assert mixture - 1e-6 < found[8][0] + 3 * found[8][1] and abs(found[8][0] - mixture) < 0.3 * (mean - mixture)
    pairs = torch.cartesian_prod(each, each)
    expected = float((math.log(2) - (-pairs).logsumexp(1)).mean())
    assert abs(found[2][0] - expected) < 3 * found[2][1]


def test_one_random_order_has_the_mean_of_the_nelbo() -> None:
    language = skewed_chain(4, 5)
    model, x = random_network("mdlm", language, seed=1), torch.tensor([[0, 3, 1, 2, 2]])
    mean, error = mean_and_error(measure(model, x.expand(3000, -1), "random"))
    bound, bound_error = mean_and_error(model.eval().nelbo(x.expand(3000, -1), 0, draws=4).total)
    assert abs(mean - bound) < 3 * math.hypot(error, bound_error)


def test_more_orders_contain_the_fewer() -> None:
    """The first of K random orders are the same for every K: -log (p₁ + p₂)/2 ≤ -log p₁ + log 2."""
    language = skewed_chain(3, 4)
    model, tokens = random_network("mdlm", language), language.sample(30, generator(0))
    one, two = (measure(model, tokens, "random", orders=k, seed=3) for k in (1, 2))
    assert bool((two <= one + math.log(2) + 1e-6).all()) and not torch.equal(one, two)
    assert not torch.equal(one, measure(model, tokens, "random", seed=4))


# ---- conduct ---------------------------------------------------------------------------------------------------------


def test_the_result_does_not_depend_on_the_batch_size() -> None:
    language = skewed_chain(4, 6)
    model, tokens = random_network("mdlm", language), language.sample(11, generator(0))
    for order in ORDERS:
        whole = measure(model, tokens, order)
        for size in (1, 4):
            assert torch.allclose(measure(model, tokens, order, size=size), whole, atol=1e-5), order


def test_logits_in_chunks_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    language = skewed_chain(4, 6)
    model, tokens = random_network("mdlm", language), language.sample(9, generator(0))
    whole = {order: measure(model, tokens, order) for order in ORDERS}
    monkeypatch.setattr(orders, "CHUNK", 4 * 5)
    for order, expected in whole.items():
        assert torch.allclose(measure(model, tokens, order), expected, atol=1e-5)


def test_reports_name_the_order() -> None:
    language = skewed_chain(4, 6)
    model, tokens = random_network("mdlm", language), language.sample(9, generator(0))
    seen: list[float] = []
    report = ls.evaluate(model, [tokens], order="confidence", rng=0, watch_order=seen.append)
    assert (report.kind, report.order, report.draws) == ("exact", "confidence", 1)
    assert "= " in str(report) and "confidence order, exact for the sampler max-confidence" in str(report)
    assert seen == pytest.approx([(n + 1) / 6 for n in range(6)])
    random = ls.evaluate(model, [tokens], order="random", orders=3, rng=0)
    assert (random.kind, random.draws) == ("bound", 3) and "9 sequences, 3 orders each" in str(random)
    assert report.summary()["order"] == "confidence"


def test_reports_of_orders_are_not_ranked_with_bounds(tmp_path: Path) -> None:
    language = skewed_chain(4, 6)
    model, tokens = random_network("mdlm", language), language.sample(9, generator(0))
    exact, bound = ls.evaluate(model, [tokens], order="entropy", rng=0), ls.evaluate(model, [tokens], rng=0)
    with pytest.raises(UserError, match="differ in order"):
        compare([exact, bound])
    assert len(compare([exact, exact]).rows) == 2
    exact.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == exact


@pytest.mark.parametrize(
    "system, message",
    [
        (System("ar"), "leave out the order"),
        (System("rdlm"), "path=any-order"),
        (System("rdlm-heat", ANY_ORDER | {"base": 2}), "no such order"),
        (System("udlm"), "udlm has no such order"),
        (System("plaid"), "no such order"),
        (System("ld4lg"), "no such order"),
        (System("genmd4"), "no such order"),
        (System("md4"), "reads the time"),
        (System("mdlm", {"time_conditional": True}), "reads the time"),
        (System("rdlm-heat", ANY_ORDER | {"self_conditioning": True}), "self-conditioned"),
    ],
    ids=str,
)
def test_systems_without_an_order_say_so_in_one_sentence(system: System, message: str) -> None:
    model = ls.build(system.name, vocab_size=4, length=6, **SMALL, **system.options)
    with pytest.raises(UserError, match=message) as caught:
        ls.evaluate(model, [torch.zeros(2, 6, dtype=torch.long)], order="entropy")
    assert "\n" not in str(caught.value)


def test_wrong_settings() -> None:
    model, tokens = random_network("mdlm", skewed_chain(3, 4)), torch.zeros(2, 4, dtype=torch.long)
    for how in ({"order": "entropie"}, {"order": "random", "orders": 0}, {"order": "entropy", "orders": 2}):
        with pytest.raises(UserError):
            ls.evaluate(model, [tokens], **how)
    with pytest.raises(UserError, match="no denoiser"):
        ls.evaluate(ls.build("mdlm", vocab_size=3, length=4, denoiser=None), [tokens], order="entropy")


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert train("--system", "mdlm", "--data", "pydoc") == 0
    more = ["--sequences", "6", "--batch", "4", "--precision", "float32"]
    capsys.readouterr()
    assert main(["evaluate", "run", "--order", "entropy", "--json", *more]) == 0
    found = read_json(capsys)
    assert (found["order"], found["kind"], found["sequences"]) == ("entropy", "exact", 6)
    assert main(["evaluate", "run", "--order", "random", "--orders", "2", *more]) == 0
    out = capsys.readouterr().out
    assert "random order" in out and "2 orders each" in out and "diffusion" not in out
    saved = [json.loads(path.read_bytes())["order"] for path in (tmp_path / "run" / "eval").glob("*order*.json")]
    assert sorted(saved) == ["entropy", "random"]
    assert "--order random" in error_line(capsys, ["evaluate", "run", "--orders", "2", *more])
