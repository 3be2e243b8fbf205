"""Token files: a text tokenised once, then mapped into memory.

A folder holds `<split>.tokens` (bare little-endian integers) and `meta.json`, which says what they mean.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logosphere.data.tokenizers import Ids, Tokenizer
from logosphere.errors import UserError

FORMAT = "logosphere-tokens"
VERSION = 1
SPLITS = ("train", "valid", "test")
FEWEST_TOKENS = 2
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
    sha256: str = ""


def build(
    folder: Path,
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None = None,
) -> None:
    """Tokenise pieces of text, each given with its split, into `folder`, which appears only when all is done.

    One piece at a time is held in memory. `report` hears how many characters are done. The name of the folder
    stands for its content: a sound one is left as it is, for another process has been faster.
    """
    if _holds(folder, tokenizer):
        return
    # Now rather than at the end, when other processes may have put theirs in its place.
    _discard(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    workshop = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with (workshop / BUSY).open("w") as busy:
            fcntl.flock(busy, fcntl.LOCK_EX)
            _furnish(workshop, pieces, tokenizer, source, source_sha256, report)
            (workshop / BUSY).unlink()
        workshop.chmod(0o755)
        _install(workshop, folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _furnish(
    workshop: Path,
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    source: str,
    source_sha256: str,
    report: Callable[[int], None] | None,
) -> None:
    """Write the token files and what is to be known about them."""
    tallies = _write_tokens(workshop, pieces, tokenizer, report)
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
        json.dump(meta, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


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
        width = np.dtype(meta["dtype"]).itemsize
        for split in SPLITS:
            expected = meta["splits"][split]["tokens"] * width
            if (folder / f"{split}.tokens").stat().st_size != expected:
                raise ValueError(f"{split}.tokens has not the {expected} bytes it should have")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedCache(f"{folder}: {error!r}") from error
    return meta


def open_tokens(folder: Path) -> dict[str, Ids]:
    """The token numbers of each split, mapped into memory."""
    meta = read_meta(folder)
    dtype = np.dtype(meta["dtype"]).newbyteorder("<")
    return {split: np.memmap(folder / f"{split}.tokens", dtype=dtype, mode="r") for split in SPLITS}


def verify(folder: Path) -> None:
    """Read every token and compare the hashes: slow and thorough, where opening looks at sizes only."""
    for split, described in read_meta(folder)["splits"].items():
        with (folder / f"{split}.tokens").open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != described["sha256"]:
                raise DamagedCache(f"{folder}: {split}.tokens has changed since it was built")


def _dtype(size: int) -> np.dtype[Any]:
    """The smallest integers that hold `size` tokens."""
    return np.min_scalar_type(size - 1).newbyteorder("<")


def _write_tokens(
    folder: Path,
    pieces: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    report: Callable[[int], None] | None,
) -> dict[str, _Tally]:
    dtype = _dtype(tokenizer.size)
    tallies = {split: _Tally() for split in SPLITS}
    hashes = {split: hashlib.sha256() for split in SPLITS}
    done = 0
    with ExitStack() as stack:
        files = {split: stack.enter_context((folder / f"{split}.tokens").open("wb")) for split in SPLITS}
        for split, text in pieces:
            content = tokenizer.encode(text).astype(dtype).tobytes()
            files[split].write(content)
            hashes[split].update(content)
            tally = tallies[split]
            tally.tokens += len(content) // dtype.itemsize
            tally.characters += len(text)
            tally.bytes += len(text.encode())
            done += len(text)
            if report is not None:
                report(done)
        for split, file in files.items():
            file.flush()
            os.fsync(file.fileno())
            tallies[split].sha256 = hashes[split].hexdigest()
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


def _holds(folder: Path, tokenizer: Tokenizer) -> bool:
    try:
        return bool(read_meta(folder).get("vocabulary") == tokenizer.describe())
    except DamagedCache:
        return False


def _discard(folder: Path) -> None:
    if not folder.exists():
        return
    # Moved aside first, so that nobody ever finds it half deleted.
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        os.replace(folder, aside / "damaged")
    except FileNotFoundError:
        pass  # another process has just done the same
    finally:
        shutil.rmtree(aside, ignore_errors=True)
