"""Checkpoints: all state that a resumed training needs for identical results, in folders that appear complete.

    state/step-00001000/   model, ema and optimiser as safetensors, state.json
    state/latest.json      which of them to resume from

A checkpoint is written next to the old one and only then named in latest.json, so a complete one always exists.
state.json has the sha256 of the other files, so that files of different checkpoints are not mixed. Checkpoints of
earlier versions have none.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.errors import UserError, shorten
from logosphere.io import (
    EMA_WEIGHTS,
    FILES,
    WEIGHTS,
    all_finite,
    check_sha256,
    file_sha256,
    load_strict,
    read_tensors,
    replace_file,
    sync,
    write_json,
    write_tensors,
)
from logosphere.networks.published.lora import frozen_names, trained_state
from logosphere.training.trainer import Trainer
from logosphere.types import Batch
from logosphere.untrusted import read_object

STATE = "state.json"
PREVIOUS = "previous"
"""The entry of state.json with the sha256 of the weights of the checkpoint before, which a killed training may have
left at the top of the run."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""The state of AdamW for a parameter."""
MATRIX_MOMENTS = ("momentum_buffer", "step")
"""The state of Muon for a parameter."""


def save_checkpoint(folder: Path, trainer: Trainer, extra: dict[str, object]) -> Path:
    """Save a trainer under `folder`, name the checkpoint in latest.json and remove the previous one."""
    if (final := saved_already(folder, trainer.step)) is not None:
        return final
    draft = draft_of(folder, trainer.step)
    try:
        _write(draft, trainer, extra | {PREVIOUS: hashes_of_weights(folder)})
        return install(folder, draft, trainer.step)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def saved_already(folder: Path, step: int) -> Path | None:
    """The checkpoint of a step, if it is the latest; while it is replaced there would be none."""
    final = checkpoint_of(folder, step)
    return final if newest(folder) == final else None


def draft_of(folder: Path, step: int) -> Path:
    """An unused path at which a checkpoint can be written."""
    draft = folder / f".draft-{step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    return draft


