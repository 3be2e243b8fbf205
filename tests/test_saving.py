"""Saved files: models load as they were saved, damaged files are refused, and crashes lose no checkpoint."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere import pretrained
from logosphere.errors import UserError
from logosphere.io import current_name, load_strict, read_recipe, read_tensors, write_atomic, write_json, write_tensors
from logosphere.training.checkpoint import latest, load_checkpoint, save_checkpoint
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

LANGUAGE = skewed_chain(5, 6)
TOKENS = LANGUAGE.sample(8, generator(1))


def predict(model) -> torch.Tensor:
    with torch.no_grad():
        u, z = model.process.codec.encode(TOKENS), model.corrupt(TOKENS, torch.tensor(0.5), generator(1))
        return model.eval().denoiser(z, torch.full(z.shape[:2], 0.5), u)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, options", [*[(name, {}) for name in ls.systems()], ("mdlm", {"block": 3, "schedule": "cosine"})]
)
def test_a_loaded_model_gives_the_same_predictions(name: str, options: dict, tmp_path: Path) -> None:
    model = random_network(name, LANGUAGE, **options)
    model.save(tmp_path / "model")
    loaded = ls.load(tmp_path / "model")
    assert torch.equal(predict(loaded), predict(model))
    assert loaded.spec == model.spec and not loaded.training
    assert torch.equal(ls.sample(loaded, 4, 6, generator(2)), ls.sample(model, 4, 6, generator(2)))


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    plain, averaged = random_network("mdlm", LANGUAGE, seed=1), random_network("mdlm", LANGUAGE, seed=2)
    plain.save(tmp_path)
    write_tensors(tmp_path / "ema.safetensors", averaged.state_dict())
    assert torch.equal(predict(ls.load(tmp_path)), predict(averaged))


@pytest.mark.parametrize("name", pretrained.list_pretrained())
def test_tensors_of_bundled_checkpoints_get_their_current_names(name: str) -> None:
    file = pretrained.resolve_folder(f"pretrained:{name}") / "model.safetensors"
    expected = ls.load(file.parent).state_dict().keys()
    assert {current_name(found, expected) for found in read_tensors(file)} == expected
    if name == "rdlm":
        assert "process.clock.measured" in load_file(file) and "process.time_sampler.measured" in expected


def test_tensor_names_of_earlier_versions_are_migrated() -> None:
    """A name is only migrated to one that the model has, so that reused names stay."""
    names = {
        "process.clock.seen": "process.time_sampler.seen",
        "process.path.clock.measured": "process.time_sampler.measured",
        "process.path.codec.a.weight": "process.codec.a.weight",
        "process.price": "process.recon_ema",
        "process.done": "process.progress",
        "denoiser.inner.stem.weight": "process.codec.weight",
    }
    assert [current_name(name, names.values()) for name in names] == [*names.values()]
    assert [current_name(name, names.keys()) for name in names] == [*names.keys()]


def damaged_tensors(kind: str) -> dict[str, torch.Tensor]:
    tensors = dict(random_network("mdlm", LANGUAGE).state_dict())
    name = next(iter(tensors))
    if kind == "lacks":
        del tensors[name]
    elif kind == "has not":
        tensors["stranger"] = torch.zeros(1)
    elif kind == "shape":
        tensors[name] = tensors[name][:-1]
    else:
        tensors[name] = tensors[name] * float(kind.removeprefix("not finite "))
    return tensors


@pytest.mark.parametrize("kind", ["lacks", "has not", "shape", "not finite nan", "not finite inf"])
def test_tensors_of_another_model_are_refused_without_side_effects(kind: str) -> None:
    model = random_network("mdlm", LANGUAGE)
    before = predict(model)
    with pytest.raises(UserError, match=kind.removesuffix(" nan").removesuffix(" inf")):
        load_strict(model, damaged_tensors(kind), Path("weights.safetensors"))
    assert torch.equal(predict(model), before)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, None])
def test_a_damaged_weights_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    random_network("mdlm", LANGUAGE).save(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match="damaged"):
        ls.load(tmp_path)


@pytest.mark.parametrize(
    "recipe, message",
    [
        ("{", "damaged"),
        ("[]", "not written by Logosphere"),
        ('{"format": "other"}', "not written by Logosphere"),
        ('{"format": "logosphere-model", "version": 99}', "newer version"),
        ('{"format": "logosphere-model", "version": "1"}', "version"),
        ('{"format": "logosphere-model", "version": 1}', "specification of a model"),
        ('{"format": "logosphere-model", "version": 1, "model": {"system": "mdlm"}}', "specification of a model"),
    ],
)
def test_a_damaged_or_foreign_recipe_is_refused(recipe: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(recipe)
    with pytest.raises(UserError, match=message):
        ls.load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "nowhere", "no folder"), (tmp_path, "recipe.json is missing")):
        with pytest.raises(UserError, match=message):
            ls.load(path)
    random_network("mdlm", LANGUAGE).save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="missing"):
        ls.load(tmp_path)
    with pytest.raises(UserError, match="missing"):
        read_tensors(tmp_path / "ema.safetensors")


def test_a_recipe_records_the_format_version(tmp_path: Path) -> None:
    random_network("mdlm", LANGUAGE).save(tmp_path)
    assert (
        read_recipe(tmp_path / "recipe.json")["version"]
        == json.loads((tmp_path / "recipe.json").read_text())["version"]
    )


def test_a_model_without_a_spec_cannot_be_saved(tmp_path: Path) -> None:
    model = random_network("mdlm", LANGUAGE)
    model.spec = None
    with pytest.raises(UserError, match="made in another way"):
        model.save(tmp_path)


# ---- atomic writes ---------------------------------------------------------------------------------------------


class Crash(Exception):
    """Stands for the death of the process."""


def crash_after(renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise Crash in place of every rename after the given number of them."""
    replace, left = os.replace, [renames]

    def rename(source, target) -> None:
        if left[0] == 0:
            raise Crash
        left[0] -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", rename)


