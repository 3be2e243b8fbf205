"""Which recipes were written on this machine, and what a stranger's recipe would have opened.

A recipe that is written here is marked with a code that needs a key of this user (HMAC). References of other recipes,
to the hub or to files outside of their folder, are followed only where the user has agreed: opening such a recipe would
otherwise contact a server, or read a file, that its author has chosen.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logosphere.errors import UserError, shorten

MARK = "origin"
"""The entry of a recipe with the mark."""
KEY = "origin.key"
KEY_BYTES = 32
UNMARKED = (MARK, "format", "version")
"""Entries that the mark does not cover."""
HUB = "hf:"
PACKAGED = ("minilm", "mpnet", "scratch")
"""Encoders that are no reference: they come in packages, or with the model."""


def key_folder() -> Path:
    """The folder of the key of this user, which belongs to no cache: caches are emptied."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "logosphere"


def mark(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a mark by the key of this user; without one where no key can be kept."""
    plain = {name: value for name, value in content.items() if name != MARK}
    try:
        return plain | {MARK: _code(plain, _key(key_folder(), make=True))}
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return plain


def is_marked(content: Mapping[str, Any]) -> bool:
    """Whether the content was marked by the key of this user, and has not been changed since."""
    try:
        code = _code(content, _key(key_folder(), make=False))
    except (OSError, RuntimeError):
        return False
    return hmac.compare_digest(str(content.get(MARK)).encode(), code.encode())


def check_encoder(options: Mapping[str, Any], place: Path, *, trusted: bool) -> None:
    """Raise UserError for an encoder of the hub or in a folder, named by a recipe that is not trusted."""
    encoder = options.get("encoder")
    if not trusted and isinstance(encoder, str) and encoder not in PACKAGED:
        fetched = "which is fetched from the hub" if encoder.startswith(HUB) else "which would be read from there"
        raise refuse(place, f"names the encoder {shorten(encoder)}, {fetched}")


def refuse(place: Path, reference: str) -> UserError:
    """The error for a reference that is not followed unless the user agrees."""
    return UserError(
        f"{place} was not written on this machine and {reference}; where you trust its author, add "
        "--trust-references (in Python trust_references=True)."
    )


def _code(content: Mapping[str, Any], key: bytes) -> str:
    covered = {name: value for name, value in content.items() if name not in UNMARKED}
    return hmac.new(key, json.dumps(covered, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key(folder: Path, *, make: bool) -> bytes:
    """The key of this user, made at its first use; OSError where there is none."""
    path = folder / KEY
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        if not make:
            raise
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{KEY}.{os.getpid()}-{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(draft, path)  # unlike a renaming, it keeps the key that another process has just made
        except FileExistsError:
            pass  # then that key is read
        except OSError:
            os.replace(draft, path)  # not every file system has links
        draft.unlink(missing_ok=True)
        found = path.read_bytes()
    if len(found) != KEY_BYTES:
        raise OSError(f"{path} is no key")
    return found
