"""The audit of dependencies: vulnerable versions are an error, and a database that cannot be reached is a notice."""

import subprocess
import sys
from pathlib import Path

import audit_packages
import pytest

TOOL = Path(audit_packages.__file__)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *options], capture_output=True, text=True, check=False)


def test_without_a_network_the_audit_is_skipped_with_a_notice(tmp_path: Path) -> None:
    done = run("--database", "http://127.0.0.1:9/", "--tools", str(tmp_path / "tools"))
    assert done.returncode == 0 and "NOTICE: the audit of dependencies is skipped" in done.stdout
    assert not (tmp_path / "tools").exists()


def test_a_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    vulnerability = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
    report = {
        "dependencies": [
            {"name": "a", "version": "1.0", "vulns": [vulnerability]},
            {"name": "b", "version": "1.0", "vulns": []},
            {"name": "c", "skip_reason": "Dependency not found on PyPI"},
        ]
    }
    found = audit_packages.read_report(report)
    assert found.packages == 3 and found.unknown == ["c"] and found.accepted == []
    assert found.vulnerable == ["a 1.0: PYSEC-1, fixed in 2.0"] and audit_packages.show(found) == 1
    monkeypatch.setitem(audit_packages.ACCEPTED, "CVE-1", "that part is not used")
    found = audit_packages.read_report(report)
    assert found.vulnerable == [] and len(found.accepted) == 1 and audit_packages.show(found) == 0
    assert audit_packages.show(audit_packages.Findings(packages=1, unknown=["c"])) == 0


@pytest.mark.slow
def test_a_vulnerable_version_is_an_error(tmp_path: Path) -> None:
    """jinja2 2.10 is one; its sandbox could be left."""
    if not audit_packages.is_reachable():
        pytest.skip("the database of vulnerabilities cannot be reached")
    (tmp_path / "old.txt").write_text("jinja2==2.10\n")
    done = run("--tools", str(tmp_path / "tools"), "--requirements", str(tmp_path / "old.txt"))
    if "NOTICE" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 1 and "VULNERABLE  jinja2 2.10" in done.stderr
