"""Encoders: tokens to states that are compressed, or diffused as they are. Each feature has mean 0 and variance 1.

The fixed scale keeps a trained encoder from reducing the effect of noise by larger states. States of a frozen encoder
are computed once for the rows of a training split and cached in a folder, in half precision:

    meta.json     corpus, encoder, layer and length; mean and standard deviation of the states
    states.f16    [rows, L, D], mapped into memory
    tokens.i32    [rows, L], by which a row is found
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.autoencoders.decoders import Standardiser
from logosphere.autoencoders.pretrained import PretrainedEncoder
from logosphere.codecs.tokens import TokenEmbedding
from logosphere.errors import UserError
from logosphere.io import cache_folder, replace_file, sync, write_json
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.types import Bool, Float, Int64, Tokens

FORMAT, VERSION = "logosphere-states", 1
BATCH_ROWS = 64

Rows = npt.NDArray[np.integer[Any]]
ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and the total."""


class TokenEncoder(nn.Module, ABC):
    """Tokens to states [B, L, `width`]."""

    width: int

    @abstractmethod
    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]: ...

    def encode_and_observe(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        """The same while the autoencoder is trained: statistics are accumulated until `update_statistics`."""
        return self(tokens)

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:  # noqa: B027 (optional)
        """Compute in advance what these rows of a corpus need repeatedly."""

    def accumulators(self) -> list[Tensor]:
        """Sums of the observations of a training step."""
        return []

    def update_statistics(self) -> None:  # noqa: B027 (an encoder trained by gradients has no statistics)
        """Update running statistics by what was accumulated."""


class TransformerEncoder(TokenEncoder):
    """A small transformer, trained with the rest of the autoencoder."""

    def __init__(self, vocab_size: int, length: int, network: NetworkConfig):
        super().__init__()
        self.width = network.width
        self.stem = TokenEmbedding(vocab_size, network.width)
        self.trunk = Backbone(network, length, reads_time=False)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        return F.layer_norm(self.trunk(self.stem(tokens)), (self.width,))


class FrozenEncoder(TokenEncoder):
    """A pretrained encoder; `pieces[k]` is the encoder's id of token k.

    Without `pieces` the vocabulary is the encoder's, optionally with one more token, the EOS that pads short texts.
    """

    pieces: Tensor

    def __init__(self, encoder: PretrainedEncoder, vocab_size: int, length: int, pieces: list[int] | None):
        super().__init__()
        if pieces is None and vocab_size - encoder.vocab_size not in (0, 1):
            raise UserError(
                f"The encoder {encoder.name} has a vocabulary of {encoder.vocab_size:,} word pieces, but the model has "
                f"{vocab_size:,} tokens; use its tokenizer, or give the piece of each token as encoder_token_ids=…."
            )
        own = list(range(encoder.vocab_size)) + [encoder.eos] * (vocab_size - encoder.vocab_size)
        table = torch.tensor(own if pieces is None else pieces)
        if len(table) != vocab_size or int(table.min()) < 0 or int(table.max()) >= encoder.vocab_size:
            raise UserError(
                f"encoder_token_ids must name one of the {encoder.vocab_size:,} word pieces of {encoder.name} for "
                f"each of the {vocab_size:,} tokens."
            )
        if length > encoder.max_length:
            raise UserError(
                f"The encoder {encoder.name} reads at most {encoder.max_length} tokens at once, not {length}."
            )
        self.width = encoder.width
        self.standard = Standardiser(1, encoder.width)
        self.register_buffer("pieces", table, persistent=False)
        self._encoder = [encoder]  # in a list, because its weights belong to its package and not to checkpoints
        self._cache: StateCache | None = None

    @property
    def encoder(self) -> PretrainedEncoder:
        return self._encoder[0]

    def to_pieces(self, tokens: Tensor) -> Tensor:
        """Tokens as word pieces of the encoder."""
        return self.pieces[tokens]

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        """Compute or open the cached states of every row."""
        encoder, every = self.encoder, rows().numpy()
        mapping = hashlib.sha256(self.pieces.cpu().numpy().tobytes()).hexdigest()[:12]
        text = f"{mapping}-{corpus}"  # the same corpus in other pieces has other states
        name = re.sub(r"[^a-z0-9]+", "-", f"{encoder.name}-{encoder.layer}-{every.shape[1]}-{text}".lower())
        self.use_cache(cached_states(encoder, every, self.to_pieces, cache_folder() / "states" / name[:120], text))

    def use_cache(self, cache: "StateCache") -> None:
        """Look rows up in a cache before computing them, and standardise by its statistics."""
        self._cache = cache
        self.standard.set_statistics(cache.mean, cache.deviation)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        return self.standard(self._states(tokens))

    def encode_and_observe(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        states = self._states(tokens)
        if self._cache is None:
            self.standard.observe(states)
        return self.standard(states)

    def _states(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        if self._cache is None:
            return self.encoder.states(self.to_pieces(tokens))
        states, found = self._cache.look_up(tokens)
        if not bool(found.all()):
            states[~found] = self.encoder.states(self.to_pieces(tokens[~found]))
        return states

    def accumulators(self) -> list[Tensor]:
        return [self.standard.pending]

    def update_statistics(self) -> None:
        self.standard.update_statistics()


# ---- cached states --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheOrigin:
    """What cached states were computed from; they are valid for nothing else."""

    corpus: str
    """Digest of the text."""
    encoder: str
    layer: int
    length: int


class StateCache:
    """The states of rows of tokens, looked up by the tokens."""

    def __init__(self, folder: Path, origin: CacheOrigin):
        meta = _read_meta(folder)
        made_from = CacheOrigin(**meta["origin"])
        if made_from != origin:
            what = "corpus" if made_from.corpus != origin.corpus else "encoder, layer or length"
            raise UserError(f"The states in {folder} belong to another {what}; delete the folder or name another.")
        rows, width = int(meta["rows"]), int(meta["width"])
        self.mean, self.deviation = (torch.tensor(meta[name]) for name in ("mean", "deviation"))
        self._states = np.memmap(folder / "states.f16", np.float16, "r", shape=(rows, origin.length, width))
        self._tokens = np.memmap(folder / "tokens.i32", np.int32, "r", shape=(rows, origin.length))
        keys = _hash_rows(np.asarray(self._tokens))
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._keys)

    def look_up(self, tokens: Int64[Tensor, "B L"]) -> tuple[Float[Tensor, "B L D"], Bool[Tensor, " B"]]:
        """The states of rows, and which rows were found; the states of the others are zero."""
        rows = tokens.cpu().numpy()
        position = np.searchsorted(self._keys, _hash_rows(rows)).clip(max=len(self._keys) - 1)
        index = self._order[position]
        found = (self._tokens[index] == rows).all(1)
        states = np.where(found[:, None, None], self._states[index], np.float16(0)).astype(np.float32)
        return torch.from_numpy(states).to(tokens.device), torch.from_numpy(found).to(tokens.device)


def cached_states(
    encoder: PretrainedEncoder,
    rows: Rows,
    to_pieces: Callable[[Tensor], Tensor],
    folder: Path,
    corpus: str,
    report: ReportProgress | None = None,
) -> StateCache:
    """The states of `rows` [N, L] from `folder`, computed if they are not there.

    A cache of another corpus, or a damaged one, is computed again, and this is reported.
    """
    report = report or _ignore_progress
    origin = CacheOrigin(corpus, encoder.name, encoder.layer, rows.shape[1])
    if folder.exists():
        try:
            return StateCache(folder, origin)
        except (UserError, OSError, ValueError, KeyError, TypeError) as problem:
            report(f"computing the states of the encoder again ({problem})", 0, len(rows))
    _write_states(encoder, rows, to_pieces, folder, origin, report)
    return StateCache(folder, origin)


def _write_states(
    encoder: PretrainedEncoder,
    rows: Rows,
    to_pieces: Callable[[Tensor], Tensor],
    folder: Path,
    origin: CacheOrigin,
    report: ReportProgress,
) -> None:
    staging = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir(parents=True)
    try:
        shape = (*rows.shape, encoder.width)
        states = np.memmap(staging / "states.f16", np.float16, "w+", shape=shape)
        total, squares = (torch.zeros(encoder.width, dtype=torch.float64) for _ in range(2))
        for first in range(0, len(rows), BATCH_ROWS):
            part = torch.from_numpy(rows[first : first + BATCH_ROWS].astype(np.int64))
            made = encoder.states(to_pieces(part)).cpu()
            states[first : first + len(part)] = made.numpy().astype(np.float16)
            total, squares = total + made.double().sum((0, 1)), squares + made.double().square().sum((0, 1))
            report("encoding", first + len(part), len(rows))
        states.flush()
        del states  # Windows moves no folder with a file that is mapped
        rows.astype(np.int32).tofile(staging / "tokens.i32")
        mean = total / rows.size
        deviation = (squares / rows.size - mean.square()).clamp_min(1e-8).sqrt()
        measured = {"mean": mean.tolist(), "deviation": deviation.tolist()}
        sizes = {"rows": len(rows), "width": encoder.width}
        write_json(
            staging / "meta.json",
            {"format": FORMAT, "version": VERSION, "origin": vars(origin), **sizes, **measured},
        )
        sync(staging)
        shutil.rmtree(folder, ignore_errors=True)
        replace_file(staging, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _read_meta(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "meta.json").read_bytes())
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{folder} holds no states of an encoder")
    return content


def _hash_rows(rows: Rows) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row."""
    odd = np.random.default_rng(0).integers(1, 2**63, rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.uint64) * odd).sum(1, dtype=np.uint64)


def _ignore_progress(stage: str, done: int, total: int) -> None:
    pass
