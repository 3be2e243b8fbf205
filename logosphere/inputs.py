"""What users pass as sequences, read as a Batch.

    ids          a tensor or array of whole numbers [B, L], or a list of lists
    texts        a list of strings, which the tokenizer of the model encodes
    mappings     what the tokenizers and collators of Hugging Face make: input_ids, attention_mask, labels
    columns      a list with one tensor, as a DataLoader over a TensorDataset yields it

A data set (all sequences at once) and an iterable of batches are distinguished by the type: a tensor, an array, a
mapping, or a list of single sequences is a data set.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from logosphere.errors import UserError, plural, shorten, suggest
from logosphere.types import Batch, Int64, Positions, TextTokenizer, Tokens

IGNORED = -100
"""The label of positions that are not predicted, in batches of Hugging Face."""
FIELDS = ("input_ids", "attention_mask", "labels", "known", "text")
UNUSED = ("token_type_ids", "special_tokens_mask")
"""Fields of tokenizers that say nothing that a bound depends on."""
ALLOWED = (
    "Allowed are tensors, arrays and lists of token ids [B, L], lists of texts, dictionaries with input_ids, and Batch."
)

AnyArray = np.ndarray[Any, np.dtype[Any]]
BatchLike = Batch | Tensor | AnyArray | Sequence[Any] | Mapping[str, Any]
"""One batch, in any of the forms above."""
IdsLike = Tensor | AnyArray | Sequence[Any]
"""Token ids, or marks of positions, as a tensor, an array or lists."""
DataLike = BatchLike | Iterable[BatchLike]
"""Batches, or a data set."""


@dataclass(frozen=True)
class SequenceFormat:
    """The sequences that a model takes, and what reads them."""

    length: int
    vocab_size: int
    tokenizer: TextTokenizer | None = None
    local: bool = True
    """Whether single positions can be left out of the bound."""

    def read(self, given: object, first: int = 0, *, packed: bool = False) -> Batch:
        """One batch, its sequences numbered from `first`; with `packed`, texts without an end token are joined."""
        if isinstance(given, Batch):
            return self._check_batch(given)
        if isinstance(given, Mapping):
            return self._read_mapping(given, first, packed)
        if isinstance(given, list | tuple):
            if not given:
                raise UserError("A batch needs at least 1 sequence, and this one is an empty list.")
            if len(given) == 1 and isinstance(given[0], Tensor | np.ndarray) and given[0].ndim == 2:
                return self.read(given[0], first)
            if all(isinstance(text, str) for text in given):
                return self._read_texts(given, first, packed)
            self._check_columns(given)
        return Batch.of(self.check_ids(as_ids(given, "A batch")), first=first)

    def read_all(self, data: object, size: int) -> Iterator[Batch]:
        """The batches of an iterable one after another; a data set is divided into batches of `size` sequences."""
        if is_data_set(data):
            whole = self.read(data, packed=True)
            yield from (whole.select(slice(start, start + size)) for start in range(0, len(whole), size))
            return
        first = 0
        for given in _as_iterable(data):
            batch = self._read_item(given, first)
            first += len(batch)
            yield batch

    def read_for_training(self, data: object, size: int, seed: int) -> Iterator[Batch]:
        """As `read_all`, but without end for a data set, which is shuffled anew in every epoch, and a DataLoader."""
        if is_data_set(data):
            yield from _shuffle(self.read(data, packed=True), size, seed)
        first, again = 0, True
        while again:
            before = first
            for given in _as_iterable(data):
                batch = self._read_item(given, first)
                first += len(batch)
                yield batch
            again = isinstance(data, DataLoader) and first > before

    def _read_item(self, given: object, first: int) -> Batch:
        if isinstance(given, str) or (not isinstance(given, Batch) and is_sequence(given)):
            raise UserError(
                f"Every batch must hold several sequences, and this one is a single sequence ({shorten(given)}); "
                "pass a list of all sequences, or batches of them such as tokens.split(32)."
            )
        return self.read(given, first, packed=True)

    def _check_columns(self, rows: Sequence[Any]) -> None:
        """Refuse what the default collator of a DataLoader makes of lists: one tensor [B] for each position."""
        columns = all(isinstance(row, Tensor) and row.dim() == 1 and len(row) != self.length for row in rows)
        if columns and len(rows) == self.length:
            raise UserError(
                f"This batch has {plural(len(rows), 'column')} in place of rows, as the default collator of a "
                "DataLoader makes them of lists; let the data set hold tensors, or set collate_fn=torch.tensor."
            )

    def check_ids(self, tokens: Tokens) -> Tokens:
        """Token ids [B, L] whose number of positions is the length of the model."""
        if tokens.shape[1] != self.length:
            raise UserError(
                f"This model has sequences of {plural(self.length, 'token')}, not {tokens.shape[1]}; cut or pad them "
                "(padding has 0 in the attention_mask of a batch)."
            )
        return tokens

    def _check_batch(self, batch: Batch) -> Batch:
        """A batch is taken as it is, but for its shape: some tasks shorten sequences."""
        if batch.tokens.dim() != 2 or batch.tokens.is_floating_point() or batch.tokens.shape[1] > self.length:
            raise UserError(
                "The tokens of a Batch must be whole numbers [B, L] with at most "
                f"{plural(self.length, 'position')}, not {describe_tensor(batch.tokens)}."
            )
        if not len(batch):
            raise UserError("A batch needs at least 1 sequence, and this Batch has none.")
        return batch

    # ---- mappings ----------------------------------------------------------------------------------------------

    def _read_mapping(self, given: Mapping[Any, Any], first: int, packed: bool) -> Batch:
        for name in given:
            if name not in (*FIELDS, *UNUSED):
                raise UserError(f"A batch has no field {shorten(name)}.{suggest(str(name), FIELDS)}")
        if "text" in given:
            if given.keys() & {"input_ids", "attention_mask", "labels", "known"}:
                raise UserError("A batch has either the field text or input_ids, not both.")
            texts = given["text"]
            if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
                raise UserError(f"The field text of a batch must be a list of strings, not {shorten(texts)}.")
            return self._read_texts(texts, first, packed)
        if "input_ids" not in given:
            raise UserError(f"A batch needs the field input_ids or text; this one has {shorten(sorted(given))}.")
        tokens = self.check_ids(as_ids(given["input_ids"], "input_ids"))
        shape = tokens.shape
        known = _read_mask(given["known"], "known", shape) if "known" in given else None
        valid = torch.ones_like(tokens, dtype=torch.bool)
        if "attention_mask" in given:
            valid = _read_mask(given["attention_mask"], "attention_mask", shape)
        if "labels" in given:
            known = self._read_labels(given["labels"], tokens, valid, known)
        batch = Batch.of(tokens, known, first)
        if bool(valid.all()):
            return batch
        if not self.local:
            raise UserError(
                "The states of this model belong to whole sequences, so padding cannot be left out; use sequences of "
                f"{plural(self.length, 'token')} without an attention_mask."
            )
        return replace(batch, tokens=torch.where(valid, tokens, 0), valid=valid, all_free=False)

    def _read_labels(self, labels: object, tokens: Tokens, valid: Positions, known: Positions | None) -> Positions:
        """Labels repeat the tokens that are predicted; -100 where there is a token is a known position."""
        found = as_ids(labels, "labels")
        if found.shape != tokens.shape:
            raise UserError(f"labels must have the shape of input_ids, {list(tokens.shape)}, not {list(found.shape)}.")
        given = (found == IGNORED) & valid
        if bool(((found != tokens) & (found != IGNORED) & valid).any()):
            raise UserError(
                "labels must equal input_ids or be -100: this model masks tokens itself, so use a collator with "
                "mlm=False."
            )
        return given if known is None else given | known

    # ---- texts -------------------------------------------------------------------------------------------------

    def _read_texts(self, texts: Sequence[str], first: int, packed: bool) -> Batch:
        """Texts padded with the end token; without one, sequences of the whole length, or all texts as one row."""
        if self.tokenizer is None:
            raise UserError(
                "These are texts, and this model has no tokenizer: set model.tokenizer (ls.make_tokenizer makes "
                "one), or pass token ids."
            )
        rows = [np.asarray(self.tokenizer.encode(text), dtype=np.int64) for text in texts]
        end = self.tokenizer.eos
        if end is None and packed:
            return Batch.of(self._pack(np.concatenate(rows)), first=first)
        for number, row in enumerate(rows):
            if len(row) > self.length or (end is None and len(row) < self.length):
                allowed = "exactly" if end is None else "at most"
                raise UserError(
                    f"Text {number} has {plural(len(row), 'token')}, and this model takes texts of {allowed} "
                    f"{self.length}" + ("; its tokenizer has no end token to pad shorter ones." if end is None else ".")
                )
        if end is None:
            return Batch.of(torch.from_numpy(np.stack(rows)), first=first)
        padded = np.full((len(rows), self.length), end, dtype=np.int64)
        for place, row in zip(padded, rows, strict=True):
            place[: len(row)] = row
        count = torch.tensor([min(len(row) + 1, self.length) for row in rows])
        return replace(Batch.of(torch.from_numpy(padded), first=first), token_count=count)

    def _pack(self, row: npt.NDArray[np.int64]) -> Tokens:
        """A row of tokens as sequences that do not overlap; the rest is dropped."""
        count = len(row) // self.length
        if not count:
            raise UserError(
                f"These texts have {plural(len(row), 'token')} together, fewer than one sequence of "
                f"{self.length}; give more text."
            )
        return torch.from_numpy(row[: count * self.length]).view(count, self.length)


# ---- ids -------------------------------------------------------------------------------------------------------------


def as_ids(given: object, name: str) -> Tokens:
    """Token ids [B, L], int64, of a tensor, an array or lists; UserError for anything else."""
    if isinstance(given, list | tuple):
        given = _stack(given, name)
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "iu":
            raise UserError(f"{name} must hold token ids, which are whole numbers, not {given.dtype}.")
        given = torch.from_numpy(given.astype(np.int64))
    if not isinstance(given, Tensor):
        raise UserError(f"{name} cannot be {shorten(given)} ({type(given).__name__}). {ALLOWED}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise UserError(f"{name} must hold token ids, which are whole numbers (int64), not {_dtype(given)}.")
    if given.dim() != 2 or not len(given):
        raise UserError(f"{name} must have the shape [B, L] with at least 1 sequence, not {list(given.shape)}.")
    return given.long()


def as_id_rows(given: object, name: str) -> Int64[Tensor, "..."]:
    """Token ids [B, L], or [L] of a single sequence."""
    if is_sequence(given) and not isinstance(given, str):
        return as_ids([given], name)[0]
    return as_ids(given, name)


def _stack(rows: Sequence[Any], name: str) -> Tensor | AnyArray:
    """Rows of ids, all of one length, as one array."""
    if rows and all(isinstance(row, Tensor | np.ndarray) and row.ndim == 1 for row in rows):
        rows = [row.tolist() for row in rows]
    if not rows or not all(isinstance(row, list | tuple) for row in rows):
        raise UserError(f"{name} must be a list of sequences, each a list of token ids, not {shorten(rows)}.")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise UserError(
            f"The sequences of a batch must have the same length, and these have from {lengths[0]} to {lengths[-1]} "
            "tokens; pad them, with 0 in the attention_mask of the batch."
        )
    for value in chain.from_iterable(rows):
        if isinstance(value, bool) or not isinstance(value, Integral) or not -(1 << 63) <= int(value) < 1 << 63:
            raise UserError(f"{name} must hold token ids, which are whole numbers, not {shorten(value)}.")
    return np.array(rows, dtype=np.int64).reshape(len(rows), lengths[0])


def as_mask(given: object, name: str) -> Tensor:
    """Marked positions as a Boolean tensor: of Booleans, or of the numbers 0 and 1."""
    if isinstance(given, list | tuple):
        try:
            given = np.array(given)
        except ValueError:
            raise UserError(f"The rows of {name} must have the same length: {shorten(given)}.") from None
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        given = torch.from_numpy(given)
    if not isinstance(given, Tensor):
        raise UserError(f"{name} must mark positions by True and False or 1 and 0, not be {shorten(given)}.")
    if given.dtype != torch.bool and bool(((given != 0) & (given != 1)).any()):
        raise UserError(f"{name} must mark positions by True and False or 1 and 0, and it holds other numbers.")
    return given.bool()


def _read_mask(given: object, name: str, shape: torch.Size) -> Positions:
    mask = as_mask(given, name)
    if mask.shape != shape:
        raise UserError(f"{name} must have the shape of the tokens, {list(shape)}, not {list(mask.shape)}.")
    return mask


def describe_tensor(tensor: Tensor) -> str:
    """The type and shape of a tensor: 'float32 [2, 8]'."""
    return f"{_dtype(tensor)} {list(tensor.shape)}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ---- data sets -------------------------------------------------------------------------------------------------------


def is_data_set(data: object) -> bool:
    """Whether these are all sequences at once, and not batches of them."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and is_sequence(data[0])
    return isinstance(data, Batch | Tensor | np.ndarray | Mapping)


def is_sequence(given: object) -> bool:
    """Whether this is a single sequence: a text, or ids without an axis for the batch."""
    if isinstance(given, Tensor | np.ndarray):
        return given.ndim < 2
    if isinstance(given, list | tuple):
        return len(given) > 0 and isinstance(given[0], Integral)
    return isinstance(given, str)


def _as_iterable(data: object) -> Iterable[object]:
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise UserError(
            f"The data cannot be {shorten(data)}; pass a list of texts, token ids, or an iterable of batches."
        )
    return data


def _shuffle(whole: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Batches of a data set without end, in a new order in every epoch, which leaves out what fills no batch."""
    rng, size, first = torch.Generator().manual_seed(seed), min(size, len(whole)), 0
    while True:
        for rows in torch.randperm(len(whole), generator=rng)[: len(whole) // size * size].view(-1, size):
            index = torch.arange(size, device=whole.tokens.device)
            part = whole.select(rows.to(whole.tokens.device))
            yield replace(part, ids=first + index, global_index=index, total=size)
            first += size
