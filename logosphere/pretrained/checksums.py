"""The checksums of the bundled checkpoints: SHA256SUMS, in the format of `sha256sum`, compared when one is loaded.

They find a damaged installation. Who can change the files of the package can change the checksums too: that is what the
signature of a release is for (tools/sign_weights.py, docs/security.md).
"""

import re
from pathlib import Path

from logosphere.errors import UserError
from logosphere.io import file_sha256
from logosphere.untrusted import read_regular

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def read_sums(package: Path) -> dict[str, str]:
    """The sha256 of each file below the folder of the bundled checkpoints, by its path with slashes."""
    try:
        lines = read_regular(package / SUMS).decode("ascii").splitlines()
    except (OSError, ValueError):
        raise UserError(f"{package / SUMS} is missing or damaged; install the package anew.") from None
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise UserError(f"{package / SUMS} is damaged; install the package anew.")
    return {line[2]: line[1] for line in found if line is not None}


def check_bundled(folder: Path) -> None:
    """Raise UserError unless a bundled checkpoint has all files that SHA256SUMS names, unchanged."""
    prefix = f"{folder.name}/"
    sums = {name: sha256 for name, sha256 in read_sums(folder.parent).items() if name.startswith(prefix)}
    if not sums:
        raise UserError(f"{folder.parent / SUMS} names no file of {folder.name}; install the package anew.")
    for name, sha256 in sums.items():
        path = folder.parent / name
        try:
            found = file_sha256(path)
        except OSError:
            raise UserError(f"{path} is missing; install the package anew.") from None
        if found != sha256:
            raise UserError(
                f"{path} is not the file that was bundled: its sha256 is {found[:12]}…, not {sha256[:12]}…; install "
                "the package anew."
            )
