"""Adaptation of autoregressive networks: the step 0 is the source, adapters begin as their base, runs resume."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import error_line
from llama_fixtures import write_small
from run_helpers import metrics_without_times, stop_after, tensor_bytes

import logosphere as ls
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.io import read_tensors
from logosphere.model import Model
from logosphere.networks.published.denoiser import PublishedDenoiser
from logosphere.networks.published.lora import LoRALinear, add_adapters, frozen_names, initialise_adapters, merged_state
from logosphere.pretrained.adapters import BASE, published_network
from logosphere.runs.adapt import adapt, create_adapted
from logosphere.runs.adaptation import AdaptConfig, adapt_defaults
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import initial_model
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.runs.train import resume
from logosphere.runs.train_data import open_run_data

LENGTH = 16
TOKENS = torch.randint(40, (3, LENGTH), generator=torch.Generator().manual_seed(1))
OPEN_AT_THE_END = AdaptConfig(anneal=1.0)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = torch.Generator().manual_seed(0)
    path = tmp_path / "numbers.txt"
    path.write_text(" ".join(map(str, torch.randint(38, (3000,), generator=rng).tolist())))
    return path


@pytest.fixture
def config(text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TrainConfig:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return replace(adapt_defaults(), data=str(text), length=LENGTH, batch=4, steps=6, validations=2, ema=0.9,
                   validation_sequences=4, precision="float32")  # fmt: skip


def in_blocks(config: TrainConfig) -> TrainConfig:
    return replace(config, system="bd3lm", options=("loss=bound", "block=4"))


def created(source: Path, config: TrainConfig, out: Path, how: AdaptConfig | None = None) -> tuple[Run, Model]:
    run, _, model = create_adapted(source, config, out, how)
    return run, model


def logits(model: Model, tokens: torch.Tensor = TOKENS, t: float = 0.0) -> torch.Tensor:
    """Of the network, without what a system adds for states that are known."""
    denoiser = next(part for part in model.modules() if isinstance(part, PublishedDenoiser))
    with torch.no_grad():
        return denoiser(tokens, torch.full(tokens.shape, t), tokens)


# ---- step 0 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["mdlm", "bd3lm"])
@pytest.mark.parametrize("name", ["smollm2", "qwen3", "gpt2"])
def test_with_causal_attention_and_shift_the_logits_are_those_of_the_source(
    name: str, system: str, config: TrainConfig, tmp_path: Path
) -> None:
    source = write_small(tmp_path, name)
    network = published_network(ls.import_model(source))
    with torch.no_grad():
        expected = network.head(network.features(TOKENS, None, causal=True))[:, :-1]
    chosen = config if system == "mdlm" else in_blocks(config)
    for lora in (0, 4):
        model = created(source, replace(chosen, lora=lora), tmp_path / f"{lora}", OPEN_AT_THE_END)[1]
        found = logits(model)[:, 1:]
        if system == "mdlm":
            assert torch.equal(found, expected)
        else:  # the same numbers by another kernel, since clean blocks are read too
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_attention_opens_as_the_training_proceeds(config: TrainConfig, tmp_path: Path) -> None:
    source = write_small(tmp_path, "smollm2")
    model = created(source, config, tmp_path / "run", AdaptConfig(anneal=0.5))[1]
    open_at_once = created(source, config, tmp_path / "open")[1]
    denoiser = next(part for part in model.modules() if isinstance(part, PublishedDenoiser))
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 40
    masks = []
    for done in (0.0, 0.2, 0.4, 0.5):
        denoiser.open_attention(done)
        masks.append(denoiser.annealed_mask(LENGTH).clone())
        sees_later = not torch.equal(logits(model)[:, :-1], logits(model, changed)[:, :-1])
        assert sees_later == bool(masks[-1][:-2, -1].any())
    assert torch.equal(masks[0], torch.ones(LENGTH, LENGTH).tril().bool()) and bool(masks[-1].all())
    assert all(bool((later | ~earlier).all()) for earlier, later in zip(masks, masks[1:], strict=False))
    assert 0.3 < float(masks[1][~masks[0]].float().mean()) < 0.5  # 0.4 of the pairs
    assert torch.equal(logits(model), logits(open_at_once))
    denoiser.open_attention(0.0)
    assert denoiser.is_open, "what is open stays open"


def test_without_shift_a_position_answers_for_itself(config: TrainConfig, tmp_path: Path) -> None:
    source = write_small(tmp_path, "smollm2")
    shifted = logits(created(source, config, tmp_path / "a", AdaptConfig())[1])
    plain_model = created(source, config, tmp_path / "b", AdaptConfig(shift=False))[1]
    assert torch.equal(shifted[:, 1:], logits(plain_model)[:, :-1])
    assert plain_model.denoiser is not None and plain_model.denoiser.answers_first


def test_the_mask_is_a_vector_of_its_own_or_a_token(config: TrainConfig, tmp_path: Path) -> None:
    source = write_small(tmp_path, "smollm2")
    table = published_network(ls.import_model(source)).embed.weight
    masks = torch.full_like(TOKENS, 40)
    by_vector = created(source, config, tmp_path / "a")[1]
    network = published_network(by_vector)
    torch.testing.assert_close(network.embed.mask, table.mean(0))
    assert torch.isfinite(logits(by_vector, masks, 1.0)).all()
    for lora in (0, 2):
        by_token = created(source, replace(config, lora=lora), tmp_path / f"b{lora}", AdaptConfig(mask_id=7))[1]
        rows = logits(by_token, masks, 1.0)
        assert torch.isneginf(rows[..., 7]).all() and torch.isfinite(rows[..., :7]).all()
        assert torch.equal(rows, logits(by_token, torch.full_like(TOKENS, 7), 1.0))


# ---- adapters -------------------------------------------------------------------------------------------------------


def test_adapters_begin_as_their_base_and_alone_have_gradients(config: TrainConfig, tmp_path: Path) -> None:
    source = write_small(tmp_path, "qwen3")
    plain = created(source, config, tmp_path / "plain")[1]
    adapted = created(source, replace(config, lora=4), tmp_path / "lora")[1]
    assert torch.equal(logits(plain), logits(adapted))
    bounds = [model.nelbo(TOKENS % 38, 0).total for model in (plain, adapted)]
    assert torch.equal(*bounds)
    adapted.train().bound(ls.Batch.of(TOKENS % 38), _noise(), 1).loss.sum().backward()
    trained = {name for name, parameter in adapted.named_parameters() if parameter.grad is not None}
    assert trained == {name for name in adapted.state_dict() if "lora_" in name or name.endswith("embed.mask")}
    assert trained.isdisjoint(frozen_names(adapted))
    linears = [layer for layer in published_network(plain).modules() if isinstance(layer, torch.nn.Linear)]
    assert len(linears) == sum(isinstance(layer, LoRALinear) for layer in adapted.modules()) == 2 * 7


def _noise() -> Any:
    from logosphere.rng import CounterNoise

    index = torch.arange(len(TOKENS))
    return CounterNoise(0, 0, index, index, len(TOKENS))


def test_merged_weights_are_those_with_adapters(config: TrainConfig, tmp_path: Path) -> None:
    run = adapt(write_small(tmp_path, "smollm2"), replace(config, lora=4), tmp_path / "run")
    model = run.model()
    assert any(bool(layer.lora_b.any()) for layer in model.modules() if isinstance(layer, LoRALinear))
    model.save(tmp_path / "merged")
    merged = ls.load(tmp_path / "merged")
    assert merged.spec is not None and merged.spec.adapters is None
    assert not any("lora" in name for name in merged_state(model))
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-4, atol=1e-5)
    reports = [ls.evaluate_run(one, EvaluateConfig(split="valid", data=run.config.data), other_paths=False)
               for one in (tmp_path / "run", tmp_path / "merged")]  # fmt: skip
    assert reports[0].bits == pytest.approx(reports[1].bits, rel=1e-4)


def test_a_checkpoint_holds_adapters_alone_and_finds_its_base(config: TrainConfig, tmp_path: Path) -> None:
    run = adapt(write_small(tmp_path, "smollm2"), replace(config, lora=2), tmp_path / "run")
    for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
        held = read_tensors(run.path / name)
        assert all("lora_" in tensor or tensor.endswith("embed.mask") for tensor in held), name
    before = logits(run.model())
    base = run.path / BASE
    content = base.read_bytes()
    base.unlink()
    assert torch.equal(logits(Run(run.path).model()), before), "read where the recipe says it was"
    base.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="sha256"):
        Run(run.path).model()


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config,
        lambda config: replace(config, lora=3),
        lambda config: replace(in_blocks(config), lora=2, recompute=True),
    ],
    ids=["all", "lora", "blocks"],
)
def test_a_resumed_adaptation_is_bit_identical(
    change: Callable[[TrainConfig], TrainConfig], config: TrainConfig, tmp_path: Path
) -> None:
    source, chosen, how = write_small(tmp_path, "smollm2"), change(config), AdaptConfig(anneal=0.6)
    whole = adapt(source, chosen, tmp_path / "whole", how)
    broken, corpus, _ = create_adapted(source, chosen, tmp_path / "broken", how)
    list(zip(range(3), run_training(broken, corpus), strict=False))  # never saved
    for steps in (0, 2):
        list(run_training(Run(broken.path), corpus, stop_after(steps)))
    assert resume(broken.path).path == broken.path
    assert metrics_without_times(Run(broken.path)) == metrics_without_times(whole)
    for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
        assert tensor_bytes(broken.path / name) == tensor_bytes(whole.path / name)


def test_recomputed_activations_change_nothing(config: TrainConfig, tmp_path: Path) -> None:
    source = write_small(tmp_path, "gpt2")
    runs = [adapt(source, replace(config, recompute=again), tmp_path / str(again)) for again in (False, True)]
    assert metrics_without_times(runs[0]) == metrics_without_times(runs[1])


def test_a_base_in_half_precision_stays_there(config: TrainConfig, tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    ls.import_checkpoint(write_small(tmp_path, "smollm2"), folder, ls.ImportConfig(dtype="bfloat16"))
    run = adapt(folder, replace(config, lora=2), tmp_path / "run")
    model = run.model()
    types = {parameter.dtype for name, parameter in model.named_parameters() if name in frozen_names(model)}
    assert types == {torch.bfloat16}
    assert all(tensor.dtype == torch.float32 for tensor in read_tensors(run.path / "model.safetensors").values())
    assert torch.isfinite(model.nelbo(TOKENS % 38, 0).total).all()


def test_training_goes_on_from_an_adapted_run(config: TrainConfig, tmp_path: Path) -> None:
    """Its adapters are merged; the new training has its own, or trains all weights."""
    first = adapt(
        write_small(tmp_path, "smollm2"), replace(config, lora=2), tmp_path / "first", AdaptConfig(anneal=0.5)
    )
    corpus = open_run_data(first)
    for lora in (0, 3):
        child = ls.train(replace(config, begin=str(first.path), lora=lora), tmp_path / f"child-{lora}")
        start = initial_model(Run(child.path), corpus) if lora else None
        assert child.metrics()[0]["val/bpt"] == pytest.approx(first.metrics()[-1]["val/bpt"], rel=1e-4)
        if start is not None:
            torch.testing.assert_close(logits(start), logits(first.model()), rtol=1e-4, atol=1e-5)


def test_the_ranks_of_initial_adapters_follow_the_seed() -> None:
    model = ls.build("mdlm", vocab_size=11, length=8, body="ddit", width=16, depth=1, heads=2)
    network = published_network(model)
    add_adapters(network, 2, 4.0)
    drawn = []
    for seed in (0, 0, 1):
        initialise_adapters(network, seed)
        drawn.append(
            torch.cat([layer.lora_a.flatten() for layer in network.modules() if isinstance(layer, LoRALinear)])
        )
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_errors_of_one_sentence(config: TrainConfig, tmp_path: Path) -> None:
    source, out = write_small(tmp_path, "smollm2"), tmp_path / "run"
    cases: list[tuple[Any, TrainConfig, AdaptConfig, str]] = [
        (write_small(tmp_path, "llada"), config, AdaptConfig(), "its system is mdlm"),
        ("pretrained:ar", config, AdaptConfig(), "no published layout"),
        (source, replace(config, system="rdlm"), AdaptConfig(), "mdlm or bd3lm, not to 'rdlm'"),
        (source, replace(config, lora=17), AdaptConfig(), "at most the width of the network, 16, not 17"),
        (source, config, AdaptConfig(mask_id=40), "from 0 to 39, not 40"),
        (source, config, AdaptConfig(anneal=1.5), "from 0 to 1, not 1.5"),
        (source, replace(config, tokenizer="byte"), AdaptConfig(), "vocabulary"),
        (source, replace(config, pack=True), AdaptConfig(), "separate texts"),
    ]
    for begin, chosen, how, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            adapt(begin, chosen, out, how)
        assert "\n" not in str(caught.value) and not out.exists()
    with pytest.raises(UserError, match="--begin"):
        ls.train(replace(config, lora=2), out)
    with pytest.raises(UserError, match="published layouts"):
        ls.train(replace(config, begin="pretrained:mdlm", data="pydoc", length=128, options=(), lora=2), out)
    with pytest.raises(UserError, match="at least 1"):
        replace(config, lora=-1)
    bare = published_network(ls.import_model(source))
    bare.blocks = torch.nn.ModuleList()
    with pytest.raises(UserError, match="this network has none"):
        add_adapters(bare, 2, 4.0)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command(
    config: TrainConfig, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = str(write_small(tmp_path, "smollm2"))
    small = ["--data", str(text), "--length", "16", "--batch", "4", "--steps", "4", "--validations", "2"]
    assert main(["adapt", source, "--out", "run", "--lora", "2", "--anneal", "0.5", *small]) == 0
    assert "Memory at the peak" in capsys.readouterr().err
    assert Run("run").spec.adapters is not None and Run("run").config.begin == source
    assert main(["evaluate", "run", "--sequences", "4", "--draws", "1"]) == 0
    assert main(["sample", "run", "--steps", "2", "-n", "1"]) == 0
    assert main(["train", "--out", "run", "--resume", "--steps", "6"]) == 0
    assert main(["export", "run", "--layout", "merged", "--out", "merged"]) == 0
    assert ls.load("merged").spec.adapters is None  # type: ignore[union-attr]
    assert main(["adapt", source, "--dry-run", "--system", "bd3lm", "--options", "block=4", *small]) == 0
    assert "parameters all are trained" in capsys.readouterr().out
    assert "mdlm" in error_line(capsys, ["adapt", "pretrained:mdlm", "--out", "x", *small])
    assert not Path("x").exists()
    assert "source" in error_line(capsys, ["adapt"], code=2).lower()
