"""What the documents show is true: their Python runs, their commands exist, their files are there."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from logosphere.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("document", ["README.md", "docs/new-process.md", "docs/samplers.md", "docs/comparing.md"])
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, object] = {}
    for block in blocks(document, "python"):
        exec(compile(block, document, "exec"), namespace)
    if document == "docs/new-process.md":
        bound, language, tokens = namespace["bound"], namespace["language"], namespace["tokens"]
        gap = bound.total + language.log_prob(tokens)
        assert abs(float(gap.mean())) < 3 * float(gap.std()) / len(gap) ** 0.5
        assert torch.isfinite(gap).all()


def test_shown_commands_have_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [
        line for block in blocks("README.md", "bash") for line in block.splitlines() if line.startswith("logosphere")
    ]
    assert len(shown) >= 5
    for line in shown:
        command, *words = shlex.split(line, comments=True)[1:]
        assert command in COMMANDS
        main([command, "--help"])
        described = capsys.readouterr().out
        for word in words:
            if word.startswith("--"):
                assert word in described, line


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
