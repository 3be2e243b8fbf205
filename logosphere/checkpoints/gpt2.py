"""GPT-2 and DiffuGPT: the same layers, causal in the one and full with a shift in the other.

Layers are Conv1D, whose weights are [in, out]. DiffuGPT calls the transformer `denoise_model` and keeps the table of
embeddings outside of it; GPT-2 calls it `transformer`, or nothing.
"""

from collections.abc import Mapping
from typing import Any

import torch
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
from logosphere.errors import UserError, shorten
from logosphere.networks.published.config import PublishedConfig

DIFFUSION, HEAD = "denoise_model.", "lm_head.weight"
LAYERS = {"norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc"}
LAYERS |= {"down": "mlp.c_proj"}
MASKS = {50257: 10541, 50258: 50257}
"""The mask of DiffuGPT by the rows of its table: the small model reuses a rare token, the medium one has a row more."""
VARIANTS = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


class GPT2Family(Family):
    """GPT-2 as an autoregressive model, and DiffuGPT as masked diffusion."""

    name = "gpt2"
    models = ("diffusionfamily/diffugpt-s", "diffusionfamily/diffugpt-m", "openai-community/gpt2")

    def recognises(self, config: Mapping[str, Any], tensors: Tensors) -> bool:
        return f"{_prefix(tensors)}h.0.attn.c_attn.weight" in tensors

    def describe(
        self, config: Mapping[str, Any], tensors: Tensors, *, source: str = "", tokenizer_size: int | None = None
    ) -> Description:
        refuse_values(config, VARIANTS)
        prefix, overrides = _prefix(tensors), read_overrides(config)
        rows, width = _shape(tensors, _table(prefix))
        positions, _ = _shape(tensors, f"{prefix}wpe.weight")
        _, inner = _shape(tensors, f"{prefix}h.0.mlp.c_fc.weight")
        depth = 0
        while f"{prefix}h.{depth}.ln_1.weight" in tensors:
            depth += 1
        heads = read_size(config, "n_head", "num_attention_heads")
        if heads is None or width % heads:
            raise UserError(f"config.json must name n_head, which divides the width {width}, not {shorten(heads)}.")
        check_size("the vocabulary", read_size(config, "vocab_size"), rows)
        check_size("the width", read_size(config, "n_embd", "hidden_size"), width)
        check_size("the number of blocks", read_size(config, "n_layer", "num_hidden_layers"), depth)
        check_size("the number of positions", read_size(config, "n_positions", "n_ctx"), positions)
        check_size("the width of the feed-forward layers", read_size(config, "n_inner"), inner)

        masked = prefix == DIFFUSION or "diffugpt" in source.lower()
        system = overrides.get("system", "mdlm" if masked else "ar")
        if system not in ("ar", "mdlm"):
            raise UserError(f"A GPT-2 checkpoint is imported as ar or mdlm, not {shorten(system)}.")
        mask: int | None = None
        remarks: list[str] = []
        if system == "mdlm":
            mask, remarks = _find_mask(config, overrides, rows)
        length, cut = cut_length(positions, positions, 1, overrides.get("length"))
        special = read_ids(config, rows)
        if "bos" not in special and rows > 50256:
            special["bos"] = 50256
        network = PublishedConfig(
            layout="gpt2",
            rows=rows,
            width=width,
            depth=depth,
            heads=heads,
            kv_heads=heads,
            head_width=width // heads,
            inner=inner,
            positions=positions,
            mask_id=mask,
            shift=system == "mdlm" and overrides.get("shift", True),
            attention="causal" if system == "ar" else "full",
            eps=read_number(config, "layer_norm_epsilon") or 1e-5,
            tied=HEAD not in tensors or read_flag(config, "tie_word_embeddings") is not False,
        )
        last = mask is not None and mask == rows - 1 and tokenizer_size is None
        return Description(
            family=self.name,
            system=system,
            vocab_size=rows - 1 if last else _check_tokens(tokenizer_size, rows),
            length=length,
            network=network,
            special=special,
            starts_with_bos=system == "mdlm",
            remarks=(*remarks, *cut),
        )

    def pieces(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Piece]:
        prefix = _prefix(tensors)
        pieces = {"embed.weight": Piece((_table(prefix),)), "position.weight": Piece((f"{prefix}wpe.weight",))}
        for kind in ("weight", "bias"):
            pieces[f"norm.{kind}"] = Piece((f"{prefix}ln_f.{kind}",))
            for i in range(config.depth):
                for ours, published in LAYERS.items():
                    turned = Tensor.t if kind == "weight" and not ours.startswith("norm") else None
                    pieces[f"blocks.{i}.{ours}.{kind}"] = Piece((f"{prefix}h.{i}.{published}.{kind}",), turned)
        return pieces if config.tied else pieces | {"out.weight": Piece((HEAD,))}

    def tables(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Tensor]:
        """The causal masks that GPT-2 stores with each block; those of DiffuGPT are full."""
        prefix, found = _prefix(tensors), {}
        whole = torch.ones(1, 1, config.positions, config.positions, dtype=torch.bool)
        for i in range(config.depth):
            if (name := f"{prefix}h.{i}.attn.bias") in tensors:
                found[name] = whole.tril() if config.attention == "causal" else whole
            if (name := f"{prefix}h.{i}.attn.masked_bias") in tensors:
                found[name] = torch.tensor(-1e4)
        return found

    def duplicates(self, config: PublishedConfig, tensors: Tensors) -> dict[str, str]:
        return {HEAD: _table(_prefix(tensors))} if config.tied and HEAD in tensors else {}


def _prefix(tensors: Tensors) -> str:
    """What stands before the names of the transformer."""
    return next((p for p in (DIFFUSION, "transformer.") if f"{p}wpe.weight" in tensors), "")


def _table(prefix: str) -> str:
    """The table of embeddings."""
    return "embed_tokens.weight" if prefix == DIFFUSION else f"{prefix}wte.weight"


def _shape(tensors: Tensors, name: str) -> tuple[int, int]:
    if name not in tensors or len(tensors[name].shape) != 2:
        raise UserError(f"The checkpoint has no tensor {name} with 2 axes.")
    rows, columns = tensors[name].shape
    return rows, columns


def _find_mask(config: Mapping[str, Any], overrides: dict[str, Any], rows: int) -> tuple[int, list[str]]:
    """The id of the mask, from the user, the configuration or the rows of the table, which tell s and m apart."""
    mask = overrides.get("mask_id", find_value(config, "mask_token_id"))
    if mask is None and rows not in MASKS:
        raise UserError("config.json names no mask_token_id, and the mask of this model is not known; give mask_id.")
    remarks = (
        [] if mask is not None else [f"config.json names no mask; id {MASKS[rows]}, that of DiffuGPT, is assumed."]
    )
    mask = MASKS[rows] if mask is None else mask
    if type(mask) is not int or not 0 <= mask < rows:
        raise UserError(f"The mask must be an id from 0 to {rows - 1}, not {shorten(mask)}.")
    return mask, remarks


def _check_tokens(tokenizer_size: int | None, rows: int) -> int:
    if tokenizer_size is not None and tokenizer_size > rows:
        raise UserError(f"The tokenizer has {tokenizer_size:,} tokens and the table of the network {rows:,} rows.")
    return rows if tokenizer_size is None else tokenizer_size


FAMILIES: tuple[Family, ...] = (GPT2Family(),)
