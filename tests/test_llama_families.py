"""Llama-type and GPT-2 checkpoints: recognised, described and read as published, at full size without weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_fixtures import PUBLISHED, SMALL, Published, config_of, headers, shapes, small_config, write_small
from torch import Tensor

from logosphere.checkpoints.families import Description
from logosphere.checkpoints.files import open_checkpoint
from logosphere.checkpoints.load import match, read_parameters
from logosphere.checkpoints.registry import find_family
from logosphere.errors import UserError
from logosphere.networks.published.registry import build_network

NAMES = sorted(PUBLISHED)


def describe(model: Published, **changes: Any) -> Description:
    config, tensors = config_of(model, model.size) | changes, headers(shapes(model, model.size))
    family = find_family(config, tensors, model.source)
    return family.describe(config, tensors, source=model.source)


@pytest.mark.parametrize("name", NAMES)
def test_published_models_have_their_sizes_and_conventions(name: str) -> None:
    model = PUBLISHED[name]
    found, tensors = describe(model), headers(shapes(model, model.size))
    network, size = found.network, model.size
    assert (network.rows, network.width, network.depth, network.heads) == (
        size.rows, size.width, size.depth, size.heads,
    )  # fmt: skip
    assert (network.kv_heads, network.head_width, network.inner) == (size.kv_heads, size.head_width, size.inner)
    assert (network.tied, network.qkv_bias, network.qk_norm) == (model.tied, model.bias, model.qk_norm)
    assert (found.system, network.mask_id, network.shift) == (model.system, model.mask, model.shift)
    assert (network.attention, network.reads) == (model.attention, "nothing")
    assert (found.vocab_size, found.length, found.options.get("block")) == (
        model.vocab_size, model.length, model.block,
    )  # fmt: skip
    assert found.special.items() >= model.special.items()
    if "rope_theta" in model.config:
        assert network.rotary_base == model.config["rope_theta"]
    eps = model.config.get("rms_norm_eps", model.config.get("layer_norm_epsilon"))
    assert network.eps == eps
    assumed = any("names no mask" in remark for remark in found.remarks)
    assert assumed == (model.mask is not None and not model.states_mask), "assumed masks are told to the user"
    matched = match(find_family(model.config, tensors, ""), found, tensors)
    assert matched.parameters == model.parameters


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_missing_or_left_over_are_named(name: str) -> None:
    model = PUBLISHED[name]
    config, size = small_config(name), replace(SMALL, kv_heads=4 if "gpt" in model.naming else 2)
    whole = shapes(model, size)
    described = find_family(config, headers(whole), "").describe(config, headers(whole), source=model.source)
    family = find_family(config, headers(whole), model.source)
    last = next(tensor for tensor in sorted(whole, reverse=True) if ".1." in tensor)
    for changed in (whole | {"extra.weight": (3,)}, {key: side for key, side in whole.items() if key != last}):
        with pytest.raises(UserError, match="extra.weight" if "extra.weight" in changed else last):
            match(family, described, headers(changed))


def read(folder: Path) -> tuple[Description, dict[str, Tensor], dict[str, Tensor]]:
    """The description of a folder, our parameters, and the tensors of the file."""
    weights = open_checkpoint(folder)
    family = find_family(weights.config, weights.tensors, folder.name)
    found = family.describe(weights.config, weights.tensors, source=folder.name)
    ours = dict(read_parameters(weights, match(family, found, weights.tensors), torch.float32))
    return found, ours, {name: weights.read(name) for name in weights.tensors}


PLACES = {
    "llada": {
        "blocks.1.down.weight": "model.transformer.blocks.1.ff_out.weight",
        "out.weight": "model.transformer.ff_out.weight",
        "blocks.0.gate.weight": "model.transformer.blocks.0.ff_proj.weight",
        "blocks.0.norm2.weight": "model.transformer.blocks.0.ff_norm.weight",
    },
    "dream": {
        "blocks.1.q.bias": "model.layers.1.self_attn.q_proj.bias",
        "blocks.0.norm2.weight": "model.layers.0.post_attention_layernorm.weight",
    },
    "sdar": {"blocks.1.k_norm.weight": "model.layers.1.self_attn.k_norm.weight", "out.weight": "lm_head.weight"},
    "diffullama": {
        "embed.weight": "embed_tokens.weight",
        "blocks.0.o.weight": "denoise_model.layers.0.self_attn.o_proj.weight",
    },
}


@pytest.mark.parametrize("name", PLACES)
def test_parameters_come_from_their_tensors(name: str, tmp_path: Path) -> None:
    _, ours, theirs = read(write_small(tmp_path, name))
    for parameter, tensor in PLACES[name].items():
        assert torch.equal(ours[parameter], theirs[tensor])


@pytest.mark.parametrize("name", ["gpt2", "diffugpt-m"])
def test_layers_of_gpt2_are_turned(name: str, tmp_path: Path) -> None:
    _, ours, theirs = read(write_small(tmp_path, name))
    prefix = "transformer" if name == "gpt2" else "denoise_model"
    for part, tensor in (("qkv", "attn.c_attn"), ("o", "attn.c_proj"), ("up", "mlp.c_fc"), ("down", "mlp.c_proj")):
        assert torch.equal(ours[f"blocks.1.{part}.weight"], theirs[f"{prefix}.h.1.{tensor}.weight"].T)
    assert torch.equal(ours["blocks.0.norm2.bias"], theirs[f"{prefix}.h.0.ln_2.bias"])


def test_the_shift_is_not_told_by_the_model_type() -> None:
    dream, reasoner = PUBLISHED["dream"], PUBLISHED["dreamreasoner"]
    assert dream.config["model_type"] == reasoner.config["model_type"]
    assert describe(dream).network.shift and not describe(reasoner).network.shift
    unnamed = replace(reasoner, source="/some/folder")
    assert not describe(unnamed, block_size=32, mask_token_id=151669).network.shift
    a2d = replace(PUBLISHED["a2d-qwen3"], source="/some/folder")
    assert describe(a2d).system == "mdlm" and describe(a2d, block_size=32).system == "bd3lm"


def test_rows_beyond_the_tokenizer_are_no_tokens() -> None:
    model = PUBLISHED["a2d-qwen3"]
    config, tensors = config_of(model, model.size), headers(shapes(model, model.size))
    family = find_family(config, tensors, "")
    assert family.describe(config, tensors, tokenizer_size=151670).vocab_size == 151670
    with pytest.raises(UserError, match="151,937 tokens and the table of the network 151,936"):
        family.describe(config, tensors, tokenizer_size=151937)


def test_what_a_user_gives_comes_first() -> None:
    model = PUBLISHED["smollm2"]
    given = {"system": "mdlm", "mask_id": 7, "shift": True, "length": 64}
    found = describe(model, logosphere=given)
    assert (found.system, found.network.mask_id, found.network.shift, found.length) == ("mdlm", 7, True, 64)
    assert found.network.attention == "full"
    blocks = describe(PUBLISHED["sdar"], logosphere={"block": 16})
    assert blocks.options == {"block": 16}
    for wrong, words in (
        ({"mask": 3}, "may set"),
        ({"mask_id": "3"}, "must be int"),
        ({"mask_id": True}, "must be int"),
        ({"system": "rdlm"}, "ar, mdlm or bd3lm"),
        ({"system": "mdlm", "mask_id": 49152}, "from 0 to 49151"),
        ({"system": "mdlm"}, "give its id"),
        ({"length": 0}, "length must be"),
        ([1], "must hold names"),
    ):
        with pytest.raises(UserError, match=words):
            describe(model, logosphere=wrong)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llada", {"d_model": 2048}, "the width is 2,048 .* 4,096"),
        ("llada", {"n_layers": 31}, "blocks is 31"),
        ("llada", {"n_heads": 30}, "heads"),
        ("llada", {"weight_tying": True, "block_type": "sequential"}, "block_type=.sequential"),
        ("llada", {"rope_theta": "many"}, "rope_theta=.*positive number"),
        ("llada", {"rope_theta": float("inf")}, "positive number"),
        ("llada", {"mask_token_id": 200_000}, "mask must be an id"),
        ("dream", {"intermediate_size": 5}, "feed-forward"),
        ("dream", {"num_hidden_layers": -3}, "whole number of at least 1"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window"),
        ("dream", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "stretches the rotary positions"),
        ("dream", {"tie_word_embeddings": "no"}, "true or false"),
        ("smollm2", {"tie_word_embeddings": False}, "head has weights of its own"),
        ("smollm2", {"hidden_act": "gelu"}, "hidden_act=.gelu"),
        ("gpt2", {"n_head": 7}, "divides the width"),
        ("gpt2", {"activation_function": "relu"}, "activation_function=.relu"),
        ("gpt2", {"n_layer": 11}, "blocks is 11"),
        ("diffugpt-s", {"mask_token_id": 60_000}, "mask must be an id"),
        ("diffugpt-s", {"logosphere": {"system": "bd3lm"}}, "ar or mdlm"),
    ],
)
def test_configurations_that_disagree_are_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        describe(PUBLISHED[name], **changes)


def test_a_tied_head_that_is_stored_twice_must_equal_the_table(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_small(tmp_path, "illada")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    found, ours, _ = read(folder)
    assert found.network.tied and "out.weight" not in ours
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, file)
    with pytest.raises(UserError, match="differ"):
        read(folder)


def test_stored_tables_are_compared(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_small(tmp_path, "diffullama")
    file = folder / "model.safetensors"
    tensors, name = load_file(file), "denoise_model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(tensors | {name: torch.tensor([1.0, 1e4**-0.5])}, file)
    read(folder)
    save_file(tensors | {name: torch.tensor([1.0, 1e6**-0.5])}, file)
    with pytest.raises(UserError, match="inv_freq"):
        read(folder)
    folder = write_small(tmp_path, "diffugpt-m")
    file = folder / "model.safetensors"
    tensors, name = load_file(file), "denoise_model.h.1.attn.bias"
    save_file(tensors | {name: torch.ones(1, 1, 16, 16)}, file)
    read(folder)
    save_file(tensors | {name: torch.ones(1, 1, 16, 16).tril()}, file)
    with pytest.raises(UserError, match="attn.bias"):
        read(folder)


def test_parameters_fill_the_network(tmp_path: Path) -> None:
    for name in NAMES:
        found, ours, theirs = read(write_small(tmp_path, name))
        network = build_network(found.network)
        network.load_state_dict(ours)
        total = sum(tensor.numel() for tensor in theirs.values())
        assert sum(parameter.numel() for parameter in network.parameters()) == total
