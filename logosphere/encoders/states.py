"""States of a frozen encoder, computed once for the rows of a corpus and kept on disk in half precision.

    meta.json     which corpus, encoder, layer and length; statistics of the states
    states.f16    [rows, L, D], mapped into memory
    tokens.i32    [rows, L], by which a row is found again

The rows are those of the training split, and so are the statistics: nothing is learnt from held-out text.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logosphere.encoders.pretrained import Encoder
from logosphere.errors import UserError
from logosphere.io import sync, write_json
from logosphere.types import Bool, Float, Int64

FORMAT, VERSION = "logosphere-states", 1
ROWS_AT_ONCE = 64

Rows = npt.NDArray[np.integer[Any]]
Note = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Origin:
    """What states were made from: other text, another encoder or another layer give other states."""

    corpus: str
    """Digest of the text."""
    encoder: str
    layer: int
    length: int


class States:
    """The states of rows of tokens, found again by the tokens themselves."""

    def __init__(self, folder: Path, origin: Origin):
        meta = _meta(folder)
        made_from = Origin(**meta["origin"])
        if made_from != origin:
            what = "corpus" if made_from.corpus != origin.corpus else "encoder, layer or length"
            raise UserError(f"The states in {folder} belong to another {what}; delete the folder or name another.")
        rows, width = int(meta["rows"]), int(meta["width"])
        self.mean, self.deviation = (torch.tensor(meta[name]) for name in ("mean", "deviation"))
        self._states = np.memmap(folder / "states.f16", np.float16, "r", shape=(rows, origin.length, width))
        self._tokens = np.memmap(folder / "tokens.i32", np.int32, "r", shape=(rows, origin.length))
        keys = _keys(np.asarray(self._tokens))
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._keys)

    def look_up(self, tokens: Int64[Tensor, "B L"]) -> tuple[Float[Tensor, "B L D"], Bool[Tensor, " B"]]:
        """The states of rows, and which rows were found; those of the others are zero."""
        rows = tokens.cpu().numpy()
        place = np.searchsorted(self._keys, _keys(rows)).clip(max=len(self._keys) - 1)
        which = self._order[place]
        found = (self._tokens[which] == rows).all(1)
        states = np.where(found[:, None, None], self._states[which], np.float16(0)).astype(np.float32)
        return torch.from_numpy(states).to(tokens.device), torch.from_numpy(found).to(tokens.device)


def cached_states(
    encoder: Encoder,
    rows: Rows,
    pieces: Callable[[Tensor], Tensor],
    folder: Path,
    corpus: str,
    note: Note | None = None,
) -> States:
    """The states of `rows` [N, L], from `folder` or else computed; `pieces` spells tokens for the encoder.

    A cache of another corpus, or one that is damaged, is made anew, with a note.
    """
    note = note or _silent
    origin = Origin(corpus, encoder.name, encoder.layer, rows.shape[1])
    if folder.exists():
        try:
            return States(folder, origin)
        except (UserError, OSError, ValueError, KeyError, TypeError) as problem:
            note(f"making the states of the encoder anew ({problem})", 0, len(rows))
    _write(encoder, rows, pieces, folder, origin, note)
    return States(folder, origin)


def _write(
    encoder: Encoder, rows: Rows, pieces: Callable[[Tensor], Tensor], folder: Path, origin: Origin, note: Note
) -> None:
    draft = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    draft.mkdir(parents=True)
    try:
        shape = (*rows.shape, encoder.width)
        states = np.memmap(draft / "states.f16", np.float16, "w+", shape=shape)
        total, squares = (torch.zeros(encoder.width, dtype=torch.float64) for _ in range(2))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = torch.from_numpy(rows[first : first + ROWS_AT_ONCE].astype(np.int64))
            made = encoder.states(pieces(part)).cpu()
            states[first : first + len(part)] = made.numpy().astype(np.float16)
            total, squares = total + made.double().sum((0, 1)), squares + made.double().square().sum((0, 1))
            note("encoding", first + len(part), len(rows))
        states.flush()
        rows.astype(np.int32).tofile(draft / "tokens.i32")
        mean = total / rows.size
        deviation = (squares / rows.size - mean.square()).clamp_min(1e-8).sqrt()
        measured = {"mean": mean.tolist(), "deviation": deviation.tolist()}
        sizes = {"rows": len(rows), "width": encoder.width}
        write_json(
            draft / "meta.json",
            {"format": FORMAT, "version": VERSION, "origin": vars(origin), **sizes, **measured},
        )
        sync(draft)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _meta(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "meta.json").read_bytes())
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{folder} holds no states of an encoder")
    return content


def _keys(rows: Rows) -> npt.NDArray[np.uint64]:
    """A number for each row, the same for equal rows and hardly ever for others."""
    odd = np.random.default_rng(0).integers(1, 2**63, rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.uint64) * odd).sum(1, dtype=np.uint64)


def _silent(stage: str, done: int, total: int) -> None:
    pass
