"""A short run of tools/fuzzing.py with fixed seeds, and tests that the fuzzer finds problems."""

import os
import subprocess
import urllib.request
from pathlib import Path

import pytest
from fuzz_targets import make_targets
from fuzzing import Target, fuzz, limit_memory

import logosphere as ls
from logosphere.errors import UserError

HERE = str(Path(__file__).parent)


@pytest.mark.slow
def test_mutated_inputs_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    every = make_targets(tmp_path)
    with limit_memory():
        found = {target.name: fuzz(target, 60, seed=1) for target in every}
    problems = [problem for findings in found.values() for problem in findings.problems]
    assert not problems, problems[0]
    assert sum(findings.cases for findings in found.values()) == 60 * len(every) and len(every) >= 13
    assert all(findings.kept > 0 for findings in found.values()), "guided by coverage"


def deep(content: bytes) -> None:
    """An error behind five checks, each of which a random mutation passes about once in a thousand."""
    if content[:1] != b"a":
        raise UserError("no a")
    if content[1:2] != b"b":
        raise UserError("no b")
    if content[2:3] != b"c":
        raise UserError("no c")
    if content[3:4] != b"d":
        raise UserError("no d")
    raise KeyError("found")


def test_coverage_guides_the_search() -> None:
    target = Target("deep", deep, [], [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"])
    target.seeds = [b"a...."]
    found = [fuzz(target, 6000, seed=2, folder=HERE, guided=guided) for guided in (True, False)]
    problems = [[problem for problem in one.problems if "KeyError" in problem] for one in found]
    assert problems[0] and not problems[1]


def test_forbidden_effects_are_detected(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("precious")

    def reckless(content: bytes) -> None:
        if content == b"run":
            os.system("true")
        if content == b"start":
            subprocess.run(["true"])
        if content == b"fetch":
            urllib.request.urlopen("http://127.0.0.1:9/")
        if content == b"lose":
            kept.unlink()
        if content == b"refuse":
            raise UserError("no")

    for word, message in {
        b"run": "Forbidden", b"start": "Forbidden", b"fetch": "no network", b"lose": "files changed",
        b"refuse": "valid input was refused",
    }.items():  # fmt: skip
        (problem,) = fuzz(Target("reckless", reckless, [word], guarded=tmp_path), 1, seed=0).problems
        assert message in problem


@pytest.mark.parametrize("size", [{"depth": 2**63}, {"width": 2**40}, {"labels": 2**60}, {"length": 2**31}])
def test_oversized_settings_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at most"):
        ls.build("mdlm", **{"vocab_size": 5, "length": 8, **size})
