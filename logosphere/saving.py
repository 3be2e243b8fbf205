"""Models on disk: a folder with recipe.json (how to build it) and model.safetensors (its weights)."""

from dataclasses import asdict
from pathlib import Path

from logosphere.errors import UserError
from logosphere.model import Model, Spec
from logosphere.systems import build
from logosphere.weights import fill, read_recipe, read_tensors, write_recipe, write_tensors

RECIPE, WEIGHTS, AVERAGED = "recipe.json", "model.safetensors", "ema.safetensors"


def save(model: Model, path: str | Path) -> None:
    """Write a model into a folder."""
    if model.spec is None:
        raise UserError("Only models made by build(…) know how to be built again; this one cannot be saved.")
    folder = Path(path)
    write_tensors(folder / WEIGHTS, model.state_dict())
    write_recipe(folder / RECIPE, {"model": asdict(model.spec)})


def load(path: str | Path) -> Model:
    """Read a model from a folder that `save` or a training run has written; averaged weights where there are any."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    model = rebuild(folder)
    averaged = folder / AVERAGED
    weights = averaged if averaged.exists() else folder / WEIGHTS
    fill(model, read_tensors(weights), weights)
    return model.eval()


def rebuild(folder: Path) -> Model:
    """The model of a folder, without its weights."""
    content = read_recipe(folder / RECIPE).get("model")
    try:
        spec = Spec(**content) if isinstance(content, dict) else None
    except TypeError:
        spec = None
    if spec is None or not isinstance(spec.options, dict):
        raise UserError(f"{folder / RECIPE} does not say which model it belongs to; restore it from a copy.")
    if not (isinstance(spec.system, str) and isinstance(spec.vocab_size, int) and isinstance(spec.length, int)):
        raise UserError(f"{folder / RECIPE} describes no model that can be built; restore it from a copy.")
    return build(spec.system, vocab_size=spec.vocab_size, length=spec.length, **spec.options)
