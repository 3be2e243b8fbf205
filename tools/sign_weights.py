"""Checksums of the bundled checkpoints, and their signature: python tools/sign_weights.py write|check|sign|verify.

    write                                  list the files of logosphere/pretrained in SHA256SUMS
    check                                  compare them
    sign --key KEY                         sign SHA256SUMS with a key of ssh (ed25519), into SHA256SUMS.sig
    verify --signers FILE --identity WHO   check SHA256SUMS.sig and then the files

The signature is that of `ssh-keygen -Y sign`, which comes with OpenSSH 8.1 and later and needs no network. FILE names
who may sign, a line for each: WHO namespaces="logosphere-weights" ssh-ed25519 AAAA… (see ALLOWED SIGNERS in
ssh-keygen(1)). No key is part of the repository: a key that comes with the files that it signs proves nothing.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from logosphere.errors import UserError
from logosphere.io import file_sha256, write_atomic
from logosphere.pretrained.checksums import SUMS, check_bundled, read_sums

PACKAGE = Path(__file__).resolve().parent.parent / "logosphere" / "pretrained"
NAMESPACE = "logosphere-weights"
"""What the signature is for; one for another purpose is not accepted."""


def list_files(package: Path) -> list[str]:
    """The files of all bundled checkpoints, by their paths with slashes."""
    folders = [path.parent for path in package.glob("[!.]*/recipe.json")]
    files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return sorted(path.relative_to(package).as_posix() for path in files)


def write_sums(package: Path = PACKAGE) -> Path:
    """List every file of the bundled checkpoints with its sha256."""
    lines = [f"{file_sha256(package / name)}  {name}\n" for name in list_files(package)]
    write_atomic(package / SUMS, "".join(lines).encode("ascii"))
    return package / SUMS


def check_sums(package: Path = PACKAGE) -> int:
    """Compare all bundled checkpoints with SHA256SUMS, which must name each file of theirs; the number of files."""
    named = read_sums(package)
    for folder in sorted({name.partition("/")[0] for name in named}):
        check_bundled(package / folder)
    if missing := [name for name in list_files(package) if name not in named]:
        raise UserError(f"{package / SUMS} does not name {missing[0]}; write it anew.")
    return len(named)


def sign(key: Path, package: Path = PACKAGE) -> Path:
    """Sign SHA256SUMS with a private key, which ssh-keygen reads (and asks for its passphrase)."""
    check_sums(package)
    signature = package / f"{SUMS}.sig"
    signature.unlink(missing_ok=True)
    _run("ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), str(package / SUMS))
    return signature


def verify(signers: Path, identity: str, package: Path = PACKAGE) -> int:
    """Check that one of `signers` named `identity` has signed SHA256SUMS, and the files; the number of files."""
    command = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-I", identity]
    _run(*command, "-s", str(package / f"{SUMS}.sig"), content=(package / SUMS).read_bytes())
    return check_sums(package)


def _run(*command: str, content: bytes | None = None) -> None:
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError("ssh-keygen is missing; it comes with OpenSSH.") from None
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise UserError(f"{' '.join(command[:3])} failed: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "check", "sign", "verify"])
    parser.add_argument("--key", type=Path, help="private key to sign with")
    parser.add_argument("--signers", type=Path, help="file of allowed signers")
    parser.add_argument("--identity", default="", help="who must have signed")
    args = parser.parse_args()
    try:
        match args.action:
            case "write":
                print(write_sums())
            case "check":
                print(f"{check_sums()} files are those of {SUMS}")
            case "sign" if args.key is not None:
                print(sign(args.key))
            case "verify" if args.signers is not None and args.identity:
                count = verify(args.signers, args.identity)
                print(f"{SUMS} is signed by {args.identity}, and {count} files are those of it")
            case _:
                parser.error("sign needs --key, and verify needs --signers and --identity")
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
