"""The Python API of runs: every command is one function, without a terminal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import logosphere as ls
from logosphere.networks.config import NetworkConfig
from logosphere.runs.loop import Event, Saved, StepTaken, Validated


@pytest.fixture
def config(prose: Path) -> ls.TrainConfig:
    return ls.TrainConfig(
        system="mdlm", data=str(prose), length=16, batch=4, steps=6, validations=2, validation_sequences=8,
        device="cpu", precision="float32", network=NetworkConfig(width=16, depth=1, heads=2),
    )  # fmt: skip


@pytest.fixture
def run(config: ls.TrainConfig, tmp_path: Path) -> ls.Run:
    return ls.train(config, tmp_path / "run")


def test_training_leaves_a_complete_run(config: ls.TrainConfig, tmp_path: Path) -> None:
    events: list[Event] = []
    run = ls.train(config, tmp_path / "run", on_event=events.append)
    assert [type(event) for event in events].count(StepTaken) == 6
    assert isinstance(events[-1], Saved) and any(isinstance(event, Validated) for event in events)
    assert run.config == config
    report = ls.Report.load(run.path / "eval" / "valid.json")
    assert report.kind == "bound" and report.bits > 0
    assert [path.name for path in (run.path / "samples").iterdir()] == ["step-00000006.txt"]
    with pytest.raises(ls.UserError, match="exists already"):
        ls.train(config, tmp_path / "run")


def test_a_stopped_training_is_resumed_to_the_same_weights(config: ls.TrainConfig, tmp_path: Path) -> None:
    uninterrupted = ls.train(config, tmp_path / "straight")
    calls = iter(range(100))
    stopped = ls.train(config, tmp_path / "stopped", should_stop=lambda: next(calls) >= 3)
    assert not (stopped.path / "eval" / "valid.json").exists()
    resumed = ls.resume(stopped.path)
    ours, theirs = (found.model().state_dict() for found in (resumed, uninterrupted))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_is_evaluated_sampled_and_exported(run: ls.Run, tmp_path: Path) -> None:
    settings = ls.EvaluateConfig(sequences=8, draws=2)
    report = ls.evaluate_run(run, settings)
    assert report == replace(ls.evaluate_run(str(run.path), settings), seconds=report.seconds)
    samples = ls.sample_run(run, ls.SampleConfig(n=2, steps=4, prompt="the ", seed=1), record=True)
    assert len(samples.texts) == 2 and all(text.startswith("the ") for text in samples.texts)
    assert samples.trajectory is not None and samples.nfe <= 4
    again = ls.sample_run(run.path, ls.SampleConfig(n=2, steps=4, prompt="the ", seed=1))
    assert again.texts == samples.texts and again.trajectory is None
    exported, record = ls.export_run(run, tmp_path / "small", settings, samples=1, steps=4)
    assert exported.bits == report.bits and record.bits > 0
    assert ls.load(tmp_path / "small").length == 16


def test_systems_are_compared(config: ls.TrainConfig, tmp_path: Path) -> None:
    compared = ls.compare_runs(
        ls.CompareConfig(
            systems="ar,mdlm", config=config, out=tmp_path / "both", measure=ls.EvaluateConfig(sequences=8, draws=2),
            report=tmp_path / "out.html", samples=replace(ls.CompareConfig().samples, samples=2, sampling_steps=(2,)),
        )
    )  # fmt: skip
    assert {row.name for row in compared.rows} == {"ar", "mdlm"} and not compared.stopped
    assert [path.suffix for path in compared.files] == [".html", ".md", ".json"]
    assert {entry["name"] for entry in json.loads(compared.files[2].read_text())["entries"]} == {"ar", "mdlm"}
