"""Build the wheel and the source distribution, install the wheel into an empty environment, and use it there.

    python tools/check_wheel.py [--dist dist] [--sdist]

Two builds of the same files must be the same to the last bit. The environment has the wheel and its dependencies, at
the versions of constraints.txt, and nothing else: a file or a dependency that was forgotten is missed here and nowhere
else.
"""

import argparse
import base64
import csv
import email
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from logosphere.io import file_sha256

ROOT = Path(__file__).resolve().parent.parent
EPOCH = "1767225600"
"""SOURCE_DATE_EPOCH of a build without one: the date of files inside of archives, whichever it is."""
CODE = (".pth", ".so", ".pyd", ".dll", ".dylib", ".exe", ".sh", ".bat", "setup.py")
"""Ends of names that no wheel of ours has: what runs without being imported, or has no source here."""
NEEDED = (
    "logosphere/studio/static/index.html",
    "logosphere/report/style.css",
    "logosphere/report/published_results.json",
    "logosphere/systems/presets/masked.yaml",
    "logosphere/pretrained/stories/model.safetensors",
    "logosphere/pretrained/SHA256SUMS",
)
"""Files other than code that a wheel must have."""
FOREIGN = ("tests/", "docs/", "benchmarks/", "tools/", "site/", "runs/")
SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "1", "--steps", "3", "--device", "cpu"]
USES = (
    ["--help"],
    ["--version"],
    ["systems", "mdlm"],
    ["train", "--system", "mdlm", "--data", "text.txt", "--out", "run", *SMALL],
    ["sample", "run", "-n", "1", "--steps", "4"],
    ["evaluate", "run", "--sequences", "4", "--draws", "1"],
    ["sample", "-n", "1", "--steps", "4"],
)
"""Commands that the installed package must run."""


def build(folder: Path, *, sdist: bool = False) -> Path:
    """Build the wheel, and the source distribution if it is wanted, into a folder; the wheel."""
    for target in ["wheel", "sdist"] if sdist else ["wheel"]:
        command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder))
        run(*command, cwd=ROOT, variables={"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH)})
    return max(folder.glob("logosphere-*.whl"), key=lambda path: path.stat().st_mtime)


def check_reproducible(folder: Path, *, sdist: bool = False) -> dict[str, str]:
    """Build twice, which must give the same files; their sha256."""
    found = []
    for place in (folder / "first", folder / "second"):
        build(place, sdist=sdist)
        found.append({path.name: file_sha256(path) for path in sorted(place.iterdir())})
    if found[0] != found[1]:
        raise SystemExit(f"Two builds differ: {found[0]} and {found[1]}.")
    return found[0]


def run(*command: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Run a command, which must succeed; what it printed."""
    environment = os.environ | (variables or {})
    done = subprocess.run(command, cwd=cwd, capture_output=True, encoding="utf-8", env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_content(wheel: Path) -> str:
    """Check the files and the metadata of a wheel; its version."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name) for name in names if name.endswith(".dist-info/METADATA"))
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "logosphere").rglob("*.py")}
    missing = sorted((modules | set(NEEDED)) - set(names))
    foreign = [name for name in names if name.startswith(FOREIGN) or "__pycache__" in name]
    foreign += [name for name in names if name.endswith(CODE) or ".data/" in name]
    if missing or foreign:
        raise SystemExit(f"{wheel.name} lacks {missing} and must not have {foreign}.")
    check_record(wheel)
    return check_metadata(metadata.decode("utf-8"))


def check_record(wheel: Path) -> None:
    """Check that RECORD has the sha256 of every file, and that the bundled checkpoints have their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(record).decode("utf-8").splitlines()))
        content = {name: archive.read(name) for name in archive.namelist()}
    for name, digest, _ in rows:
        expected = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
        if name != record and digest != f"sha256={expected}":
            raise SystemExit(f"{wheel.name} has another hash of {name} in its RECORD.")
    if unnamed := sorted(content.keys() - {name for name, _, _ in rows}):
        raise SystemExit(f"The RECORD of {wheel.name} lacks {unnamed}.")
    for line in content["logosphere/pretrained/SHA256SUMS"].decode("ascii").splitlines():
        digest, _, name = line.partition("  ")
        if hashlib.sha256(content[f"logosphere/pretrained/{name}"]).hexdigest() != digest:
            raise SystemExit(f"{wheel.name} has another {name} than SHA256SUMS says; write it anew.")


def check_metadata(text: str) -> str:
    """Check what a package index shows; the version."""
    fields = email.message_from_string(text)
    for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords"):
        if not fields[name]:
            raise SystemExit(f"The metadata lacks {name}.")
    if fields["Description-Content-Type"] != "text/markdown" or len(str(fields.get_payload())) < 1000:
        raise SystemExit("The description must be the README, as text/markdown.")
    return str(fields["Version"])


def check_sdist(sdist: Path) -> None:
    """Check that a source distribution can be tested: its tests and all that they read are there."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
        "Makefile",
        "tests/conftest.py",
    }
    if missing := sorted(needed - names):
        raise SystemExit(f"{sdist.name} lacks {missing}.")


def check_installed(wheel: Path, place: Path) -> list[str]:
    """Install a wheel into an empty environment, and run its commands in an empty folder; the installed packages."""
    venv.create(place / "env", with_pip=True)
    programs = place / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    python, work = str(programs / "python"), place / "work"
    work.mkdir()
    (work / "text.txt").write_text("the cat sat on the mat and the dog on the log\n" * 60, encoding="utf-8")
    constraints = str(ROOT / "constraints.txt")
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", constraints]
    run(*install, str(wheel), cwd=work)
    run(python, "-m", "pip", "check", cwd=work)
    for argv in USES:
        run(str(programs / "logosphere"), *argv, cwd=work)
    found = run(python, "-c", "import logosphere; print(logosphere.__file__)", cwd=work).strip()
    if not Path(found).is_relative_to(place / "env"):
        raise SystemExit(f"The package in use is {found}, not the installed one.")
    return run(python, "-m", "pip", "list", "--format", "freeze", cwd=work).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the distributions")
    parser.add_argument("--sdist", action="store_true", help="build the source distribution as well")
    arguments = parser.parse_args()
    wheel = build(arguments.dist, sdist=arguments.sdist)
    with tempfile.TemporaryDirectory() as folder:
        hashes = check_reproducible(Path(folder), sdist=arguments.sdist)
    if file_sha256(wheel) != hashes[wheel.name]:
        raise SystemExit(f"Another build than {wheel} has another sha256.")
    version = check_content(wheel)
    for sdist in arguments.dist.glob(f"logosphere-{version}.tar.gz"):
        check_sdist(sdist)
    with tempfile.TemporaryDirectory() as folder:
        packages = check_installed(wheel, Path(folder).resolve())
    print(f"{wheel.name}: {len(packages)} packages, {len(USES)} commands, the same in every build")
    for name, sha256 in hashes.items():
        print(f"{sha256}  {name}")


if __name__ == "__main__":
    main()
