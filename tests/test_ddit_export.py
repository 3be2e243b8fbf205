"""Networks with body=ddit: trained like others, and written under published names such that they are read back."""

import json
from pathlib import Path

import pytest
import torch
from cli_helpers import error_line, train
from ddit_fixtures import Reference, Shape, import_folder
from safetensors.torch import load_file

import logosphere as ls
from logosphere.checkpoints.ddit_export import export_ddit
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

LENGTH, TOKENS = 8, 6


def trained(steps: int = 3, **options: object) -> Model:
    """A small model after a few steps, so that no weight is 0."""
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=TOKENS, length=LENGTH, width=16, depth=2, heads=2, body="ddit", **options)  # type: ignore[arg-type]
    trainer = Trainer(model)
    tokens = torch.arange(TOKENS).repeat(2 * LENGTH)[: 4 * LENGTH].view(4, LENGTH)
    for _ in range(steps):
        trainer.train_step(Batch.of(tokens), 0.0)
    return model.eval()


def states(model: Model) -> torch.Tensor:
    tokens = torch.randint(TOKENS, (5, LENGTH), generator=torch.Generator().manual_seed(0))
    return model.corrupt(tokens, 0.6, 0)


def test_training_learns() -> None:
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=TOKENS, length=LENGTH, width=16, depth=2, heads=2, body="ddit")
    trainer, tokens = Trainer(model), torch.arange(LENGTH).remainder(TOKENS).repeat(16, 1)
    before = float(model.eval().nelbo(tokens, 0, draws=8).total.mean())
    model.train()
    for step in range(100):
        trainer.train_step(Batch.of(tokens), step / 100)
    after = float(model.eval().nelbo(tokens, 0, draws=8).total.mean())
    assert after < 0.6 * before  # where all is masked, a network with relative positions alone cannot tell them apart


def test_exported_models_are_imported_with_the_same_predictions(tmp_path: Path) -> None:
    model = trained()
    export_ddit(model, tmp_path / "out")
    found, z = import_folder(tmp_path / "out"), states(model)
    assert found.spec is not None and found.spec.system == "mdlm" and found.vocab_size == TOKENS
    assert torch.equal(found.log_posterior(z, 0.6), model.log_posterior(z, 0.6))


def test_exported_tensors_have_the_published_names_and_meaning(tmp_path: Path) -> None:
    """The forward pass of the formulas over the written file gives the predictions of the model."""
    model, shape = trained(), Shape(TOKENS + 1, 16, 2, 2, 128, LENGTH)
    export_ddit(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["model_length"]) == ("mdlm", TOKENS + 1, LENGTH)
    assert (config["cond_dim"], config["n_blocks"], config["time_conditioning"]) == (128, 2, False)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert all(name.startswith("backbone.") for name in tensors)
    reference = Reference({name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}, shape)
    z = torch.full((1, LENGTH), TOKENS)
    out = torch.from_numpy(reference.logits(z[0].numpy(), torch.zeros(LENGTH).numpy()))[:, :TOKENS].log_softmax(-1)
    assert torch.allclose(model.log_posterior(z, 0.6)[0].double(), out, atol=1e-5)


def test_saved_models_are_loaded_alike(tmp_path: Path) -> None:
    model = trained()
    model.save(tmp_path / "run")
    z = states(model)
    assert torch.equal(ls.load(tmp_path / "run").log_posterior(z, 0.6), model.log_posterior(z, 0.6))


@pytest.mark.parametrize("system", ["gidd", "udlm", "sedd-absorb", "md4"])
def test_other_systems_train_with_it_too(system: str) -> None:
    model = ls.build(system, vocab_size=TOKENS, length=LENGTH, width=16, depth=1, heads=2, body="ddit")
    tokens = torch.zeros(4, LENGTH, dtype=torch.long)
    Trainer(model).train_step(Batch.of(tokens), 0.0)
    assert bool(torch.isfinite(model.eval().nelbo(tokens, 0).total).all())


class TestRefusals:
    """Models that the layout cannot hold: nothing is written."""

    def refuse(self, model: Model, folder: Path, words: str) -> None:
        with pytest.raises(UserError, match=words):
            export_ddit(model, folder)
        assert not folder.exists()

    def test_other_networks(self, tmp_path: Path) -> None:
        model = ls.build("mdlm", vocab_size=TOKENS, length=LENGTH, width=16, depth=1, heads=2)
        self.refuse(model, tmp_path / "out", "body=transformer")

    def test_other_systems(self, tmp_path: Path) -> None:
        model = ls.build("gidd", vocab_size=TOKENS, length=LENGTH, width=16, depth=1, heads=2, body="ddit")
        self.refuse(model, tmp_path / "out", "this is gidd that reads the time")
        self.refuse(trained(0, time_conditional=True), tmp_path / "out", "mdlm that reads the time")

    def test_imported_models(self, tmp_path: Path) -> None:
        export_ddit(trained(), tmp_path / "first")
        self.refuse(import_folder(tmp_path / "first"), tmp_path / "out", "imported")

    def test_states_that_are_no_tokens(self) -> None:
        with pytest.raises(UserError, match="body=ddit reads token ids"):
            ls.build("rdlm", vocab_size=TOKENS, length=LENGTH, width=16, depth=1, heads=2, body="ddit")


def test_the_command_writes_the_averaged_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train("--network.body", "ddit") == 0
    assert main(["export", "run", "--layout", "ddit", "--out", "out"]) == 0
    found, model = import_folder(tmp_path / "out"), ls.load("run")
    z = model.corrupt(torch.zeros(2, 16, dtype=torch.long), 0.6, 0)
    assert torch.equal(found.log_posterior(z, 0.6), model.log_posterior(z, 0.6))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert "exists already" in error_line(capsys, ["export", "run", "--layout", "ddit", "--out", "out"])
    assert train(out="other") == 0
    assert "body=transformer" in error_line(capsys, ["export", "other", "--layout", "ddit", "--out", "second"])
    assert not (tmp_path / "second").exists()
