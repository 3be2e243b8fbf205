"""Checkpoint folders are validated as a whole before a weight is read; every defect is one sentence."""

import json
import os
import re
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_fixtures import llada_shapes, random_tensors, write_llada, write_shards
from safetensors.torch import load_file, save

from logosphere.checkpoints.files import open_checkpoint
from logosphere.checkpoints.headers import read_header
from logosphere.errors import UserError


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reads_what_safetensors_reads(tmp_path: Path, shards: int, dtype: torch.dtype) -> None:
    weights = open_checkpoint(write_llada(tmp_path, shards=shards, dtype=dtype))
    assert len(weights.files) == shards
    expected = {name: tensor for file in weights.files for name, tensor in load_file(file).items()}
    assert weights.tensors.keys() == expected.keys() == llada_shapes().keys()
    for name, tensor in expected.items():
        assert weights.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(weights.read(name), tensor)


def refused(path: Path, *words: str) -> None:
    """The folder is refused in one sentence with these words."""
    with pytest.raises(UserError) as error:
        open_checkpoint(path)
    sentence = str(error.value)
    for word in words:
        assert word in sentence, sentence
    assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < 700


def test_absent_shard(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, "names 3 files", "model-00002-of-00003.safetensors", "missing")


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "other.bin", 7, ".x.safetensors"]
)
def test_index_that_names_other_places(tmp_path: Path, name: object) -> None:
    write_llada(tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = next(iter(content["weight_map"]))
    content["weight_map"][first] = name
    index.write_text(json.dumps(content))
    refused(tmp_path, "no safetensors file of this folder")


def test_index_that_disagrees_with_the_shards(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = next(iter(content["weight_map"]))
    without = {name: file for name, file in content["weight_map"].items() if name != first}
    index.write_text(json.dumps({"weight_map": without}))
    refused(tmp_path, first, "does not name")
    index.write_text(json.dumps({"weight_map": content["weight_map"] | {"extra": "model-00001-of-00002.safetensors"}}))
    refused(tmp_path, "promises 'extra'")
    index.write_text(json.dumps({"weight_map": {}}))
    refused(tmp_path, "weight_map")


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    tensors = load_file(second) | dict(list(load_file(first).items())[:1])
    second.write_bytes(save(tensors))
    refused(tmp_path, "is in model-00001", "and in model-00002")


@pytest.mark.parametrize("kept", [0, 4, 8, 60, -1, -1000])
def test_truncated_file(tmp_path: Path, kept: int) -> None:
    file = write_llada(tmp_path) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:kept])
    refused(tmp_path, "model.safetensors", "fetch the file again")


def test_appended_bytes(tmp_path: Path) -> None:
    file = write_llada(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"more")
    refused(tmp_path, "belong to no tensor")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_pickles_are_refused_with_the_conversion(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04N.")
    refused(tmp_path, name, "pickles", "weights_only=True", "save_file")
    refused(tmp_path / name, name, "pickles")


def test_folders_without_weights_or_configuration(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no weights")
    write_llada(tmp_path / "a")
    refused(tmp_path / "a" / "model.safetensors", "give the folder")
    (tmp_path / "a" / "config.json").unlink()
    refused(tmp_path / "a", "has no config.json")


@pytest.mark.parametrize("content", ["", "{", "[1]", "{" * 100_000, '{"a": 1' + " " * 100, "\xff\xfe", "null"])
def test_damaged_configuration(tmp_path: Path, content: str) -> None:
    write_llada(tmp_path)
    (tmp_path / "config.json").write_text(content, encoding="latin1")
    refused(tmp_path, "config.json")


def test_configuration_of_absurd_size(tmp_path: Path) -> None:
    write_llada(tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 33)
    refused(tmp_path, "at most")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_are_not_read(tmp_path: Path) -> None:
    write_llada(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    refused(tmp_path, "not a regular file")


def test_several_files_without_an_index(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    refused(tmp_path, "2 safetensors files and no model.safetensors.index.json")


def test_another_name_of_a_single_file(tmp_path: Path) -> None:
    write_llada(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert open_checkpoint(tmp_path).tensors.keys() == llada_shapes().keys()


# ---- headers ---------------------------------------------------------------------------------------------------------


def write_header(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ([], "no table"),
        ({"a": 3}, "lacks its type"),
        ({"a": ENTRY | {"more": 1}}, "lacks its type"),
        ({"a": ENTRY | {"dtype": "F8_E4M3"}}, "F8_E4M3"),
        ({"a": ENTRY | {"dtype": None}}, "None"),
        ({"a": ENTRY | {"shape": [-1]}}, "invalid"),
        ({"a": ENTRY | {"shape": [1] * 9}}, "invalid"),
        ({"a": ENTRY | {"shape": [2.0]}}, "invalid"),
        ({"a": ENTRY | {"shape": [True]}}, "invalid"),
        ({"a": ENTRY | {"shape": [1 << 62, 1 << 62]}}, "invalid"),
        ({"a": ENTRY | {"data_offsets": [0]}}, "invalid"),
        ({"a": ENTRY | {"data_offsets": [8, 0]}}, "needs 8 bytes"),
        ({"a": ENTRY | {"data_offsets": [4, 12]}}, "gaps"),
        ({"a": ENTRY, "b": ENTRY}, "overlap"),
        ({"a": ENTRY, "b": {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]}}, "overlap"),
        ({"a": {"dtype": "U8", "shape": [1 << 39], "data_offsets": [0, 1 << 39]}}, "truncated"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": 1}', "twice"),
        (b"\xff\xff", "not valid"),
        (b"[" * 50_000, "not valid"),
    ],
)
def test_invalid_headers(tmp_path: Path, header: object, words: str) -> None:
    path = write_header(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(UserError, match=re.escape(words)):
        read_header(path)


def test_header_longer_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in (1 << 63, 1 << 30, 1000):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(UserError):
            read_header(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "I64", "X"]) | VALUES,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | VALUES,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=1, max_size=3) | VALUES,
    }
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=4), ENTRIES | VALUES, max_size=3) | VALUES, st.binary(max_size=64))
def test_any_header_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, header: object, data: bytes) -> None:
    path = write_header(tmp_path_factory.getbasetemp() / "fuzz.safetensors", header, data)
    try:
        tensors = read_header(path)
    except UserError as problem:
        assert "\n" not in str(problem) and len(str(problem)) < 600
        return
    assert sum(tensor.size for tensor in tensors.values()) == len(data)
    assert all(tensor.read().shape == tensor.info.shape for tensor in tensors.values())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    """Bytes of a valid file, its header among them, are overwritten; nothing but UserError may come of it."""
    content = bytearray(save(random_tensors({"a": (3, 2), "b": (4,), "c": ()})))
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(content)
    try:
        tensors = read_header(path)
    except UserError:
        return
    assert all(tensor.read().shape == tensor.info.shape for tensor in tensors.values())


def test_shards_hold_every_tensor_once(tmp_path: Path) -> None:
    tensors = random_tensors({"a": (3,), "b": (2, 2), "c": (1,)})
    write_shards(tmp_path, tensors, 2)
    (tmp_path / "config.json").write_text("{}")
    weights = open_checkpoint(tmp_path)
    assert {name: weights.read(name).tolist() for name in weights.tensors} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
