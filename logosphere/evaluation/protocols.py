"""Protocols of likelihoods: the bound of the package (full), and how the papers on masked diffusion report (paper).

`paper` is the evaluation of MDLM (Sahoo et al. 2024), which SEDD, BD3-LM, UDLM and Duo share:

    time       t = ε + (1 - ε) u, ε = 10⁻³, u stratified over the batch, one draw for each sequence
    value      mean over t of -a'_t/(1 - a_t) · Σ -log p(x | z_t); nothing for t < ε, t = 0 or t = 1
    windows    tokens of documents, each followed by EOS, are concatenated and cut into L - 2, each piece wrapped in
               BOS and EOS; what remains is dropped; all L positions count
    printed    perplexity exp(nats per token)

It is no bound: over [0, ε] and at both ends nothing is measured, and the mean lacks the factor 1 - ε of an integral.
Exact likelihoods have no time, so that only their windows change, and their kind stays exact.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import AnyArray, Examples, Split, require_indexable
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.processes.capabilities import PublishedTimes
from logosphere.types import Batch

PROTOCOLS = ("full", "paper")
FIRST_TIME = 1e-3
"""ε, the first time that the papers measure."""
WRAPPINGS = (("<|endoftext|>", "<|endoftext|>"), ("[CLS]", "[SEP]"), ("<s>", "</s>"))
"""Names of BOS and EOS in published vocabularies: of GPT-2, of BERT and of Llama."""


class Wrapping(NamedTuple):
    """The tokens before and after each window; EOS also ends each document."""

    bos: int
    eos: int


def apply_protocol(model: Model, protocol: str = "full", first: float = FIRST_TIME) -> Model:
    """The model whose bound is measured under a protocol; its weights are shared."""
    if protocol not in PROTOCOLS:
        raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, not '{protocol}'.")
    if protocol == "full" or model.process.kind == "exact":
        return model
    if isinstance(model.process, PublishedTimes):
        return model.with_process(model.process.with_published_times(first))
    name = "This system" if model.spec is None else f"'{model.spec.system}'"
    raise UserError(
        f"{name} has no evaluation in the protocol of masked diffusion (paper), which is for discrete diffusion and "
        "ar; measure it with the full protocol, or as its own paper does with a preset (logosphere systems NAME)."
    )


def find_wrapping(tokenizer: Tokenizer) -> Wrapping | None:
    """BOS and EOS of a tokenizer; None for alphabets without such tokens."""
    if tokenizer.eos is not None:
        return Wrapping(tokenizer.eos, tokenizer.eos)
    if isinstance(tokenizer, SubwordTokenizer):
        for bos, eos in WRAPPINGS:
            first, last = tokenizer.id_of(bos), tokenizer.id_of(eos)
            if first is not None and last is not None:
                return Wrapping(first, last)
    return None


def wrapped_batches(
    split: Split, wrapping: Wrapping | None, length: int, batch: int, limit: int | None = None
) -> Iterator[Batch]:
    """Windows of `length` tokens between BOS and EOS; without such tokens the plain windows of a split (text8)."""
    if wrapping is None:
        return eval_batches(split, length, batch, limit)
    return eval_batches(wrap_windows(split, wrapping, length).reshape(-1), length, batch, limit)


def wrap_windows(split: Split, wrapping: Wrapping, length: int) -> AnyArray:
    """[N, length]: the tokens of a split cut into pieces of length - 2, each between BOS and EOS.

    Separate texts are documents and each is followed by EOS; a running text has its documents' ends already.
    """
    row, inner = _concatenate(require_indexable(split), wrapping.eos), length - 2
    if inner < 1:
        raise UserError(f"Windows between BOS and EOS need a length of at least 3, not {length}.")
    count = len(row) // inner
    if count < 1:
        raise UserError(
            f"The text has {len(row):,} tokens, fewer than a window of {inner} between BOS and EOS; give more text."
        )
    windows = np.empty((count, length), dtype=row.dtype)
    windows[:, 0], windows[:, -1] = wrapping.bos, wrapping.eos
    windows[:, 1:-1] = np.asarray(row[: count * inner]).reshape(count, inner)
    return windows


def _concatenate(split: Split, eos: int) -> AnyArray:
    if isinstance(split, Examples):
        parts = [np.append(np.asarray(row, dtype=np.int64), eos) for row in split.sequences]
        return np.concatenate(parts)
    return np.asarray(require_indexable(split)[:])
