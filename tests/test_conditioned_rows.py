"""Distributed training where every n-th sequence is self-conditioned; and large vocabularies."""

from pathlib import Path

import pytest
import torch
from distributed_helpers import run_in_processes
from toy_languages import generator

import logosphere as ls
from logosphere.codecs import embeddings
from logosphere.errors import UserError
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.training.trainer import Trainer


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
def test_distributed_steps_match_one_process(sharded: bool, tmp_path: Path) -> None:
    """Two processes with two sequences each: one of them has no conditioned sequence."""

    def stepped(group: ProcessGroup) -> list[float]:
        torch.manual_seed(0)
        model = ls.build("plaid", vocab_size=5, length=6, width=16, depth=1, heads=2, preset="paper")
        trainer = Trainer(model, group=group, sharded=sharded and group.size > 1)
        batches = [ls.Batch.of(torch.randint(5, (4, 6), generator=generator(i)), first=4 * i) for i in range(4)]
        return [
            trainer.train_step(batch.select(group.local_slice(4)), number / 4).loss
            for number, batch in enumerate(batches)
        ]

    single = stepped(SINGLE)
    for losses in run_in_processes(2, stepped, tmp_path):
        assert losses == pytest.approx(single, rel=1e-4)


@pytest.mark.parametrize("codec", ["one-hot", "logits"])
def test_oversized_embedding_tables_are_refused(codec: str) -> None:
    """A table of 50,257² numbers would fill 10 GB."""
    with pytest.raises(UserError, match="at most 8,192 tokens, not 50,257"):
        ls.build("gaussian-ce", vocab_size=50257, length=8, denoiser=None, codec=codec)


def test_simplex_of_a_large_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="at most 8,192"):
        ls.build("simplex", vocab_size=50257, length=8)


@pytest.mark.parametrize("width, norm", [(1, None), (2, 1.0), (3, 1.0), (8, None), (64, 8.0)])
@pytest.mark.parametrize("distance", [0.0, 2e-3, 6e-3, 1e-1])
def test_close_rows_are_detected(width: int, norm: float | None, distance: float) -> None:
    """Against all pairs: |e - f|²/2 > 1e-5 |e|² for every two rows."""
    rows = torch.randn(60, width, generator=generator(width))
    rows[41] = rows[7] + distance * rows[7].norm() * torch.randn(width, generator=generator(3)) / width**0.5
    codec = embeddings.Embeddings(rows, norm=norm)
    table = codec.table().double()
    halves = torch.cdist(table, table).square() / 2 + torch.diag(torch.full((60,), torch.inf, dtype=torch.float64))
    expected = bool((halves > 1e-5 * table.square().sum(-1)).all())
    assert codec.is_separable() == expected


def test_rows_of_large_tables_are_separable() -> None:
    codec = embeddings.learned_table(50257, 16, 1.0)
    assert codec.is_separable()
    with torch.no_grad():
        codec.weight[50000] = 2 * codec.weight[3]
    assert not codec.is_separable()
