"""The token cache: a text tokenised once, then mapped into memory.

A folder holds the files of three splits (token_shards.py) and `meta.json`, an index with the tokenizer, the number of
tokens and the hash of each file, and a checksum of the index itself.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from logosphere.data.token_shards import SHARD_TOKENS, Shard, ShardedTokens, ShardWriter, open_shards, shard_path
from logosphere.data.tokenizers import TokenIds, Tokenizer
from logosphere.errors import UserError
from logosphere.io import locked, replace_file

FORMAT = "logosphere-tokens"
VERSION = 2
SPLITS = ("train", "valid", "test")
MIN_TOKENS = 2
DTYPES = ("uint8", "uint16", "uint32")
META, BUSY = "meta.json", ".busy"
OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""Error codes of a folder that cannot be moved to a path because something is there."""


class DamagedCache(Exception):
    """A folder is not a complete token cache; build it again."""


@dataclass
class _SplitStats:
    tokens: int = 0
    characters: int = 0
    bytes: int = 0
    shards: list[Shard] = field(default_factory=list)


def build_token_cache(
    folder: Path,
    chunks: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None = None,
    shard: int = SHARD_TOKENS,
) -> None:
    """Tokenise chunks of text, each given with its split, into `folder`, which appears only when all is done.

    One chunk at a time is held in memory. `report` is called with the number of characters done. Files have `shard`
    tokens. The name of the folder determines its content, so a valid folder of another process is left as it is.
    """
    if _is_valid(folder):
        return
    # Now rather than at the end, when another process may have built the folder.
    _discard(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    with _staging_folder(folder) as staging:
        _write_files(staging, chunks, tokenizer, source, source_sha256, report, shard)
        _install(staging, folder)


@contextmanager
def _staging_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder next to `folder`, locked against removal by other processes, and removed at the end.

    The lock is a file next to it: Windows moves no folder with an open file in it.
    """
    while True:
        staging = _unused_folder(folder)
        lock = staging.with_name(staging.name + BUSY)
        try:
            with locked(lock, wait=True):
                if not lock.exists():
                    continue  # another process has removed it before it was locked
                staging.mkdir()
                try:
                    yield staging
                finally:
                    shutil.rmtree(staging, ignore_errors=True)
        finally:
            _remove_lock(lock)
        return


def _unused_folder(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def _remove_lock(lock: Path) -> None:
    with suppress(PermissionError):  # Windows keeps it while another process that removes it has it open
        lock.unlink(missing_ok=True)


def _write_files(
    staging: Path,
    chunks: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None,
    shard: int,
) -> None:
    """Write the token files and the index."""
    stats = _write_tokens(staging, chunks, tokenizer, report, shard)
    for split, counts in stats.items():
        if counts.tokens < MIN_TOKENS:
            raise UserError(
                f"The {split} part of {source} has only {counts.tokens} tokens "
                f"({counts.characters} characters); give a longer text."
            )
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": _dtype(tokenizer.size).name,
        "vocabulary": tokenizer.describe(),
        "source": {"name": source, "sha256": source_sha256},
        "splits": {split: asdict(counts) for split, counts in stats.items()},
    }
    with (staging / META).open("w", encoding="utf-8") as file:
        json.dump(with_checksum(meta), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def with_checksum(meta: dict[str, Any]) -> dict[str, Any]:
    """An index with its own hash in it."""
    return meta | {"sha256": _checksum(meta)}


def _checksum(meta: dict[str, Any]) -> str:
    content = {name: value for name, value in meta.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Remove the staging folders of killed processes; a live process holds the lock of its own."""
    for lock in folder.parent.glob(f".{folder.name}.*{BUSY}"):
        try:
            with locked(lock, wait=False):
                shutil.rmtree(lock.with_name(lock.name.removesuffix(BUSY)), ignore_errors=True)
        except BlockingIOError:
            continue
        _remove_lock(lock)


def read_meta(folder: Path) -> dict[str, Any]:
    """The index of a token cache; raises DamagedCache unless the files have the sizes it states."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        if (meta["format"], meta["version"]) != (FORMAT, VERSION):
            raise ValueError("another format")
        if meta["sha256"] != _checksum(meta):
            raise ValueError(f"{META} has changed since it was written")
        if meta["dtype"] not in DTYPES:
            raise ValueError("tokens of another kind")
        width = np.dtype(meta["dtype"]).itemsize
        for split in SPLITS:
            shards = _shards(folder, meta, split)
            if not shards or sum(shard.tokens for _, shard in shards) != meta["splits"][split]["tokens"]:
                raise ValueError(f"the files of {split} do not add up")
            for path, shard in shards:
                if path.stat().st_size != shard.tokens * width:
                    raise ValueError(f"{path.name} has not the {shard.tokens * width} bytes it should have")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCache(f"{folder}: {error!r}") from error
    return meta


def _shards(folder: Path, meta: dict[str, Any], split: str) -> list[tuple[Path, Shard]]:
    """The files of a split, and the size and hash of each."""
    described = [Shard(**shard) for shard in meta["splits"][split]["shards"]]
    return [(shard_path(folder, split, number), shard) for number, shard in enumerate(described)]


def open_tokens(folder: Path) -> dict[str, TokenIds | ShardedTokens]:
    """The token ids of each split, mapped into memory."""
    meta = read_meta(folder)
    dtype = np.dtype(meta["dtype"]).newbyteorder("<")
    rows: dict[str, TokenIds | ShardedTokens] = {}
    for split in SPLITS:
        paths, shards = zip(*_shards(folder, meta, split), strict=True)
        rows[split] = open_shards(paths, [shard.tokens for shard in shards], dtype)
    return rows


def verify_hashes(folder: Path) -> None:
    """Read every token and compare the hashes; opening checks sizes only, because this is slow."""
    meta = read_meta(folder)
    for path, shard in (pair for split in SPLITS for pair in _shards(folder, meta, split)):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                raise DamagedCache(f"{folder}: {path.name} has changed since it was built")


def _dtype(size: int) -> np.dtype[Any]:
    """The smallest integers that hold `size` tokens."""
    return np.min_scalar_type(size - 1).newbyteorder("<")


def _write_tokens(
    folder: Path,
    chunks: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    report: Callable[[int], None] | None,
    shard: int,
) -> dict[str, _SplitStats]:
    dtype = _dtype(tokenizer.size)
    stats = {split: _SplitStats() for split in SPLITS}
    done = 0
    with ExitStack() as stack:
        files = {split: stack.enter_context(closing(ShardWriter(folder, split, dtype, shard))) for split in SPLITS}
        for split, text in chunks:
            ids = tokenizer.encode_chunk(text)
            files[split].write(ids)
            counts = stats[split]
            counts.tokens += len(ids)
            counts.characters += len(text)
            counts.bytes += len(text) if text.isascii() else len(text.encode())
            done += len(text)
            if report is not None:
                report(done)
        for split, file in files.items():
            stats[split].shards = file.finish()
    return stats


def _install(staging: Path, folder: Path) -> None:
    """Move the finished folder into place, unless another process has done so."""
    while True:
        try:
            replace_file(staging, folder)
            return
        except OSError as error:
            if error.errno not in OCCUPIED and not folder.exists():
                raise
        try:
            read_meta(folder)
            return
        except DamagedCache:
            _discard(folder)


def _is_valid(folder: Path) -> bool:
    try:
        return "vocabulary" in read_meta(folder)
    except DamagedCache:
        return False


def _discard(folder: Path) -> None:
    if not folder.exists():
        return
    # Moved away first, so that no process finds it half deleted.
    aside = _unused_folder(folder)
    lock = aside.with_name(aside.name + BUSY)
    lock.touch()  # not locked, so that what is left here is removed later
    try:
        replace_file(folder, aside)
    except FileNotFoundError:
        pass  # another process has just done the same
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _remove_lock(lock)
