"""logosphere import: from a folder of published files to a run that is measured, sampled and trained like any other."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_helpers import error_line, read_json
from ddit_fixtures import Shape, write_checkpoint
from ddit_fixtures import random_tensors as random_ddit
from hub_server import serve
from published_fixtures import llada_config, llada_shapes, random_tensors, write_llada, write_shards

import logosphere as ls
from logosphere.checkpoints import headers, hub_outline
from logosphere.cli import main
from logosphere.data.tokenizer_registry import SubwordTokenizer, load_tokenizer
from logosphere.errors import UserError
from logosphere.io import locked
from logosphere.runs import import_checkpoint
from logosphere.runs.run import list_runs
from logosphere.studio.library import Library

pytestmark = pytest.mark.usefixtures("workplace")

ROWS, LENGTH, MASK = 320, 16, 310
TEXT = "the cat sat on a mat and ran to its red hat while a dog slept under the big old tree. " * 150
DDIT = {"model_type": "mdlm", "vocab_size": 11, "model_length": 8, "hidden_dim": 12, "n_blocks": 2, "n_heads": 2,
        "cond_dim": 6, "time_conditioning": False}  # fmt: skip


def write_source(folder: Path = Path("source"), *, dtype: torch.dtype = torch.float32, shards: int = 1) -> Path:
    """A LLaDA-shaped folder with a tokenizer, whose table has rows beyond its tokens and one for the mask."""
    write_llada(folder, dtype=dtype, shards=shards, rows=ROWS, length=LENGTH, mask=MASK)
    tokenizer = SubwordTokenizer.train_bpe([TEXT], 300)
    (folder / "tokenizer.json").write_text(tokenizer.describe()["json"])
    settings = {"bos_token": {"content": "a"}, "eos_token": "b", "mask_token": None, "chat_template": "{{ x }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    Path("text.txt").write_text(TEXT)
    return folder


def write_ddit(folder: Path = Path("source"), **config: object) -> Path:
    return write_checkpoint(folder, random_ddit(Shape()), DDIT | config, "backbone.")


def check_posterior(model: ls.Model, tokens: int) -> None:
    """log p(x | z) is a normalised distribution over the tokens at every position, visible tokens are certain."""
    assert model.vocab_size == tokens
    x = torch.randint(tokens, (3, model.length), generator=torch.Generator().manual_seed(0))
    z = torch.where(torch.arange(model.length) % 2 == 0, tokens, x)
    log_p = model.log_posterior(z, 0.5)
    assert log_p.shape == (3, model.length, tokens)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, model.length))
    assert (log_p.argmax(-1) == x)[:, 1::2].all()
    bound = model.nelbo(x, 0)
    assert bound.total.isfinite().all() and (bound.total > 0).all()


@pytest.mark.parametrize(("dtype", "shards"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_from_a_folder_to_a_run_that_does_everything(
    dtype: torch.dtype, shards: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(dtype=dtype, shards=shards)
    assert main(["import", str(source), "--out", "run", "--json"]) == 0
    summary = read_json(capsys)
    parameters = sum(tensor.numel() for tensor in random_tensors(llada_shapes(rows=ROWS)).values())
    assert (summary["parameters"], summary["bytes"]) == (parameters, parameters * dtype.itemsize)
    size = SubwordTokenizer.from_file(source / "tokenizer.json").size
    model = ls.load("run")
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    check_posterior(model, size)

    assert main(["sample", "run", "--steps", "4", "--n", "2", "--json"]) == 0
    for sample in read_json(capsys)["samples"]:
        assert len(sample["tokens"]) == LENGTH and max(sample["tokens"]) < size
        assert sample["text"] == load_tokenizer(Path("run/tokenizer.json")).decode(sample["tokens"])
    measured = ["--data", "text.txt", "--sequences", "8", "--precision", "float32", "--json"]
    assert main(["evaluate", "run", *measured]) == 0
    report = read_json(capsys)
    assert report["kind"] == "bound" and report["unit"] == "token" and 0 < report["bits"] < 40
    assert "tokenizer" in report["reason"]  # of random weights: worse than blind guessing

    training = ["--data", "text.txt", "--steps", "2", "--batch", "2", "--validations", "1", "--length", str(LENGTH)]
    assert main(["train", "--begin", "run", *training, "--out", "tuned", "--optim.lr", "1e-12"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "tuned", *measured]) == 0
    assert read_json(capsys)["bits"] == pytest.approx(report["bits"], rel=1e-5 if dtype == torch.float32 else 0.02)
    assert json.loads(Path("tuned/recipe.json").read_text())["begun"]["weights_sha256"] == summary["checksum"]
    tuned = ls.load("tuned")
    assert tuned.spec is not None and model.spec is not None and tuned.spec.published == model.spec.published


def test_the_recipe_says_where_the_model_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(shards=2)
    assert main(["import", str(source), "--out", "run"]) == 0
    shown = capsys.readouterr()
    checkpoint = json.loads(Path("run/recipe.json").read_text())["model"]["checkpoint"]
    assert checkpoint["source"] == "source" and checkpoint["family"] == "llama"
    assert checkpoint["licence"] == "apache-2.0" and checkpoint["chat_template"] == "{{ x }}"
    tokenizer = SubwordTokenizer.from_file(source / "tokenizer.json")
    assert checkpoint["special"] == {"bos": tokenizer.find_id("a"), "eos": 1, "pad": 1}  # config.json comes first
    for name, digest in checkpoint["files"].items():
        assert digest == import_checkpoint.file_sha256(source / name)
    assert set(checkpoint["files"]) == {path.name for path in source.iterdir()} - {
        "model.safetensors.index.json", "README.md",
    }  # fmt: skip
    for words in ("llama", "mdlm: Masked", f"{15_440:,}", "mask id 310, shift no", "apache-2.0", "LLaDA"):
        assert words in shown.out
    assert import_checkpoint.file_sha256(Path("run/model.safetensors")) in shown.out
    assert "report the checksum" in shown.err and "logosphere sample run" in shown.err


def test_the_studio_opens_an_imported_model() -> None:
    source = write_source()
    assert main(["import", str(source), "--out", "run"]) == 0
    described = Library(["run"]).describe()[0]
    assert described["vocabulary"] == SubwordTokenizer.from_file(source / "tokenizer.json").size
    assert described["figure"] is None and described["saved"]


def test_without_tokenizer_files_it_works_on_token_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    write_ddit()
    assert main(["import", "source", "--out", "run"]) == 0
    assert "no tokenizer.json" in capsys.readouterr().out
    check_posterior(ls.load("run"), 10)
    assert main(["sample", "run", "--steps", "4", "--json"]) == 0
    sample = read_json(capsys)["samples"][0]
    assert sample["text"] == " ".join(map(str, sample["tokens"]))
    numbers = torch.randint(10, (4000,), generator=torch.Generator().manual_seed(1)).tolist()
    Path("numbers.txt").write_text(" ".join(map(str, numbers)))
    assert main(["evaluate", "run", "--data", "numbers.txt", "--sequences", "16", "--json"]) == 0
    report = read_json(capsys)
    assert report["unit"] == "token" and 0 < report["bits"] < 40
    training = ["--data", "numbers.txt", "--steps", "2", "--batch", "2", "--validations", "1"]
    assert main(["train", "--begin", "run", *training, "--out", "tuned"]) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "system", "tokens"),
    [
        ({"time_conditioning": True}, "mdlm", 10),
        ({"model_type": "bd3lm", "block_size": 4}, "bd3lm", 10),
        ({"model_type": "duo"}, "udlm", 11),
    ],
)
def test_other_models_in_the_layout_of_ddit(config: dict[str, object], system: str, tokens: int, dtype: str) -> None:
    model = ls.import_model(write_ddit(**config), dtype=dtype)
    assert model.spec is not None and model.spec.system == system and model.vocab_size == tokens
    x = torch.randint(tokens, (2, 8), generator=torch.Generator().manual_seed(0))
    assert model.nelbo(x, 0).total.isfinite().all()
    assert ls.sample(model, n=2, steps=4, rng=0).shape == (2, 8)


def test_a_model_in_memory_equals_the_run() -> None:
    source = write_source()
    assert main(["import", str(source), "--out", "run"]) == 0
    one, two = ls.import_model(source), ls.load("run")
    assert one.spec is not None and two.spec is not None and one.spec == two.spec
    for (name, a), (same, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert name == same and torch.equal(a, b)
    one.save("saved")
    assert torch.equal(ls.sample(ls.load("saved"), n=2, steps=4, rng=0), ls.sample(one, n=2, steps=4, rng=0))


def test_conventions_that_are_given_replace_those_of_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source()
    model = ls.import_model(source, mask_id=5, shift=True, length=8, dtype="bfloat16")
    assert model.spec is not None and model.spec.published is not None and model.length == 8
    assert (model.spec.published["mask_id"], model.spec.published["shift"]) == (5, True)
    assert model.nelbo([[1] * 8], 0).count.tolist() == [7]
    assert ls.import_model(source, system="ar").process.kind == "exact"
    blocks = ls.import_model(source, system="bd3lm", block=4)
    assert blocks.block == 4 and blocks.log_posterior(torch.zeros(1, LENGTH, dtype=torch.long), 0.5).isfinite().any()
    write_ddit(Path("ddit"))
    assert "--mask-id 3 does not fit" in error_line(capsys, ["import", "ddit", "--mask-id", "3"])
    assert "contradict" in error_line(capsys, ["import", "ddit", "--shift", "--no-shift"])


def test_a_dry_run_reads_no_weight_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_source()
    before = sorted(Path().rglob("*"))

    def refuse(self: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(headers.StoredTensor, "read", refuse)
    assert main(["import", "source", "--dry-run", "--json"]) == 0
    assert read_json(capsys)["parameters"] == 15_440
    assert main(["import", "source", "--dry-run"]) == 0
    assert "15,440" in capsys.readouterr().out
    assert sorted(Path().rglob("*")) == before


def drop_shard(source: Path) -> None:
    write_shards(source, random_tensors(llada_shapes(rows=ROWS)), 2)
    (source / "model.safetensors").unlink()
    (source / "model-00002-of-00002.safetensors").unlink()


def name_absent_file(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "other.safetensors"}}))


def truncate(source: Path) -> None:
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(content[:-100])


def store_integers(source: Path) -> None:
    tensors = random_tensors(llada_shapes(rows=ROWS))
    write_shards(source, {name: tensor.to(torch.int8) for name, tensor in tensors.items()})


def spoil_weight(source: Path) -> None:
    tensors = random_tensors(llada_shapes(rows=ROWS))
    tensors["model.transformer.ln_f.weight"][0] = torch.nan  # the last but one: the draft is half written by then
    write_shards(source, tensors)


def change_config(source: Path) -> None:
    (source / "config.json").write_text(json.dumps(llada_config(rows=ROWS, length=LENGTH, width=32)))


def keep_pickle(source: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")


def damage_tokenizer(source: Path) -> None:
    (source / "tokenizer.json").write_text('{"model": 3}')


def forget_config(source: Path) -> None:
    (source / "config.json").unlink()


def name_unknown_model(source: Path) -> None:
    (source / "config.json").write_text('{"model_type": "rwkv"}')
    write_shards(source, {"rwkv.blocks.0.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (drop_shard, "1 file are missing|missing"),
        (name_absent_file, "other.safetensors"),
        (truncate, "truncated"),
        (store_integers, "type I8"),
        (spoil_weight, "not finite in model.transformer.ln_f.weight"),
        (change_config, "disagree"),
        (keep_pickle, "pickles, which can run code"),
        (damage_tokenizer, "no tokenizer that can be read"),
        (forget_config, "config.json"),
        (name_unknown_model, "known are: ddit"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_left(
    spoil: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(spoil)
    spoil(write_source())
    before = sorted(Path().rglob("*"))
    assert re.search(words, error_line(capsys, ["import", "source", "--out", "runs/new"]))
    assert [path for path in sorted(Path().rglob("*")) if path != Path("runs")] == before


def test_wrong_sources_and_targets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_source()
    assert main(["import", "source", "--out", "run"]) == 0
    for source, words in (
        ("nowhere", "no folder nowhere"),
        ("owner/name", "written hf:owner/name"),
        ("hf:name", "names no model of the hub"),
        ("run", "is a run already"),
        ("pretrained:mdlm", "model of this package already"),
        ("text.txt", "is a file"),
    ):
        assert words in error_line(capsys, ["import", source, "--out", "new"])
    assert "exists already" in error_line(capsys, ["import", "source", "--out", "run"])
    assert "name a text" in error_line(capsys, ["train", "--begin", "run", "--steps", "2"])
    assert "was imported" in error_line(capsys, ["train", "--resume", "--out", "run"])
    assert "was imported" in error_line(capsys, ["export", "run"])
    assert "--data" in error_line(capsys, ["compare", "run", "run"]) and "--data" in error_line(
        capsys, ["evaluate", "run"]
    )
    monkeypatch.setattr(import_checkpoint, "SPARE", 1 << 62)
    assert "free some space" in error_line(capsys, ["import", "source", "--out", "new"])
    assert not Path("new").exists()


def test_two_imports_into_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    write_source()
    with locked(Path(".run.import.lock"), wait=False):
        assert "Another import into run" in error_line(capsys, ["import", "source", "--out", "run"])
    assert main(["import", "source", "--out", "run"]) == 0


STOPS_HALF_WAY = """
import sys, time
from logosphere.checkpoints import load
from logosphere.cli import main

