"""What users pass as sequences: every form gives the same Batch, and a data set the same numbers as its batches."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.data.corpus import Examples
from logosphere.errors import UserError
from logosphere.inputs import IGNORED, SequenceFormat
from logosphere.rng import as_seed
from logosphere.types import Batch

LANGUAGE = skewed_chain(5, 6)
TOKENS = LANGUAGE.sample(12, 1)
ROWS = TOKENS.tolist()
FORMAT = SequenceFormat(6, 5)


def are_equal(one: Batch, other: Batch) -> bool:
    fields = ("tokens", "known", "valid", "ids", "global_index")
    return one.total == other.total and all(torch.equal(getattr(one, f), getattr(other, f)) for f in fields)


@pytest.mark.parametrize(
    "given",
    [
        TOKENS, TOKENS.int(), TOKENS.numpy(), TOKENS.numpy().astype(np.uint16), ROWS, tuple(map(tuple, ROWS)),
        list(TOKENS), list(TOKENS.numpy()), [TOKENS], (TOKENS.numpy(),), {"input_ids": TOKENS}, {"input_ids": ROWS},
        {"input_ids": TOKENS, "attention_mask": torch.ones(12, 6), "labels": TOKENS, "token_type_ids": TOKENS},
        Batch.of(TOKENS),
    ],
    ids=["tensor", "int32", "array", "uint16", "lists", "tuples", "rows", "arrays", "column", "columns", "mapping",
         "lists in a mapping", "mapping of a collator", "batch"],
)  # fmt: skip
def test_every_form_is_the_same_batch(given: object) -> None:
    read = FORMAT.read(given)
    assert are_equal(read, Batch.of(TOKENS)) and read.tokens.dtype == torch.int64
    model = random_network("mdlm", LANGUAGE)
    assert torch.equal(model.nelbo(given, 0).total, model.nelbo(TOKENS, 0).total)
    assert torch.equal(model.corrupt(given, 0.5, 0), model.corrupt(TOKENS, 0.5, 0))


def test_padding_is_left_out_of_the_bound() -> None:
    mask = torch.ones(12, 6).long()
    mask[:, 4:] = 0
    ids = torch.where(mask.bool(), TOKENS, 3)
    read = FORMAT.read({"input_ids": ids, "attention_mask": mask})
    assert torch.equal(read.valid, mask.bool()) and not read.all_free and not bool(read.tokens[:, 4:].any())
    assert read.scored_tokens.tolist() == [4] * 12
    assert torch.equal(ids[:, 4:], torch.full((12, 2), 3)), "the batch of the user is not changed"
    report = ls.evaluate(random_network("mdlm", LANGUAGE), [{"input_ids": ids, "attention_mask": mask}], rng=0)
    assert report.tokens == 4 * 12


def test_labels_of_minus_100_are_known_positions() -> None:
    labels, mask = TOKENS.clone(), torch.ones(12, 6).long()
    labels[:, :2], labels[:, 5], mask[:, 5] = IGNORED, IGNORED, 0  # a prompt, and padding
    read = FORMAT.read({"input_ids": TOKENS, "labels": labels, "attention_mask": mask})
    assert torch.equal(read.known, torch.arange(6).expand(12, -1) < 2)
    assert read.free.sum(1).tolist() == [3] * 12


# ---- texts -------------------------------------------------------------------------------------------------------


CHARACTERS, ENDING = (ls.make_tokenizer("characters", ["abcde"], end=end) for end in (False, True))


def test_texts_are_padded_with_the_end_token_as_a_corpus_pads_them() -> None:
    texts = ["ab", "", "abcdea"]
    read = SequenceFormat(6, 6, ENDING).read(texts)
    examples = Examples([ENDING.encode(text) for text in texts], eos=ENDING.eos)
    index = torch.arange(3)
    expected = examples.make_batch(np.arange(3), index, index, 3, 6)
    assert are_equal(read, expected) and torch.equal(read.token_count, expected.token_count)
    assert read.scored_tokens.tolist() == [3, 1, 6]


def test_texts_without_an_end_token_are_one_row_in_a_data_set() -> None:
    texts = SequenceFormat(6, 5, CHARACTERS)
    (batch,) = texts.read_all(["abcd", "eabcdeabc"], 8)
    assert [CHARACTERS.decode(row) for row in batch.tokens.numpy()] == ["abcdea", "bcdeab"]
    assert CHARACTERS.decode(texts.read(["abcdea"]).tokens[0].numpy()) == "abcdea"
    with pytest.raises(UserError, match="exactly 6"):
        texts.read(["abcd"])


def test_texts_are_trained_on_and_measured() -> None:
    model = ls.build("mdlm", tokenizer=ENDING, length=6, width=16, depth=1, heads=2)
    texts = ["abc", "ab", "abcde", "e"] * 4
    assert len(list(ls.fit(model, texts, steps=3, batch=4))) == 3
    report = ls.evaluate(model, texts, rng=0)
    assert (report.sequences, report.tokens) == (16, 4 * (4 + 3 + 6 + 2))
    assert ls.evaluate(model, {"text": texts}, rng=0).bits == report.bits
    assert model.nelbo(texts, 0).count.tolist() == [4, 3, 6, 2] * 4


# ---- data sets and iterables ---------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """A data set of dictionaries, as those of Hugging Face are."""

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": TOKENS[index], "attention_mask": torch.ones(6).long()}


@pytest.mark.parametrize(
    "data",
    [TOKENS.split(5), iter(TOKENS.split(5)), [ROWS[:5], ROWS[5:10], ROWS[10:]], DataLoader(TensorDataset(TOKENS), 5),
     DataLoader(Rows(), 5), [TOKENS.numpy()[:5], TOKENS.numpy()[5:10], TOKENS.numpy()[10:]]],
    ids=["tuple", "iterator", "lists", "tensors of a loader", "mappings of a loader", "arrays"],
)  # fmt: skip
def test_batches_of_every_kind_are_evaluated_alike(data: object) -> None:
    model = random_network("mdlm", LANGUAGE)
    expected = ls.evaluate(model, [Batch.of(part, first=5 * i) for i, part in enumerate(TOKENS.split(5))], rng=0)
    report = ls.evaluate(model, data, rng=0)
    assert (report.bits, report.data_sha256) == (expected.bits, expected.data_sha256)


@pytest.mark.parametrize("data", [TOKENS, ROWS, TOKENS.numpy(), {"input_ids": TOKENS}, Batch.of(TOKENS)])
def test_a_data_set_is_evaluated_as_one_batch(data: object) -> None:
    model = random_network("mdlm", LANGUAGE)
    report, whole = ls.evaluate(model, data, rng=0, batch=5), ls.evaluate(model, [TOKENS], rng=0)
    assert report.nats == pytest.approx(whole.nats, rel=1e-5) and report.data_sha256 == whole.data_sha256


def test_training_takes_every_sequence_of_a_data_set_once_an_epoch() -> None:
    numbered = torch.arange(12)[:, None].expand(-1, 6)
    batches = list(islice(SequenceFormat(6, 12).read_for_training(numbered, 4, 3), 6))
    epochs = [torch.cat([batch.tokens[:, 0] for batch in batches[i : i + 3]]).tolist() for i in (0, 3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs) and epochs[0] != epochs[1]
    assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(24))
    assert all(batch.total == 4 and batch.global_index.tolist() == [0, 1, 2, 3] for batch in batches)
    again = SequenceFormat(6, 12).read_for_training(numbered, 4, 3)
    assert all(are_equal(one, other) for one, other in zip(batches, again, strict=False))


def losses(data: object, steps: int = 3, **how: object) -> list[float]:
    return [progress.loss for progress in ls.fit(random_network("mdlm", LANGUAGE), data, steps=steps, **how)]


def test_training_on_a_loader_is_training_on_its_batches_and_begins_again_at_its_end() -> None:
    parts = TOKENS.split(4)
    assert losses(DataLoader(TensorDataset(TOKENS), 4)) == losses(parts) == losses([part.tolist() for part in parts])
    assert losses(DataLoader(TensorDataset(TOKENS), 4), 6) == losses([*parts, *parts], 6)
    with pytest.raises(UserError, match="ended after 3 of 6"):
        losses(parts, 6)
    with pytest.raises(UserError, match="ended after 0 of 3"):
        losses(DataLoader(TensorDataset(TOKENS[:0]), 4))


# ---- seeds -------------------------------------------------------------------------------------------------------


def test_seeds_stand_for_generators() -> None:
    model = random_network("mdlm", LANGUAGE)
    assert torch.equal(LANGUAGE.sample(4, 7), LANGUAGE.sample(4, generator(7)))
    assert torch.equal(model.nelbo(TOKENS, 7).total, model.nelbo(TOKENS, generator(7)).total)
    assert torch.equal(ls.sample(model, 3, 4, 7), ls.sample(model, 3, 4, generator(7)))
    assert as_seed(np.int64(3)) == 3
    flow = random_network("dirichlet-flow", LANGUAGE, churn=0.0)
    assert torch.equal(
        ls.ode_nelbo(flow, ROWS, 7, steps=2).total, ls.ode_nelbo(flow, TOKENS, generator(7), steps=2).total
    )


def test_known_tokens_may_be_lists_and_arrays() -> None:
    model, known = random_network("mdlm", LANGUAGE), [1, 0, 0, 1, 0, 0]
    expected = ls.sample(model, 3, 4, 0, known=torch.tensor(known).bool(), tokens=TOKENS[0])
    assert bool((expected[:, [0, 3]] == TOKENS[0, [0, 3]]).all())
    for given in ((known, ROWS[0]), (np.array(known), TOKENS.numpy()[0]), ([known] * 3, [ROWS[0]] * 3)):
        assert torch.equal(ls.sample(model, 3, 4, 0, known=given[0], tokens=given[1]), expected)
