"""A long life in short: memory and open files stay what they were, however often one trains, measures and samples."""

import gc
import os
from pathlib import Path

import pytest
from test_parallel import corpus
from test_runs import RECIPE

from logosphere.data.corpora import Corpus, open_corpus
from logosphere.evaluation.report import evaluate
from logosphere.runs.train import start, train
from logosphere.sampling.walk import generate

__all__ = ["corpus"]  # a fixture


def resident() -> int:
    """Kilobytes of memory in use."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked at in the way of Linux")
def test_cycles_of_train_evaluate_and_sample_leave_nothing_behind(corpus: Corpus, tmp_path: Path) -> None:
    marks = []
    for cycle in range(8):
        again = open_corpus(str(tmp_path / "text.txt"), "characters")
        run = start(RECIPE, again, tmp_path / f"run-{cycle}")
        with run.lock():
            list(train(run, again))
        model = run.model()
        evaluate(model, [generate(model, n=4, steps=4).tokens], rng=0)
        marks.append((resident(), len(os.listdir("/proc/self/fd"))))
    warm, late = marks[2:5], marks[5:]
    assert late[-1][1] <= warm[0][1], "open files add up"
    assert min(memory for memory, _ in late) - min(memory for memory, _ in warm) < 4096, "memory adds up"