def install(folder: Path, draft: Path, step: int) -> Path:
    """Move a complete draft to its place, name it in latest.json and remove the previous checkpoint."""
    final = checkpoint_of(folder, step)
    sync(draft)
    shutil.rmtree(final, ignore_errors=True)
    if not final.is_dir():
        final.unlink(missing_ok=True)  # a file in its place
    replace_file(draft, final)
    sync(folder)
    write_json(folder / "latest.json", {"checkpoint": final.name})
    for old in folder.glob("step-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoint_of(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def _write(draft: Path, trainer: Trainer, extra: dict[str, object]) -> None:
    model, ema = trainer.model, trainer.ema
    write_tensors(draft / "model.safetensors", trained_state(model))
    if ema is not None:
        write_tensors(draft / "ema.safetensors", ema.tensors(model))
    write_tensors(draft / "optimizer.safetensors", _moments(trainer))
    write_state(draft, counts(trainer) | extra)


def write_state(draft: Path, content: dict[str, object]) -> None:
    """Write state.json, with the sha256 of all files that the checkpoint has besides."""
    files = {path.relative_to(draft).as_posix(): path for path in sorted(draft.rglob("*")) if path.is_file()}
    write_json(draft / STATE, content | {FILES: {name: file_sha256(path) for name, path in files.items()}})


def counts(trainer: Trainer) -> dict[str, object]:
    """The content of state.json: counts, the running norm of gradients ("usual"), the position in the data."""
    updates = None if trainer.ema is None else trainer.ema.updates
    content: dict[str, object] = {"step": trainer.step, "tokens": trainer.tokens, "ema_updates": updates}
    content["usual"] = trainer.grad_norm_ema
    return content if trainer.position is None else content | {"position": trainer.position}


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, or None if nothing has been saved yet.

    Where latest.json is lost or damaged, it is the last folder step-…, which appears only when it is complete. Raises
    UserError if there is none of these either.
    """
    pointer = folder / "latest.json"
    try:
        name = read_object(pointer, inside=folder)["checkpoint"]
        found = folder / Path(str(name)).name
        problem = f"The checkpoint {found} is missing; restore it from a copy."
    except FileNotFoundError:
        found, problem = None, ""
    except (OSError, ValueError, KeyError, UserError):
        found, problem = None, f"{pointer} is damaged; it must hold the name of a folder step-… next to it."
    if found is not None and _step_of(found) is not None and found.is_dir():
        return found
    complete = [path for path in folder.glob("step-*") if _step_of(path) is not None and (path / STATE).is_file()]
    if complete:
        return max(complete, key=lambda path: path.name)
    if problem:
        raise UserError(problem)
    return None


def newest(folder: Path) -> Path | None:
    """As `latest`, but None where nothing that was saved can be found: a running training saves anew then."""
    try:
        return latest(folder)
    except UserError:
        return None


def _step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint; None for another name."""
    number = checkpoint.name.removeprefix("step-")
    return int(number) if number.isascii() and number.isdecimal() and checkpoint.name != number else None


def read_hashes(checkpoint: Path) -> dict[str, str]:
    """The sha256 of the files of a checkpoint as it was saved; empty for one of an earlier version."""
    try:
        return _hashes(read_object(checkpoint / STATE, inside=checkpoint))
    except (OSError, ValueError):
        raise UserError(f"{checkpoint / STATE} is missing or damaged; restore it from a copy.") from None


def hashes_of_weights(folder: Path) -> dict[str, str]:
    """The sha256 of the weights of the newest checkpoint; empty where there is none, or none can be read."""
    checkpoint = newest(folder)
    try:
        hashes = {} if checkpoint is None else read_hashes(checkpoint)
    except UserError:
        return {}
    return {name: hashes[name] for name in (WEIGHTS, EMA_WEIGHTS) if name in hashes}


def is_older(checkpoint: Path, weights: Path) -> bool:
    """Whether a file of weights at the top of a run is that of the checkpoint before this one."""
    there = checkpoint / weights.name
    try:
        previous = _hashes(read_object(checkpoint / STATE, inside=checkpoint), PREVIOUS).get(weights.name)
        if previous is None or os.path.samestat(weights.stat(), there.stat()):
            return False
        return file_sha256(weights) == previous
    except (OSError, ValueError):  # then it is compared with the hash of this checkpoint
        return False


def _hashes(state: dict[str, Any], entry: str = FILES) -> dict[str, str]:
    found = state.get(entry, {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its hashes are no table")
    return found


def check_hashes(checkpoint: Path) -> None:
    """Raise UserError if a file of a checkpoint is another than when it was saved."""
    for name, sha256 in read_hashes(checkpoint).items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{checkpoint / STATE} names {shorten(name)}, which is no file of its checkpoint.")
        try:
            check_sha256(checkpoint / name, sha256, file_sha256(checkpoint / name))
        except OSError:
            raise UserError(
                f"{checkpoint / name} is missing, damaged or belongs to another checkpoint; restore it."
            ) from None


def load_checkpoint(path: Path, trainer: Trainer) -> dict[str, float]:
    """Load a checkpoint into a trainer; returns the other numbers that were saved with it."""
    hashes = read_hashes(path)

    def read(name: str) -> dict[str, Tensor]:
        return read_tensors(path / name, hashes.get(name))

    # Everything is read and compared before the trainer is changed.
    average = None if trainer.ema is None else read(EMA_WEIGHTS)
    weights, moments = read(WEIGHTS), read("optimizer.safetensors")
    rest = restore_counts(path, trainer)
    model, ema, frozen = trainer.model, trainer.ema, frozen_names(trainer.model)
    if ema is not None and average is not None:
        # The averaged weights are loaded through the model, whose names they have; the live weights follow.
        load_strict(model, average, path / EMA_WEIGHTS, absent=frozen)
        ema.shadow = [p.detach().clone() for p in ema.live]
    load_strict(model, weights, path / WEIGHTS, absent=frozen)
    _restore_moments(trainer, moments, path)
    return rest


def restore_counts(path: Path, trainer: Trainer) -> dict[str, float]:
    """Load the counts of state.json into a trainer; returns its other numbers."""
    try:
        state = read_object(path / STATE, inside=path)
        for name in (FILES, PREVIOUS):
            state.pop(name, None)
        step, tokens, updates = state.pop("step"), state.pop("tokens"), state.pop("ema_updates")
        _check_counts(path, step, tokens, updates)
        trainer.step, trainer.tokens, trainer.grad_norm_ema = int(step), int(tokens), float(state.pop("usual", 0.0))
        trainer.position = state.pop("position", None)
        if trainer.ema is not None:
            trainer.ema.updates = int(updates)
        return {str(name): float(value) for name, value in state.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, OverflowError):
        raise UserError(f"{path / STATE} is missing or damaged; restore it from a copy.") from None


def _check_counts(path: Path, step: object, tokens: object, updates: object) -> None:
    """Raise UserError for counts that no training has, or of another step than that of the folder."""
    for name, value in {"step": step, "tokens": tokens, "ema_updates": 0 if updates is None else updates}.items():
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise UserError(
                f"{path / STATE} is damaged: {name} must be a whole number of at least 0, not {shorten(value)}; "
                "restore it from a copy."
            )
    if _step_of(path) not in (None, step):
        raise UserError(
            f"{path / STATE} is of step {step}, and its folder of step {_step_of(path)}; restore it from a copy."
        )


def _moments(trainer: Trainer) -> dict[str, Tensor]:
    saved = trainer.optimizer.state_dict()
    names, state = _moment_names(saved), saved["state"]
    return {f"{index}.{name}": values[name] for index, values in state.items() for name in names[index]}


def _moment_names(saved: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """The place of each parameter in the state of an optimiser -> the names of its moments."""
    groups = saved["param_groups"]
    return {place: MATRIX_MOMENTS if group.get("parts") else MOMENTS for group in groups for place in group["params"]}


def _restore_moments(trainer: Trainer, tensors: dict[str, Tensor], path: Path) -> None:
    saved = trainer.optimizer.state_dict()
    names = _moment_names(saved)
    parameters = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    shapes = {
        f"{place}.{name}": torch.Size() if name == "step" else parameter.shape
        for place, parameter in zip(names, parameters, strict=True)
        for name in names[place]
    }
    # Parameters that have had no gradient yet have no moments; those that have some have all of them.
    begun = {place for place in names if f"{place}.step" in tensors}
    expected = {name: shape for name, shape in shapes.items() if int(name.partition(".")[0]) in begun}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise UserError(f"{path / 'optimizer.safetensors'} does not belong to this model; restore it from a copy.")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not all_finite(tensor, torch.float32):
            raise UserError(
                f"{path / 'optimizer.safetensors'} holds numbers that are not finite in {name} ({tensor.dtype}); use "
                "an earlier checkpoint."
            )
    saved["state"] = {
        place: {name: tensors[f"{place}.{name}"].to(torch.float32) for name in names[place]} for place in begun
    }
    trainer.optimizer.load_state_dict(saved)


@contextmanager
def use_deterministic(wanted: bool) -> Iterator[None]:
    """Inside this block torch refuses operations whose results are not reproducible, if `wanted`."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to be deterministic
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def dump_batch(path: Path, batch: Batch) -> None:
    """Write the batch of a failed step; with the seed and the step its noise can be reproduced."""
    tensors = {"tokens": batch.tokens, "known": batch.known, "valid": batch.valid, "ids": batch.ids}
    if batch.condition is not None:
        named = {"labels": batch.condition.labels, "source": batch.condition.source, "signal": batch.condition.signal}
        tensors |= {name: tensor for name, tensor in named.items() if tensor is not None}
    write_tensors(path, tensors | {"place": batch.global_index})
