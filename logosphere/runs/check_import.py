"""Published checkpoints before they are imported: whether they can be, and what the model will be.

No weight is read here, only configuration, names, shapes and types of tensors, and the tokenizer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from logosphere.checkpoints.configuration import OVERRIDES
from logosphere.checkpoints.families import Description, Family
from logosphere.checkpoints.files import Weights, open_checkpoint
from logosphere.checkpoints.hub import NAME, fetch, is_hub, parse_source
from logosphere.checkpoints.hub_outline import fetch_outline
from logosphere.checkpoints.load import Matched, find_dtype, match
from logosphere.checkpoints.metadata import Metadata, read_metadata
from logosphere.checkpoints.registry import find_family
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import IntegerTokenizer, Tokenizer
from logosphere.errors import UserError, quote_path
from logosphere.io import RECIPE, check_link
from logosphere.model import Model
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.registry import build_network
from logosphere.pretrained import PREFIXES
from logosphere.runs.settings import SILENT, Display, ImportConfig
from logosphere.systems import build


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
            "special": self.special, "starts_with_bos": self.description.starts_with_bos,
            "chat_template": self.metadata.chat_template, "licence": self.metadata.licence,
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

    @property
    def files(self) -> list[Path]:
        """The files that determine the model."""
        folder = self.path if self.path.is_dir() else self.path.parent
        named = ("config.json", "tokenizer.json", "tokenizer_config.json") if self.path.is_dir() else ()
        return [*self.weights.files, *(folder / name for name in named if (folder / name).exists())]


def check_import(
    source: str | Path, config: ImportConfig | None = None, display: Display = SILENT, outline: Path | None = None
) -> Import:
    """Open a checkpoint and find out whether it can be imported, without reading a weight.

    With `outline`, an empty folder, the weights of a checkpoint on the hub are not downloaded either; it then holds
    their headers.
    """
    config = config or ImportConfig()
    path, name, revision = locate(source, display, outline)
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


def locate(source: str | Path, display: Display, outline: Path | None = None) -> tuple[Path, str, str | None]:
    """The folder or file of a checkpoint, the name that settles its conventions, and its revision."""
    text = str(source)
    if is_hub(text):
        fetched = fetch(text, report=display.log) if outline is None else fetch_outline(text, outline, display.log)
        path, commit = fetched
        return path, parse_source(text).repository, commit
    if text.startswith(PREFIXES):
        raise UserError(f"{text} is a model of this package already; use it as it is: logosphere sample {text}")
    path = Path(source).expanduser()
    check_link(path)
    if (path / RECIPE).exists():
        raise UserError(f"{path} is a run already; use it as it is: logosphere sample {quote_path(path)}")
    if not path.exists() and NAME.fullmatch(text):
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
