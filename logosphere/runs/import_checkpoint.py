"""Import of published checkpoints: as a run folder, or as a model in memory.

Nothing is written before configuration, names, shapes and types of all tensors are known to fit. Weights are read and
written one by one. The run appears complete or not at all: what an interrupted import leaves is a hidden draft, which
the next import of the same run removes.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.checkpoints.configuration import OVERRIDES
from logosphere.checkpoints.families import Description, Family
from logosphere.checkpoints.files import Weights, open_checkpoint
from logosphere.checkpoints.load import Matched, find_dtype, match, read_parameters
from logosphere.checkpoints.metadata import Metadata, read_metadata
from logosphere.checkpoints.registry import find_family
from logosphere.data.tokenizer_registry import SubwordTokenizer, save_tokenizer
from logosphere.data.tokenizers import IntegerTokenizer, Tokenizer
from logosphere.errors import UserError, quote_path
from logosphere.io import (
    RECIPE,
    TOKENIZER,
    WEIGHTS,
    as_file_name,
    check_link,
    file_sha256,
    locked,
    replace_file,
    stream_tensors,
    sync,
    write_json,
    write_recipe,
)
from logosphere.model import Model
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.registry import build_network
from logosphere.pretrained import PREFIXES
from logosphere.runs.run import environment
from logosphere.runs.settings import SILENT, Display, ImportConfig
from logosphere.systems import build

HUB = "hf:"
REPOSITORY = re.compile(r"([A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96})(?:@([A-Za-z0-9._/-]{1,200}))?")
SPARE = 64 << 20
"""Bytes of the disk that an import leaves free."""


@dataclass(frozen=True)
class Import:
    """A checkpoint that is known to fit, before its first weight is read."""

    source: str
    """As it was given."""
    path: Path
    revision: str | None
    weights: Weights
    family: Family
    matched: Matched
    dtype: torch.dtype
    metadata: Metadata
    tokenizer: Tokenizer

    @property
    def description(self) -> Description:
        """The model."""
        return self.matched.description

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return self.matched.parameters

    @property
    def size(self) -> int:
        """Bytes of the weights, on disk and in memory."""
        return self.parameters * self.dtype.itemsize

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self.description.remarks + self.metadata.remarks

    @property
    def conventions(self) -> dict[str, Any]:
        """What no tensor states."""
        network = self.description.network
        return {
            "mask_id": network.mask_id, "shift": network.shift, "attention": network.attention,
            "reads": network.reads, "block": self.description.options.get("block"),
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """All that is known, for --json."""
        one = self.description
        return {
            "source": self.source, "revision": self.revision, "family": one.family, "system": one.system,
            "vocab_size": one.vocab_size, "length": one.length, "parameters": self.parameters,
            "dtype": str(self.dtype).removeprefix("torch."), "bytes": self.size, "conventions": self.conventions,
            "special": self.special, "tokenizer": self.metadata.tokenizer is not None,
            "licence": self.metadata.licence, "remarks": list(self.remarks),
        }  # fmt: skip

    @property
    def special(self) -> dict[str, int]:
        """Ids of bos, eos, … by the configuration, or else by the tokenizer."""
        return {**self.metadata.special, **self.description.special}

    def origin(self, files: dict[str, str]) -> dict[str, Any]:
        """The part `checkpoint` of recipe.json; `files` are the sha256 of the files that were read."""
        return {
            "source": self.source, "revision": self.revision, "family": self.description.family, "files": files,
            "special": self.special, "chat_template": self.metadata.chat_template, "licence": self.metadata.licence,
            "remarks": list(self.remarks),
        }  # fmt: skip

    def build(self, files: dict[str, str], network: PublishedNetwork | None = None) -> Model:
        """The model; its network is on the device meta unless it is given."""
        one = self.description
        model = build(
            one.system, vocab_size=one.vocab_size, length=one.length,
            published=network or build_network(one.network, "meta"), checkpoint=self.origin(files), **one.options,
        )  # fmt: skip
        model.tokenizer = self.tokenizer
        return model.eval()


@dataclass(frozen=True)
class Imported:
    """A run that was imported."""

    run: Path
    checked: Import
    files: dict[str, str]
    """sha256 of each file of the checkpoint that was read."""
    checksum: str
    """sha256 of the weights of the run, which depend on the files, the mapping of their tensors and the type."""

    def summary(self) -> dict[str, Any]:
        """All that is known, for --json."""
        return {"run": str(self.run), **self.checked.summary(), "files": self.files, "checksum": self.checksum}


def check_import(source: str | Path, config: ImportConfig | None = None, display: Display = SILENT) -> Import:
    """Open a checkpoint and find out whether it can be imported, without reading a weight."""
    config = config or ImportConfig()
    path, name, revision = locate(source, display)
    weights = open_checkpoint(path)
    metadata = read_metadata(path, weights, config.tokenizer)
    content, overrides = dict(weights.config), config.overrides()
    if "mask" in metadata.special and content.get("mask_token_id") is None:
        content["mask_token_id"] = metadata.special["mask"]
    stated = content.get(OVERRIDES)
    content[OVERRIDES] = {**stated, **overrides} if isinstance(stated, dict) else stated or overrides
    family = find_family(content, weights.tensors, str(source))
    size = None if metadata.tokenizer is None else metadata.tokenizer.size
    description = family.describe(content, weights.tensors, source=name, tokenizer_size=size)
    check_overrides(description, overrides)
    matched = match(family, description, weights.tensors)
    dtype = find_dtype(config.dtype, matched, weights.tensors)
    tokenizer = fit_tokenizer(metadata.tokenizer, description)
    return Import(str(source), path, revision, weights, family, matched, dtype, metadata, tokenizer)


def locate(source: str | Path, display: Display) -> tuple[Path, str, str | None]:
    """The folder or file of a checkpoint, the name that settles its conventions, and its revision."""
    text = str(source)
    if text.startswith(HUB):
        if (found := REPOSITORY.fullmatch(text.removeprefix(HUB))) is None:
            raise UserError(f"A model of the hub is written hf:OWNER/NAME or hf:OWNER/NAME@REVISION, not {text}.")
        from logosphere.checkpoints.hub import fetch

        with display.bar(text) as bar:

            def report(stage: str, done: int, total: int) -> None:
                bar.update(done / total if total else 0.0, stage)

            path: Path = fetch(found[1], found[2], report)
        return path, found[1], path.name if path.parent.name == "snapshots" else found[2]
    if text.startswith(PREFIXES):
        raise UserError(f"{text} is a model of this package already; use it as it is: logosphere sample {text}")
    path = Path(source).expanduser()
    check_link(path)
    if (path / RECIPE).exists():
        raise UserError(f"{path} is a run already; use it as it is: logosphere sample {quote_path(path)}")
    if not path.exists() and REPOSITORY.fullmatch(text):
        raise UserError(f"There is no folder {text}; a model of the hub is written hf:{text}.")
    return path, path.resolve().stem if path.suffix == ".gguf" else path.resolve().name, None


def check_overrides(description: Description, overrides: dict[str, Any]) -> None:
    """Raise UserError for a convention that was given and that the family does not let anyone choose."""
    network = description.network
    found = {
        "system": description.system, "mask_id": network.mask_id, "shift": network.shift,
        "block": description.options.get("block"), "length": description.length,
    }  # fmt: skip
    for name, value in overrides.items():
        if found[name] != value:
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option} {value} does not fit: of a checkpoint of the family {description.family} with the system "
                f"{description.system} it is {found[name]}, and cannot be chosen; leave it out."
            )


def fit_tokenizer(tokenizer: Tokenizer | None, description: Description) -> Tokenizer:
    """The tokenizer with as many tokens as the model; without one, token numbers."""
    size = description.vocab_size
    if tokenizer is None:
        return IntegerTokenizer(size, unit="token")
    if tokenizer.size == size:
        return tokenizer
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer.resized(size)
    raise UserError(f"The tokenizer has {tokenizer.size:,} tokens and the model {size:,}; give another by --tokenizer.")


def import_checkpoint(
    source: str | Path, out: str | Path | None = None, config: ImportConfig | None = None, display: Display = SILENT
) -> Imported:
    """Import a checkpoint into a new run folder, by default runs/NAME."""
    return write_import(check_import(source, config, display), out, display)


def write_import(checked: Import, out: str | Path | None = None, display: Display = SILENT) -> Imported:
    """Read the weights of a checkpoint that fits, and write the folder of its run."""
    out = Path(out) if out is not None else default_folder(checked.source)
    check_target(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(out.parent).free) < checked.size + SPARE:
        raise UserError(
            f"The import needs {checked.size / 1e9:,.2f} GB in {out.parent}, where {free / 1e9:,.2f} GB are free; "
            "free some space or choose another --out."
        )
    lock, draft = out.parent / f".{out.name}.import.lock", out.parent / f".{out.name}.import"
    try:
        with locked(lock, wait=False):
            check_target(out)
            shutil.rmtree(draft, ignore_errors=True)  # of an import that was killed
            try:
                imported = _write_draft(checked, draft, out, display)
                sync(draft)
                if out.exists():
                    out.rmdir()
                replace_file(draft, out)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            finally:
                lock.unlink(missing_ok=True)
    except BlockingIOError:
        raise UserError(f"Another import into {out} is running; wait for it or choose another --out.") from None
    sync(out.parent)
    return imported


def default_folder(source: str) -> Path:
    """runs/NAME for a source."""
    name = source.removeprefix(HUB).partition("@")[0] if source.startswith(HUB) else str(Path(source).resolve())
    return Path("runs") / as_file_name(re.split(r"[/\\]", name)[-1].removesuffix(".gguf"))


def check_target(out: Path) -> None:
    """Raise UserError where a run cannot be made."""
    check_link(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; choose another --out or remove it.")


def _write_draft(checked: Import, draft: Path, out: Path, display: Display) -> Imported:
    with display.bar("checksums") as bar:
        files: dict[str, str] = {}
        for number, file in enumerate(_files(checked)):
            bar.update(number / len(_files(checked)), file.name)
            files[file.name] = file_sha256(file)
    model = checked.build(files)
    for part in ("samples", "eval"):
        (draft / part).mkdir(parents=True)
    state = model.state_dict()
    like = {name: tensor.to(checked.dtype) if tensor.is_meta else tensor for name, tensor in state.items()}
    with display.bar("weights") as bar:
        stream_tensors(draft / WEIGHTS, like, _tensors(checked, model, bar.update))
    save_tokenizer(checked.tokenizer, draft / TOKENIZER)
    write_json(draft / "env.json", environment())
    assert model.spec is not None
    checksum = file_sha256(draft / WEIGHTS)
    write_recipe(draft / RECIPE, {"model": model.spec.content(), "imported": {"weights_sha256": checksum}})
    return Imported(out, checked, files, checksum)


def _files(checked: Import) -> list[Path]:
    """The files that determine the model."""
    folder = checked.path if checked.path.is_dir() else checked.path.parent
    named = ("config.json", "tokenizer.json", "tokenizer_config.json") if checked.path.is_dir() else ()
    return [*checked.weights.files, *(folder / name for name in named if (folder / name).exists())]


def _tensors(checked: Import, model: Model, progress: Any) -> Iterator[tuple[str, Tensor]]:
    """The state of the model, whose network is on meta, with the weights of the checkpoint."""
    parameters, done = read_parameters(checked.weights, checked.matched, checked.dtype), 0
    for name, tensor in model.state_dict().items():
        if not tensor.is_meta:
            yield name, tensor
            continue
        ours, read = next(parameters)
        if not name.endswith(f".{ours}"):
            raise ValueError(f"{name} is not {ours}, which was read for it")
        yield name, read
        done += read.numel()
        progress(done / checked.parameters, f"{done * checked.dtype.itemsize / 1e9:.2f} GB")


def import_model(
    source: str | Path,
    *,
    dtype: str = "auto",
    tokenizer: str | None = None,
    mask_id: int | None = None,
    shift: bool | None = None,
    length: int | None = None,
    block: int | None = None,
    system: str | None = None,
) -> Model:
    """The model of a published checkpoint, in memory: a folder, a .gguf file or hf:OWNER/NAME[@REVISION].

    `dtype` is float32, bfloat16, or auto: that of the files. The other arguments replace conventions of checkpoints
    that are not known by their configuration. `logosphere import` writes a run folder.
    """
    checked = check_import(source, ImportConfig(dtype, tokenizer, mask_id, shift, length, block, system))
    network = build_network(checked.description.network, "meta")
    network.load_state_dict(dict(read_parameters(checked.weights, checked.matched, checked.dtype)), assign=True)
    digests = {file.name: file_sha256(file) for file in _files(checked)}
    return checked.build(digests, network)