read, calls = load.read_parameter, []

def slow(*arguments):
    calls.append(1)
    if len(calls) == 10:
        print("half", flush=True)
        time.sleep(600)
    return read(*arguments)

load.read_parameter = slow
sys.exit(main(["import", "source", "--out", "runs/run"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is not known there")
def test_an_import_that_was_killed_half_way_is_run_again() -> None:
    write_source()
    with subprocess.Popen([sys.executable, "-c", STOPS_HALF_WAY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    left = [path.name for path in Path("runs").iterdir()]
    assert all(name.startswith(".") for name in left) and len(left) == 2 and list_runs() == []
    assert not (Path("runs") / ".run.import" / "recipe.json").exists()
    assert main(["import", "source", "--out", "runs/run"]) == 0
    assert [path.name for path in Path("runs").iterdir()] == ["run"]
    check_posterior(ls.load("runs/run"), SubwordTokenizer.from_file(Path("source/tokenizer.json")).size)


def test_an_import_that_was_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    write_source()

    def interrupt(path: Path, content: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_checkpoint, "write_recipe", interrupt)
    assert main(["import", "source", "--out", "runs/run"]) == 130
    assert list(Path("runs").iterdir()) == []


def test_tokenizers_have_as_many_tokens_as_the_model() -> None:
    plain = SubwordTokenizer.train_bpe([TEXT], 300)
    larger, smaller = plain.resized(plain.size + 7), plain.resized(plain.size - 1)
    assert "size" not in plain.describe() and plain.resized(plain.size).fingerprint == plain.fingerprint
    assert larger.size == plain.size + 7 and larger.fingerprint != plain.fingerprint
    assert (
        larger.decode([*plain.encode("the cat").tolist(), plain.size + 3]) == "the cat"
    )  # a row that is no token has no text
    last = plain.decode([plain.size - 1])
    assert plain.encode(last).tolist() == [plain.size - 1]
    with pytest.raises(UserError, match="no token of this model"):
        smaller.encode(last)


@pytest.mark.slow
def test_other_commands_take_an_imported_model(capsys: pytest.CaptureFixture[str]) -> None:
    write_source()
    assert main(["import", "source", "--out", "run"]) == 0
    training = ["--data", "text.txt", "--steps", "2", "--batch", "2", "--validations", "1"]
    assert main(["train", "--begin", "run", *training, "--out", "tuned"]) == 0
    assert main(["train", "--resume", "--out", "tuned", "--steps", "3"]) == 0
    capsys.readouterr()
    assert main(["bench", "run", "--batch", "2", "--steps", "2", "--rounds", "1", "--json"]) == 0
    assert read_json(capsys)["rows"][0]["parameters"] == 15_440
    compare = ["compare", "run", "tuned", "--data", "text.txt", "--sequences", "8", "--report", "report.html"]
    assert main([*compare, "--samples", "2", "--steps", "4", "--json"]) == 0
    assert len(read_json(capsys)["rows"]) == 2 and Path("report.html").exists()


DECODERS = [
    "--sampler llada",
    "--sampler llada --remasking random --temperature 0",
    "--sampler llada --cfg-scale 1.5 --logits-eos-inf",
    "--sampler llada --cache prefix --confidence-eos-eot-inf",
    "--sampler dream --alg origin",
    "--sampler dream --alg entropy --alg-temp 0.2 --top-p 0.95",
    "--sampler dream --alg topk_margin --top-k 40",
    "--sampler dream --alg maskgit_plus --cache dual",
    "--sampler sdar --threshold 0.9",
    "--sampler sdar --remasking low_confidence_static --denoising-steps 4",
    "--sampler sdar --remasking sequential",
    "--sampler fast-dllm --threshold 0.5 --cache dual --cache-refresh 3",
    "--sampler fast-dllm-v2 --small-block-size 4",
]


@pytest.mark.slow
def test_a_model_of_20_million_parameters_with_every_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    write_llada(Path("source"), rows=16_384, width=384, depth=4, heads=6, inner=1024, length=64, mask=16_380, shards=3)
    assert main(["import", "source", "--out", "run", "--json"]) == 0
    assert 19e6 < read_json(capsys)["parameters"] < 21e6
    model = ls.load("run")
    check_posterior(model, 16_384)
    assert ls.sample(model, n=2, steps=8, rng=0).shape == (2, 64)
    prompt = ["--prompt", "5 6 7 8", "--gen-length", "32", "--block-length", "8", "--steps", "16"]
    for decoder in DECODERS:
        assert main(["sample", "run", "-n", "2", "--json", *prompt, *decoder.split()]) == 0, decoder
        found = read_json(capsys)
        rows = torch.tensor([sample["tokens"] for sample in found["samples"]])
        assert rows.shape == (2, 36) and (rows[:, :4] == torch.arange(5, 9)).all() and (rows != 16_380).all()
        assert ("cache_report" in found) == ("--cache" in decoder)


@pytest.mark.slow
def test_an_imported_model_is_guided_by_a_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    """Labelled texts of several lengths end with the token that the checkpoint names; its vocabulary has no other."""
    assert main(["import", str(write_source()), "--out", "run"]) == 0
    rows = "".join("the cat sat on a mat,cats\na dog ran,dogs\n" for _ in range(40))
    Path("pets.csv").write_text("text,label\n" + rows)
    data, small = ["--data", "labelled:pets.csv"], ["--width", "16", "--depth", "1", "--heads", "2"]
    assert main(["train-classifier", "run", *data, "--steps", "3", "--batch", "4", *small]) == 0
    guided = ["sample", "run", "--classifier", "run/classifier", "--label", "cats", "--strength", "2"]
    assert main([*guided, "-n", "1", "--steps", "4"]) == 0
    capsys.readouterr()
    Path("lines.txt").write_text("the cat sat on a mat\na dog ran\n" * 40)
    assert main(["evaluate", "run", "--data", "lines:lines.txt", "--sequences", "4", "--json"]) == 0
    assert 0 < read_json(capsys)["bits"] < 40
    config = json.loads(Path("source/config.json").read_text())
    Path("source/config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    Path("source/tokenizer_config.json").unlink()
    assert main(["import", "source", "--out", "endless"]) == 0
    assert "no token that ends a text" in error_line(capsys, ["train-classifier", "endless", *data])


def test_a_dry_run_downloads_no_weights_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = ["import", "hf:owner/llada", "--dry-run", "--json"]
    with serve(tmp_path, monkeypatch) as hub:
        repository = hub.add("owner/llada", write_source(shards=2))
        monkeypatch.setattr(hub_outline, "FIRST_BYTES", 64)  # less than a header, so that it is requested twice
        assert main(dry) == 0
        outline = read_json(capsys)
        assert (outline["parameters"], outline["revision"]) == (15_440, repository.commit) and outline["tokenizer"]
        asked = [part for method, path, part in hub.requests if method == "GET" and path.endswith(".safetensors")]
        assert len(asked) == 4 and all(part.startswith("bytes=0-") for part in asked)
        assert not Path("runs").exists()
        assert not [path for path in (tmp_path / "hub-cache").rglob("*.safetensors")]
        assert main(["import", "hf:owner/llada", "--json"]) == 0
        assert outline.items() <= read_json(capsys).items()
        hub.failing = True
        assert main(dry) == 0 and read_json(capsys)["parameters"] == 15_440, "from the cache"
        hub.failing = False
        repository.files["model-00001-of-00002.safetensors"] = b"not a header"
        assert "damaged" in error_line(capsys, dry)
        hub.broken_file = "model-00001-of-00002.safetensors"
        assert "header of model-00001-of-00002.safetensors" in error_line(capsys, dry)
        assert "no repository owner/none" in error_line(capsys, ["import", "hf:owner/none", "--dry-run"])


def test_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path, monkeypatch) as hub:
        repository = hub.add("owner/llada", write_source(shards=2))
        assert main(["import", "hf:owner/llada", "--json"]) == 0
        summary = read_json(capsys)
        assert (summary["run"], summary["revision"]) == ("runs/llada", repository.commit)
        assert "no model" in (error := error_line(capsys, ["import", "hf:owner/none"])) or "owner/none" in error
    checkpoint = json.loads(Path("runs/llada/recipe.json").read_text())["model"]["checkpoint"]
    assert (checkpoint["source"], checkpoint["revision"]) == ("hf:owner/llada", repository.commit)
    assert list(Path("runs").iterdir()) == [Path("runs/llada")]
