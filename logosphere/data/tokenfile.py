"""Token files: a text tokenised once, then mapped into memory.

A folder holds the files of three rows of tokens (shards.py) and `meta.json`, an index that says what they mean, how
many tokens each file has and which hash, and which hash the index itself must have.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from logosphere.data.shards import SHARD, Shard, Shards, ShardWriter, open_shards, shard_path
from logosphere.data.tokenizers import Ids, Tokenizer
from logosphere.errors import UserError

FORMAT = "logosphere-tokens"
VERSION = 2
SPLITS = ("train", "valid", "test")
FEWEST_TOKENS = 2
DTYPES = ("uint8", "uint16", "uint32")
META, BUSY = "meta.json", ".busy"
OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""How systems say that a folder cannot be moved to a place because something is there."""


class DamagedCache(Exception):
    """A folder is not a whole set of token files; build it anew."""


@dataclass
class _Tally:
    tokens: int = 0
    characters: int = 0
    bytes: int = 0
    shards: list[Shard] = field(default_factory=list)


def build(
    folder: Path,
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> None:
    """Tokenise pieces of text, each given with its split, into `folder`, which appears only when all is done.

    One piece at a time is held in memory. `report` hears how many characters are done. Files have `shard` tokens. The
    name of the folder stands for its content: a sound one is left as it is, for another process has been faster.
    """
    if _sound(folder):
        return
    # Now rather than at the end, when other processes may have put theirs in its place.
    _discard(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    with _workshop(folder) as workshop:
        _furnish(workshop, pieces, tokenizer, source, source_sha256, report, shard)
        workshop.chmod(0o755)
        _install(workshop, folder)  # with its lock, so that whoever is killed here leaves nothing that is not swept
        (folder / BUSY).unlink(missing_ok=True)


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A place beside a folder where it is made, locked against being swept, and removed in the end."""
    while True:
        workshop = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        with (workshop / BUSY).open("w") as busy:
            fcntl.flock(busy, fcntl.LOCK_EX)
            if not (workshop / BUSY).exists():
                continue  # somebody has swept it before it was locked
            try:
                yield workshop
            finally:
                shutil.rmtree(workshop, ignore_errors=True)
            return


def _furnish(
    workshop: Path,
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None,
    shard: int,
) -> None:
    """Write the token files and what is to be known about them."""
    tallies = _write_tokens(workshop, pieces, tokenizer, report, shard)
    for split, tally in tallies.items():
        if tally.tokens < FEWEST_TOKENS:
            raise UserError(
                f"The {split} part of {source} has only {tally.tokens} tokens "
                f"({tally.characters} characters); give a longer text."
            )
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": _dtype(tokenizer.size).name,
        "vocabulary": tokenizer.describe(),
        "source": {"name": source, "sha256": source_sha256},
        "splits": {split: asdict(tally) for split, tally in tallies.items()},
    }
    with (workshop / META).open("w", encoding="utf-8") as file:
        json.dump(sealed(meta), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def sealed(meta: dict[str, Any]) -> dict[str, Any]:
    """An index with its own hash in it."""
    return meta | {"sha256": _seal(meta)}


def _seal(meta: dict[str, Any]) -> str:
    content = {name: value for name, value in meta.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove the workshops of processes that were killed; whoever is alive holds a lock in his."""
    for workshop in folder.parent.glob(f".{folder.name}.*"):
        try:
            with (workshop / BUSY).open("r+") as busy:
                fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(workshop, ignore_errors=True)
        except OSError:
            continue


def read_meta(folder: Path) -> dict[str, Any]:
    """What `build` wrote about the token files; DamagedCache unless the files have the sizes it states."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        if (meta["format"], meta["version"]) != (FORMAT, VERSION):
            raise ValueError("another format")
        if meta["sha256"] != _seal(meta):
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
    """The files of a split, and what they must be."""
    described = [Shard(**shard) for shard in meta["splits"][split]["shards"]]
    return [(shard_path(folder, split, number), shard) for number, shard in enumerate(described)]


def open_tokens(folder: Path) -> dict[str, Ids | Shards]:
    """The token numbers of each split, mapped into memory."""
    meta = read_meta(folder)
    dtype = np.dtype(meta["dtype"]).newbyteorder("<")
    rows: dict[str, Ids | Shards] = {}
    for split in SPLITS:
        paths, shards = zip(*_shards(folder, meta, split), strict=True)
        rows[split] = open_shards(paths, [shard.tokens for shard in shards], dtype)
    return rows


def verify(folder: Path) -> None:
    """Read every token and compare the hashes: slow and thorough, where opening looks at sizes only."""
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
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    report: Callable[[int], None] | None,
    shard: int,
) -> dict[str, _Tally]:
    dtype = _dtype(tokenizer.size)
    tallies = {split: _Tally() for split in SPLITS}
    done = 0
    with ExitStack() as stack:
        files = {split: stack.enter_context(closing(ShardWriter(folder, split, dtype, shard))) for split in SPLITS}
        for split, text in pieces:
            ids = tokenizer.encode(text)
            files[split].write(ids)
            tally = tallies[split]
            tally.tokens += len(ids)
            tally.characters += len(text)
            tally.bytes += len(text.encode())
            done += len(text)
            if report is not None:
                report(done)
        for split, file in files.items():
            tallies[split].shards = file.finish()
    return tallies


def _install(workshop: Path, folder: Path) -> None:
    """Move the finished folder into place, unless another process was faster."""
    while True:
        try:
            os.replace(workshop, folder)
            return
        except OSError as error:
            if error.errno not in OCCUPIED and not folder.exists():
                raise
        try:
            read_meta(folder)
            return
        except DamagedCache:
            _discard(folder)


def _sound(folder: Path) -> bool:
    try:
        return "vocabulary" in read_meta(folder)
    except DamagedCache:
        return False


def _discard(folder: Path) -> None:
    if not folder.exists():
        return
    # Moved aside first, so that nobody ever finds it half deleted.
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    (aside / BUSY).touch()  # locked by nobody: whatever is left here is swept
    try:
        os.replace(folder, aside / "damaged")
    except FileNotFoundError:
        pass  # another process has just done the same
    finally:
        shutil.rmtree(aside, ignore_errors=True)
