"""GGUF files: read as written, equal to the same model in safetensors, and refused when damaged."""

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_fixtures import (
    ARRAY,
    BF16,
    BOOL,
    F32,
    FLOAT16,
    FLOAT32,
    Q4_0,
    Q4_1,
    Q8_0,
    TEXT,
    U32,
    U64,
    entry,
    float_tensors,
    gguf_bytes,
    llama_metadata,
    random_bytes,
    split_halves,
    text,
    write_gguf,
)  # fmt: skip
from llama_fixtures import load_model, write_small
from safetensors.torch import load_file

from logosphere.checkpoints.families import TensorInfo
from logosphere.checkpoints.gguf import open_gguf
from logosphere.checkpoints.gguf_blocks import dequantise
from logosphere.checkpoints.gguf_tokenizer import make_tokenizer_json
from logosphere.errors import UserError

KINDS = {"F32": (FLOAT32, 1, 4), "F16": (FLOAT16, 1, 2), "BF16": (BF16, 1, 2)}
KINDS |= {"Q8_0": (Q8_0, 32, 34), "Q4_0": (Q4_0, 32, 18), "Q4_1": (Q4_1, 32, 20)}
METADATA = [
    ("general.architecture", TEXT, "llama"), ("number", U64, 1 << 40), ("real", F32, 0.5), ("yes", BOOL, True),
    ("texts", ARRAY, (TEXT, ["a", "bé", ""])), ("numbers", ARRAY, (5, [-1, 2, 3])), ("none", ARRAY, (TEXT, [])),
]  # fmt: skip


def test_what_was_written_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(2, 3, 5), "b": torch.randn(7), "c": torch.randn(1, 1)}
    file = open_gguf(write_gguf(tmp_path / "x.gguf", METADATA, float_tensors(tensors)))
    assert {name: info.shape for name, info in file.tensors.items()} == {"a": (2, 3, 5), "b": (7,), "c": (1, 1)}
    for name, tensor in tensors.items():
        assert torch.equal(file.read(name), tensor)
    assert {name: file.metadata[name] for name in ("number", "real", "yes", "texts", "none")} == {
        "number": 1 << 40, "real": 0.5, "yes": True, "texts": ["a", "bé", ""], "none": [],
    }  # fmt: skip
    assert file.metadata["numbers"].tolist() == [-1, 2, 3]
    wide = write_gguf(tmp_path / "y.gguf", [*METADATA, ("general.alignment", U32, 64)], float_tensors(tensors), 64)
    assert torch.equal(open_gguf(wide).read("b"), tensors["b"])


def test_blocks_have_the_values_of_their_formulas() -> None:
    rng = np.random.default_rng(0)
    d, m = np.float16(0.125), np.float16(-3.5)
    q8, q4 = rng.integers(-128, 128, 32).astype(np.int8), rng.integers(0, 16, 32).astype(np.uint8)
    packed = bytes(int(q4[i]) | int(q4[i + 16]) << 4 for i in range(16))
    for kind, raw, expected in (
        ("Q8_0", d.tobytes() + q8.tobytes(), 0.125 * q8.astype(np.float32)),
        ("Q4_0", d.tobytes() + packed, 0.125 * (q4.astype(np.float32) - 8)),
        ("Q4_1", d.tobytes() + m.tobytes() + packed, 0.125 * q4.astype(np.float32) - 3.5),
    ):
        found = dequantise(np.frombuffer(raw + raw, np.uint8), TensorInfo((2, 32), kind))
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy(), np.stack([expected, expected])), kind
    halves = np.frombuffer(np.array([1.5, -2.0], np.float16).tobytes(), np.uint8)
    assert dequantise(halves, TensorInfo((2,), "F16")).tolist() == [1.5, -2.0]
    brain = torch.tensor([1.5, -3e38]).bfloat16()
    raw_brain = np.frombuffer(brain.view(torch.int16).numpy().tobytes(), np.uint8)
    assert torch.equal(dequantise(raw_brain, TensorInfo((2,), "BF16")), brain)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_blocks_are_read_as_by_the_package_gguf(kind: str) -> None:
    quants = pytest.importorskip("gguf", reason="the comparison needs the package gguf").quants
    number = KINDS[kind][0]
    values = np.random.default_rng(1).normal(size=(3000, 96)).astype(np.float32)  # more than one chunk of blocks
    raw = quants.quantize(values, number)
    expected = quants.dequantize(raw, number)
    found = dequantise(np.frombuffer(raw.tobytes(), np.uint8), TensorInfo(values.shape, kind)).float().numpy()
    assert np.array_equal(found, expected)
    assert np.abs(found - values).max() < 0.6


