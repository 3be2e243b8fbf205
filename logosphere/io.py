"""Files: atomic writes, JSON, the cache folder, and the weights and recipe of a model.

Importing this module does not import torch, so that commands that only print need not wait for it.
"""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logosphere.errors import UserError
from logosphere.migration import VERSION, migrate
from logosphere.origin import MARK, is_marked, mark
from logosphere.untrusted import NotAnObject, open_regular, read_object, read_regular

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn

RECIPE, WEIGHTS, EMA_WEIGHTS = "recipe.json", "model.safetensors", "ema.safetensors"
REMASKER = "remasker.safetensors"
"""The remasker is trained after the model and has a file of its own."""
MAX_UNMAPPED = 2**28
"""Files of tensors up to this size in bytes are read into memory; larger ones are mapped."""
FINITE_CHUNK = 1 << 24
"""Numbers that are checked at a time."""
TENSOR_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Types of torch as safetensors files name them."""
FORMAT = "logosphere-model"
FILES = "files"
"""The entry of recipe.json and of state.json with the sha256 of the files of weights beside them."""
TOKENIZER, TOKENIZER_FORMAT, TOKENIZER_VERSION = "tokenizer.json", "logosphere-tokenizer", 1
WINDOWS = os.name == "nt"
BUSY_SECONDS = 2.0
"""How long Windows is asked again for a file that another program, such as a virus scanner, has open."""
RENAMED_TENSORS = (
    (r"(.*\.)?clock\.(measured|seen)$", r"\1time_sampler.\2"),
    (r"process\.path\.clock\.", "process.time_sampler."),  # the Gaussian path of latent diffusion
    (r"process\.path\.", "process."),
    (r"process\.price$", "process.recon_ema"),
    (r"process\.done$", "process.progress"),
    (r"denoiser\.(inner\.)?stem\.weight$", "process.codec.weight"),  # the projection of rdlm with projected=True
)
"""Tensors that had other names in earlier versions: a pattern of the old name, and the new one."""


def cache_folder() -> Path:
    """The folder of files that can be made again: $LOGOSPHERE_CACHE, or .cache/logosphere in the home folder."""
    return Path(os.environ.get("LOGOSPHERE_CACHE") or "~/.cache/logosphere").expanduser()


# ---- atomic files ---------------------------------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a concurrent reader, or one after a crash, sees the old file or the new one.

    After this returns, a power cut leaves the new file: its folder, which records the renaming, is synced too.
    """
    write_parts(path, [content])


