"""Names of the tensors of Llama-type checkpoints: those of transformers, LLaDA, DiffuLLaMA and GGUF files."""

from collections.abc import Iterable
from dataclasses import dataclass

from logosphere.networks.published.config import PublishedConfig


@dataclass(frozen=True)
class Naming:
    """What a checkpoint calls the parts of the network; `{}` stands for the number of a block."""

    embed: str
    norm: str
    out: str
    blocks: dict[str, str]
    """The part of a block by our name for it."""

    @property
    def first(self) -> str:
        """A tensor that each checkpoint of this naming has."""
        return self.blocks["gate"].format(0) + ".weight"

    def depth(self, names: Iterable[str]) -> int:
        """The number of blocks, from those numbered without a gap."""
        before, after = (self.blocks["norm1"] + ".weight").split("{}")
        found = {name[len(before) : -len(after)] for name in names if name.startswith(before) and name.endswith(after)}
        depth = 0
        while str(depth) in found:
            depth += 1
        return depth

    def parameters(self, config: PublishedConfig) -> dict[str, str]:
        """The published name of each parameter of our network."""
        names = {"embed.weight": f"{self.embed}.weight", "norm.weight": f"{self.norm}.weight"}
        if not config.tied:
            names["out.weight"] = f"{self.out}.weight"
        for i in range(config.depth):
            for part, published in self.blocks.items():
                if part in ("q_norm", "k_norm") and not config.qk_norm:
                    continue
                names[f"blocks.{i}.{part}.weight"] = f"{published.format(i)}.weight"
                if part in ("q", "k", "v") and config.qkv_bias:
                    names[f"blocks.{i}.{part}.bias"] = f"{published.format(i)}.bias"
        return names


def _name_blocks(before: str, **parts: str) -> dict[str, str]:
    return {part: f"{before}.{{}}.{name}" for part, name in parts.items()}


TRANSFORMERS = Naming(
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    _name_blocks(
        "model.layers",
        norm1="input_layernorm",
        norm2="post_attention_layernorm",
        q="self_attn.q_proj",
        k="self_attn.k_proj",
        v="self_attn.v_proj",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        o="self_attn.o_proj",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
    ),
)

DIFFULLAMA = Naming(
    "embed_tokens",
    "denoise_model.norm",
    "lm_head",
    {part: name.replace("model.", "denoise_model.", 1) for part, name in TRANSFORMERS.blocks.items()},
)

LLADA = Naming(
    "model.transformer.wte",
    "model.transformer.ln_f",
    "model.transformer.ff_out",  # the word of a block's last layer too, there below blocks.i
    _name_blocks(
        "model.transformer.blocks",
        norm1="attn_norm",
        norm2="ff_norm",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        q_norm="q_norm",
        k_norm="k_norm",
        o="attn_out",
        gate="ff_proj",
        up="up_proj",
        down="ff_out",
    ),
)

GGUF = Naming(
    "token_embd",
    "output_norm",
    "output",
    _name_blocks(
        "blk",
        norm1="attn_norm",
        norm2="ffn_norm",
        q="attn_q",
        k="attn_k",
        v="attn_v",
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
        o="attn_output",
        gate="ffn_gate",
        up="ffn_up",
        down="ffn_down",
    ),
)

NAMINGS = (TRANSFORMERS, LLADA, DIFFULLAMA, GGUF)


def find_naming(names: Iterable[str]) -> Naming | None:
    """The naming of a checkpoint; None if it is not of the Llama type."""
    found = set(names)
    return next((naming for naming in NAMINGS if naming.first in found), None)
