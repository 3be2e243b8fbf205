"""Rows and conditions of benchmarks/rdlm_paper.py."""

from dataclasses import replace

import pytest
import torch
from rdlm_paper_conditions import compare_conditions, give_wrong_conditions
from rdlm_paper_rows import PARTS

import logosphere as ls
from logosphere.cli.train_options import parse_train
from logosphere.types import Batch, Condition


@pytest.mark.parametrize("name", PARTS)
def test_rows_of_a_part_differ_in_the_system_only(name: str) -> None:
    part = PARTS[name]
    configs = [parse_train([*part.arguments, *arguments]).config for arguments in part.rows.values()]
    settings = [replace(config, system="", preset="default", options=()) for config in configs]
    assert all(one == settings[0] for one in settings)


def test_wrong_conditions_are_those_of_other_sequences() -> None:
    signal = torch.arange(3.0)[:, None, None].expand(3, 4, 1)
    condition = Condition.of(labels=torch.tensor([0, 1, 1]), signal=signal)
    (wrong,) = give_wrong_conditions([Batch.of(torch.zeros(3, 4, dtype=torch.long), condition=condition)], 2)
    assert wrong.condition is not None and wrong.condition.labels is not None and wrong.condition.signal is not None
    assert wrong.condition.labels.tolist() == [1, 0, 0]
    assert wrong.condition.signal[:, 0, 0].tolist() == [2, 0, 1]


def test_conditions_are_compared_sequence_by_sequence() -> None:
    model = ls.build("ar", vocab_size=4, length=6, width=16, depth=1, heads=2, labels=2).eval()
    labels = torch.arange(8) % 2
    batch = Batch.of(torch.randint(4, (8, 6)), condition=Condition.of(labels=labels))
    reports = [ls.evaluate(model, b, rng=0) for b in ([batch], list(give_wrong_conditions([batch], 2)))]
    assert compare_conditions(*reports)["of"] == "exact"
    assert compare_conditions(reports[0], reports[0])["bits"] == 0
    right, wrong = (sum(report.nats) for report in reports)
    mean = (wrong - right) / (48 * torch.tensor(2.0).log().item())
    assert compare_conditions(*reports)["bits"] == pytest.approx(mean, abs=1e-7)
