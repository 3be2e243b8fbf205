"""Llama-type checkpoints: LLaDA, Dream, SDAR, Fast-dLLM v2, Tiny-A2D, DiffuLLaMA, SmolLM2, Qwen and others.

Names of the tensors are in llama_names.py, conventions that no tensor states in llama_models.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from logosphere.checkpoints.configuration import (
    check_size,
    cut_length,
    find_value,
    read_flag,
    read_ids,
    read_number,
    read_overrides,
    read_size,
    refuse_values,
)
from logosphere.checkpoints.families import Description, Family, Piece, Tensors
from logosphere.checkpoints.llama_models import A2D_MASKS, CONVENTIONS, Conventions, find_conventions
from logosphere.checkpoints.llama_names import DIFFULLAMA, GGUF, LLADA, Naming, find_naming
from logosphere.errors import UserError, shorten
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.llama import rotary_frequencies

VARIANTS = {
    "hidden_act": ("silu",),
    "activation_type": ("silu", "swiglu"),
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "alibi": (False,),
    "rope": (True,),
    "scale_logits": (False,),
    "input_emb_norm": (False,),
    "attention_layer_norm": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1.0,),
    "mlp_bias": (False,),
    "include_bias": (False,),
}
"""Entries that change the computation, and the values that this network has."""


class LlamaFamily(Family):
    """Llama-type networks under any of their namings; the conventions come from the model_type and the source."""

    name = "llama"
    models = tuple(model for one in CONVENTIONS for model in one.models)

    def recognises(self, config: Mapping[str, Any], tensors: Tensors) -> bool:
        naming = find_naming(tensors)
        return naming is not None and find_conventions(_kinds(config, naming), "", None) is not None

    def describe(
        self, config: Mapping[str, Any], tensors: Tensors, *, source: str = "", tokenizer_size: int | None = None
    ) -> Description:
        naming, overrides = find_naming(tensors), read_overrides(config)
        block = overrides.get("block", read_size(config, "block_size", "bd_size", "block_length"))
        source = f"diffullama {source}" if naming is DIFFULLAMA else source
        conventions = None if naming is None else find_conventions(_kinds(config, naming), source, block)
        if naming is None or conventions is None:
            raise UserError(
                f"This is no Llama-type checkpoint that is known: model_type is {shorten(config.get('model_type'))}."
            )
        refuse_values(config, VARIANTS)
        network, remarks = _describe_network(config, tensors, naming, conventions)
        network, system, more = _settle(network, config, conventions, overrides)
        if system == "bd3lm":
            block = block or conventions.block
            if block is None:
                raise UserError("The block size of this model is not known; give it as block.")
        else:
            block = None
        length, cut = cut_length(network.positions, conventions.length, block or 1, overrides.get("length"))
        usable = read_size(config, "vocab_size") or network.rows
        special = {name: token for name, token in conventions.special.items() if token < network.rows}
        return Description(
            family=self.name,
            system=system,
            vocab_size=_count_tokens(network, usable, tokenizer_size),
            length=length,
            network=network,
            options={} if block is None else {"block": block},
            special=special | read_ids(config, network.rows),
            starts_with_bos=conventions.starts_with_bos,
            remarks=(f"The conventions are those of {conventions.name}.", *remarks, *more, *conventions.remarks, *cut),
        )

    def pieces(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Piece]:
        naming = find_naming(tensors)
        assert naming is not None, "only checkpoints that were described have pieces"
        pieces = {ours: Piece((published,)) for ours, published in naming.parameters(config).items()}
        if naming is GGUF and not config.qkv_bias and not config.qk_norm:
            for i in range(config.depth):
                for part, heads in (("q", config.heads), ("k", config.kv_heads)):
                    name = f"blocks.{i}.{part}.weight"
                    pieces[name] = Piece(pieces[name].names, partial(join_halves, heads=heads))
        return pieces

    def tables(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Tensor]:
        found = [name for name in tensors if name.endswith("rotary_emb.inv_freq")]
        return {name: rotary_frequencies(config.head_width, config.rotary_base) for name in found}

    def duplicates(self, config: PublishedConfig, tensors: Tensors) -> dict[str, str]:
        naming = find_naming(tensors)
        assert naming is not None, "only checkpoints that were described have duplicates"
        head = f"{naming.out}.weight"
        return {head: f"{naming.embed}.weight"} if config.tied and head in tensors else {}


def join_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo the order of rows in GGUF files of the architecture llama: pairs (i, i + h/2) of a head lie side by side."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _kinds(config: Mapping[str, Any], naming: Naming | None) -> list[str]:
    """model_type and architectures of a configuration; the names of LLaDA's tensors say it too."""
    classes = config.get("architectures")
    given = [config.get("model_type"), *(classes if isinstance(classes, list) else [])]
    kinds = [kind.lower() for kind in given if isinstance(kind, str)]
    return [*kinds, "llada"] if naming is LLADA else kinds


