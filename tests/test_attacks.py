"""The scripted attacks of tools/attacks: they are many, documented, and none does harm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import REGISTRY, find_areas, replay

AREAS = find_areas()


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
def test_no_attack_does_harm(area: str) -> None:
    """In a process of its own: attacks send signals, leave busy threads and warn with what no report can hold."""
    tools = Path(__file__).parent.parent / "tools"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tools), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "attacks", "--area", area]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["attacks"] > 0 and counted["failures"] == 0


def test_attacks_are_many_and_documented() -> None:
    assert len(REGISTRY) >= 300 and {one.area for one in REGISTRY} == set(AREAS)
    assert all(one.about for one in REGISTRY)
    assert len({(one.area, one.name, one.variant) for one in REGISTRY}) == len(REGISTRY)


def test_a_harmful_attack_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logosphere.terminal.neutralise", lambda text: text)
    outcome = replay("terminal", "print_result")
    assert outcome.attacks == len(outcome.failures) > 10
