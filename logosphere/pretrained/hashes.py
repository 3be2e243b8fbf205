"""The sha256 of the files of a model, so that files of different models, steps or versions are not mixed.

Files that are written once are named in recipe.json, those of a checkpoint in its state.json, and files that replace
others in a run (best.safetensors, remasker.safetensors) in hashes.json. Folders of earlier versions name none, and are
read without. The hashes find damage and mixed files; who can change a file can also change its hash.
"""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logosphere.errors import UserError
from logosphere.io import (
    FILES,
    RECIPE,
    check_sha256,
    file_sha256,
    load_strict,
    read_recipe,
    read_tensors,
    replace_file,
    sync,
    write_json,
    write_tensors,
)
from logosphere.training.checkpoint import is_older, newest, read_hashes
from logosphere.untrusted import read_object

if TYPE_CHECKING:
    from torch import Tensor, nn

HASHES = "hashes.json"
"""Names of files that may be replaced -> their sha256: of the file, and of the one before while it is replaced."""


def recorded_sha256(folder: Path, name: str) -> str | None:
    """The hash that was recorded for a file at the top of a folder; None where none was."""
    known = _read(folder).get(name)
    if known is None:
        files = read_recipe(folder / RECIPE).get(FILES, {})
        found = files.get(name) if isinstance(files, dict) else None
        return found if isinstance(found, str) else None
    if len(known) > 1 and (folder / name).exists() and (now := file_sha256(folder / name)) in known:
        return now  # a process was killed while it replaced the file
    return known[0]


def check_file(folder: Path, name: str) -> None:
    """Raise UserError for a file with another hash than was recorded."""
    if (sha256 := recorded_sha256(folder, name)) is not None:
        check_sha256(folder / name, sha256, file_sha256(folder / name))


def write_hashed(folder: Path, name: str, tensors: "dict[str, Tensor]") -> None:
    """Write a file of tensors in place of an earlier one, with its hash; a crash leaves one of both, and its hash."""
    draft = folder / f".{name}.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        write_tensors(draft, tensors)
        hashes, new = _read(folder), file_sha256(draft)
        write_json(folder / HASHES, hashes | {name: [new, *hashes.get(name, [])[:1]]})
        replace_file(draft, folder / name)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(folder)
    write_json(folder / HASHES, hashes | {name: [new]})


def read_part(module: "nn.Module", folder: Path, name: str) -> None:
    """Fill a module with the tensors of a file, which must have the hash that was recorded."""
    load_strict(module, read_tensors(folder / name, recorded_sha256(folder, name)), folder / name)


def find_weights(folder: Path, name: str) -> tuple[Path, str | None]:
    """The file of these weights of a model or run, and the hash that was recorded for it.

    A training that was killed has saved a checkpoint, and may have had no time to link its weights at the top.
    """
    weights, checkpoint = folder / name, newest(folder / "state")
    sha256 = None if checkpoint is None else read_hashes(checkpoint).get(name)
    if checkpoint is None or sha256 is None:
        return weights, recorded_sha256(folder, name)
    return (checkpoint / name if is_older(checkpoint, weights) else weights), sha256


def _read(folder: Path) -> dict[str, list[str]]:
    """The content of hashes.json; empty where there is none."""
    try:
        content: dict[str, Any] = read_object(folder / HASHES, inside=folder)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise UserError(f"{folder / HASHES} is damaged ({problem}); restore it from a copy.") from None
    for known in content.values():
        if not isinstance(known, list) or not known or not all(isinstance(one, str) for one in known):
            raise UserError(f"{folder / HASHES} is damaged: it must hold lists of hashes; restore it from a copy.")
    return content
