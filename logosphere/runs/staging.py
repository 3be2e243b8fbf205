"""Folders that appear complete or not at all: written as a hidden draft beside their place, and renamed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from logosphere.errors import UserError
from logosphere.io import check_folder, check_link, locked, replace_file, sync


def check_free(out: Path) -> None:
    """Raise UserError where a folder cannot be made."""
    check_link(out)
    check_folder(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} exists already; choose another --out or remove it.")


@contextmanager
def staged(out: Path, activity: str) -> Iterator[Path]:
    """A draft of a new folder, which gets its name at the end of the context, and is removed if that fails.

    What a killed process has left is removed by the next one that writes the same folder.
    """
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    lock, draft = out.parent / f".{out.name}.{activity}.lock", out.parent / f".{out.name}.{activity}"
    left = False
    try:
        with locked(lock, wait=False):
            check_free(out)
            shutil.rmtree(draft, ignore_errors=True)
            try:
                draft.mkdir()
                yield draft
                sync(draft)
                if out.exists():
                    out.rmdir()
                replace_file(draft, out)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            finally:
                try:
                    lock.unlink(missing_ok=True)
                except PermissionError:  # Windows removes no open file
                    left = True
    except BlockingIOError:
        raise UserError(f"Another {activity} into {out} is running; wait for it or choose another --out.") from None
    finally:
        if left:
            with suppress(OSError):
                lock.unlink(missing_ok=True)
    sync(out.parent)
