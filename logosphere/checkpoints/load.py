"""Reading the parameters of a network from a checkpoint: strictly, and one by one.

Names and shapes are compared before a weight is read: every parameter is filled, every tensor is used or is a table
that equals the one the network computes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.checkpoints.families import Description, Family, Piece, Tensors
from logosphere.checkpoints.files import Weights
from logosphere.checkpoints.headers import TYPES
from logosphere.errors import UserError, plural, shorten
from logosphere.io import all_finite
from logosphere.networks.published.registry import build_network

PRECISIONS = ("float32", "bfloat16")
TABLE_TOLERANCE = {"BF16": 2e-2, "F16": 2e-3}
"""Relative differences of stored tables that are rounding of their type; 1e-4 for others."""
WEIGHT_TYPES = ("F32", "BF16", "F16", "F64")


@dataclass(frozen=True)
class Matched:
    """A checkpoint whose tensors are known to be those of a network."""

    description: Description
    pieces: Mapping[str, Piece]
    shapes: Mapping[str, torch.Size]
    """The shape of each parameter of the network."""
    tables: Mapping[str, Tensor]
    duplicates: Mapping[str, str]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(shape.numel() for shape in self.shapes.values())


def match(family: Family, description: Description, tensors: Tensors) -> Matched:
    """Compare names and shapes of a checkpoint with those of its network, without reading a weight."""
    network = build_network(description.network, "meta")
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    pieces, tables = family.pieces(description.network, tensors), family.tables(description.network, tensors)
    duplicates = family.duplicates(description.network, tensors)
    wanted = {name for piece in pieces.values() for name in piece.names} | tables.keys() | duplicates.keys()
    if unfilled := sorted(shapes.keys() - pieces.keys()):
        raise UserError(f"The checkpoint gives no value to {_list(unfilled)} of the {family.name} network.")
    if unknown := sorted(pieces.keys() - shapes.keys()):
        raise UserError(f"The {family.name} network has no parameter {_list(unknown)}, which the checkpoint fills.")
    if missing := sorted(wanted - tensors.keys()):
        raise UserError(
            f"The checkpoint lacks {_list(missing)}; with it {plural(len(shapes), 'parameter')} of the {family.name} "
            "network would be complete."
        )
    if unused := sorted(tensors.keys() - wanted - family.ignored(description.network, tensors)):
        raise UserError(
            f"The checkpoint has {_list(unused)}, which the {family.name} network would not use; it belongs to "
            "another model, whose numbers would be wrong here."
        )
    for name, piece in pieces.items():
        _check_piece(name, piece, shapes[name], tensors)
    return Matched(description, pieces, shapes, tables, duplicates)


def _list(names: list[str]) -> str:
    """The first names, and how many there are."""
    shown = ", ".join(shorten(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _check_piece(name: str, piece: Piece, shape: torch.Size, tensors: Tensors) -> None:
    """The type and the shape of a parameter, found by the same operations without memory."""
    for source in piece.names:
        kind = tensors[source].dtype
        if kind in TYPES and kind not in WEIGHT_TYPES:
            raise UserError(f"The weight {source} has the type {kind}; weights must be {', '.join(WEIGHT_TYPES)}.")
    try:
        made = _assemble(piece, [torch.empty(tensors[source].shape, device="meta") for source in piece.names])
    except (RuntimeError, IndexError, ValueError) as problem:
        raise UserError(
            f"The shapes of {', '.join(piece.names)} do not fit one another ({shorten(str(problem))})."
        ) from None
    if made.shape != shape:
        raise UserError(
            f"{', '.join(piece.names)} gives {name} the shape {list(made.shape)}, and the configuration asks for "
            f"{list(shape)}; one of both belongs to another model."
        )


def _assemble(piece: Piece, tensors: list[Tensor]) -> Tensor:
    whole = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return whole if piece.transform is None else piece.transform(whole)


def find_dtype(requested: str, matched: Matched, tensors: Tensors) -> torch.dtype:
    """float32 or bfloat16; `auto` is the type that most weights have, where that is one of them, else float32."""
    if requested in PRECISIONS:
        dtype: torch.dtype = getattr(torch, requested)
        return dtype
    if requested != "auto":
        raise UserError(f"dtype must be auto, {' or '.join(PRECISIONS)}, not {shorten(requested)}.")
    sizes: dict[str, int] = {}
    for name in {name for piece in matched.pieces.values() for name in piece.names}:
        info = tensors[name]
        sizes[info.dtype] = sizes.get(info.dtype, 0) + torch.Size(info.shape).numel()
    return torch.bfloat16 if max(sizes, key=lambda kind: sizes[kind]) == "BF16" else torch.float32


def read_parameters(weights: Weights, matched: Matched, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the network one after another, in the order of `shapes`."""
    check_tables(weights, matched)
    for twin, name in matched.duplicates.items():
        if not torch.equal(weights.read(twin), weights.read(name)):
            raise UserError(f"{twin} and {name} differ, and the configuration says that they are the same weights.")
    for name in matched.shapes:
        yield name, read_parameter(weights, matched.pieces[name], dtype)


def read_parameter(weights: Weights, piece: Piece, dtype: torch.dtype) -> Tensor:
    """One parameter; its values must be finite, also after rounding."""
    made = _assemble(piece, [weights.read(name) for name in piece.names]).to(dtype)
    if not all_finite(made):
        raise UserError(f"The checkpoint holds numbers that are not finite in {', '.join(piece.names)}.")
    return made.contiguous()


def check_tables(weights: Weights, matched: Matched) -> None:
    """Raise UserError for stored tables, such as rotary frequencies, that differ from the computed ones."""
    for name, expected in matched.tables.items():
        kind = weights.tensors[name].dtype
        stored, computed = weights.read(name).double(), expected.double().cpu()
        if stored.shape != computed.shape:
            raise UserError(f"The table {name} has the shape {list(stored.shape)}, not {list(computed.shape)}.")
        tolerance = TABLE_TOLERANCE.get(kind, 1e-4)
        if not torch.allclose(stored, computed, rtol=tolerance, atol=tolerance):
            largest = float((stored - computed).abs().max())
            raise UserError(
                f"The table {name} of the checkpoint differs from the one that its configuration implies by up to "
                f"{largest:.3g}; the configuration belongs to another model."
            )
