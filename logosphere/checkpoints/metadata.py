"""What lies beside the weights of a checkpoint: tokenizer, special tokens, chat template and licence.

All of it comes from a stranger: files are read up to a size, as data, and a chat template is kept as text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logosphere.checkpoints.files import Weights, read_json
from logosphere.checkpoints.gguf import GGUFFile
from logosphere.checkpoints.gguf_tokenizer import make_tokenizer_json
from logosphere.data.tokenizer_registry import SubwordTokenizer, make_tokenizer
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError, shorten
from logosphere.untrusted import read_regular

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
MAX_TOKENIZER, MAX_TEXT = 128 << 20, 1 << 20
"""Bytes of tokenizer.json, and of a template or README.md, at most."""
SPECIAL = ("bos", "eos", "pad", "mask")


@dataclass(frozen=True)
class Metadata:
    """What a checkpoint has beside its weights."""

    tokenizer: Tokenizer | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    """Ids of bos, eos, pad and mask by tokenizer_config.json."""
    chat_template: str | None = None
    licence: str | None = None
    remarks: tuple[str, ...] = ()


def read_metadata(path: Path, weights: Weights, tokenizer: str | None = None) -> Metadata:
    """The metadata of an open checkpoint; `tokenizer` names another tokenizer than the one in its folder."""
    folder, remarks = path if path.is_dir() else path.parent, []
    made, template = None, None
    if tokenizer:
        chosen = Path(tokenizer).expanduser()
        made = make_tokenizer(str(chosen / TOKENIZER) if chosen.is_dir() else tokenizer)
    elif (folder / TOKENIZER).exists():
        made = _parse_tokenizer(_read_text(folder / TOKENIZER, MAX_TOKENIZER), str(folder / TOKENIZER))
    if isinstance(weights, GGUFFile):
        template = weights.chat_template
        if made is None:
            try:
                made = _parse_tokenizer(make_tokenizer_json(weights.metadata), str(path))
            except UserError as problem:
                remarks.append(str(problem))
    settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).exists() else {}
    if made is None:
        remarks.append(
            f"The checkpoint has no {TOKENIZER}, so the model reads and writes token numbers separated by spaces; "
            f"--tokenizer FILE gives it one."
        )
    special = _find_special(settings, made) if isinstance(made, SubwordTokenizer) else {}
    template = _find_template(folder, settings) or template
    return Metadata(made, special, template, _find_licence(folder, weights.config), tuple(remarks))


def _read_text(path: Path, most: int) -> str:
    try:
        return read_regular(path, most, inside=path.parent).decode()
    except ValueError:
        raise UserError(f"{path} is not text in UTF-8; fetch the file again.") from None


def _parse_tokenizer(text: str, place: str) -> SubwordTokenizer:
    try:
        return SubwordTokenizer.from_json(text, "published")
    except ValueError as problem:
        raise UserError(
            f"{place} is no tokenizer that can be read ({shorten(str(problem))}); fetch the file again, or give "
            "another by --tokenizer FILE."
        ) from None


def _find_special(settings: Mapping[str, Any], tokenizer: SubwordTokenizer) -> dict[str, int]:
    """The ids of the tokens that tokenizer_config.json calls bos_token and so on."""
    found: dict[str, int] = {}
    for name in SPECIAL:
        token = settings.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and (token_id := tokenizer.find_id(token)) is not None:
            found[name] = token_id
    return found


def _find_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own or an entry of tokenizer_config.json, of several the default one."""
    if (folder / TEMPLATE).exists():
        return _read_text(folder / TEMPLATE, MAX_TEXT)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and len(template) <= MAX_TEXT else None


def _find_licence(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The licence that README.md names at its beginning, or config.json."""
    stated = config.get("license")
    readme = folder / "README.md"
    if readme.is_file() and readme.stat().st_size <= MAX_TEXT:
        text = read_regular(readme, MAX_TEXT, inside=folder).decode(errors="replace")
        head = text.removeprefix("---\n").partition("\n---")[0] if text.startswith("---\n") else ""
        for line in head.splitlines():
            name, _, value = line.partition(":")
            if name == "license" and value.strip():
                stated = value.strip().strip("\"'")
    return stated[:100] if isinstance(stated, str) and stated else None
