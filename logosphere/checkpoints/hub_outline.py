"""The outline of a checkpoint on the hub, to see what it is before its weights are downloaded.

Small files are fetched as they are. Of each file of weights only the header is, and a sparse file of the same length
takes its place: names, shapes and types are there, and numbers are not.
"""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from logosphere.checkpoints.headers import MAX_HEADER
from logosphere.checkpoints.hub import (
    CHECKPOINT_FILES,
    FOLDERS,
    Fetched,
    Report,
    check_importable,
    fetch,
    fetch_files,
    parse_source,
    shorten_reason,
    warn,
)
from logosphere.errors import UserError

FIRST_BYTES = 1 << 18
"""Bytes that are requested of each file; the header of a shard rarely has more."""
WEIGHTS = ".safetensors"


def fetch_outline(source: str, folder: Path, report: Report = warn) -> Fetched:
    """Fetch the outline of a checkpoint into an empty folder; a GGUF file that was named is fetched as a whole.

    Where the hub cannot be reached it is the copy in the cache, if there is one.
    """
    wanted = parse_source(source)
    if wanted.file is not None:
        return fetch(source, report=report)
    names: list[str] = []

    def check(found: Collection[str]) -> None:
        check_importable(str(wanted), found)
        names.extend(name for name in found if name.endswith(WEIGHTS) and "/" not in name)

    small = tuple(pattern for pattern in CHECKPOINT_FILES if not pattern.endswith(WEIGHTS))
    cached = fetch_files(wanted, small, (FOLDERS,), check, report)
    if not names:  # the hub was not asked
        return Fetched(cached, cached.name)
    for path in cached.iterdir():
        if path.is_file() and path.suffix != WEIGHTS:
            shutil.copyfile(path, folder / path.name)
    for name in names:
        _write_outline(wanted.repository, name, cached.name, folder / name)
    return Fetched(folder, cached.name)


def _write_outline(repository: str, name: str, commit: str, place: Path) -> None:
    """A sparse file with the header of one on the hub, and with its length."""
    content, size = _request(repository, name, commit, FIRST_BYTES)
    length = 8 + int.from_bytes(content[:8], "little")
    if length > MAX_HEADER or length > size:
        raise UserError(f"{repository} has a damaged file {name}: it does not begin with the length of a header.")
    if length > len(content):
        content, size = _request(repository, name, commit, length)
    with place.open("wb") as file:
        file.write(content[:length])
        file.truncate(size)


def _request(repository: str, name: str, commit: str, count: int) -> tuple[bytes, int]:
    """The first bytes of a file, and how many it has."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    address = hf_hub_url(repository, name, revision=commit)
    try:
        answer = get_session().get(address, headers=build_hf_headers() | {"Range": f"bytes=0-{count - 1}"})
        hf_raise_for_status(answer)
        whole = re.fullmatch(r"bytes 0-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        content = answer.content
        size = int(whole[1]) if whole else len(content)
    except Exception as problem:  # of several network libraries
        reason = shorten_reason(problem)
        raise UserError(f"The header of {name} in {repository} cannot be read ({reason}); try again later.") from None
    return content[:count], size
