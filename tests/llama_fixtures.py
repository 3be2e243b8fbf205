"""Checkpoints of random weights in the Llama-type and GPT-2 layouts under the names of each published model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from published_fixtures import random_tensors, write_shards

import logosphere as ls
from logosphere.checkpoints.families import TensorInfo, Tensors
from logosphere.model import Model

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """The sizes of a network."""

    rows: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    positions: int


@dataclass(frozen=True)
class Published:
    """A published model: its full size, its configuration, and what an importer must make of it."""

    naming: str
    """transformers, llada, diffullama, gpt2 or diffugpt."""
    size: Size
    config: dict[str, Any]
    parameters: int
    system: str
    mask: int | None
    shift: bool
    attention: str
    vocab_size: int
    """Without a tokenizer."""
    length: int
    block: int | None = None
    source: str = ""
    tied: bool = False
    bias: bool = False
    qk_norm: bool = False
    states_mask: bool = False
    """Whether the configuration names the mask."""
    special: dict[str, int] = field(default_factory=dict)


def qwen(model_type: str, base: float = 1e6, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": base} | more


LLADA_CONFIG = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "block_type": "llama", "activation_type": "silu",
    "layer_norm_type": "rms", "weight_tying": False, "rope": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
    "include_bias": False, "include_qkv_bias": False, "alibi": False, "eos_token_id": 126081, "pad_token_id": 126081,
    "mask_token_id": 126336,
}  # fmt: skip
LLAMA_CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
GPT2_CONFIG = {"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
QWEN3_06B = Size(151936, 1024, 28, 16, 8, 128, 3072, 40960)
QWEN25_05B = Size(151936, 896, 24, 14, 2, 64, 4864, 32768)
GPT2_SMALL, GPT2_MEDIUM = Size(50257, 768, 12, 12, 12, 64, 3072, 1024), Size(50258, 1024, 24, 16, 16, 64, 4096, 1024)

PUBLISHED = {
    "llada": Published(
        "llada", Size(126464, 4096, 32, 32, 32, 128, 12288, 4096), LLADA_CONFIG, 8_015_581_184,
        "mdlm", 126336, False, "full", 126464, 4096, source="GSAI-ML/LLaDA-8B-Base", states_mask=True,
        special={"eos": 126081, "pad": 126081, "eot": 126348},
    ),
    "illada": Published(
        "transformers", Size(155136, 4096, 2, 32, 8, 128, 12288, 8192),
        {"model_type": "illada", "architectures": ["ILLaDAForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 5e5,
         "tie_word_embeddings": True},
        2 * 192_946_176 + 155136 * 4096 + 4096,
        "mdlm", 5, False, "full", 155136, 8192, source="GSAI-ML/iLLaDA-8B-Base", tied=True,
    ),
    "dream": Published(
        "transformers", Size(152064, 3584, 28, 28, 4, 128, 18944, 131072),
        qwen("Dream", architectures=["DreamModel"], mask_token_id=151666, pad_token_id=151643,
             tie_word_embeddings=False, use_sliding_window=False),
        7_615_616_512, "mdlm", 151666, True, "full", 152064, 2048, source="Dream-org/Dream-v0-Base-7B", bias=True,
        states_mask=True, special={"pad": 151643, "eot": 151645},
    ),
    "dreamreasoner": Published(
        "transformers", Size(151936, 4096, 2, 32, 8, 128, 12288, 32768),
        qwen("Dream", architectures=["DreamModel"], tie_word_embeddings=False),
        2 * 192_946_432 + 2 * 151936 * 4096 + 4096,
        "bd3lm", 151669, False, "blocks", 151936, 4096, 32, source="Dream-org/DreamReasoner-8B", qk_norm=True,
        special={"eot": 151645},
    ),
    "a2d-qwen3": Published(
        "transformers", QWEN3_06B, qwen("a2d-qwen3", tie_word_embeddings=True), 596_049_920,
        "mdlm", 151669, False, "full", 151936, 4096, source="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", tied=True,
        qk_norm=True, special={"eot": 151645},
    ),
    "a2d-qwen3-blocks": Published(
        "transformers", QWEN3_06B, qwen("a2d-qwen3", tie_word_embeddings=True), 596_049_920,
        "bd3lm", 151669, False, "blocks", 151936, 4096, 32, source="dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
        tied=True, qk_norm=True,
    ),
    "a2d-qwen2": Published(
        "transformers", QWEN25_05B, qwen("a2d-qwen2", tie_word_embeddings=True), 494_032_768,
        "mdlm", 151665, False, "full", 151936, 4096, tied=True, bias=True,
        source="dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
    ),
    "open-dcoder": Published(
        "transformers", QWEN25_05B, qwen("qwen2", mask_token_id=151665, tie_word_embeddings=True), 494_032_768,
        "mdlm", 151665, True, "full", 151936, 2048, source="fredzzp/open-dcoder-0.5B", tied=True, bias=True,
        states_mask=True,
    ),
    "sdar": Published(
        "transformers", Size(151936, 2560, 36, 32, 8, 128, 9728, 32768),
        qwen("sdar", architectures=["SDARForCausalLM"], tie_word_embeddings=False, eos_token_id=[151645, 151643]),
        4_411_424_256, "bd3lm", 151669, False, "blocks", 151936, 4096, 4, source="JetLM/SDAR-4B-Chat", qk_norm=True,
        special={"eos": 151645, "eos_2": 151643},
    ),
    "fast-dllm": Published(
        "transformers", Size(151936, 1536, 28, 12, 2, 128, 8960, 32768),
        qwen("Fast_dLLM_Qwen", bd_size=32, tie_word_embeddings=True), 1_543_714_304,
        "bd3lm", 151665, True, "blocks", 151936, 4096, 32, tied=True, bias=True,
        source="Efficient-Large-Model/Fast_dLLM_v2_1.5B",
    ),
    "diffullama": Published(
        "diffullama", Size(32000, 4096, 32, 32, 32, 128, 11008, 4096),
        LLAMA_CONFIG | {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "bos_token_id": 1, "eos_token_id": 2},
        6_738_415_616, "mdlm", 811, True, "full", 32000, 2048, source="a-local-folder", special={"bos": 1, "eos": 2},
    ),
    "smollm2": Published(
        "transformers", Size(49152, 576, 30, 9, 3, 64, 1536, 8192),
        LLAMA_CONFIG | {"rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True, "bos_token_id": 1},
        134_515_008, "ar", None, False, "causal", 49152, 4096, source="HuggingFaceTB/SmolLM2-135M", tied=True,
        special={"bos": 1},
    ),
    "qwen3": Published(
        "transformers", QWEN3_06B, qwen("qwen3", tie_word_embeddings=True), 596_049_920,
        "ar", None, False, "causal", 151936, 4096, source="Qwen/Qwen3-0.6B-Base", tied=True, qk_norm=True,
    ),
    "gpt2": Published(
        "gpt2", GPT2_SMALL, GPT2_CONFIG, 124_439_808, "ar", None, False, "causal", 50257, 1024, tied=True,
        source="openai-community/gpt2", special={"bos": 50256},
    ),
    "diffugpt-s": Published(
        "diffugpt", GPT2_SMALL, GPT2_CONFIG, 124_439_808, "mdlm", 10541, True, "full", 50257, 1024, tied=True,
        source="diffusionfamily/diffugpt-s", special={"bos": 50256},
    ),
    "diffugpt-m": Published(
        "diffugpt", GPT2_MEDIUM, GPT2_CONFIG, 354_824_192, "mdlm", 50257, True, "full", 50257, 1024, tied=True,
        source="diffusionfamily/diffugpt-m", special={"bos": 50256},
    ),
}  # fmt: skip
"""Full sizes, but for two blocks of models whose number of blocks is not known; parameters as published or counted."""

SMALL = Size(40, 16, 2, 4, 2, 4, 24, 16)
SMALL_MASK = 37
LLADA_20M = Size(8192, 512, 2, 8, 8, 64, 2048, 128)
"""A LLaDA-shaped network of some 17 million parameters."""


def shapes(model: Published, size: Size) -> Shapes:
    """The tensors of a model of this size."""
    if model.naming in ("gpt2", "diffugpt"):
        return gpt2_shapes(size, diffusion=model.naming == "diffugpt")
    if model.naming == "llada":
        return llada_shapes(size)
    return transformers_shapes(model, size, "denoise_model" if model.naming == "diffullama" else "model")


def llada_shapes(size: Size) -> Shapes:
    V, D, F, H, K = size.rows, size.width, size.inner, size.heads * size.head_width, size.kv_heads * size.head_width
    found: Shapes = {"model.transformer.wte.weight": (V, D), "model.transformer.ln_f.weight": (D,)}
    found["model.transformer.ff_out.weight"] = (V, D)
    for i in range(size.depth):
        b = f"model.transformer.blocks.{i}"
        found |= {f"{b}.attn_norm.weight": (D,), f"{b}.ff_norm.weight": (D,)}
        found |= {f"{b}.q_proj.weight": (H, D), f"{b}.k_proj.weight": (K, D), f"{b}.v_proj.weight": (K, D)}
        found |= {f"{b}.attn_out.weight": (D, H), f"{b}.ff_proj.weight": (F, D), f"{b}.up_proj.weight": (F, D)}
        found[f"{b}.ff_out.weight"] = (D, F)
    return found


def transformers_shapes(model: Published, size: Size, prefix: str) -> Shapes:
    V, D, F, H, K = size.rows, size.width, size.inner, size.heads * size.head_width, size.kv_heads * size.head_width
    embed = "embed_tokens.weight" if prefix == "denoise_model" else f"{prefix}.embed_tokens.weight"
    found: Shapes = {embed: (V, D), f"{prefix}.norm.weight": (D,)}
    if not model.tied:
        found["lm_head.weight"] = (V, D)
    for i in range(size.depth):
        b = f"{prefix}.layers.{i}"
        found |= {f"{b}.input_layernorm.weight": (D,), f"{b}.post_attention_layernorm.weight": (D,)}
        for name, rows in (("q", H), ("k", K), ("v", K)):
            found[f"{b}.self_attn.{name}_proj.weight"] = (rows, D)
            if model.bias:
                found[f"{b}.self_attn.{name}_proj.bias"] = (rows,)
            if model.qk_norm and name != "v":
                found[f"{b}.self_attn.{name}_norm.weight"] = (size.head_width,)
        found |= {f"{b}.self_attn.o_proj.weight": (D, H), f"{b}.mlp.down_proj.weight": (D, F)}
        found |= {f"{b}.mlp.gate_proj.weight": (F, D), f"{b}.mlp.up_proj.weight": (F, D)}
    return found


def gpt2_shapes(size: Size, *, diffusion: bool) -> Shapes:
    """Layers are Conv1D, whose weights are [in, out]."""
    V, D, F = size.rows, size.width, size.inner
    prefix = "denoise_model" if diffusion else "transformer"
    found: Shapes = {"embed_tokens.weight" if diffusion else "transformer.wte.weight": (V, D)}
    found |= {f"{prefix}.wpe.weight": (size.positions, D)}
    found |= {f"{prefix}.ln_f.weight": (D,), f"{prefix}.ln_f.bias": (D,)}
    for i in range(size.depth):
        b = f"{prefix}.h.{i}"
        layers = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, F), "mlp.c_proj": (F, D)}
        for name, sides in layers.items():
            found |= {f"{b}.{name}.weight": sides, f"{b}.{name}.bias": sides[1:]}
        for norm in ("ln_1", "ln_2"):
            found |= {f"{b}.{norm}.weight": (D,), f"{b}.{norm}.bias": (D,)}
    return found


def headers(shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """What is known of tensors without reading them."""
    return {name: TensorInfo(shape, "F32") for name, shape in shapes.items()}


def config_of(model: Published, size: Size) -> dict[str, Any]:
    """config.json with these sizes under the names of the model."""
    if model.naming in ("gpt2", "diffugpt"):
        sizes = {"vocab_size": size.rows, "n_embd": size.width, "n_layer": size.depth, "n_head": size.heads}
        return model.config | sizes | {"n_positions": size.positions}
    if model.naming == "llada":
        sizes = {"d_model": size.width, "n_layers": size.depth, "n_heads": size.heads, "n_kv_heads": size.kv_heads}
        sizes |= {"mlp_hidden_size": size.inner, "embedding_size": size.rows, "max_sequence_length": size.positions}
        return model.config | sizes | {"vocab_size": size.rows}
    sizes = {"hidden_size": size.width, "num_hidden_layers": size.depth, "num_attention_heads": size.heads}
    sizes |= {"num_key_value_heads": size.kv_heads, "head_dim": size.head_width, "intermediate_size": size.inner}
    return model.config | sizes | {"vocab_size": size.rows, "max_position_embeddings": size.positions}


def small_config(name: str, size: Size = SMALL) -> dict[str, Any]:
    """config.json of a small model, whose mask, and blocks of 4, it therefore names itself."""
    model = PUBLISHED[name]
    config = config_of(model, size)
    for special in ("bos", "eos", "pad"):
        config.pop(f"{special}_token_id", None)
    if model.mask is not None:
        config["mask_token_id"] = min(SMALL_MASK, size.rows - 1)
    if model.block is not None:
        config.pop("bd_size", None)
        config["block_size"] = 4
    return config | {"bos_token_id": 1}


def write_small(folder: Path, name: str, size: Size = SMALL, *, seed: int = 0, shards: int = 1) -> Path:
    """A folder with config.json and random weights of a small model of this name; returns it.

    The folder's name holds what the conventions of some models are told by.
    """
    model = PUBLISHED[name]
    folder = folder / (model.source.split("/")[-1])
    folder.mkdir(parents=True, exist_ok=True)
    if model.naming in ("gpt2", "diffugpt"):
        size = Size(**vars(size) | {"kv_heads": size.heads})
    (folder / "config.json").write_text(json.dumps(small_config(name, size)))
    found = random_tensors(shapes(model, size), seed)
    for weight, tensor in found.items():  # biases are drawn around 0, and weights of norms around 1
        if weight.endswith(".bias"):
            tensor.sub_(1)
    write_shards(folder, found, shards)
    return folder


def load_model(source: Path, **conventions: Any) -> Model:
    """The model of a folder or a file, as users import it."""
    return ls.import_model(source, **conventions)
