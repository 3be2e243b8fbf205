"""Look up known vulnerabilities of the installed packages: python tools/audit_packages.py [--tools .venv/audit]

pip-audit, in an environment of its own, compares the versions with the advisories of the Python Packaging Authority,
which it gets from PyPI. A vulnerability is an error. Where the database cannot be reached, or is a mirror without
advisories, nothing is known: that is said, and is no error.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATABASE = "https://pypi.org/pypi/jinja2/2.10/json"
"""An address of the database, which is asked first: of a version that has vulnerabilities."""
SKIPPED = "NOTICE: the audit of dependencies is skipped:"
TIMEOUT = 10.0
ACCEPTED: dict[str, str] = {}
"""Identifiers of vulnerabilities that do not concern this package -> the reason."""


@dataclass
class Findings:
    """What pip-audit has found."""

    packages: int = 0
    vulnerable: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Packages that the database does not have, such as builds with a local version."""


def is_reachable(address: str = DATABASE) -> bool:
    """Whether the database answers, with vulnerabilities."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            return bool(json.load(answer).get("vulnerabilities"))
    except (OSError, ValueError, AttributeError):
        return False


def install(tools: Path) -> Path | None:
    """The program pip-audit in an environment at `tools`, which is made where it does not exist; None if that fails."""
    programs = tools / ("Scripts" if sys.platform == "win32" else "bin")
    program = programs / ("pip-audit.exe" if sys.platform == "win32" else "pip-audit")
    if not program.exists():
        venv.create(tools, with_pip=True)
        command = [
            str(programs / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "pip-audit",
        ]
        if subprocess.run(command, check=False).returncode:
            return None
    return program


def audit(program: Path, *options: str) -> dict[str, Any] | None:
    """The report of pip-audit; None where it made none, for example because the network failed meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(program), "--progress-spinner", "off", "--format", "json", "--output", str(report), *options]
        # The environment that is examined is that of this interpreter, not that of the program.
        environment = os.environ | {"PIPAPI_PYTHON_LOCATION": sys.executable}
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        return json.loads(report.read_bytes()) if report.exists() and report.stat().st_size else None


def read_report(report: dict[str, Any]) -> Findings:
    """The vulnerable packages of a report."""
    found = Findings()
    for package in report["dependencies"]:
        found.packages += 1
        if "skip_reason" in package:
            found.unknown.append(str(package["name"]))
        for one in package.get("vulns", []):
            names = [one["id"], *one.get("aliases", [])]
            fixed = ", ".join(one.get("fix_versions", [])) or "no version"
            line = f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}"
            (found.accepted if ACCEPTED.keys() & set(names) else found.vulnerable).append(line)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", type=Path, default=Path(".venv/audit"), help="environment of pip-audit")
    parser.add_argument("--database", default=DATABASE, help="address that is asked whether the database answers")
    parser.add_argument("--requirements", type=Path, help="pinned requirements in place of what is installed")
    args = parser.parse_args()
    if not is_reachable(args.database):
        print(f"{SKIPPED} the database of vulnerabilities cannot be reached.")
        return 0
    program = install(args.tools)
    if program is None:
        print(f"{SKIPPED} pip-audit cannot be installed.")
        return 0
    options = [] if args.requirements is None else ["-r", str(args.requirements), "--no-deps", "--disable-pip"]
    report = audit(program, *options)
    if report is None:
        print(f"{SKIPPED} pip-audit gave no report.")
        return 0
    return show(read_report(report))


def show(found: Findings) -> int:
    """Print what was found; 1 if a package is vulnerable."""
    compared = found.packages - len(found.unknown)
    if not compared:
        print(f"{SKIPPED} the database has none of the {found.packages} packages.")
        return 0
    without = f"; the database does not have {', '.join(found.unknown)}" if found.unknown else ""
    print(f"{compared} packages are compared with the database of vulnerabilities{without}.")
    for line in found.accepted:
        print(f"accepted  {line}")
    for line in found.vulnerable:
        print(f"VULNERABLE  {line}", file=sys.stderr)
    return 1 if found.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
