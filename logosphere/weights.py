"""Weights on disk: safetensors, written whole, and read with a sentence for whatever may be wrong with them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor, nn

from logosphere.atomic import write_json, write_whole
from logosphere.errors import UserError
from logosphere.migration import VERSION, migrate

RECIPE, WEIGHTS, AVERAGED = "recipe.json", "model.safetensors", "ema.safetensors"
REMASKER = "remasker.safetensors"
"""Trained after the model, on it, and therefore kept in a file of its own."""
WHOLE = 2**28
"""Bytes up to which a file of tensors is read whole instead of being mapped."""
FORMAT = "logosphere-model"


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    write_whole(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file. Small ones are read whole: mapping a file loses 64 bytes a tensor (safetensors 0.8)."""
    try:
        return load(path.read_bytes()) if path.stat().st_size <= WHOLE else load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; is its folder complete?") from None
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as problem:
        raise UserError(f"{path} is damaged or not a safetensors file ({problem}); restore it from a copy.") from None


def fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put tensors into a module; they must be exactly its own, by name, shape and being finite."""
    expected = module.state_dict()
    if missing := sorted(expected.keys() - tensors.keys()):
        raise UserError(f"{path} does not belong to this model: it lacks {missing[0]} and {len(missing) - 1} more.")
    if foreign := sorted(tensors.keys() - expected.keys()):
        raise UserError(f"{path} does not belong to this model: it has {foreign[0]}, which the model has not.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            raise UserError(f"{path} does not belong to this model: {name} has the shape {shapes}.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path} holds numbers that are not finite in {name}; use an earlier checkpoint.")
    module.load_state_dict(tensors)


def write_recipe(path: Path, content: dict[str, Any]) -> None:
    write_json(path, {"format": FORMAT, "version": VERSION, **content})


def read_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe.json of this or an earlier version, as that of this version."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no model in {path.parent}: {path.name} is missing.") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); restore it from a copy.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} was not written by Logosphere.")
    return migrate(content, str(path))
