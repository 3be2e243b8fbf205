"""Soak test: repeated training, evaluation and sampling leak neither memory nor open files."""

from pathlib import Path

import pytest
from soak import find_growth, run_cycle


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="process statistics need /proc")
def test_repeated_cycles_do_not_leak(tmp_path: Path) -> None:
    assert find_growth([run_cycle(tmp_path, number, ("mdlm",)) for number in range(9)]) == []


def test_growth_is_detected() -> None:
    assert find_growth([(1000 + number, 5) for number in range(9)]) == []
    assert find_growth([(2000 * number, 5) for number in range(9)]) == ["memory grows"]
    assert find_growth([(1000, number) for number in range(9)]) == ["the number of open files grows"]
