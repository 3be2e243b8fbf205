"""The lm-evaluation-harness adapter: likelihoods match the model, and a real task runs offline."""

import json
import math
from pathlib import Path

import pytest
import torch
from cli_helpers import train

pytest.importorskip("lm_eval", reason="the extra 'eval' is not installed")

from lm_eval.api.instance import Instance  # noqa: E402
from toy_languages import sticky_chain  # noqa: E402
from toy_models import System

from logosphere.data.languages import Language, Oracle  # noqa: E402
from logosphere.errors import UserError  # noqa: E402
from logosphere.runs.lm_eval_adapter import Harness  # noqa: E402
from logosphere.sampling.generate import generate  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("workplace"),
    pytest.mark.filterwarnings("ignore"),  # warnings of the harness do not concern this package
]


def request(*arguments: object) -> Instance:
    return Instance(request_type="loglikelihood", doc={}, arguments=arguments, idx=0)


def test_likelihoods_match_the_model() -> None:
    train("--system", "ar", steps=3, out="ar")
    adapter = Harness("ar")
    text = "the king of the "  # one sequence of 16
    tokens = torch.from_numpy(adapter.tokenizer.encode(text))[None]
    nats = float(adapter.model.nelbo(tokens, torch.Generator()).total)
    (rolling,) = adapter.loglikelihood_rolling([request(text)])
    (whole, _), (first, _), (rest, _) = adapter.loglikelihood(
        [request("", text), request("", "the king"), request("the king", " of the ")]
    )
    assert rolling == pytest.approx(-nats, abs=1e-4) == whole
    assert first + rest == pytest.approx(whole, abs=1e-4)  # the chain rule
    before, after = adapter._pair("the king of", " t")
    assert adapter.tokenizer.decode(before) == "the king of" and len(after) == 2  # a context that fits is kept in full
    (twice,) = adapter.loglikelihood_rolling([request(text * 2)])
    assert twice == pytest.approx(2 * rolling, abs=1e-4)
    long = "x" * 40 + " and"
    assert adapter.loglikelihood([request(long, " so")])[0][0] < 0  # a long context is cut at its beginning


def test_is_greedy_requires_the_argmax_everywhere() -> None:
    train("--system", "ar", steps=3, out="ar")
    adapter = Harness("ar")
    row = adapter.tokenizer.encode("the ").tolist()
    for _ in range(3):
        batch = adapter._batch([(row, [])], 16)
        with torch.no_grad():
            out = adapter.model.denoiser(batch.tokens, torch.zeros(1, 16), context=batch.tokens)
        row.append(int(out[0, len(row)].argmax()))
    best = adapter.tokenizer.decode(row[4:])
    other = "".join("a" if letter != "a" else "b" for letter in best)
    assert [greedy for _, greedy in adapter.loglikelihood([request("the ", best), request("the ", other)])] == [
        True,
        False,
    ]


def test_diffusion_model_returns_its_bound() -> None:
    train(steps=3, out="mdlm")
    adapter = Harness("mdlm", draws=64)
    assert adapter.kind == "bound"
    value, greedy = adapter.loglikelihood([request("the king", " of")])[0]
    assert math.isfinite(value) and value < 0 and greedy is False
    text = adapter.generate_until([request("the ", {"until": ["e"], "max_gen_toks": 8})])[0]
    assert len(text) <= 8 and "e" not in text


class OfAnyLength(Oracle):
    """The oracle of a sticky chain for any length."""

    def forward(self, z, t, context, where=None):  # type: ignore[no-untyped-def]
        language = sticky_chain(2, z.shape[1])
        return Oracle(self.system.model(language), language).forward(z, t, context, where)


class Stickiness(Harness):
    """A harness around an oracle, without a run."""

    def __init__(self, system: System, language: Language):
        self.model = system.model(language)
        self.model.denoiser = OfAnyLength(self.model, language)
        self.model.denoiser.system = system
        self.kind, self.draws, self.seed, self.batch = self.model.process.kind, 64, 0, 8


@pytest.mark.parametrize("system", ["ar", "mdlm"])
def test_padding_does_not_affect_short_texts(system: str) -> None:
    """In a chain that repeats its token, a single token is uniform, whatever the padding is."""
    adapter = Stickiness(System(system), sticky_chain(2, 4))
    nats = adapter._nats([([], [0]), ([], [1])])
    assert nats == pytest.approx([math.log(2)] * 2, abs=1e-5)


def test_length_is_a_multiple_of_the_block() -> None:
    adapter = Stickiness(System("mdlm", {"block": 2}), sticky_chain(2, 4))
    assert adapter._length(4) == adapter._length(2) == 4
    with pytest.raises(UserError, match="whole blocks of 2"):
        adapter._length(3)


def test_greedy_generation_uses_top_k_one(monkeypatch: pytest.MonkeyPatch) -> None:
    train(steps=3, out="mdlm")
    adapter, settings = Harness("mdlm"), []

    def record(*given: object, **how: object) -> object:
        settings.append((how["temperature"], how["top_k"]))
        return generate(*given, **how)

    monkeypatch.setattr("logosphere.runs.lm_eval_adapter.generate", record)
    for how in ({}, {"temperature": 0.0, "do_sample": False}, {"do_sample": False}, {"temperature": 0.5}):
        adapter.generate_until([request("the ", how)])
    assert settings == [(1.0, 1), (1.0, 1), (1.0, 1), (0.5, None)]


def test_samplers_without_filters_generate_unfiltered() -> None:
    train("--system", "p2", steps=3, out="p2")
    assert len(Harness("p2").generate_until([request("the ", {"max_gen_toks": 8})])[0]) <= 8


def test_a_task_runs_from_a_local_file(workplace: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    train("--system", "ar", steps=3, out="ar")
    rows = [{"text": "the king of the hill", "question": "the", "choices": [" cat", " zzz"], "answer": 0}] * 3
    (workplace / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    data = f"dataset_path: json\ndataset_kwargs:\n  data_files: {{test: {workplace / 'rows.json'}}}\ntest_split: test\n"
    (workplace / "bits.yaml").write_text(
        f"task: tiny_bits\n{data}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{text}}}}'\n"
        "metric_list:\n  - metric: bits_per_byte\n"
    )
    (workplace / "choice.yaml").write_text(
        f"task: tiny_choice\n{data}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: '{{answer}}'\nmetric_list:\n  - metric: acc\n"
    )
    manager = TaskManager(include_path=str(workplace), include_defaults=False)
    found = simple_evaluate(Harness("ar"), tasks=["tiny_bits", "tiny_choice"], task_manager=manager, bootstrap_iters=0)
    bits = found["results"]["tiny_bits"]["bits_per_byte,none"]
    adapter = -Harness("ar").loglikelihood_rolling([request(rows[0]["text"])])[0] / len(rows[0]["text"]) / math.log(2)
    assert bits == pytest.approx(adapter, rel=1e-5)
    assert found["results"]["tiny_choice"]["acc,none"] in (0.0, 1.0)
