"""The files of a checkpoint: config.json, and weights as safetensors in one file or in shards, or a GGUF file.

Files of weights are validated as a whole before the first weight is read, and read tensor by tensor. Pickles, which can
run code, are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from logosphere.checkpoints.families import TensorInfo, Tensors
from logosphere.checkpoints.headers import RESTORE, StoredTensor, read_header
from logosphere.errors import UserError, plural, shorten
from logosphere.untrusted import read_regular

CONFIG, SINGLE = "config.json", "model.safetensors"
INDEX = f"{SINGLE}.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_JSON = 16 << 20
"""Bytes of config.json and of an index of shards, at most."""
CONVERT = (
    "such files are pickles, which can run code, so they are never opened here: where you trust them, convert them by "
    'safetensors.torch.save_file(torch.load(FILE, weights_only=True), "model.safetensors") or by '
    "tools/convert_checkpoint.py, and import the folder with the result"
)


@runtime_checkable
class Weights(Protocol):
    """A checkpoint that is open: its configuration and its tensors, which are read one by one."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json; of other formats what their header says, under the same names."""
        ...

    @property
    def tensors(self) -> Tensors: ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of weights."""
        ...

    def read(self, name: str) -> Tensor:
        """The values of a tensor, those of quantised ones as float32."""
        ...


@dataclass(frozen=True)
class SafetensorsFolder:
    """A folder with config.json and safetensors files."""

    folder: Path
    config: Mapping[str, Any]
    stored: Mapping[str, StoredTensor]
    files: tuple[Path, ...]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: stored.info for name, stored in self.stored.items()}

    def read(self, name: str) -> Tensor:
        return self.stored[name].read()


def open_checkpoint(path: Path) -> Weights:
    """The checkpoint in a folder, or in a GGUF file."""
    if path.suffix == ".gguf":
        _check_regular(path)
        from logosphere.checkpoints.gguf import open_gguf

        weights: Weights = open_gguf(path)
        return weights
    if path.is_file():
        if path.suffix in PICKLES:
            raise UserError(f"{path} cannot be imported: {CONVERT}.")
        raise UserError(f"{path} is a file; give the folder that holds it and its {CONFIG}, or a .gguf file.")
    if not path.is_dir():
        raise UserError(f"There is no folder {path}; a checkpoint is a folder, a .gguf file or hf:OWNER/NAME.")
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and not (path / CONFIG).exists():
        if len(ggufs) > 1:
            raise UserError(f"{path} has {len(ggufs)} GGUF files; name one of them, such as {ggufs[0].name}.")
        return open_checkpoint(ggufs[0])
    files = weight_files(path)  # first: a folder of pickles often has no config.json either
    config = read_json(path / CONFIG)
    stored: dict[str, StoredTensor] = {}
    for file in files:
        _check_regular(file)
        for name, tensor in read_header(file).items():
            if name in stored:
                raise UserError(f"{shorten(name)} is in {stored[name].path.name} and in {file.name}; {RESTORE}.")
            stored[name] = tensor
    _check_index(path, stored)
    if not stored:
        raise UserError(f"The weights in {path} have no tensor; {RESTORE}.")
    return SafetensorsFolder(path, config, stored, files)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}, so it is no checkpoint that can be imported.")
    _check_regular(path)
    if (size := path.stat().st_size) > MAX_JSON:
        raise UserError(f"{path} has {size:,} bytes, and at most {MAX_JSON:,} are read; restore the right file.")
    try:
        content = json.loads(read_regular(path, MAX_JSON, inside=path.parent))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not valid JSON ({shorten(str(problem))}); {RESTORE}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold an object, not {shorten(content)}.")
    return content


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: the single one, or the shards that its index names."""
    if (folder / SINGLE).exists():
        return (folder / SINGLE,)
    if (folder / INDEX).exists():
        names = sorted(set(_shards(folder).values()))
        if missing := [name for name in names if not (folder / name).exists()]:
            raise UserError(
                f"{folder / INDEX} names {plural(len(names), 'file')}, of which {plural(len(missing), 'file')} are "
                f"missing, such as {missing[0]}; fetch them as well."
            )
        return tuple(folder / name for name in names)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return (found[0],)
    if found:
        raise UserError(f"{folder} has {len(found)} safetensors files and no {INDEX}; fetch the index as well.")
    if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
        raise UserError(f"{folder} has its weights only as {pickles[0].name}: {CONVERT}.")
    raise UserError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} nor a .gguf file.")


def _shards(folder: Path) -> dict[str, str]:
    """The file of each tensor as the index says; names of files in this folder and nothing else."""
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{folder / INDEX} has no weight_map of tensors and files; {RESTORE}.")
    for name in places.values():
        plain = isinstance(name, str) and name.endswith(".safetensors") and not set(name) & set("/\\:\0")
        if not plain or name.startswith("."):
            raise UserError(f"{folder / INDEX} names {shorten(name)}, which is no safetensors file of this folder.")
    return places


def _check_index(folder: Path, stored: Mapping[str, StoredTensor]) -> None:
    """Every tensor must be in the file that the index names, and in the index."""
    if (folder / SINGLE).exists() or not (folder / INDEX).exists():
        return
    places = _shards(folder)
    for name, file in places.items():
        if name not in stored or stored[name].path.name != file:
            raise UserError(f"{folder / INDEX} promises {shorten(name)} in {file}, which does not hold it; {RESTORE}.")
    if foreign := sorted(stored.keys() - places.keys()):
        where = stored[foreign[0]].path.name
        raise UserError(f"{where} holds {shorten(foreign[0])}, which {folder / INDEX} does not name; {RESTORE}.")


def _check_regular(path: Path) -> None:
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file, so it is not read.")
