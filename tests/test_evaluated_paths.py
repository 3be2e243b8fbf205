"""The two paths of rdlm-heat: a report names its path and also contains the bound along the other path."""

from dataclasses import replace
from pathlib import Path

import pytest

import logosphere as ls
from logosphere.cli import main
from logosphere.networks.config import NetworkConfig


@pytest.fixture
def run(prose: Path, tmp_path: Path) -> ls.Run:
    config = ls.TrainConfig(
        system="rdlm-heat", options=("any_order_fraction=0.5",), data=str(prose), length=16, batch=4, steps=4,
        validations=1, validation_sequences=8,
        device="cpu", precision="float32", network=NetworkConfig(width=16, depth=1, heads=2),
    )  # fmt: skip
    return ls.train(config, tmp_path / "run")


SETTINGS = ls.EvaluateConfig(sequences=8, draws=2)


def test_report_has_the_bounds_of_both_trained_paths(run: ls.Run, tmp_path: Path) -> None:
    joint = ls.evaluate_run(run, SETTINGS)
    any_order = ls.evaluate_run(run, SETTINGS, options=("path=any-order",))
    assert joint.path == "joint" and [other.path for other in joint.other_paths] == ["any-order"]
    assert any_order.path == "any-order" and [other.path for other in any_order.other_paths] == ["joint"]
    for report, other in ((joint, any_order.other_paths[0]), (any_order, joint.other_paths[0])):
        assert (report.kind, report.bits, report.error) == (other.kind, other.bits, other.error)
    joint.save(tmp_path / "report.json")
    assert ls.Report.load(tmp_path / "report.json") == joint
    single = ls.evaluate_run(run, SETTINGS, other_paths=False)
    assert single == replace(joint, other_paths=(), seconds=single.seconds)


def test_a_path_without_training_states_is_not_reported(run: ls.Run) -> None:
    report = ls.evaluate_run(run, SETTINGS, options=("any_order_fraction=0.0", "posterior_head=false"))
    assert report.path == "joint" and report.other_paths == ()


def test_evaluate_prints_both_paths_and_the_system(run: ls.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run.path), "--sequences", "8", "--draws", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("run (rdlm-heat) on ") and "(bound, joint path;" in printed
    assert "(bound, any-order path)" in printed


def test_processes_with_a_single_path_have_no_other(prose: Path) -> None:
    model = ls.build("mdlm", vocab_size=5, length=8, width=16, depth=1, heads=2)
    with pytest.raises(ls.UserError, match="single path"):
        model.with_path("joint")
