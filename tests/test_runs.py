"""Runs: resumed runs are bit-identical to uninterrupted ones, and the run folder records the training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_helpers import complete_run, metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE

from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.io import read_tensors
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.process_group import find_device
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.loop import Saved, StepTaken, Validated, run_training
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Diverged

DROPOUT = replace(
    RECIPE, network=NetworkConfig(width=16, depth=1, heads=2, dropout=0.3), task="infilling", accumulate=2
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        DROPOUT,
        replace(DROPOUT, system="d3pm-uniform"),
        replace(RECIPE, system="rdlm", options=("switch=0.3",)),
    ],
    ids=["plain", "dropout", "uniform", "other loss"],
)
def test_a_resumed_run_is_bit_identical(recipe: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    uninterrupted, _ = complete_run(recipe, corpus, tmp_path / "straight")
    resumed = create_run(recipe, corpus, tmp_path / "broken")
    for steps in (5, 1, 99):  # stop after 5 steps, after 1 more, and never
        torch.manual_seed(steps)
        list(run_training(Run(resumed.path), corpus, stop_after(steps)))
    assert metrics_without_times(resumed) == metrics_without_times(uninterrupted)
    for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
        assert tensor_bytes(resumed.path / name) == tensor_bytes(uninterrupted.path / name)
    assert len(uninterrupted.metrics()) == 12 + 3


def test_a_run_names_its_precision_and_one_from_before_stays_in_float32(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins where "auto" is bfloat16 is resumed in it elsewhere; older recipes hold "auto" for float32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    run = create_run(replace(RECIPE, precision="auto"), corpus, tmp_path / "run")
    assert run.config.precision == "bfloat16"
    exact, _ = complete_run(replace(RECIPE, precision="float32"), corpus, tmp_path / "exact")
    older = create_run(replace(RECIPE, precision="float32"), corpus, tmp_path / "older")
    recipe = older.path / "recipe.json"
    recipe.write_text(recipe.read_text().replace('"precision": "float32"', '"precision": "auto"'))
    assert Run(older.path).config.precision == "auto"
    list(run_training(Run(older.path), corpus))
    assert tensor_bytes(older.path / "model.safetensors") == tensor_bytes(exact.path / "model.safetensors")


def test_a_killed_run_resumes_from_its_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    """The process is killed between two checkpoints, while a line of metrics is being written."""
    uninterrupted, _ = complete_run(RECIPE, corpus, tmp_path / "straight")
    killed = create_run(RECIPE, corpus, tmp_path / "killed")
    events = run_training(killed, corpus)
    for event in events:
        if isinstance(event, StepTaken) and event.progress.step == 7:
            break
    events.close()
    with (killed.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "train/lo')
    list(run_training(Run(killed.path), corpus))
    assert metrics_without_times(killed) == metrics_without_times(uninterrupted)
    assert tensor_bytes(killed.path / "ema.safetensors") == tensor_bytes(uninterrupted.path / "ema.safetensors")


def test_resuming_a_finished_run_only_validates(corpus: Corpus, tmp_path: Path) -> None:
    run, events = complete_run(RECIPE, corpus, tmp_path / "run")
    lines = run.metrics()
    (event,) = run_training(Run(run.path), corpus)
    last = [event for event in events if isinstance(event, Validated)][-1]
    assert isinstance(event, Validated) and event.report.bits == last.report.bits
    assert run.metrics() == lines
    kinds = [type(event) for event in events]
    assert kinds.count(StepTaken) == 12 and kinds.count(Validated) == 3 and kinds.count(Saved) == 3
    assert [event.step for event in events if isinstance(event, Saved)] == [4, 8, 12]


def test_a_run_folder_has_all_files_and_metrics(corpus: Corpus, tmp_path: Path) -> None:
    run, _ = complete_run(RECIPE, corpus, tmp_path / "run")
    names = {path.name for path in run.path.iterdir()}
    assert {"recipe.json", "env.json", "tokenizer.json", "metrics.jsonl", "model.safetensors", "ema.safetensors",
            "best.safetensors", "state", "samples", "eval"} <= names  # fmt: skip
    assert run.config == RECIPE and run.tokenizer.fingerprint == corpus.tokenizer.fingerprint
    steps = [line for line in run.metrics() if "train/loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    keys = {"step", "train/loss", "train/bpc", "lr", "gradient", "tokens", "seconds", "cpu_seconds"}
    assert all(keys <= line.keys() for line in steps)
    validations = [line for line in run.metrics() if "val/bpc" in line]
    assert [line["step"] for line in validations] == [4, 8, 12]
    assert all({"val/error", "val/kind"} <= line.keys() and line["val/kind"] == "bound" for line in validations)
    assert {"python", "packages"} <= json.loads((run.path / "env.json").read_text()).keys()


def test_weights_of_a_run_are_selected_by_name(corpus: Corpus, tmp_path: Path) -> None:
    run, _ = complete_run(RECIPE, corpus, tmp_path / "run")
    for name in ("model", "ema", "best"):
        expected = read_tensors(run.path / f"{name}.safetensors")
        assert all(torch.equal(tensor, expected[key]) for key, tensor in run.model(name).state_dict().items())
    with pytest.raises(UserError, match="must be one of"):
        run.model("worst")


def test_a_run_does_not_overwrite_another(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(RECIPE, corpus, tmp_path / "run")
    with pytest.raises(UserError, match="exists already"):
        create_run(RECIPE, corpus, run.path)
    (tmp_path / "empty").mkdir()
    assert create_run(RECIPE, corpus, tmp_path / "empty").config == RECIPE
    assert not list(tmp_path.glob(".*draft*"))


def test_a_run_is_locked_during_training(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(RECIPE, corpus, tmp_path / "run")
    with run.lock():
        with pytest.raises(UserError, match="Another training"), Run(run.path).lock():
            pass
    with run.lock():
        pass


def test_a_diverged_run_keeps_finite_weights(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(replace(RECIPE, optim=OptimizerConfig(lr=1e30, warmup=0)), corpus, tmp_path / "run")
    with pytest.raises(Diverged, match="smaller learning rate.*are in"):
        list(run_training(run, corpus))
    assert all(weight.isfinite().all() for weight in run.model("model").parameters())


def test_changed_data_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(RECIPE, corpus, tmp_path / "run")
    with pytest.raises(UserError, match="text has changed"):
        next(run_training(run, replace(corpus, sha256="0" * 64)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"length": 10_000}, "fewer than one sequence"),
        ({"task": "nothing"}, "no task"),
        ({"system": "mdml"}, "Did you mean 'mdlm'"),
        ({"options": ("width=3",)}, "--network.width"),
        ({"options": ("blok=4",)}, "Did you mean 'block'"),
        ({"task": "varied", "options": ("block=4",)}, "cuts sequences"),
        ({"task": "varied", "system": "tencdm"}, "cuts sequences"),
        ({"options": ("block",)}, "name=value"),
        ({"device": "abacus"}, "There is no device 'abacus'; choose auto, cpu, cuda, cuda:NUMBER, mps or xpu.$"),
        ({"device": "gpu"}, "There is no device 'gpu'; .* Did you mean 'cuda'?"),
        ({"device": "CUDA:x"}, "There is no device 'CUDA:x'; .* Did you mean 'cuda'?"),
        ({"device": "meta"}, "There is no device 'meta'"),
        ({"device": ""}, "There is no device ''"),
        ({"device": "cuda:77"}, "'cuda:77' cannot be used here: .*; set the device to auto or cpu.$"),
        ({"device": "vulkan"}, "'vulkan' cannot be used here .torch was installed without support for it"),
        ({"device": "privateuseone"}, "'privateuseone' cannot be used here .torch was installed without"),
    ],
)
def test_an_invalid_config_creates_no_folder(change: dict, message: str, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        create_run(replace(RECIPE, **change), corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name, reason", [("mps", "it is the GPU of a Mac"), ("xpu", "torch finds no GPU of Intel")])
def test_a_device_that_is_missing_is_explained(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=f"^The device '{name}' cannot be used here: {reason}.*; set the device to auto"
    ):
        find_device(name)


def test_a_run_without_config_or_weights_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run"):
        Run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="Nothing has been saved"):
        create_run(RECIPE, corpus, tmp_path / "run").model()
