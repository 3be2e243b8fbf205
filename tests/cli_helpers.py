"""The command line within tests: small trainings, JSON on stdout and one-line errors on stderr."""

import json
from typing import Any

import pytest

from logosphere.cli import main

SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "2"]
EXPORT_OPTIONS = ["--sequences", "8", "--samples", "2", "--steps", "4"]


def train(*more: str, steps: int = 4, out: str = "run") -> int:
    """Train a small run, of mdlm unless another system is given; the exit code."""
    named = any(word.partition("=")[0] in ("--system", "--begin", "--resume") for word in more)
    system = [] if named else ["--system", "mdlm"]
    return main(["train", *system, "--steps", str(steps), "--out", out, *SMALL, *more])


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON of the last line on stdout."""
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def error_line(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 1) -> str:
    """Run a command that must fail, and return the one line it prints."""
    capsys.readouterr()
    assert main(argv) == code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("logosphere: ")]
    assert len(lines) == 1 and "Traceback" not in captured.err and captured.out == ""
    return lines[0]
