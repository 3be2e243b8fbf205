"""A long life in short: memory and open files stay what they were, however often one trains, measures and samples."""

from pathlib import Path

import pytest
from soak import find_growth, run_cycle


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked at in the way of Linux")
def test_cycles_of_train_evaluate_and_sample_leave_nothing_behind(tmp_path: Path) -> None:
    assert find_growth([run_cycle(tmp_path, number, ("mdlm",)) for number in range(9)]) == []


def test_what_grows_is_seen() -> None:
    assert find_growth([(1000 + number, 5) for number in range(9)]) == []
    assert find_growth([(2000 * number, 5) for number in range(9)]) == ["memory grows"]
    assert find_growth([(1000, number) for number in range(9)]) == ["the number of open files grows"]
