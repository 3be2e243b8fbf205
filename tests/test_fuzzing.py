"""A slice of the fuzzing in tools/fuzzing.py, with fixed seeds, and whether that would find anything at all."""

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
def test_mutations_of_sound_inputs_are_met_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    every = make_targets(tmp_path)
    with limit_memory():
        found = {target.name: fuzz(target, 60, seed=1) for target in every}
    problems = [problem for findings in found.values() for problem in findings.problems]
    assert not problems, problems[0]
    assert sum(findings.cases for findings in found.values()) == 60 * 12
    assert all(findings.kept > 0 for findings in found.values()), "guided by what is reached"


def deep(content: bytes) -> None:
    """A problem behind five checks, each of which a mutation passes by chance once in some thousand."""
    if content[:1] != b"a":
        raise UserError("no a")
    if content[1:2] != b"b":
        raise UserError("no b")
    if content[2:3] != b"c":
        raise UserError("no c")
    if content[3:4] != b"d":
        raise UserError("no d")
    raise KeyError("found")


def test_what_is_reached_guides_the_search() -> None:
    target = Target("deep", deep, [], [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"])
    target.seeds = [b"a...."]
    found = [fuzz(target, 6000, seed=2, folder=HERE, guided=guided) for guided in (True, False)]
    problems = [[problem for problem in one.problems if "KeyError" in problem] for one in found]
    assert problems[0] and not problems[1]


def test_what_must_not_happen_is_noticed(tmp_path: Path) -> None:
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

    for word, said in {
        b"run": "Forbidden", b"start": "Forbidden", b"fetch": "no network", b"lose": "files changed",
        b"refuse": "valid input was refused",
    }.items():  # fmt: skip
        (problem,) = fuzz(Target("reckless", reckless, [word], guarded=tmp_path), 1, seed=0).problems
        assert said in problem


@pytest.mark.parametrize("size", [{"depth": 2**63}, {"width": 2**40}, {"labels": 2**60}, {"length": 2**31}])
def test_absurd_sizes_are_refused_at_once(size: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at most"):
        ls.build("mdlm", **{"vocab_size": 5, "length": 8, **size})
