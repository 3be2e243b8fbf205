"""Fine-tuning on answers: prompts are known, answers alone are counted, packed documents do not see one another."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_helpers import error_line
from instruct_fixtures import BOS, EOS, write_instruct, write_rows
from run_helpers import metrics_without_times, stop_after, tensor_bytes

import logosphere as ls
from logosphere.cli import main
from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Examples, count_scored_tokens
from logosphere.data.packing import MULTIPLE, pack_rows
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.registry import build_network
from logosphere.rng import CounterNoise
from logosphere.runs.config import TrainConfig
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.runs.train import resume
from logosphere.runs.train_data import open_training_data
from logosphere.systems import build
from logosphere.training.optimizer import OptimizerConfig


def sums(count: int = 60) -> list[dict[str, Any]]:
    return [{"source": f"{i}+{i}=", "target": f"{2 * i}."} for i in range(count)]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "sums.jsonl", sums())


@pytest.fixture
def config(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return TrainConfig(
        system="mdlm", begin=str(write_instruct(tmp_path)), data=f"pairs:{pairs}", length=16, batch=4, steps=4,
        validations=2, validation_sequences=4, precision="float32", ema=0.9, optim=OptimizerConfig("adamw", lr=1e-3),
    )  # fmt: skip


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_are_known_and_answers_are_counted(config: TrainConfig) -> None:
    settled, corpus = open_training_data(config)
    assert settled.task == "answers" and corpus.tokenizer.size == 25
    batch = next(eval_batches(corpus.valid, 16, 4))
    texts = [row["source"] for row in sums()[::20]]
    for tokens, known, valid, count, text in zip(
        batch.tokens, batch.known, batch.valid, batch.scored_tokens, texts, strict=False
    ):
        assert tokens[0] == BOS and corpus.tokenizer.decode(tokens[1 : 1 + len(text)].tolist()) == text
        assert known.tolist() == [True] * (1 + len(text)) + [False] * (15 - len(text)) and bool(valid.all())
        answer = str(2 * int(text.split("+")[0])) + "."
        assert count == len(answer) + 1 and tokens[-1] == EOS
    assert count_scored_tokens(corpus.valid, 16) == int(batch.scored_tokens.sum())
    assert corpus.characters["valid"] == sum(len(row["target"]) for row in sums()[::20])


def test_the_loss_and_the_bound_depend_on_answers_alone(config: TrainConfig, tmp_path: Path) -> None:
    """A model that cannot attend to the prompt has the same loss for another prompt, and gradients of answers only."""
    settled, corpus = open_training_data(config)
    batch = next(eval_batches(corpus.train, 16, 4))
    model = ls.import_model(config.begin, length=16)
    noise = CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)
    z = model.process.sample_zt(batch.tokens, torch.full((4, 1), 0.9), batch.free, noise).z
    masked = z == model.vocab_size
    assert bool(masked.any()) and not bool((masked & batch.known).any())
    seen = []

    def predict(z: torch.Tensor, t: torch.Tensor, context: torch.Tensor, where: Any = None) -> torch.Tensor:
        seen.append((where, t))
        return torch.zeros(z.shape[0], z.shape[1], 25)[where]

    bound = model.bound(batch, noise, 1, predict)
    ((where, t),) = seen
    assert not bool((where & batch.known).any()) and not bool(t[batch.known].any())
    # Uniform predictions: log V for each free position, whatever the prompt is.
    expected = batch.free.sum(1) * torch.log(torch.tensor(25.0))
    several = torch.stack([model.bound(batch, CounterNoise(s, 0, batch.ids, batch.global_index, 4), 1, predict).total
                           for s in range(64)]).mean(0)  # fmt: skip
    torch.testing.assert_close(several, expected, rtol=1e-4, atol=1e-3)
    assert bound.count.tolist() == batch.scored_tokens.tolist()


def test_with_known_prompts_the_bound_of_the_oracle_is_the_conditional_entropy() -> None:
    transition = [[0.8, 0.15, 0.05], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]
    language = ls.languages.markov(transition, [0.5, 0.3, 0.2], 6)
    model = build("mdlm", vocab_size=3, length=6, denoiser=None)
    oracle = ls.languages.oracle(model, language)
    tokens = language.sample(4000, torch.Generator().manual_seed(0))
    examples = Examples(list(tokens.numpy()), prompts=np.full(len(tokens), 2))
    batch = next(eval_batches(examples, 6, len(tokens)))
    assert batch.known[:, :2].all() and not batch.known[:, 2:].any()
    bound = model.nelbo(batch, 7, denoiser=oracle, draws=4)
    rows = torch.tensor(transition).double()
    marginal = torch.tensor([0.5, 0.3, 0.2]).double() @ rows
    entropy = 0.0
    for _ in range(4):  # H(x_i | x_{i-1}) for i = 2 … 5
        entropy += float(-(marginal[:, None] * rows * rows.log()).sum())
        marginal = marginal @ rows
    error = float(bound.total.std()) / len(tokens) ** 0.5
    assert abs(float(bound.total.mean()) - entropy) < 4 * error


def test_a_fine_tuned_run_is_evaluated_and_resumed(config: TrainConfig, tmp_path: Path) -> None:
    for lora in (0, 4):
        chosen = replace(config, lora=lora)
        run = ls.train(chosen, tmp_path / f"run-{lora}")
        assert Run(run.path).config.task == "answers"
        report = ls.evaluate_run(run, EvaluateConfig(sequences=3, draws=1))
        assert report.kind == "bound" and set(report.counts) <= {3, 4, 5}
        broken = tmp_path / f"broken-{lora}"
        settled, corpus = open_training_data(chosen)
        from logosphere.runs.create import create_run

        list(run_training(create_run(settled, corpus, broken), corpus, stop_after(1)))
        resume(broken)
        assert metrics_without_times(Run(broken)) == metrics_without_times(run)
        assert tensor_bytes(broken / "model.safetensors") == tensor_bytes(run.path / "model.safetensors")


def test_fine_tuning_learns_the_answers(config: TrainConfig, tmp_path: Path) -> None:
    optim = OptimizerConfig("adamw", lr=1e-2, warmup=5)
    run = ls.train(replace(config, steps=60, optim=optim, validations=3), tmp_path / "run")
    curve = [line["val/bpt"] for line in run.metrics() if "val/bpt" in line]
    assert curve[-1] < 0.6 * curve[0]


def test_an_own_model_of_texts_that_end_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    rows = [{"source": f"Tom has {i} cats. ", "target": f"He has {i} cats."} for i in range(40)]
    path = write_rows(tmp_path / "stories.jsonl", rows)
    config = TrainConfig(system="mdlm", begin="pretrained:stories", data=f"pairs:{path}")
    from logosphere.runs.parents import config_from_parent

    parent = config_from_parent("pretrained:stories")
    settings = {"data": config.data, "steps": 1, "batch": 2, "validations": 1, "validation_sequences": 2}
    run = ls.train(replace(parent, **settings), tmp_path / "run")
    assert run.config.task == "answers"


# ---- conversations --------------------------------------------------------------------------------------------------


def conversation(question: str, answer: str, *, system: str = "") -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": ([{"role": "system", "content": system}] if system else []) + turns}


def test_conversations_are_written_in_the_template(config: TrainConfig, tmp_path: Path) -> None:
    rows = [conversation(f"{i}+1?", f"{i + 1}.", system="sa" if i % 2 else "") for i in range(40)]
    rows[0]["messages"] = [*rows[0]["messages"], *conversation("2?", "3")["messages"]]
    chosen = replace(config, data=f"pairs:{write_rows(tmp_path / 'chat.jsonl', rows)}", length=40)
    _, corpus = open_training_data(chosen)
    batch = next(eval_batches(corpus.valid, 40, 4))
    prompts = [
        corpus.tokenizer.decode(row[known].tolist()) for row, known in zip(batch.tokens, batch.known, strict=True)
    ]
    answers = [corpus.tokenizer.decode(row[~known].tolist()).rstrip("$")
               for row, known in zip(batch.tokens, batch.known, strict=True)]  # fmt: skip
    assert prompts[0] == "^<u>0+1?</><a>1.</><u>2?</><a>" and answers[0] == "3</>"
    assert prompts[1] == "^<u>20+1?</><a>" and answers[1] == "21.</>"


# ---- packing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout, shift", [("llama", False), ("llama", True), ("gpt2", True), ("ddit", False)])
def test_packed_documents_have_the_loss_of_separate_ones(layout: str, shift: bool) -> None:
    config = PublishedConfig(
        layout=layout, rows=12, width=16, depth=2, heads=4, kv_heads=4 if layout != "llama" else 2, head_width=4,
        inner=24, positions=32, mask_id=11, shift=shift, tied=layout != "ddit", reads="zero" if layout == "ddit" else
        "nothing",
    )  # fmt: skip
    torch.manual_seed(0)
    network = build_network(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model = build("mdlm", vocab_size=11, length=32, published=network, loss="bound")
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 11, size=size) for size in (5, 11, 8)]
    examples = Examples(texts, eos=EOS, prompts=np.array([2, 1, 3]))
    index = torch.zeros(1, dtype=torch.long)
    packed = pack_rows(examples, [[0, 1, 2]], index, index, 1, 40)
    packed = replace(packed, tokens=packed.tokens[:, :32], known=packed.known[:, :32], valid=packed.valid[:, :32],
                     documents=packed.documents[:, :32])  # fmt: skip
    assert packed.documents is not None
    t = torch.where(packed.free, 0.7, 0.0)
    z = torch.where((torch.rand(1, 32, generator=torch.Generator().manual_seed(3)) < 0.7) & packed.free, 11,
                    packed.tokens)  # fmt: skip
    assert model.denoiser is not None
    process = model.process

    def losses(predict: Any, z: torch.Tensor, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        where = z == 11
        out = predict(z, t, x, where)
        rate, loss = process.rate_and_loss(out, x[where], z[where], t[where], torch.ones(int(where.sum())))
        return loss

    with torch.no_grad():
        together = losses(model.denoiser.with_documents(packed.documents), z, t, packed.tokens)
        apart = []
        for number in range(3):
            part = packed.documents[0] == number
            apart.append(losses(model.denoiser, z[:, part], t[:, part], packed.tokens[:, part]))
        torch.testing.assert_close(together, torch.cat(apart), rtol=1e-4, atol=1e-5)
        mixed = losses(model.denoiser, z, t, packed.tokens)
    assert not torch.allclose(together, mixed, rtol=1e-2)


def test_packed_rows_hold_whole_documents(config: TrainConfig, tmp_path: Path) -> None:
    _, corpus = open_training_data(config)
    batches = train_batches(corpus.train, 64, 4, 0, pack=True)
    batch = batches.at(3)
    assert batch.documents is not None and torch.equal(batches.at(3).tokens, batch.tokens)
    assert torch.equal(batches.at(3, slice(1, 3)).tokens, batch.tokens[1:3])
    known_texts = {tuple(row.tolist()) for row in corpus.train.sequences}  # type: ignore[union-attr]
    for tokens, documents, known, valid, count in zip(
        batch.tokens, batch.documents, batch.known, batch.valid, batch.scored_tokens, strict=True
    ):
        assert torch.equal(valid, documents >= 0) and int(documents.max()) >= 1
        scored = 0
        for number in range(int(documents.max()) + 1):
            part = tokens[documents == number].tolist()
            assert len(part) % MULTIPLE == 0
            text = part[: part.index(EOS)]
            assert tuple(text) in known_texts and set(part[len(text) :]) == {EOS}
            scored += len(text) + 1 - int(known[documents == number].sum())
        assert count == scored
    run = ls.train(replace(config, pack=True, length=48), tmp_path / "run")
    assert run.config.pack and run.metrics()[-1]["step"] == 4


# ---- early stop -----------------------------------------------------------------------------------------------------


def test_a_training_stops_when_its_bound_no_longer_improves(config: TrainConfig, tmp_path: Path) -> None:
    bad = OptimizerConfig("adamw", lr=0.5, warmup=0, clip=None)
    chosen = replace(config, steps=40, validations=20, patience=2, optim=bad, ema=0.0)
    run = ls.train(chosen, tmp_path / "run")
    values = [line["val/bpt"] for line in run.metrics() if "val/bpt" in line]
    best = values.index(min(values))
    assert len(values) == best + 3 < 21 and (run.path / "eval" / "valid.json").exists()
    again = resume(run.path)
    assert [line["step"] for line in again.metrics()] == [line["step"] for line in run.metrics()]


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_predicted_before_a_training(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from logosphere.runs.memory import predict_training

    plain, lora = predict_training(config), predict_training(replace(config, lora=2))
    assert plain.trained == plain.parameters > lora.trained and plain.peak > plain.held > 0
    assert lora.gradients == 4 * lora.trained and plain.state == 12 * plain.trained
    larger = predict_training(replace(config, batch=64))
    again = predict_training(replace(config, batch=64, recompute=True))
    assert larger.activations > again.activations > 0
    argv = ["train", "--init-from", config.begin, "--data", config.data, "--length", "16", "--lora", "2", "--dry-run"]
    assert main([str(word) for word in argv]) == 0
    out = capsys.readouterr().out
    assert "Memory at the peak" in out and f"{lora.trained:,} are trained" in out and not Path("runs").exists()


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_errors_of_one_sentence(config: TrainConfig, tmp_path: Path) -> None:
    def with_rows(rows: Sequence[dict[str, Any]]) -> TrainConfig:
        return replace(
            config, data=f"pairs:{write_rows(tmp_path / f'rows-{len(list(tmp_path.iterdir()))}.jsonl', rows)}"
        )

    chat = [conversation(f"{i}?", f"{i}") for i in range(20)]
    bare = write_instruct(tmp_path / "bare", template=None)
    odd = write_instruct(tmp_path / "odd", template="{% if add_generation_prompt %}a{% else %}s{% endif %}")
    cases = [
        (with_rows([*sums(5), {"source": "1+1=", "target": "  "}]), "Row 6 of .* has an empty answer"),
        (with_rows([*sums(5), {"source": "1", "target": "1" * 17}]), "17 tokens, more than a sequence"),
        (replace(with_rows(chat), begin=str(bare)), "Row 1 of .* no chat template"),
        (replace(with_rows(chat), begin=str(odd)), "cannot be separated"),
        (with_rows([*chat, {"messages": [{"role": "user", "content": "1"}]}]), "ends with a message of the user"),
        (with_rows([*chat, {"messages": "1"}]), "list of objects with a role"),
        (with_rows([*chat, conversation("1", " ")]), "Row 21 of .* empty answer"),
        (replace(config, data=str(tmp_path / "sums.jsonl"), task="answers", column="target"), "pairs:FILE"),
        (replace(config, tokenizer="characters"), "vocabulary"),
        (replace(config, lora=99), "at most the width of the network, 16, not 99"),
    ]
    for chosen, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            ls.train(chosen, tmp_path / "run")
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="patience"):
        replace(config, patience=0)
    blocks = ls.build("bd3lm", vocab_size=11, length=8, block=4, width=8, depth=1, heads=1)
    assert isinstance(blocks, Model)


def test_prompts_without_room_are_left_out_with_a_remark(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [*sums(40), {"source": "1" * 30, "target": "1"}]
    path = write_rows(tmp_path / "long.jsonl", rows)
    argv = ["train", "--init-from", str(config.begin), "--data", f"pairs:{path}", "--length", "16", "--steps", "1"]
    argv += ["--batch", "2", "--validations", "1", "--validation-sequences", "2", "--out", "run"]
    assert main(argv) == 0
    assert "1 of 41 pairs have more than 16 tokens" in capsys.readouterr().err
    assert main(["sample", "run", "--prompt", "2+2=", "--steps", "2", "-n", "1"]) == 0
    assert "exists already" in error_line(capsys, argv)