def test_a_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old")
    crash_after(0, monkeypatch)
    with pytest.raises(Crash):
        write_atomic(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def make_trainer(steps: int = 0) -> Trainer:
    trainer = Trainer(random_network("mdlm", LANGUAGE), ema=0.9)
    advance(trainer, steps)
    return trainer


def advance(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.train_step(Batch.of(TOKENS), 0.0)


def have_equal_state(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    averages = zip(one.ema.shadow, other.ema.shadow, strict=True)
    return all(torch.equal(a, b) for a, b in (*pairs, *averages)) and one.step == other.step


def test_a_checkpoint_restores_the_whole_state(tmp_path: Path) -> None:
    one = make_trainer(3)
    save_checkpoint(tmp_path, one, {"note": 1})
    other = make_trainer()
    assert load_checkpoint(latest(tmp_path), other) == {"note": 1}
    assert have_equal_state(one, other) and other.tokens == one.tokens
    advance(one, 3)
    advance(other, 3)
    assert have_equal_state(one, other)


def test_only_the_latest_checkpoint_is_kept(tmp_path: Path) -> None:
    trainer = make_trainer(1)
    assert latest(tmp_path) is None
    for _ in range(3):
        save_checkpoint(tmp_path, trainer, {})
        advance(trainer, 1)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000003"]


@pytest.mark.parametrize("again", [False, True], ids=["later", "same-step"])
@pytest.mark.parametrize("renames", range(7))
def test_a_crash_while_saving_loses_nothing(renames: int, again: bool, tmp_path: Path, monkeypatch) -> None:
    """Saving renames six times: three weight files, the state, the folder and the pointer to it."""
    trainer, old = make_trainer(2), make_trainer(2)
    save_checkpoint(tmp_path, trainer, {})
    advance(trainer, 0 if again else 1)
    with monkeypatch.context() as patch:
        crash_after(renames, patch)
        try:
            save_checkpoint(tmp_path, trainer, {})
        except Crash:
            assert renames < 6
    read = make_trainer()
    load_checkpoint(latest(tmp_path), read)
    assert have_equal_state(read, trainer if renames == 6 else old)
    save_checkpoint(tmp_path, trainer, {})
    load_checkpoint(latest(tmp_path), read)
    assert have_equal_state(read, trainer)


@pytest.mark.parametrize("file", ["model", "ema", "optimizer", "state"])
def test_a_damaged_checkpoint_is_refused(file: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_trainer(1), {})
    (path,) = latest(tmp_path).glob(f"{file}.*")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(latest(tmp_path), make_trainer())


@pytest.mark.parametrize("damage", ["exp_avg", "shape"])
def test_moments_of_another_model_are_refused(damage: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_trainer(1), {})
    path = latest(tmp_path) / "optimizer.safetensors"
    tensors = read_tensors(path)
    write_tensors(path, {n: t for n, t in tensors.items() if n != "0.exp_avg"} if damage == "exp_avg" else
                  tensors | {"0.exp_avg": torch.zeros(3)})  # fmt: skip
    with pytest.raises(UserError, match="belong"):
        load_checkpoint(latest(tmp_path), make_trainer())


def test_an_invalid_checkpoint_pointer_is_refused(tmp_path: Path) -> None:
    for content, message in (({"checkpoint": "step-00000009"}, "missing"), ([], "damaged")):
        write_json(tmp_path / "latest.json", content)
        with pytest.raises(UserError, match=message):
            latest(tmp_path)
