"""Batches and tasks: functions of seed and sample index, independent of the batching."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from statistical_checks import MIN_P_VALUE, chi_square_p_value

import logosphere as ls
from logosphere.data.batches import Continuation, Crops, Infilling, RandomLength, Unconditional, find_task, windows
from logosphere.errors import UserError
from logosphere.types import Batch, Condition

TEXT = np.arange(1000, dtype=np.uint16)
TASKS = {"unconditional": Unconditional(), "continuation": Continuation(1.0), "infilling": Infilling(1.0)}


def test_a_crop_is_a_contiguous_part_of_the_text() -> None:
    batch = Crops(TEXT, length=10, batch=8, seed=1).at(3)
    assert batch.tokens.shape == (8, 10) and batch.tokens.diff(dim=1).eq(1).all()
    assert batch.free.all() and batch.total == 8


def test_crops_are_a_function_of_seed_and_step() -> None:
    crops, again = (Crops(TEXT, 10, 8, seed=1) for _ in range(2))
    assert torch.equal(crops.at(5).tokens, again.at(5).tokens)
    different = [crops.at(5).tokens, crops.at(6).tokens, Crops(TEXT, 10, 8, seed=2).at(5).tokens]
    assert len(torch.cat(different)[:, 0].unique()) > 20


def test_crops_do_not_depend_on_the_batch_size() -> None:
    """Samples 24 to 31 as one batch of 8 or two of 4."""
    large, small = Crops(TEXT, 10, 8, seed=1), Crops(TEXT, 10, 4, seed=1)
    assert torch.equal(large.at(3).tokens, torch.cat([small.at(6).tokens, small.at(7).tokens]))
    assert torch.equal(large.at(3).ids, torch.arange(24, 32))


def test_crops_start_everywhere_equally_often() -> None:
    starts = torch.cat([Crops(TEXT[:20], 13, 500, seed=3).at(step).tokens[:, 0] for step in range(16)])
    assert chi_square_p_value(starts.bincount(minlength=8), torch.ones(8)) > MIN_P_VALUE


def test_windows_cover_the_text_once() -> None:
    batches = list(windows(TEXT[:104], length=10, batch=4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([batch.tokens for batch in batches]).flatten(), torch.arange(100))
    assert torch.equal(torch.cat([batch.global_index for batch in batches]), torch.arange(10))
    assert all(batch.total == 10 for batch in batches)


@pytest.mark.parametrize("limit", [1, 3, 7, 99, 100, 500])
def test_a_limited_number_of_windows_is_spread_over_the_text(limit: int) -> None:
    starts = torch.cat([batch.tokens[:, 0] for batch in windows(TEXT, 10, batch=4, limit=limit)])
    assert len(starts) == min(limit, 100) and starts.remainder(10).eq(0).all()
    gaps = starts.diff()
    assert gaps.ge(10).all() and (not len(gaps) or gaps.max() - gaps.min() <= 10)
    assert starts[-1] >= 1000 * (1 - 1.5 / len(starts)) - 20


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_windows_do_not_depend_on_the_batch_size(batch: int) -> None:
    whole = next(windows(TEXT, 10, batch=1000, limit=30))
    parts = list(windows(TEXT, 10, batch=batch, limit=30))
    for name in ("tokens", "ids", "global_index"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


@pytest.mark.parametrize("length, message", [(11, "fewer than one sequence"), (0, "at least 1")])
def test_text_that_is_too_short_is_refused(length: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Crops(TEXT[:10], length, 2, seed=0)
    with pytest.raises(UserError, match=message):
        list(windows(TEXT[:10], length, 2))


def test_text_of_exactly_one_sequence_is_accepted() -> None:
    assert torch.equal(Crops(TEXT[:10], 10, 2, seed=0).at(0).tokens, torch.arange(10).expand(2, 10))


def test_an_empty_batch_size_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        Crops(TEXT, 10, 0, seed=0)


def apply_task(name: str, length: int, n: int = 2000) -> Batch:
    batch = Batch.of(torch.zeros(n, length).long())
    return TASKS[name].apply(batch, seed=4)


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", TASKS)
def test_a_task_leaves_free_positions(name: str, length: int) -> None:
    batch = apply_task(name, length)
    assert batch.known.shape == (2000, length)
    assert batch.free.any(1).all()


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_a_function_of_seed_and_sample(name: str) -> None:
    batch = Batch.of(torch.zeros(20, 9).long())
    whole, part = TASKS[name].apply(batch, 4), TASKS[name].apply(batch.select(slice(5, 12)), 4)
    assert torch.equal(whole.known[5:12], part.known) and torch.equal(part.ids, torch.arange(5, 12))
    if name != "unconditional":
        assert not torch.equal(whole.known, TASKS[name].apply(batch, 5).known)


def test_continuation_prompts_have_uniform_lengths() -> None:
    known = apply_task("continuation", 5).known
    assert known.long().diff(dim=1).le(0).all()
    assert chi_square_p_value(known.sum(1).bincount(minlength=5), torch.ones(5)) > MIN_P_VALUE


def test_infilling_frees_one_span() -> None:
    known = apply_task("infilling", 9).known
    edges = torch.nn.functional.pad((~known).long(), (1, 1)).diff(dim=1)
    assert edges.eq(1).sum(1).eq(1).all()
    assert (~known).any(0).all() and known.any(0).all()


def test_tasks_apply_to_a_fraction_of_the_sequences() -> None:
    batch = Batch.of(torch.zeros(4000, 50).long())
    for some in (Continuation(0.25), Infilling(0.25)):
        fraction = float(some.apply(batch, 1).known.any(1).double().mean())
        assert abs(fraction - 0.25) < 3 * (0.19 / 4000) ** 0.5 + 0.02  # one in 50 has an empty prompt


def test_an_unknown_task_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'infilling'"):
        find_task("infiling")


def test_random_lengths_are_equal_in_all_parts_of_a_batch() -> None:
    crops, cut = Crops(TEXT, 10, 8, seed=1), RandomLength(0.3)
    lengths = torch.tensor([cut.apply(crops.at(step), 5).tokens.shape[1] for step in range(400)])
    assert abs(float((lengths < 10).double().mean()) - 0.3 * 0.9) < 0.08 and lengths.min() == 1
    for step in range(20):
        parts = [cut.apply(crops.at(step, slice(start, start + 4)), 5).tokens.shape[1] for start in (0, 4)]
        assert parts == [lengths[step]] * 2
    assert RandomLength(0.0).apply(crops.at(0), 5).tokens.shape == (8, 10)
    whole = replace(crops.at(3), token_count=torch.full((8,), 9), condition=Condition.of(signal=torch.zeros(8, 10, 2)))
    shortened = RandomLength(1.0).apply(whole, 5)
    end = shortened.tokens.shape[1]
    assert (
        end < 10
        and shortened.condition.signal.shape == (8, end, 2)
        and int(shortened.scored_tokens.max()) == min(9, end)
    )


def test_models_train_on_random_lengths_except_blockwise_ones() -> None:
    batches = [RandomLength(1.0).apply(Crops(TEXT % 5, 8, 4, seed=1).at(step), 5) for step in range(4)]
    assert len({batch.tokens.shape[1] for batch in batches}) > 1
    size = {"vocab_size": 5, "length": 8, "width": 16, "depth": 1, "heads": 2}
    assert len(list(ls.fit(ls.build("llada", **size), batches, steps=4))) == 4
    with pytest.raises(UserError, match="block by block"):
        list(ls.fit(ls.build("bd3lm", **size, block=4), batches, steps=4))
