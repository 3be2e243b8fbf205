"""The distributions: what they contain, and that the wheel works in an empty environment."""

import importlib.util
import tomllib
import zipfile
from pathlib import Path

import check_wheel
import pytest

import logosphere as ls
from logosphere.io import file_sha256

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
needs_hatchling = pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling builds the wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return check_wheel.build(tmp_path_factory.mktemp("dist"), sdist=True)


@needs_hatchling
def test_the_distributions_are_complete(wheel: Path) -> None:
    assert check_wheel.check_content(wheel) == ls.__version__
    (sdist,) = wheel.parent.glob("logosphere-*.tar.gz")
    check_wheel.check_sdist(sdist)


@needs_hatchling
@pytest.mark.slow
def test_two_builds_are_the_same_to_the_last_bit(wheel: Path, tmp_path: Path) -> None:
    """Also another day, and into another folder."""
    hashes = check_wheel.check_reproducible(tmp_path, sdist=True)
    assert len(hashes) == 2 and hashes[wheel.name] == file_sha256(wheel)


@needs_hatchling
@pytest.mark.parametrize("name", ["logosphere/x.pth", "logosphere/x.so", "logosphere-1.data/scripts/x", "tests/x.py"])
def test_code_that_runs_unasked_is_refused(name: str, wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    changed.write_bytes(wheel.read_bytes())
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(SystemExit, match="must not have"):
        check_wheel.check_content(changed)


@needs_hatchling
def test_a_file_that_is_not_recorded_is_refused(wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    changed.write_bytes(wheel.read_bytes())
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("logosphere/more.txt", b"x")
    with pytest.raises(SystemExit, match=r"lacks \['logosphere/more.txt'\]"):
        check_wheel.check_content(changed)


@needs_hatchling
@pytest.mark.slow
@pytest.mark.timeout(1800)  # most of it is the installation of torch
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    packages = check_wheel.check_installed(wheel, tmp_path)
    assert f"logosphere @ {wheel.as_uri()}" in " ".join(packages) or f"logosphere=={ls.__version__}" in packages


def test_incomplete_metadata_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks Name"):
        check_wheel.check_metadata("Version: 1\n\n# A readme\n")


def test_versions_agree() -> None:
    """The version of the package, of its citation, and of the first entry of the changelog."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {ls.__version__}\n" in citation and f"\n## {ls.__version__} " in changelog


def test_supported_versions_of_python_agree() -> None:
    project = PROJECT["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert project["requires-python"] == f">={versions[0]}" and versions == ["3.11", "3.12", "3.13"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert f"[{', '.join(repr(version) for version in versions)}]".replace("'", '"') in workflow
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + versions[0].replace(".", "")
