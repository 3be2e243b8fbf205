"""The family of checkpoints in the DDiT layout: MDLM, BD3-LM, UDLM, Duo, SEDD, GIDD, their baseline, and RDLM."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from logosphere.checkpoints.ddit_conventions import KINDS, MODEL_TYPES, SPECIAL, Checkpoint, find_kind
from logosphere.checkpoints.ddit_tensors import (
    EMBEDDING,
    Sizes,
    find_prefix,
    has_layout,
    map_tensors,
    read_sizes,
    rotary_tables,
)
from logosphere.checkpoints.families import Description, Family, Piece, Tensors
from logosphere.errors import UserError, shorten
from logosphere.networks.published.config import LARGEST, PublishedConfig

LENGTHS = ("model_length", "length", "max_seq_len", "max_sequence_length", "max_position_embeddings")
HEADS = ("n_heads", "num_attention_heads")
STATED = {
    "rows": ("vocab_size",),
    "width": ("hidden_dim", "hidden_size"),
    "depth": ("n_blocks", "num_hidden_layers"),
}
"""Sizes that config.json may state, by the names of all families. `cond_dim` is not one: its default is a trap."""
TRAINING_BUFFERS = ("sampling_eps_min", "sampling_eps_max")
"""Times of training that BD3-LM keeps as tensors; the network does not read them."""
DIGITS_OF_RDLM = 10
"""Base-3 digits of a token of bert-base-uncased."""


class DDiTFamily(Family):
    """Checkpoints in the DDiT layout."""

    name = "ddit"
    models = (
        "kuleshov-group/mdlm-owt",
        "kuleshov-group/mdlm-noeos-owt",
        "kuleshov-group/bd3lm-owt-block_size4",
        "kuleshov-group/bd3lm-owt-block_size8",
        "kuleshov-group/bd3lm-owt-block_size16",
        "kuleshov-group/bd3lm-owt-block_size1024-pretrain",
        "kuleshov-group/udlm-lm1b",
        "kuleshov-group/udlm-qm9",
        "kuleshov-group/sedd-noeos-owt",
        "kuleshov-group/ar-noeos-owt",
        "s-sahoo/duo",
        "s-sahoo/duo-distilled",
        "louaaron/sedd-small",
        "louaaron/sedd-medium",
        "dvruette/gidd-small-p_unif-0.1",
        "dvruette/gidd-base-p_unif-0.2",
    )

    def recognises(self, config: Mapping[str, Any], tensors: Tensors) -> bool:
        return has_layout(tensors) or (config.get("model_type") in set(MODEL_TYPES) - {"dit"})

    def describe(
        self, config: Mapping[str, Any], tensors: Tensors, *, source: str = "", tokenizer_size: int | None = None
    ) -> Description:
        prefix = find_prefix(tensors)
        if prefix is None:
            raise UserError(
                f"config.json has model_type={shorten(config.get('model_type'))}, and the tensors are not those of a "
                f"DDiT: there is no blocks.0.attn_qkv.weight, with or without the prefix backbone."
            )
        if f"{prefix}cond_map.embedding_table.weight" in tensors:
            raise UserError("This network is conditioned on classes (cond_map); only those without can be imported.")
        sizes = read_sizes(tensors)
        check_stated(config, sizes)
        heads = count_heads(config, sizes)
        has_cache = f"{prefix}rotary_emb.cos_cached" in tensors
        kind, remarks = find_kind(config, sizes, source, has_cache)
        length = find_number(config, LENGTHS)
        if length is None:
            raise UserError(f"config.json states no length; add one of {', '.join(LENGTHS)}.")
        found = KINDS[kind](Checkpoint(config, sizes, length, source, tokenizer_size))
        digits = DIGITS_OF_RDLM if "base" in found.options else 1
        network = PublishedConfig(
            layout="ddit",
            rows=sizes.rows,
            width=sizes.width,
            depth=sizes.depth,
            heads=heads,
            kv_heads=heads,
            head_width=sizes.width // heads,
            inner=sizes.inner,
            positions=length * digits,
            mask_id=found.mask_id,
            reads=found.reads,
            attention=found.attention,
            reads_states=sizes.reads_states,
            modulated=sizes.modulated,
            condition_width=sizes.condition_width,
        )
        return Description(
            family=found.kind,
            system=found.system,
            vocab_size=found.vocab_size,
            length=length,
            network=network,
            options=dict(found.options),
            special=find_special(config, sizes),
            remarks=remarks + found.remarks,
        )

    def pieces(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Piece]:
        return map_tensors(config, find_prefix(tensors) or "")

    def tables(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Tensor]:
        return rotary_tables(config, tensors, find_prefix(tensors) or "")

    def ignored(self, config: PublishedConfig, tensors: Tensors) -> frozenset[str]:
        return frozenset(name for name in TRAINING_BUFFERS if name in tensors and not tensors[name].shape)


FAMILIES: tuple[Family, ...] = (DDiTFamily(),)


def find_number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these entries of config.json, at its top level or in `model`, which must be a count."""
    inner = config.get("model")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for name in names:
            if (value := part.get(name)) is not None:
                if type(value) is not int or not 1 <= value <= LARGEST:
                    raise UserError(f"config.json has {name}={shorten(value)}; it must be a number from 1.")
                return value
    return None


def check_stated(config: Mapping[str, Any], sizes: Sizes) -> None:
    """Refuse a configuration whose sizes are not those of the tensors."""
    for size, names in STATED.items():
        stated, found = find_number(config, names), getattr(sizes, size)
        if stated is not None and stated != found:
            raise UserError(
                f"config.json says {names[0] if names[0] in config else names[-1]}={stated}, and the tensors have "
                f"{found} {size} ({EMBEDDING}, blocks); they belong to different models."
            )


def count_heads(config: Mapping[str, Any], sizes: Sizes) -> int:
    """The number of heads, which the rotary table states too, where there is one."""
    stated = find_number(config, HEADS)
    found = None if sizes.head_width is None else sizes.width // sizes.head_width
    if stated is None and found is None:
        raise UserError(f"config.json states no number of heads, and no tensor shows it; add {HEADS[0]}.")
    if stated is not None and found is not None and stated != found:
        raise UserError(
            f"config.json says {stated} heads, and the rotary table is that of {found} heads; they belong to different "
            "models."
        )
    heads = found if stated is None else stated
    assert heads is not None
    if sizes.width % (2 * heads):
        raise UserError(f"A width of {sizes.width} does not split into {heads} heads of even size.")
    return heads


def find_special(config: Mapping[str, Any], sizes: Sizes) -> dict[str, int]:
    """Ids of special tokens: those of known vocabularies, and those that config.json names."""
    special = {} if sizes.reads_states else dict(SPECIAL.get(sizes.rows, {}))
    for name in ("bos", "eos", "pad"):
        value = config.get(f"{name}_token_id")
        if type(value) is int and 0 <= value < sizes.rows:
            special[name] = value
    return special
