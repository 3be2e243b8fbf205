"""Migration: folders of earlier format versions open with the same numbers, and are saved in the current one.

tests/migration/version2 holds models and runs written by the last code of version 2, and their bounds.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import logosphere as ls
from logosphere.cli import main
from logosphere.migration import OPTIONS_3, VERSION, migrate
from logosphere.runs.config import read_config_file
from logosphere.runs.run import Run

FOLDER = Path(__file__).parent / "migration" / "version2"
BOUNDS = json.loads((FOLDER / "bounds.json").read_text())
RUNS = [name for name in BOUNDS if name.endswith("-run")]


def content(system: str, **options: object) -> dict:
    return {"version": 2, "model": {"system": system, "vocab_size": 5, "length": 8, "options": options}}


@pytest.mark.parametrize("name", BOUNDS)
def test_folders_of_version_2_open_with_the_same_bound(name: str, tmp_path: Path) -> None:
    model = ls.load(FOLDER / name)
    tokens = torch.randint(5, (4, 8), generator=torch.Generator().manual_seed(2))
    bound = model.nelbo(tokens, torch.Generator().manual_seed(3), draws=4)
    assert bound.kind == BOUNDS[name]["kind"]
    assert bound.total.tolist() == pytest.approx(BOUNDS[name]["total"], rel=1e-6)
    model.save(tmp_path)
    saved = json.loads((tmp_path / "recipe.json").read_text())
    assert saved["version"] == VERSION == 4
    again = ls.load(tmp_path).nelbo(tokens, torch.Generator().manual_seed(3), draws=4)
    assert torch.equal(again.total, bound.total)


@pytest.mark.parametrize("name", RUNS)
def test_run_config_has_the_options_of_its_model(name: str) -> None:
    run = Run(FOLDER / name)
    options = run.config.system_options()
    assert options == {key: run.spec.options[key] for key in options}
    assert ls.build(run.spec.system, vocab_size=5, length=8, **options).spec is not None
    assert read_config_file(FOLDER / name / "recipe.json") == run.config


def test_a_run_of_version_2_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is complete, so resuming restores the optimiser state and evaluates the model again."""
    for name in ("rdlm-heat-run", "text.txt"):
        copy = shutil.copytree if (FOLDER / name).is_dir() else shutil.copy
        copy(FOLDER / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    old = json.loads(Path("rdlm-heat-run/eval/valid.json").read_text())["bits"]
    assert main(["train", "--resume", "--out", "rdlm-heat-run"]) == 0
    assert json.loads(Path("rdlm-heat-run/eval/valid.json").read_text())["bits"] == pytest.approx(old, rel=1e-6)


def test_options_of_runs_are_renamed() -> None:
    assert Run(FOLDER / "mdlm-run").config.options == ("time_conditional=true",)
    renamed = ("path=any-order", "any_order_fraction=0.3", "time_sampler=even")
    head = ("subtract_input_embedding=false", "posterior_head=false")
    assert Run(FOLDER / "rdlm-heat-run").config.options == (*renamed, *head)
    assert Run(FOLDER / "rdlm-heat-default-run").config.options == ("path=any-order", "any_order_fraction=0.5", *head)


@pytest.mark.parametrize(
    "options, path, fraction",
    [
        ({}, "any-order", 0.5),
        ({"path": "together"}, "joint", 0.0),
        ({"path": "together", "any_order_fraction": 0.25}, "joint", 0.25),
        ({"path": "in-turn", "stagger": 0.5}, "any-order", 0.5),
        ({"stagger": 0.5}, "joint", 0.0),
        ({"timesteps": 8}, "joint", 0.0),
        ({"start": "step:0.35"}, "joint", 0.0),
        ({"start": "uniform"}, "any-order", 0.5),
        ({"loss": "drift"}, "any-order", 0.0),
        ({"switch": 0.5}, "any-order", 0.0),
    ],
)
def test_former_defaults_of_rdlm_heat_become_explicit_options(options: dict, path: str, fraction: float) -> None:
    found = migrate(content("rdlm-heat", **options), "recipe.json")["model"]["options"]
    assert (found["path"], found["any_order_fraction"]) == (path, fraction)
    assert "path" not in migrate(content("rdlm"), "recipe.json")["model"]["options"]


def test_every_former_option_has_a_successor() -> None:
    for renamed in OPTIONS_3:
        for system in renamed.systems:
            assert renamed.new in ls.options(system), (system, renamed)


@pytest.mark.parametrize(
    "system, options, message",
    [
        ("mdlm", {"reads_time": True}, "'reads_time' of 'mdlm' is now 'time_conditional'"),
        ("rdlm", {"path": "together"}, "path=together of 'rdlm' is now path=joint"),
        ("gidd", {"own_embedding": True}, "own_embedding=True of 'gidd' is now subtract_input_embedding=False"),
        ("bfn", {"clock": "even"}, "is now 'time_sampler'"),
        ("ld4lg", {"last": 3.0}, "is now 'max_logsnr'"),
    ],
)
def test_former_names_are_refused_with_the_current_ones(system: str, options: dict, message: str) -> None:
    with pytest.raises(ls.UserError, match=message):
        ls.build(system, vocab_size=5, length=8, denoiser=None, **options)


def test_version_1_networks_had_no_neighbours() -> None:
    old = content("mdlm", width=8) | {"version": 1, "recipe": {"system": "mdlm", "network": {"width": 8}}}
    new = migrate(old, "recipe.json")
    assert new["model"]["options"]["neighbours"] == 0 and new["recipe"]["network"]["neighbours"] == 0
    assert "neighbours" not in old["model"]["options"], "the content itself is not changed"


def test_classifiers_follow_the_options_of_their_model() -> None:
    about = {"noise": {"system": "mdlm", "options": {"reads_time": True}}, "network": {"width": 8}}
    new = migrate({"version": 2, "classifier": about}, "classifier.json")["classifier"]
    assert new == {"noise": {"system": "mdlm", "options": {"time_conditional": True}}, "network": {"width": 8}}