@torch.no_grad()
@pytest.mark.parametrize("name", ["smollm2", "open-dcoder", "qwen3"])
def test_a_gguf_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    """The architecture llama has its rows of queries and keys in another order, those of Qwen have not."""
    folder = write_small(tmp_path, name)
    kind = {"smollm2": "llama", "open-dcoder": "qwen2", "qwen3": "qwen3"}[name]
    words = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    tensors = {}
    for published, tensor in load_file(folder / "model.safetensors").items():
        renamed = published
        for theirs, here in words.items():
            renamed = renamed.replace(theirs, here)
        for part, heads in (("attn_q.weight", 4), ("attn_k.weight", 2)):
            if kind == "llama" and renamed.endswith(part):
                tensor = split_halves(tensor, heads)
        tensors[renamed] = tensor
    base = 1e5 if kind == "llama" else 1e6
    metadata = llama_metadata(kind, **{"rope.freq_base": (F32, base)}) + [("tokenizer.ggml.bos_token_id", U32, 1)]
    if name != "smollm2":
        metadata = [(key, of, 1e-6 if key.endswith("epsilon") else content) for key, of, content in metadata]
    if name == "open-dcoder":
        metadata.append(("tokenizer.ggml.mask_token_id", U32, 37))
    (tmp_path / "open-dcoder").mkdir()
    file = write_gguf(tmp_path / "open-dcoder" / f"{folder.name}.gguf", metadata, float_tensors(tensors))
    expected, found = load_model(folder), load_model(file)
    z = torch.randint(37, (2, 16), generator=torch.Generator().manual_seed(0))
    z[:, 5:9] = expected.vocab_size
    assert found.vocab_size == expected.vocab_size
    if name == "open-dcoder":
        torch.testing.assert_close(found.log_posterior(z, 0.5), expected.log_posterior(z, 0.5))
    z[:, 5:9] = 3
    torch.testing.assert_close(found.nelbo(z, 0).total, expected.nelbo(z, 0).total, rtol=1e-6, atol=1e-4)


def test_quantised_weights_are_those_they_were_made_from(tmp_path: Path) -> None:
    raw = random_bytes(2 * 20, seed=3)
    half = np.array([0.5, 0.25], np.float16).tobytes()
    raw = half + raw[4:20] + half + raw[24:]
    path = write_gguf(tmp_path / "x.gguf", METADATA, {"w": ((2, 32), Q4_1, raw), "v": ((3,), FLOAT32, bytes(12))})
    low, high = raw[4] & 15, raw[4] >> 4
    values = open_gguf(path).read("w")
    assert values[0, 0] == 0.5 * low + 0.25 and values[0, 16] == 0.5 * high + 0.25


# ---- damaged and hostile files ---------------------------------------------------------------------------------------


