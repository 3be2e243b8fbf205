"""Import of published checkpoints: as a run folder, or as a model in memory.

Nothing is written before configuration, names, shapes and types of all tensors are known to fit. Weights are read and
written one by one. The run appears complete or not at all: what an interrupted import leaves is a hidden draft, which
the next import of the same run removes.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from logosphere.checkpoints.hub import is_hub, parse_source
from logosphere.checkpoints.load import read_parameters
from logosphere.data.tokenizer_registry import save_tokenizer
from logosphere.errors import UserError
from logosphere.io import (
    FILES,
    RECIPE,
    TOKENIZER,
    WEIGHTS,
    as_file_name,
    file_sha256,
    hash_files,
    stream_tensors,
    write_json,
    write_recipe,
)
from logosphere.model import Model
from logosphere.networks.published.registry import build_network
from logosphere.runs.check_import import Import, check_import
from logosphere.runs.run import environment
from logosphere.runs.settings import SILENT, Display, ImportConfig
from logosphere.runs.staging import check_free, staged

SPARE = 64 << 20
"""Bytes of the disk that an import leaves free."""


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


def import_checkpoint(
    source: str | Path, out: str | Path | None = None, config: ImportConfig | None = None, display: Display = SILENT
) -> Imported:
    """Import a checkpoint into a new run folder, by default runs/NAME."""
    return write_import(check_import(source, config, display), out, display)


def write_import(checked: Import, out: str | Path | None = None, display: Display = SILENT) -> Imported:
    """Read the weights of a checkpoint that fits, and write the folder of its run."""
    out = Path(out) if out is not None else default_folder(checked.source)
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(out.parent).free) < checked.size + SPARE:
        raise UserError(
            f"The import needs {checked.size / 1e9:,.2f} GB in {out.parent}, where {free / 1e9:,.2f} GB are free; "
            "free some space or choose another --out."
        )
    with staged(out, "import") as draft:
        return _write_draft(checked, draft, out, display)


def default_folder(source: str) -> Path:
    """runs/NAME for a source."""
    if is_hub(source):
        wanted = parse_source(source)
        name = (wanted.file or wanted.repository).rpartition("/")[2]
    else:
        name = Path(source).resolve().name
    return Path("runs") / as_file_name(name.removesuffix(".gguf"))


def _write_draft(checked: Import, draft: Path, out: Path, display: Display) -> Imported:
    with display.bar("checksums") as bar:
        files: dict[str, str] = {}
        for number, file in enumerate(checked.files):
            bar.update(number / len(checked.files), file.name)
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
    hashes = hash_files(draft, WEIGHTS, TOKENIZER)
    checksum = hashes[FILES][WEIGHTS]
    write_recipe(draft / RECIPE, {"model": model.spec.content(), "imported": {"weights_sha256": checksum}} | hashes)
    return Imported(out, checked, files, checksum)


def _tensors(checked: Import, model: Model, progress: Callable[[float, str], None]) -> Iterator[tuple[str, Tensor]]:
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
    """The model of a published checkpoint, in memory: a folder, a .gguf file or `hf:OWNER/NAME[@REVISION]`.

    `dtype` is float32, bfloat16, or auto: that of the files. The other arguments replace conventions of checkpoints
    that are not known by their configuration. `logosphere import` writes a run folder.
    """
    checked = check_import(source, ImportConfig(dtype, tokenizer, mask_id, shift, length, block, system))
    network = build_network(checked.description.network, "meta")
    network.load_state_dict(dict(read_parameters(checked.weights, checked.matched, checked.dtype)), assign=True)
    digests = {file.name: file_sha256(file) for file in checked.files}
    return checked.build(digests, network)
