"""Every file of a checkpoint has a recorded sha256, and another file in its place is refused when it is read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import RECIPE

import logosphere as ls
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.pretrained import hashes
from logosphere.pretrained.hashes import HASHES, recorded_sha256, write_hashed
from logosphere.runs.create import create_run
from logosphere.runs.evaluate import export_run
from logosphere.runs.loop import run_training
from logosphere.runs.publish import publish_run
from logosphere.runs.run import Run
from logosphere.runs.settings import AuxiliaryConfig, EvaluateConfig
from logosphere.runs.train import train_remasker_of


@pytest.fixture
def run(corpus: Corpus, tmp_path: Path) -> Run:
    config = replace(RECIPE, system="g-star", steps=2, validations=1, data=str(tmp_path / "text.txt"))
    made = create_run(config, corpus, tmp_path / "run")
    list(run_training(made, corpus))
    return made


def change(path: Path) -> None:
    """Other weights of the same names, shapes and types, or one more byte."""
    if path.suffix == ".json":
        path.write_text(path.read_text() + " ")
    else:
        tensors = {name: tensor + 1 for name, tensor in load_file(path).items()}
        path.unlink()  # it may be a link
        save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "weights"), [("best.safetensors", "best"), ("ema.safetensors", "ema"), ("model.safetensors", "model")]
)
def test_weights_of_a_run_are_compared(name: str, weights: str, run: Run) -> None:
    run.model(weights)
    change(run.path / name)
    with pytest.raises(UserError, match="sha256"):
        run.model(weights)
    if weights == "ema":
        with pytest.raises(UserError, match="sha256"):
            ls.load(run.path)


def test_tokenizers_are_compared(run: Run) -> None:
    change(run.path / "tokenizer.json")
    for read in (lambda: run.tokenizer, lambda: ls.load(run.path), lambda: publish_run(run, "hf:a/b", dry_run=True)):
        with pytest.raises(UserError, match="sha256"):
            read()


def test_the_remasker_is_compared(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was trained anew."""
    monkeypatch.chdir(run.path.parent)
    for seed in (0, 1):
        train_remasker_of(Run(run.path, trust_references=True), AuxiliaryConfig(steps=1, batch=2, seed=seed))
        run.model()
    change(run.path / "remasker.safetensors")
    with pytest.raises(UserError, match="sha256"):
        run.model()


def test_folders_of_earlier_versions_are_read(run: Run) -> None:
    recipe = run.path / "recipe.json"
    content = json.loads(recipe.read_bytes())
    recipe.write_text(json.dumps({name: value for name, value in content.items() if name != "files"}))
    (run.path / HASHES).unlink()
    for name in ("best.safetensors", "tokenizer.json"):
        assert recorded_sha256(run.path, name) is None
    Run(run.path).model("best")
    assert ls.load(run.path).tokenizer is not None


@pytest.mark.parametrize("text", ["[]", "{", '{"best.safetensors": []}', '{"best.safetensors": "x"}', '{"a": [1]}'])
def test_damaged_hashes_are_named(text: str, run: Run) -> None:
    (run.path / HASHES).write_text(text)
    with pytest.raises(UserError, match="hashes.json is damaged"):
        run.model("best")


def test_a_kill_while_a_file_is_replaced_leaves_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each renaming the file has a recorded hash."""
    ls.build("mdlm", vocab_size=5, length=4, width=8, depth=1, heads=1).save(tmp_path)
    rename, seen = hashes.replace_file, []

    def observe(source: Path, target: Path) -> None:
        if (tmp_path / "x.safetensors").exists():
            seen.append(check())
        rename(source, target)
        seen.append(check())

    def check() -> bool:
        return hashes.file_sha256(tmp_path / "x.safetensors") == recorded_sha256(tmp_path, "x.safetensors")

    monkeypatch.setattr(hashes, "replace_file", observe)
    for value in range(3):
        write_hashed(tmp_path, "x.safetensors", {"x": torch.full((2,), float(value))})
    assert seen == [True] * 5 and check()
    assert len(json.loads((tmp_path / HASHES).read_bytes())["x.safetensors"]) == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_saved_exported_and_published_folders_record_all_files(run: Run, corpus: Corpus, tmp_path: Path) -> None:
    model = ls.build("mdlm", vocab_size=corpus.tokenizer.size, length=8, width=8, depth=1, heads=1)
    model.tokenizer = corpus.tokenizer
    model.save(tmp_path / "saved")
    trusted = Run(run.path, trust_references=True)
    data = str(tmp_path / "text.txt")
    export_run(trusted, tmp_path / "exported", EvaluateConfig(data=data, sequences=2, draws=1))
    for name in ("saved", "exported"):
        files = json.loads((tmp_path / name / "recipe.json").read_bytes())["files"]
        assert files.keys() == {"model.safetensors", "tokenizer.json"}
        for file in files:
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / name, copy)
            change(copy / file)
            with pytest.raises(UserError, match="sha256"):
                ls.load(copy)
            shutil.rmtree(copy)
