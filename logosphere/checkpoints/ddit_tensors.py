"""Tensors of the DDiT layout: their names, the sizes that their shapes state, and the tables among them.

Names begin with `backbone.` in folders written by transformers and in Lightning checkpoints (MDLM, BD3-LM, UDLM, Duo),
and with nothing in those of SEDD, GIDD and RDLM. Parameters do not depend on that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.checkpoints.families import Piece, Tensors
from logosphere.errors import UserError
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.ddit import FEATURES, inverse_frequencies

PREFIXES = ("backbone.", "")
EMBEDDING = "vocab_embed.embedding"
OUTER = {
    "noise1": "sigma_map.mlp.0",
    "noise2": "sigma_map.mlp.2",
    "norm": "output_layer.norm_final",
    "modulation": "output_layer.adaLN_modulation",
    "out": "output_layer.linear",
}
"""Our modules outside of the blocks, and theirs."""
INNER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attention.qkv": "attn_qkv",
    "attention.out": "attn_out",
    "up": "mlp.0",
    "down": "mlp.2",
    "modulation": "adaLN_modulation",
}
"""Our modules of a block, and theirs."""
WITHOUT_BIAS = ("norm", "norm1", "norm2", "attention.qkv", "attention.out")
ALPHABET = 27
"""Letters and the space of text8."""


@dataclass(frozen=True)
class Sizes:
    """What the shapes of the tensors state."""

    rows: int
    width: int
    depth: int
    inner: int
    condition_width: int
    modulated: bool
    reads_states: bool
    head_width: int | None
    """Known from the rotary table, where there is one."""


def find_prefix(tensors: Tensors) -> str | None:
    """The prefix of all names, or None for tensors in another layout."""
    return next((p for p in PREFIXES if f"{p}blocks.0.attn_qkv.weight" in tensors), None)


def has_layout(tensors: Tensors) -> bool:
    """Whether the names of the tensors are those of the DDiT layout."""
    prefix = find_prefix(tensors)
    return prefix is not None and any(
        name in tensors for name in (f"{prefix}{EMBEDDING}", f"{prefix}{EMBEDDING}.weight")
    )


def shape_of(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there and have this number of axes."""
    if name not in tensors:
        raise UserError(f"The checkpoint lacks the tensor {name}, so its sizes are unknown; fetch the files again.")
    shape = tensors[name].shape
    if len(shape) != axes:
        raise UserError(f"The tensor {name} has the shape {list(shape)}; in the DDiT layout it has {axes} axes.")
    return shape


def read_sizes(tensors: Tensors) -> Sizes:
    """Sizes from shapes. Defaults of the configurations are traps: that of cond_dim is 129, and networks have 128."""
    prefix = find_prefix(tensors) or ""
    states = f"{prefix}{EMBEDDING}.weight" in tensors
    if states:
        width, rows = shape_of(tensors, f"{prefix}{EMBEDDING}.weight", 2)
    else:
        rows, width = shape_of(tensors, f"{prefix}{EMBEDDING}", 2)
    indices = [
        int(found[1]) for name in tensors if (found := re.match(rf"{re.escape(prefix)}blocks\.(\d{{1,6}})\.", name))
    ]
    inner, _ = shape_of(tensors, f"{prefix}blocks.0.mlp.0.weight", 2)
    modulated = f"{prefix}blocks.0.adaLN_modulation.weight" in tensors
    condition = shape_of(tensors, f"{prefix}sigma_map.mlp.0.weight", 2) if modulated else (1, FEATURES)
    if condition[1] != FEATURES:
        raise UserError(f"The time features of this checkpoint have {condition[1]} numbers; DDiT has {FEATURES}.")
    return Sizes(
        rows=rows,
        width=width,
        depth=max(indices) + 1,
        inner=inner,
        condition_width=condition[0],
        modulated=modulated,
        reads_states=states,
        head_width=_head_width(tensors, prefix),
    )


def _head_width(tensors: Tensors, prefix: str) -> int | None:
    if (name := f"{prefix}rotary_emb.inv_freq") in tensors:
        return 2 * shape_of(tensors, name, 1)[0]
    if (name := f"{prefix}rotary_emb.cos_cached") in tensors:
        return shape_of(tensors, name, 5)[4]
    return None


def permutation_of(config: PublishedConfig) -> list[int]:
    """The row of each token in a network that reads states: RDLM's text8 has a … z and then the space, which is first
    in the alphabet of the package."""
    order = list(range(config.rows))
    return [order[-1], *order[:-1]] if config.reads_states and config.rows == ALPHABET else order


def map_tensors(config: PublishedConfig, prefix: str) -> dict[str, Piece]:
    """For each parameter of our network the tensor that it is read from."""
    pieces: dict[str, Piece] = {}
    order = permutation_of(config)
    permuted = order != sorted(order)

    def rows(tensor: Tensor) -> Tensor:
        return tensor[order]

    def columns(tensor: Tensor) -> Tensor:
        return tensor[:, order]

    if config.reads_states:
        pieces["embedding.weight"] = Piece((f"{prefix}{EMBEDDING}.weight",), columns if permuted else None)
        pieces["embedding.bias"] = Piece((f"{prefix}{EMBEDDING}.bias",))
    else:
        pieces["embedding.weight"] = Piece((f"{prefix}{EMBEDDING}",))
    for ours, theirs in OUTER.items():
        if config.modulated or ours in ("norm", "out"):
            _add(pieces, ours, f"{prefix}{theirs}")
    for index in range(config.depth):
        for ours, theirs in INNER.items():
            if config.modulated or ours != "modulation":
                _add(pieces, f"blocks.{index}.{ours}", f"{prefix}blocks.{index}.{theirs}")
    if permuted:
        for name in ("out.weight", "out.bias"):
            pieces[name] = Piece(pieces[name].names, rows)
    return pieces


def _add(pieces: dict[str, Piece], ours: str, theirs: str) -> None:
    pieces[f"{ours}.weight"] = Piece((f"{theirs}.weight",))
    if ours not in WITHOUT_BIAS and ours.split(".", 2)[-1] not in WITHOUT_BIAS:
        pieces[f"{ours}.bias"] = Piece((f"{theirs}.bias",))


def rotary_tables(config: PublishedConfig, tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The rotary tables that a checkpoint may hold: frequencies, or cosines and sines for queries, keys and values, of
    which the last are not rotated."""
    found, frequencies = {}, rotary_frequencies(config)
    if (name := f"{prefix}rotary_emb.inv_freq") in tensors:
        found[name] = frequencies
    for function, value in (("cos", 1.0), ("sin", 0.0)):
        if (name := f"{prefix}rotary_emb.{function}_cached") not in tensors:
            continue
        length = shape_of(tensors, name, 5)[1]
        angles = torch.outer(torch.arange(length).float(), frequencies)
        table = getattr(torch.cat([angles, angles], -1), function)()[None, :, None, None, :].repeat(1, 1, 3, 1, 1)
        table[:, :, 2] = value
        found[name] = table
    return found


def rotary_frequencies(config: PublishedConfig) -> Tensor:
    """The buffer rotary_emb.inv_freq."""
    return inverse_frequencies(config.head_width, config.rotary_base, torch.empty(0), torch.float32)


def count_parameters(tensors: Tensors, names: Mapping[str, object]) -> int:
    """The number of weights under these names."""
    total = 0
    for name in names:
        size = 1
        for extent in tensors[name].shape:
            size *= extent
        total += size
    return total