def _describe_network(
    config: Mapping[str, Any], tensors: Tensors, naming: Naming, conventions: Conventions
) -> tuple[PublishedConfig, list[str]]:
    """The sizes, from the tensors where they have them, and remarks about what the configuration leaves out."""

    def shape(part: str, axes: int = 2) -> tuple[int, ...]:
        name = naming.blocks[part].format(0) + ".weight" if part in naming.blocks else f"{part}.weight"
        if name not in tensors or len(tensors[name].shape) != axes:
            raise UserError(f"The checkpoint has no tensor {name} with {axes} axes.")
        return tensors[name].shape

    (rows, width), (inner, _), depth = shape(naming.embed), shape("gate"), naming.depth(tensors)
    (q_rows, _), (k_rows, _) = shape("q"), shape("k")
    q_norm = naming.blocks["q_norm"].format(0) + ".weight"
    head_width = shape("q_norm", 1)[0] if q_norm in tensors else read_size(config, "head_dim")
    heads = read_size(config, "num_attention_heads", "n_heads")
    if heads is None and head_width is None:
        raise UserError("config.json must name num_attention_heads, which no tensor shows.")
    head_width = head_width or q_rows // (heads or 1) or 1
    heads = heads or q_rows // head_width
    check_size("the width of all heads of queries", heads * head_width, q_rows)
    if k_rows % head_width:
        raise UserError(f"{k_rows} rows of keys do not split into heads of {head_width}.")
    check_size("the vocabulary", read_size(config, "embedding_size", "vocab_size"), rows)
    check_size("the width", read_size(config, "hidden_size", "d_model"), width)
    check_size("the number of blocks", read_size(config, "num_hidden_layers", "n_layers"), depth)
    check_size("the width of the feed-forward layers", read_size(config, "intermediate_size", "mlp_hidden_size"), inner)
    kv_heads = read_size(config, "num_key_value_heads", "n_kv_heads")
    check_size("the number of heads of keys and values", kv_heads, k_rows // head_width)

    has_head = f"{naming.out}.weight" in tensors
    tied = read_flag(config, "tie_word_embeddings", "weight_tying")
    if not has_head and tied is False:
        raise UserError(
            f"config.json says that the head has weights of its own, and there is no tensor {naming.out}.weight."
        )
    base, remark = _read_rotation(config, conventions)
    eps = read_number(config, "rms_norm_eps", "layer_norm_eps")
    if eps is None:
        eps, remark = conventions.eps, [*remark, f"config.json names no rms_norm_eps; {conventions.eps:g} is assumed."]
    positions = read_size(config, "max_position_embeddings", "max_sequence_length")
    network = PublishedConfig(
        layout="llama",
        rows=rows,
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=k_rows // head_width,
        head_width=head_width,
        inner=inner,
        positions=positions or conventions.length,
        rotary_base=base,
        eps=eps,
        tied=not has_head or tied is True,
        qkv_bias=naming.blocks["q"].format(0) + ".bias" in tensors,
        qk_norm=q_norm in tensors,
    )
    permuted = not {"llama", "llada"}.isdisjoint(_kinds(config, naming))
    if naming is GGUF and permuted == (network.qkv_bias or network.qk_norm):
        raise UserError("The biases or norms of queries and keys in this GGUF file do not fit its architecture.")
    return network, remark


def _read_rotation(config: Mapping[str, Any], conventions: Conventions) -> tuple[float, list[str]]:
    """The base of the rotation; stretched ones (yarn, llama3, dynamic) are refused, for they change every angle."""
    given = find_value(config, "rope_parameters", "rope_scaling")
    if given is not None:
        kind = find_value(given, "rope_type", "type") if isinstance(given, Mapping) else given
        if kind not in (None, "default"):
            raise UserError(f"config.json stretches the rotary positions ({shorten(kind)}), which is not available.")
    inner = given if isinstance(given, Mapping) else {}
    base = read_number(config, "rope_theta") or read_number(inner, "rope_theta")
    if base is not None:
        return base, []
    return conventions.rotary_base, [f"config.json names no rope_theta; {conventions.rotary_base:,.0f} is assumed."]


def _settle(
    network: PublishedConfig, config: Mapping[str, Any], conventions: Conventions, overrides: dict[str, Any]
) -> tuple[PublishedConfig, str, list[str]]:
    """The network with mask, shift and attention, and the system; what the user gives comes before config.json."""
    system = overrides.get("system", conventions.system)
    if system not in ("ar", "mdlm", "bd3lm"):
        raise UserError(f"A Llama-type checkpoint is imported as ar, mdlm or bd3lm, not {shorten(system)}.")
    if system == "ar":
        return replace(network, attention="causal"), system, []
    default = conventions.mask_id
    if default is None:
        default = next((A2D_MASKS[kind] for kind in _kinds(config, None) if kind in A2D_MASKS), None)
    mask, remarks = overrides.get("mask_id", find_value(config, "mask_token_id")), []
    if mask is None:
        if default is None:
            raise UserError(
                f"The mask of {conventions.name} is a token of its tokenizer, and config.json names no mask_token_id; "
                "give its id as mask_id."
            )
        mask, remarks = default, [f"config.json names no mask; id {default}, that of {conventions.name}, is assumed."]
    if type(mask) is not int or not 0 <= mask < network.rows:
        raise UserError(f"The mask must be an id from 0 to {network.rows - 1}, not {shorten(mask)}.")
    attention, shift = "full" if system == "mdlm" else "blocks", overrides.get("shift", conventions.shift)
    return replace(network, mask_id=mask, shift=shift, attention=attention), system, remarks


def _count_tokens(network: PublishedConfig, usable: int, tokenizer_size: int | None) -> int:
    """Tokens that the model can predict: those of the tokenizer, or of the table without a mask at its end."""
    if tokenizer_size is None:
        count = min(network.rows, usable)
        return count - 1 if network.mask_id == count - 1 else count
    if tokenizer_size > network.rows:
        raise UserError(
            f"The tokenizer has {tokenizer_size:,} tokens and the table of the network {network.rows:,} rows."
        )
    return tokenizer_size


FAMILIES: tuple[Family, ...] = (LlamaFamily(),)
