"""The scripted attacks of tools/attacks: they are many, documented, and none does harm."""

import pytest
from attacks import REGISTRY, find_areas, replay

AREAS = find_areas()


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
def test_no_attack_does_harm(area: str) -> None:
    outcome = replay(area)
    assert outcome.attacks > 0 and outcome.failures == []


def test_attacks_are_many_and_documented() -> None:
    assert len(REGISTRY) >= 300 and {one.area for one in REGISTRY} == set(AREAS)
    assert all(one.about for one in REGISTRY)
    assert len({(one.area, one.name, one.variant) for one in REGISTRY}) == len(REGISTRY)


def test_a_harmful_attack_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logosphere.terminal.neutralise", lambda text: text)
    outcome = replay("terminal", "print_result")
    assert outcome.attacks == len(outcome.failures) > 10
