"""Answers to the requests of tasks: likelihoods match the model, and prompts are continued."""

import math

import pytest
import torch
from cli_helpers import train
from toy_languages import sticky_chain
from toy_models import System

from logosphere.data.languages import Language, Oracle
from logosphere.data.tokenizers import ByteTokenizer
from logosphere.errors import UserError
from logosphere.runs.run import Run
from logosphere.runs.task_model import TaskModel
from logosphere.sampling.generate import generate

pytestmark = pytest.mark.usefixtures("workplace")


def task_model(folder: str, draws: int = 32) -> TaskModel:
    return TaskModel.of(Run(folder), draws=draws)


def test_likelihoods_match_the_model() -> None:
    train("--system", "ar", steps=3, out="ar")
    adapter = task_model("ar")
    text = "the king of the "  # one sequence of 16
    tokens = torch.from_numpy(adapter.tokenizer.encode(text))[None]
    nats = float(adapter.model.nelbo(tokens, torch.Generator()).total)
    (rolling,) = adapter.score_texts([text])
    (whole, _), (first, _), (rest, _) = adapter.score_continuations(
        [("", text), ("", "the king"), ("the king", " of the ")]
    )
    assert rolling == pytest.approx(-nats, abs=1e-4) == whole
    assert first + rest == pytest.approx(whole, abs=1e-4)  # the chain rule
    before, after = adapter.pair("the king of", " t")
    assert adapter.tokenizer.decode(before) == "the king of" and len(after) == 2  # a context that fits is kept in full
    (twice,) = adapter.score_texts([text * 2])
    assert twice == pytest.approx(2 * rolling, abs=1e-4)
    long = "x" * 40 + " and"
    assert adapter.score_continuations([(long, " so")])[0][0] < 0  # a long context is cut at its beginning


def test_is_greedy_requires_the_argmax_everywhere() -> None:
    train("--system", "ar", steps=3, out="ar")
    adapter = task_model("ar")
    row = adapter.tokenizer.encode("the ").tolist()
    for _ in range(3):
        batch = adapter.batch_of([(row, [])], 16)
        with torch.no_grad():
            out = adapter.model.denoiser(batch.tokens, torch.zeros(1, 16), context=batch.tokens)
        row.append(int(out[0, len(row)].argmax()))
    best = adapter.tokenizer.decode(row[4:])
    other = "".join("a" if letter != "a" else "b" for letter in best)
    assert [greedy for _, greedy in adapter.score_continuations([("the ", best), ("the ", other)])] == [
        True,
        False,
    ]


def test_diffusion_model_returns_its_bound() -> None:
    train(steps=3, out="mdlm")
    adapter = task_model("mdlm", draws=64)
    assert adapter.kind == "bound"
    value, greedy = adapter.score_continuations([("the king", " of")])[0]
    assert math.isfinite(value) and value < 0 and greedy is False
    text = adapter.continue_text("the ", {"until": ["e"], "max_gen_toks": 8})
    assert len(text) <= 8 and "e" not in text


class OfAnyLength(Oracle):
    """The oracle of a sticky chain for any length."""

    def forward(self, z, t, context, where=None):  # type: ignore[no-untyped-def]
        language = sticky_chain(2, z.shape[1])
        return Oracle(self.system.model(language), language).forward(z, t, context, where)


def around_oracle(system: System, language: Language) -> TaskModel:
    """The answers of an oracle, without a run."""
    model = system.model(language)
    oracle = OfAnyLength(model, language)
    oracle.system = system
    model.denoiser = oracle
    return TaskModel(model, ByteTokenizer(), draws=64, batch=8)


@pytest.mark.parametrize("system", ["ar", "mdlm"])
def test_padding_does_not_affect_short_texts(system: str) -> None:
    """In a chain that repeats its token, a single token is uniform, whatever the padding is."""
    adapter = around_oracle(System(system), sticky_chain(2, 4))
    nats = adapter.nats([([], [0]), ([], [1])])
    assert nats == pytest.approx([math.log(2)] * 2, abs=1e-5)


def test_length_is_a_multiple_of_the_block() -> None:
    adapter = around_oracle(System("mdlm", {"block": 2}), sticky_chain(2, 4))
    assert adapter.length_of(4) == adapter.length_of(2) == 4
    with pytest.raises(UserError, match="whole blocks of 2"):
        adapter.length_of(3)


def test_greedy_generation_uses_top_k_one(monkeypatch: pytest.MonkeyPatch) -> None:
    train(steps=3, out="mdlm")
    adapter, settings = task_model("mdlm"), []

    def record(*given: object, **how: object) -> object:
        settings.append((how["temperature"], how["top_k"]))
        return generate(*given, **how)

    monkeypatch.setattr("logosphere.runs.task_model.generate", record)
    for how in ({}, {"temperature": 0.0, "do_sample": False}, {"do_sample": False}, {"temperature": 0.5}):
        adapter.continue_text("the ", how)
    assert settings == [(1.0, 1), (1.0, 1), (1.0, 1), (0.5, None)]


def test_samplers_without_filters_generate_unfiltered() -> None:
    train("--system", "p2", steps=3, out="p2")
    assert len(task_model("p2").continue_text("the ", {"max_gen_toks": 8})) <= 8
