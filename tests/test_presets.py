"""Presets: `default` is the default of this package, `paper` the published system; every difference has a reason."""

import json
from dataclasses import fields, replace

import pytest
import torch
from tiny_encoder import use_tiny_encoder

import logosphere as ls
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.model import Spec
from logosphere.runs.config import TrainConfig, config_from_dict
from logosphere.systems import ASPECTS, DEFAULT, preset_label
from logosphere.training.optimizer import OptimizerConfig

SIZE = {"width": 16, "depth": 1, "heads": 2}
UNPUBLISHED = {"rdlm-heat", "gaussian-ce", "simplex"}
"""Systems that follow no paper exactly."""
PUBLISHED = [(name, preset) for name in ls.systems() for preset in ls.presets(name) if preset != DEFAULT]
IDS = ["-".join(pair) for pair in PUBLISHED]


def test_every_system_with_a_paper_has_its_preset() -> None:
    assert {name for name, preset in PUBLISHED if preset == "paper"} == set(ls.systems()) - UNPUBLISHED
    assert all(next(iter(ls.presets(name))) == DEFAULT for name in ls.systems())


@pytest.mark.parametrize(("name", "preset"), PUBLISHED, ids=IDS)
def test_every_difference_is_stated_with_its_reason(name: str, preset: str) -> None:
    found, defaults = ls.presets(name)[preset], ls.options(name)
    named = [aspect.name for aspect in found.aspects]
    assert named == [aspect for aspect in ASPECTS if aspect in named], "aspects come once each, in their order"
    assert set(named) >= set(ASPECTS) - {"network"}
    assert found.source and found.checked
    for aspect in found.aspects:
        assert aspect.paper
        assert bool(aspect.default) == bool(aspect.reason), f"{aspect.name}: a difference has a reason"
        assert not aspect.options or aspect.default, f"{aspect.name}: options make a difference, which must be stated"
        for option, value in aspect.options.items():
            assert option in defaults, f"'{option}' is no option of {name}"
            assert value != defaults[option], f"{option}={value} is the default of {name}"
    assert set(found.optim) <= {field.name for field in fields(OptimizerConfig)}
    OptimizerConfig(**found.optim)  # the settings are valid


@pytest.mark.parametrize(("name", "preset"), PUBLISHED, ids=IDS)
def test_every_preset_trains_evaluates_and_samples(name: str, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_encoder(monkeypatch, 9)  # in place of pretrained encoders, which are an extra
    found = ls.presets(name)[preset]
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=9, length=8, preset=preset, **SIZE)
    tokens = torch.randint(9, (8, 8), generator=torch.Generator().manual_seed(1))
    before = [p.detach().clone() for p in model.parameters()]
    losses = [
        p.loss
        for p in ls.fit(model, [tokens, tokens], steps=2, optim=OptimizerConfig(**(dict(found.optim) | {"warmup": 0})))
    ]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    bound = model.eval().nelbo(tokens, 2, draws=2)
    assert bool(torch.isfinite(bound.total).all()) and bound.kind in ("exact", "bound", "surrogate")
    assert model.sampler == (found.sampler or ls.system(name).sampler)
    drawn = ls.sample(model, n=3, steps=4, rng=3)
    assert drawn.shape == (3, 8) and int(drawn.min()) >= 0 and int(drawn.max()) < 9


def test_saved_models_keep_their_preset(tmp_path) -> None:
    model = ls.build("mdlm", vocab_size=5, length=6, preset="paper", loss="cross-entropy", **SIZE)
    model.save(tmp_path)
    again = ls.load(tmp_path)
    assert again.spec == model.spec and again.spec is not None
    assert again.spec.preset == "paper" and again.spec.options["loss"] == "cross-entropy"
    assert again.sampler == model.sampler


def test_an_explicit_option_overrides_the_preset_and_is_named() -> None:
    model = ls.build("mdlm", vocab_size=5, length=6, preset="paper", loss="cross-entropy", **SIZE)
    assert model.spec is not None and preset_label(model.spec) == "paper with loss=cross-entropy"
    report = ls.evaluate(model, [torch.zeros(2, 6, dtype=torch.long)], rng=0)
    assert report.preset == preset_label(model.spec) and "preset paper with loss=cross-entropy" in str(report)
    assert preset_label(Spec("mdlm", 3, 4, {"loss": "bound"})) == "default"


def test_unknown_presets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="'mdlm' has no preset 'papr'; it has default, paper"):
        ls.build("mdlm", vocab_size=5, length=6, preset="papr")
    with pytest.raises(UserError, match="'gaussian-ce' has no preset 'paper'"):
        ls.build("gaussian-ce", vocab_size=5, length=6, preset="paper")
    with pytest.raises(UserError, match="no system 'mdml'"):
        ls.presets("mdml")
    for argv in (["train", "--system", "mdlm", "--preset", "papr"], ["systems", "mdml"]):
        assert main(argv) != 0
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1 and error.startswith("logosphere: ")


def test_a_config_takes_the_optimiser_of_a_preset_unless_given() -> None:
    paper = ls.presets("mdlm")["paper"]
    made = TrainConfig(system="mdlm").with_preset("paper")
    assert made.optim == replace(OptimizerConfig(), **paper.optim) and made.ema == paper.ema
    assert made.network.dropout == paper.options["dropout"]
    read = config_from_dict({"system": "mdlm", "preset": "paper", "optim": {"lr": 0.5}}, "here")
    assert read.optim == replace(made.optim, lr=0.5) and read.network == made.network
    common = TrainConfig(system="mdlm")
    assert common.with_preset("paper", optimiser=False).optim == common.optim


def test_train_takes_a_preset(tmp_path, monkeypatch, prose, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["train", "--system", "mdlm", "--preset", "paper", "--data", str(prose), "--length", "16", "--batch", "4"]
    argv += ["--steps", "2", "--out", "run", "--optim.warmup", "1", "--json"]
    argv += ["--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
    assert main(argv) == 0
    capsys.readouterr()
    content = json.loads((tmp_path / "run" / "recipe.json").read_bytes())
    paper = ls.presets("mdlm")["paper"]
    assert content["recipe"]["preset"] == content["model"]["preset"] == "paper"
    assert content["recipe"]["optim"] == vars(replace(OptimizerConfig(), **(dict(paper.optim) | {"warmup": 1})))
    assert content["model"]["options"]["dropout"] == paper.options["dropout"]
    assert paper.options.items() <= content["model"]["options"].items()


def test_systems_shows_presets_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systems", "mdlm"]) == 0
    shown = capsys.readouterr().out
    assert "weighting" in shown and "default" in shown and "paper" in shown
    assert main(["systems", "mdlm", "--json"]) == 0
    description = json.loads(capsys.readouterr().out)
    assert (
        description["presets"][0]["name"] == "paper"
        and description["presets"][0]["aspects"][0]["name"] == "parameterisation"
    )
    assert main(["systems", "gaussian-ce"]) == 0
    assert "only preset is default" in capsys.readouterr().out