def head(tensors: int, values: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def described(shape: tuple[int, ...], kind: int = 0, start: int = 0, data: int = 64) -> bytes:
    raw = head(1, 0) + entry("w", shape, kind, start)
    return raw + bytes(-len(raw) % 32 + data)


HUGE = (1 << 63) - 1
HOSTILE = {
    "empty": (b"", "empty"),
    "short": (b"GG", "ends within its header"),
    "magic": (b"GGML" + bytes(60), "does not begin"),
    "version": (head(0, 0, 1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "many tensors": (head(HUGE, 0) + bytes(100), "claims to have"),
    "many values": (head(0, 1 << 14) + bytes(100), "claims to have"),
    "most values": (head(0, HUGE), "claims to have"),
    "long name": (head(0, 1) + struct.pack("<Q", 1 << 11) + bytes(1 << 12), "a text has 2,048 bytes"),
    "longest name": (head(0, 1) + struct.pack("<Q", HUGE) + bytes(64), "a text has"),
    "not UTF-8": (head(0, 1) + text(b"\xff\xfe") + bytes(64), "not UTF-8"),
    "unknown type": (head(0, 1) + text("a") + struct.pack("<I", 99) + bytes(64), "unknown type 99"),
    "text beyond the end": (head(0, 1) + text("a") + struct.pack("<IQ", TEXT, 5000), "ends within its header"),
    "huge text": (head(0, 1) + text("a") + struct.pack("<IQ", TEXT, HUGE) + bytes(64), "a text has"),
    "huge array": (head(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, 4, HUGE) + bytes(64), "array elements"),
    "array of texts": (head(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, TEXT, 1 << 20), "array elements"),
    "nested": (head(0, 1) + text("a") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 9999, "the type 9"),
    "array of nothing": (head(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, 77, 1) + bytes(64), "the type 77"),
    "twice": (head(0, 2) + (text("a") + struct.pack("<II", U32, 1)) * 2, "occurs twice"),
    "tensor twice": (head(2, 0) + entry("w", (1,), 0, 0) + entry("w", (1,), 0, 32) + bytes(128), "twice"),
    "no axes": (described(()), "0 axes"),
    "many axes": (described((1,) * 5), "5 axes"),
    "side of 0": (described((0, 4)), "the shape"),
    "huge sides": (described((1 << 32, 1 << 32, 1 << 32)), "would end at byte"),
    "negative side": (described(((1 << 64) - 1,)), "the shape"),
    "beyond the end": (described((17,)), "would end at byte"),
    "start beyond the end": (described((1,), start=1 << 62), "would end at byte"),
    "start between": (described((1,), start=7), "would end at byte"),
    "half a block": (described((33,), kind=Q8_0), "no blocks of 32"),
    "other quantisation": (described((256,), kind=14), "Q6_K"),
    "no quantisation": (described((256,), kind=1000), "type 1000"),
    "overlap": (head(2, 0) + entry("v", (9,), 0, 0) + entry("w", (9,), 0, 32) + bytes(160), "overlap"),
    "alignment of 0": (gguf_bytes([("general.alignment", U32, 0)], {}), "aligns"),
    "alignment of text": (gguf_bytes([("general.alignment", TEXT, "32")], {}), "aligns"),
}


def open_whole(path: Path) -> None:
    """All that an import asks of a file before it reads weights."""
    file = open_gguf(path)
    assert file.tensors is not None and file.config is not None
    assert file.chat_template is None or isinstance(file.chat_template, str)
    make_tokenizer_json(file.metadata)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_at_once(name: str, tmp_path: Path) -> None:
    content, words = HOSTILE[name]
    (tmp_path / "x.gguf").write_bytes(content)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(UserError, match=words):
            open_gguf(tmp_path / "x.gguf")
        assert time.process_time() - began < 1
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def whole_file() -> bytes:
    tokens = [*"abcdef", "ab", "abc", "<|end|>"]
    metadata: list[Any] = llama_metadata() + [
        ("tokenizer.ggml.model", TEXT, "gpt2"), ("tokenizer.ggml.pre", TEXT, "smollm"),
        ("tokenizer.ggml.tokens", ARRAY, (TEXT, tokens)), ("tokenizer.ggml.merges", ARRAY, (TEXT, ["a b", "ab c"])),
        ("tokenizer.ggml.token_type", ARRAY, (5, [1] * 8 + [3])), ("tokenizer.chat_template", TEXT, "{{ x }}"),
    ]  # fmt: skip
    return gguf_bytes(metadata, float_tensors({"a": torch.randn(2, 3), "b": torch.randn(7)}))


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    whole, path = whole_file(), tmp_path / "x.gguf"
    path.write_bytes(whole)
    open_whole(path)
    for size in [*range(0, len(whole) - 40, 7), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError):
            open_whole(path)


def test_damaged_bytes_raise_nothing_else(tmp_path: Path) -> None:
    whole, path = whole_file(), tmp_path / "x.gguf"
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        raw = bytearray(whole)
        for place in rng.integers(0, len(raw), rng.integers(1, 4)):
            raw[place] = rng.choice([0, 1, 8, 9, 127, 255, int(rng.integers(256))])
        path.write_bytes(raw)
        try:
            open_whole(path)
        except UserError:
            refused += 1
    assert 100 < refused < 1500


def test_tokenizers_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }  # fmt: skip
    make_tokenizer_json(good)
    for name, wrong, words in (
        ("tokenizer.ggml.model", "llama", "kind 'llama'"),
        ("tokenizer.ggml.pre", "deepseek-llm", "deepseek"),
        ("tokenizer.ggml.pre", ["x"], "with"),
        ("tokenizer.ggml.pre", None, "with"),
        ("tokenizer.ggml.tokens", ["a", "a", "b", "ab"], "twice"),
        ("tokenizer.ggml.tokens", np.arange(3), "lacks its tokens"),
        ("tokenizer.ggml.merges", ["a c"], "no pair of tokens"),
        ("tokenizer.ggml.merges", ["a b c"], "no pair of tokens"),
        ("tokenizer.ggml.token_type", np.ones(2), "a type for each token"),
        ("tokenizer.ggml.token_type", "no", "a type for each token"),
    ):
        with pytest.raises(UserError, match=words):
            make_tokenizer_json(good | {name: wrong})


def test_a_tokenizer_splits_digits_and_finds_control_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = tmp_path / "x.gguf"
    path.write_bytes(whole_file())
    tokenizer = Tokenizer.from_str(make_tokenizer_json(open_gguf(path).metadata))
    assert tokenizer.encode("abcab<|end|>d").ids == [7, 6, 8, 3]
    assert tokenizer.decode([7, 6, 3]) == "abcabd"


def test_variants_that_are_not_available_are_refused(tmp_path: Path) -> None:
    for name, content, words in (
        ("llama.expert_count", (U32, 8), "mixture of experts"),
        ("llama.rope.dimension_count", (U32, 2), "rotates 2 features"),
    ):
        metadata = [*(item for item in llama_metadata() if item[0] != name), (name, *content)]
        path = write_gguf(tmp_path / "x.gguf", metadata, float_tensors({"a": torch.randn(1)}))
        with pytest.raises(UserError, match=words):
            _ = open_gguf(path).config
    with pytest.raises(UserError, match="names no architecture"):
        _ = open_gguf(write_gguf(tmp_path / "x.gguf", [], {})).config
