"""Checkpoints: everything a run needs to go on to the last bit, in folders that appear whole.

    state/step-00001000/   model, ema and optimiser as safetensors, state.json
    state/latest.json      which of them to resume from

A checkpoint is written beside the old one and only then named in latest.json, so there is always a whole one.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from torch import Tensor

from logosphere.atomic import sync_folder, write_json
from logosphere.errors import UserError
from logosphere.training.fit import Training
from logosphere.weights import fill, read_tensors, write_tensors

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(folder: Path, training: Training, extra: dict[str, object]) -> Path:
    """Save a training under `folder`, name it the latest and drop the one before."""
    final = folder / f"step-{training.step:08d}"
    if latest(folder) == final:
        return final  # saved already; to replace it would leave a moment without any
    draft = folder / f".draft-{training.step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _write(draft, training, extra)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(draft, final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_folder(folder)
    write_json(folder / "latest.json", {"checkpoint": final.name})
    for old in folder.glob("step-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def _write(draft: Path, training: Training, extra: dict[str, object]) -> None:
    model, averaged = training.model, training.averaged
    write_tensors(draft / "model.safetensors", model.state_dict())
    if averaged is not None:
        write_tensors(draft / "ema.safetensors", averaged.tensors(model))
    write_tensors(draft / "optimizer.safetensors", _moments(training))
    updates = None if averaged is None else averaged.updates
    write_json(
        draft / "state.json", {"step": training.step, "tokens": training.tokens, "ema_updates": updates, **extra}
    )
    sync_folder(draft)


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None if nothing has been saved yet."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    try:
        name = json.loads(pointer.read_bytes())["checkpoint"]
        found = folder / Path(str(name)).name
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{pointer} is damaged; put the name of a folder step-… beside it into it.") from None
    if not found.is_dir():
        raise UserError(f"The checkpoint {found} is missing; restore it from a copy.")
    return found


def load_checkpoint(path: Path, training: Training) -> dict[str, object]:
    """Put a checkpoint into a training and return what else was saved with it."""
    try:
        state = json.loads((path / "state.json").read_bytes())
        step, tokens, updates = state.pop("step"), state.pop("tokens"), state.pop("ema_updates")
    except (OSError, ValueError, KeyError, AttributeError):
        raise UserError(f"{path / 'state.json'} is missing or damaged; restore it from a copy.") from None
    model, averaged = training.model, training.averaged
    if averaged is not None:
        # The averaged weights pass through the model, whose names they carry; the live ones follow.
        fill(model, read_tensors(path / "ema.safetensors"), path / "ema.safetensors")
        averaged.shadow = [p.detach().clone() for p in averaged.live]
        averaged.updates = int(updates)
    fill(model, read_tensors(path / "model.safetensors"), path / "model.safetensors")
    _restore_moments(training, read_tensors(path / "optimizer.safetensors"), path)
    training.step, training.tokens = int(step), int(tokens)
    return dict(state)


def _moments(training: Training) -> dict[str, Tensor]:
    state = training.optimizer.state_dict()["state"]
    return {f"{index}.{name}": values[name] for index, values in state.items() for name in MOMENTS}


def _restore_moments(training: Training, tensors: dict[str, Tensor], path: Path) -> None:
    saved = training.optimizer.state_dict()
    places = [place for group in saved["param_groups"] for place in group["params"]]
    parameters = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    shapes = {
        f"{place}.{name}": torch.Size() if name == "step" else parameter.shape
        for place, parameter in zip(places, parameters, strict=True)
        for name in MOMENTS
    }
    # Parameters that have had no gradient yet have no moments; those that have some have all of them.
    begun = {place for place in places if f"{place}.step" in tensors}
    expected = {name: shape for name, shape in shapes.items() if int(name.partition(".")[0]) in begun}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise UserError(f"{path / 'optimizer.safetensors'} does not belong to this model; restore it from a copy.")
    saved["state"] = {
        place: {name: tensors[f"{place}.{name}"].to(torch.float32) for name in MOMENTS} for place in begun
    }
    training.optimizer.load_state_dict(saved)