def write_parts(path: Path, parts: "Iterable[bytes | memoryview]") -> None:
    """As `write_atomic`, for content that is made part by part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        replace_file(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file or folder, in place of what is there; Windows refuses while another program has it open."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not WINDOWS or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Where to write a folder: a draft that appears complete or not at all; or the folder, if it exists already."""
    if path.exists():
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.mkdir()
        yield draft
        sync(draft)
        replace_file(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(path.parent)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def json_safe(content: object) -> object:
    """The content with null in place of numbers that are not finite, which JSON cannot hold."""
    match content:
        case float():
            return content if math.isfinite(content) else None
        case dict():
            return {key: json_safe(value) for key, value in content.items()}
        case list() | tuple():
            return [json_safe(value) for value in content]
        case _:
            return content


def check_link(path: Path) -> None:
    """Raise UserError for a symbolic link whose target does not exist."""
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist; restore it or name another.")


def check_folder(path: Path) -> None:
    """Raise UserError where a file is in the place of a folder, or of one of those it would be in."""
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(
                    f"{place} is a file, and {'a folder' if place == path else path} is needed here; "
                    "name another folder."
                )
            return


def sync(path: Path) -> None:
    """Wait until a file, or the renamings inside a folder, would survive a power cut.

    Windows syncs files that are open for writing only, and no folders.
    """
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def as_file_name(text: str) -> str:
    """The text as the name of a file on every system: what Windows and paths reserve becomes a hyphen."""
    return re.sub(r'[<>:"/\\|?*]', "-", text)


def file_sha256(path: Path) -> str:
    """The sha256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(folder: Path, *names: str) -> dict[str, dict[str, str]]:
    """The entry of recipe.json with the sha256 of those of these files that exist."""
    return {FILES: {name: file_sha256(folder / name) for name in names if (folder / name).exists()}}


def cached(path: Path, key: object, make: Callable[[], Any]) -> Any:
    """The result of `make`, which must be plain data; read from the file if that was written for the same key."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    try:
        content = json.loads(path.read_bytes())
        if content["key"] == name:
            return content["result"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not made yet, or for another key: it is made now
    result = make()
    write_json(path, {"key": name, "result": result})
    return result


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a file, which is released when the process ends, however that happens.

    If another process holds it, wait, or raise BlockingIOError.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked") from None
    try:
        yield
    finally:
        lock.release()


# ---- weights --------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: "dict[str, Tensor]") -> None:
    """Write a safetensors file atomically; large ones tensor by tensor, so that no second copy is in memory."""
    from safetensors.torch import save

    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > MAX_UNMAPPED:
        stream_tensors(path, tensors, tensors.items())
        return
    write_atomic(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def stream_tensors(path: Path, like: "Mapping[str, Tensor]", tensors: "Iterable[tuple[str, Tensor]]") -> None:
    """Write a safetensors file atomically, one tensor after another.

    `like` has tensors of their names, shapes and types in their order; they may be on the device meta.
    """
    write_parts(path, _tensor_parts(like, tensors))


def _tensor_parts(
    like: "Mapping[str, Tensor]", tensors: "Iterable[tuple[str, Tensor]]"
) -> "Iterator[bytes | memoryview]":
    """The length of the header, the header padded to 8 bytes, and the bytes of each tensor (the safetensors format)."""
    import torch

    header: dict[str, Any] = {}
    end = 0
    for name, tensor in like.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind = TENSOR_TYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for (expected, one), (name, tensor) in zip(like.items(), tensors, strict=True):
        if (name, one.shape, one.dtype) != (expected, tensor.shape, tensor.dtype):
            raise ValueError(f"{name} is not {expected} with the shape and the type that were announced")
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        yield whole.view(torch.uint8).numpy().data


def read_tensors(path: Path, sha256: str | None = None) -> "dict[str, Tensor]":
    """The tensors of a safetensors file; raises UserError unless it has this hash, where one is given.

    Small files are read into memory, because mapping a file leaks 64 bytes a tensor (safetensors 0.8).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size > MAX_UNMAPPED:
            check_sha256(path, sha256, None if sha256 is None else file_sha256(path))
            return load_file(path)
        content = read_regular(path, MAX_UNMAPPED)
        check_sha256(path, sha256, None if sha256 is None else hashlib.sha256(content).hexdigest())
        return load(content)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; is its folder complete?") from None
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as problem:
        raise UserError(f"{path} is damaged or not a safetensors file ({problem}); restore it from a copy.") from None


def check_sha256(path: Path, wanted: str | None, found: str | None) -> None:
    """Raise UserError for a file with another hash than was recorded; older folders have recorded none."""
    if wanted is not None and found != wanted:
        raise UserError(
            f"{path} is damaged or belongs to another checkpoint: its sha256 is {str(found)[:12]}…, and "
            f"{str(wanted)[:12]}… was recorded when it was saved; restore it from a copy."
        )


def all_finite(tensor: "Tensor", target: "dtype | None" = None) -> bool:
    """Whether all values are finite, also in the type `target`, to which numbers of a wider one may be too large.

    They are read a part at a time, because large tensors may be mapped from a file; by their extremes, which are NaN or
    infinite otherwise: `isfinite` would allocate as much again, and between tensors that stay the freed memory is lost
    in pieces, half of the size of a model.
    """
    import torch

    parts = tensor.detach().reshape(-1).split(FINITE_CHUNK)
    extremes = (torch.stack(torch.aminmax(part)) for part in parts if part.numel())
    return all(bool(found.to(target or found.dtype).isfinite().all()) for found in extremes)


def current_name(name: str, expected: Collection[str]) -> str:
    """The name of this version for a tensor of a file, where `expected` are the names of the model."""
    if name not in expected:
        for old, new in RENAMED_TENSORS:
            if (renamed := re.sub(rf"^{old}", new, name)) in expected:
                return renamed
    return name


def check_names(expected: Set[str], found: Set[str], path: Path) -> None:
    """Raise UserError unless a file has the tensors of a model, and no others."""
    if missing := sorted(expected - found):
        raise UserError(f"{path} does not belong to this model: it lacks {missing[0]} and {len(missing) - 1} more.")
    if foreign := sorted(found - expected):
        raise UserError(f"{path} does not belong to this model: it has {foreign[0]}, which the model has not.")


def load_strict(
    module: "nn.Module",
    tensors: "dict[str, Tensor]",
    path: Path,
    *,
    assign: bool = False,
    absent: Collection[str] = (),
) -> None:
    """Load tensors into a module; their names and shapes must be those of the module, and all values finite.

    With `assign` they take the place of the module's tensors, with their own type, and are not copied. Tensors named in
    `absent` stay as they are: those of another file, as where adapters are kept apart from what they adapt.
    """
    expected = {name: tensor for name, tensor in module.state_dict().items() if name not in absent}
    tensors = {current_name(name, expected.keys()): tensor for name, tensor in tensors.items()}
    check_names(expected.keys(), tensors.keys(), path)
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            raise UserError(f"{path} does not belong to this model: {name} has the shape {shapes}.")
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise UserError(f"{path} does not belong to this model: {name} holds {tensor.dtype}.")
        target = tensor.dtype if assign else expected[name].dtype
        if tensor.is_floating_point() and not all_finite(tensor, target):
            raise UserError(f"{path} holds numbers that are not finite in {name}; use an earlier checkpoint.")
    module.load_state_dict(tensors, assign=assign, strict=not absent)


def write_recipe(path: Path, content: dict[str, Any]) -> None:
    """Write a recipe.json with its format and version, marked as written here."""
    write_json(path, {"format": FORMAT, "version": VERSION, **mark(content)})


def write_tokenizer(path: Path, description: dict[str, Any]) -> None:
    """Write the description of a tokenizer; `data.tokenizer_registry.load_tokenizer` reads it."""
    content = {"format": TOKENIZER_FORMAT, "version": TOKENIZER_VERSION, **description}
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def write_model(
    folder: Path, tensors: "dict[str, Tensor]", content: dict[str, Any], tokenizer: dict[str, Any] | None
) -> None:
    """Write weights, tokenizer and recipe, with the hashes of both; a new folder appears complete or not at all."""
    with new_folder(folder) as place:
        write_tensors(place / WEIGHTS, tensors)
        if tokenizer is not None:
            write_tokenizer(place / TOKENIZER, tokenizer)
        write_recipe(place / RECIPE, content | hash_files(place, WEIGHTS, *([] if tokenizer is None else [TOKENIZER])))


def read_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe.json; raises UserError for other files and for newer versions."""
    try:
        content = read_object(path, inside=path.parent)
    except FileNotFoundError:
        raise UserError(f"There is no model in {path.parent}: {path.name} is missing.") from None
    except NotAnObject:
        content = {}
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} is damaged ({problem}); restore it from a copy.") from None
    if content.get("format") != FORMAT:
        raise UserError(f"{path} was not written by Logosphere.")
    return migrate({name: value for name, value in content.items() if name != MARK}, str(path))


def is_written_here(recipe: Path) -> bool:
    """Whether a recipe.json was written on this machine; anyone may have written one that cannot be read."""
    try:
        return is_marked(read_object(recipe, inside=recipe.parent))
    except (OSError, ValueError, UserError):
        return False
