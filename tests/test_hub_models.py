"""Models of the hub: what is fetched, resumed and refused; a server on this machine stands for the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_server import Hub, serve
from huggingface_hub import constants
from published_fixtures import write_llada

import logosphere as ls
from logosphere.checkpoints import hub as hub_module
from logosphere.checkpoints.files import open_checkpoint
from logosphere.checkpoints.hub import fetch, fetch_run, parse_source
from logosphere.errors import UserError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture
def llada(hub: Hub, tmp_path: Path) -> Path:
    """A repository of three shards with code, a pickle and a folder besides."""
    folder = write_llada(tmp_path / "llada", shards=3)
    (folder / "modeling_llada.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "original").mkdir()
    (folder / "original" / "model.safetensors").write_bytes(b"another copy")
    hub.add("owner/llada", folder)
    return folder


def test_names_of_the_hub() -> None:
    assert str(parse_source("hf:a/b@v1")) == "hf:a/b@v1" and parse_source("a/b", "main").revision == "main"
    assert parse_source("hf:a/b/c/d.Q4.gguf@x/y").file == "c/d.Q4.gguf"
    for wrong in ("hf:", "hf:name", "hf:a/b@", "hf:../b", "hf:a/..", "hf:a b/c", "hf:a/b--c", "hf:/a/b", "hf:a/b.git"):
        with pytest.raises(UserError, match="names no model of the hub"):
            parse_source(wrong)
    for wrong in ("hf:a/b/model.bin", "hf:a/b/../x.gguf", "hf:a/b//x.gguf"):
        with pytest.raises(UserError, match=r"ending \.gguf"):
            parse_source(wrong)
    with pytest.raises(UserError, match="A revision is"):
        parse_source("hf:a/b@../x")


def test_a_checkpoint_is_fetched_without_code_and_pickles(hub: Hub, llada: Path) -> None:
    path, commit = fetch("hf:owner/llada")
    assert commit == hub.repositories["owner/llada"].commit == path.name
    names = {file.name for file in path.rglob("*") if file.is_file()}
    shards = {f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)}
    assert names == {"config.json", "model.safetensors.index.json", "README.md"} | shards
    assert not {"modeling_llada.py", "pytorch_model.bin"} & set(hub.downloads())
    ours, theirs = open_checkpoint(path), open_checkpoint(llada)
    assert ours.config == theirs.config and ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(ours.read(name), theirs.read(name)) for name in theirs.tensors)
    before = len(hub.downloads())
    assert fetch("hf:owner/llada", commit) == fetch("owner/llada@v1") == (path, commit)
    assert len(hub.downloads()) == before, "files in the cache are not fetched again"


def test_without_a_network_the_cache_is_used(hub: Hub, llada: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = fetch("hf:owner/llada")
    remarks: list[str] = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert fetch("hf:owner/llada", report=remarks.append) == fetched and not hub.requests
    assert len(remarks) == 1 and "cannot be reached" in remarks[0] and fetched.commit[:12] in remarks[0]
    with pytest.warns(UserWarning, match="copy of hf:owner/llada in the cache is used"):
        assert fetch("hf:owner/llada") == fetched
    with pytest.raises(UserError, match="no complete copy of it is in the cache"):
        fetch("hf:owner/other")
    with pytest.raises(UserError, match="no complete copy"):
        fetch("hf:owner/llada@v2")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.failing = True
    assert fetch("hf:owner/llada", report=remarks.append) == fetched and len(remarks) == 2


def test_a_broken_connection_is_resumed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)  # bytes that are written at a time
    folder = write_llada(tmp_path / "large", width=64, inner=256, depth=4)
    size = (folder / "model.safetensors").stat().st_size
    hub.add("owner/large", folder)
    hub.broken_after = size // 2 // (1 << 14) << 14
    half = hub.broken_after
    path, _ = fetch("hf:owner/large")
    assert (path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    ranges = [part for method, name, part in hub.requests if method == "GET" and name.endswith("model.safetensors")]
    assert ranges == ["", f"bytes={half}-"], "only the missing half is requested again"


def test_files_that_were_fetched_are_kept_when_another_fails(hub: Hub, llada: Path) -> None:
    hub.broken_file = "model-00002-of-00003.safetensors"
    with pytest.raises(UserError, match="cannot be fetched .* what was fetched whole is kept"):
        fetch("hf:owner/llada")
    hub.broken_file = ""
    kept = set(hub.downloads())
    hub.requests.clear()
    path, _ = fetch("hf:owner/llada")
    assert "model-00002-of-00003.safetensors" in hub.downloads() and not kept & set(hub.downloads())
    assert open_checkpoint(path).tensors.keys() == open_checkpoint(llada).tensors.keys()


def test_what_the_hub_refuses_is_said_in_a_sentence(hub: Hub, llada: Path, tmp_path: Path) -> None:
    hub.add("owner/gated", llada, gated=True)
    for source, message in {
        "hf:owner/nothing": "no repository owner/nothing on the hub, or it is private",
        "hf:owner/gated": "is gated: accept its terms .* hf auth login",
        "hf:owner/llada@v9": "no revision v9",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            fetch(source)
        assert "\n" not in str(caught.value)


def test_repositories_without_weights_are_refused_before_a_download(hub: Hub, tmp_path: Path) -> None:
    for name, files, message in [
        ("pickled", ["config.json", "pytorch_model.bin"], "only as pytorch_model.bin: such files are pickles"),
        ("empty", ["README.md"], "no safetensors and no .gguf"),
        ("quantised", ["a.Q4.gguf", "b.Q8.gguf"], r"2 GGUF files .*hf:owner/quantised/a\.Q4\.gguf"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        for file in files:
            (folder / file).write_bytes(b"{}")
        hub.add(f"owner/{name}", folder)
        with pytest.raises(UserError, match=message):
            fetch(f"hf:owner/{name}")
    assert not hub.downloads()
    path, commit = fetch("hf:owner/quantised/b.Q8.gguf")
    assert path.name == "b.Q8.gguf" and path.parent.name == commit and hub.downloads() == ["b.Q8.gguf"]
    with pytest.raises(UserError, match=r"no file c\.gguf; it has a\.Q4\.gguf, b\.Q8\.gguf"):
        fetch("hf:owner/quantised/c.gguf")


def test_a_published_checkpoint_is_not_loaded_but_imported(hub: Hub, llada: Path) -> None:
    with pytest.raises(UserError, match="import it first with: logosphere import hf:owner/llada --out RUN"):
        ls.load("hf:owner/llada")
    with pytest.raises(UserError, match="is a GGUF file, to be imported"):
        fetch_run("hf:owner/llada/x.gguf")
    assert not hub.downloads()
    assert hub_module.is_hub("hf:a/b") and not hub_module.is_hub(Path("a/b"))
