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

from logosphere.errors import UserError
from logosphere.io import load_strict, read_tensors, sync, write_json, write_tensors
from logosphere.training.trainer import Trainer

STATE = "state.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(folder: Path, trainer: Trainer, extra: dict[str, object]) -> Path:
    """Save a training under `folder`, name it the latest and drop the one before."""
    if (final := saved_already(folder, trainer.step)) is not None:
        return final
    draft = draft_of(folder, trainer.step)
    try:
        _write(draft, trainer, extra)
        return install(folder, draft, trainer.step)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def saved_already(folder: Path, step: int) -> Path | None:
    """The checkpoint of a step, if it is the latest; to replace it would leave a moment without any."""
    final = checkpoint_of(folder, step)
    return final if latest(folder) == final else None


def draft_of(folder: Path, step: int) -> Path:
    """A place where a checkpoint can be written, empty."""
    draft = folder / f".draft-{step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    return draft


def install(folder: Path, draft: Path, step: int) -> Path:
    """Move a whole draft to its place, name it the latest and drop the one before."""
    final = checkpoint_of(folder, step)
    sync(draft)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(draft, final)
    sync(folder)
    write_json(folder / "latest.json", {"checkpoint": final.name})
    for old in folder.glob("step-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoint_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step belongs."""
    return folder / f"step-{step:08d}"


def _write(draft: Path, trainer: Trainer, extra: dict[str, object]) -> None:
    model, averaged = trainer.model, trainer.averaged
    write_tensors(draft / "model.safetensors", model.state_dict())
    if averaged is not None:
        write_tensors(draft / "ema.safetensors", averaged.tensors(model))
    write_tensors(draft / "optimizer.safetensors", _moments(trainer))
    write_json(draft / STATE, counts(trainer) | extra)


def counts(trainer: Trainer) -> dict[str, object]:
    """What a checkpoint says in plain numbers."""
    updates = None if trainer.averaged is None else trainer.averaged.updates
    said: dict[str, object] = {"step": trainer.step, "tokens": trainer.tokens, "ema_updates": updates}
    plain = said | {"usual": trainer.usual_norm}
    return plain if trainer.position is None else plain | {"position": trainer.position}


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None if nothing has been saved yet."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    try:
        name = json.loads(pointer.read_bytes())["checkpoint"]
        found = folder / Path(str(name)).name
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{pointer} is damaged; put the name of a folder step-… beside it into it.") from None
    if not found.is_dir():
        raise UserError(f"The checkpoint {found} is missing; restore it from a copy.")
    return found


def load_checkpoint(path: Path, trainer: Trainer) -> dict[str, float]:
    """Put a checkpoint into a training and return what else was saved with it."""
    rest = restore_counts(path, trainer)
    model, averaged = trainer.model, trainer.averaged
    if averaged is not None:
        # The averaged weights pass through the model, whose names they carry; the live ones follow.
        load_strict(model, read_tensors(path / "ema.safetensors"), path / "ema.safetensors")
        averaged.shadow = [p.detach().clone() for p in averaged.live]
    load_strict(model, read_tensors(path / "model.safetensors"), path / "model.safetensors")
    _restore_moments(trainer, read_tensors(path / "optimizer.safetensors"), path)
    return rest


def restore_counts(path: Path, trainer: Trainer) -> dict[str, float]:
    """The plain numbers of a checkpoint, those of the training put into it and the others returned."""
    try:
        state = json.loads((path / STATE).read_bytes())
        step, tokens, updates = state.pop("step"), state.pop("tokens"), state.pop("ema_updates")
        trainer.step, trainer.tokens, trainer.usual_norm = int(step), int(tokens), float(state.pop("usual", 0.0))
        trainer.position = state.pop("position", None)
        if trainer.averaged is not None:
            trainer.averaged.updates = int(updates)
        return {str(name): float(value) for name, value in state.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{path / STATE} is missing or damaged; restore it from a copy.") from None


def _moments(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.optimizer.adamw.state_dict()["state"]
    return {f"{index}.{name}": values[name] for index, values in state.items() for name in MOMENTS}


def _restore_moments(trainer: Trainer, tensors: dict[str, Tensor], path: Path) -> None:
    saved = trainer.optimizer.adamw.state_dict()
    places = [place for group in saved["param_groups"] for place in group["params"]]
    parameters = [parameter for group in trainer.optimizer.adamw.param_groups for parameter in group["params"]]
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
    trainer.optimizer.adamw.load_state_dict(saved)
