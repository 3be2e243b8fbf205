"""Publishing of runs and models: what is uploaded, what the card says, and that ls.load reads it back."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from cli_helpers import error_line, read_json, train
from hub_server import Hub, serve
from huggingface_hub import constants
from published_fixtures import write_llada
from text_fixtures import PROSE, write_file

import logosphere as ls
from logosphere.checkpoints.hub import fetch_run
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.io import file_sha256, read_tensors
from logosphere.runs.model_card import NO_SAMPLES, NOT_MEASURED, public_name
from logosphere.runs.publish import CardConfig, publish_run, stage
from logosphere.runs.run import Run

FILES = {"README.md", "model.safetensors", "recipe.json", "tokenizer.json"}
SECRET = "very-private-folder"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture
def run(workplace: Path) -> Path:
    """A run trained on a text outside of the working folder."""
    text = workplace / SECRET / "book.txt"
    text.parent.mkdir()
    write_file(text, PROSE)
    assert train("--data", str(text)) == 0
    return workplace / "run"


def test_a_run_is_published_and_loaded_again(run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert main(["publish", str(run), "hf:me/small-mdlm", "--license", "mit", "--private"]) == 0
    repository = hub.repositories["me/small-mdlm"]
    assert repository.private and set(repository.files) == FILES
    assert repository.files["model.safetensors"] == (run / "ema.safetensors").read_bytes()
    published, own = ls.load("hf:me/small-mdlm"), ls.load(run)
    states = published.state_dict(), own.state_dict()
    assert states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in own.state_dict()
    )
    assert published.tokenizer is not None and own.tokenizer is not None
    assert published.tokenizer.describe() == own.tokenizer.describe()
    assert ls.generate_text(published, steps=4, rng=1) == ls.generate_text(own, steps=4, rng=1)
    local = Run(fetch_run("hf:me/small-mdlm").path)
    assert local.trainings[0].steps == 4 and local.trainings[0].data == "book.txt"


def test_nothing_private_is_published(run: Path, hub: Hub) -> None:
    with stage(Run(run), "hf:me/model") as publication:
        whole = b"".join(path.read_bytes() for path in publication.folder.iterdir())
        assert set(publication.files) == FILES
        assert publication.files == {path.name: path.stat().st_size for path in publication.folder.iterdir()}
    assert not publication.folder.exists()
    assert SECRET.encode() not in whole and str(run.parent).encode() not in whole
    words = {line for line in PROSE.splitlines() if len(line) > 20}
    assert words and not any(line.encode() in whole for line in words)
    assert not hub.requests, "preparing needs no network"


def test_the_card_states_what_was_measured_and_nothing_else(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = publish_run(run, "me/model", dry_run=True).card
    assert NOT_MEASURED in card and "bits per" not in card and NO_SAMPLES in card
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {"library_name": "logosphere", "tags": ["text-diffusion", "mdlm"]}
    assert main(["evaluate", str(run), "--sequences", "8", "--draws", "1"]) == 0
    assert main(["evaluate", str(run), "--sequences", "8", "--weights", "model", "--split", "valid"]) == 0
    (run / "eval" / "other.json").write_text("{}")
    publication = publish_run(run, "me/model", CardConfig("apache-2.0"), dry_run=True)
    report = Report.load(next((run / "eval").glob("*test.json")))
    row = f"≤ {report.bits:.4f} ± {report.error:.4f} bits per character | bound | book.txt test | 8 sequences, 1 draw"
    assert row in publication.card and publication.card.count("bits per character") == 1
    assert [remark.partition(" ")[0] for remark in publication.remarks] == [
        next((run / "eval").glob("*txt-valid.json")).name, "other.json", "valid.json",
    ]  # fmt: skip
    assert yaml.safe_load(publication.card.split("---\n")[1])["license"] == "apache-2.0"
    assert publication.weights_sha256 == file_sha256(run / "ema.safetensors")
    assert publication.weights_sha256 in publication.card and "64" not in front
    assert "in 4 steps" in publication.card and "CPU minutes" in publication.card
    later = (run / "ema.safetensors").stat().st_mtime + 100
    os.utime(run / "ema.safetensors", (later, later))
    publication = publish_run(run, "me/model", dry_run=True)
    assert NOT_MEASURED in publication.card and any("evaluate them again" in one for one in publication.remarks)


def test_a_dry_run_shows_the_files_and_the_card(
    run: Path, hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    argv = ["publish", str(run), "hf:me/model", "--license", "mit"]
    capsys.readouterr()
    assert main([*argv, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in FILES) and "license: mit" in shown and NOT_MEASURED in shown
    assert f"{(run / 'ema.safetensors').stat().st_size:,} bytes" in shown
    assert main([*argv, "--dry-run", "--json"]) == 0
    content = read_json(capsys)
    assert set(content["files"]) == FILES and content["card"] in shown and content["address"] == ""
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert captured.out == shown and "no token of the hub: log in with: hf auth login" in captured.err
    assert not hub.requests
    assert main([*argv, "--dry-run", "--with-samples", "--samples", "2", "--steps", "2"]) == 0
    assert "Not selected:\n\n    " in capsys.readouterr().out


def test_bad_requests_are_refused_in_a_sentence(
    run: Path, hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for argv, message in [
        (["hf:model"], "names no model of the hub"),
        (["hf:me/model@v1"], "without a file or a revision"),
        (["hf:me/model", "--license", "MIT License"], "such as mit or apache-2.0"),
        (["hf:me/model", "--weights", "best", "--with-samples", "--steps", "0"], "number of samples"),
    ]:
        assert message in error_line(capsys, ["publish", str(run), *argv, "--dry-run"])
    assert "There is no run in nowhere" in error_line(capsys, ["publish", "nowhere", "hf:me/model", "--dry-run"])
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.forbids_writing = True
    with pytest.raises(UserError, match="The hub refuses to write to me/model"):
        publish_run(run, "me/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="me/model could not be uploaded|cannot be reached"):
        publish_run(run, "me/model")


def test_models_in_memory_are_pushed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ls.build("mdlm", vocab_size=7, length=8, width=16, depth=1, heads=2)
    shown = model.push_to_hub("me/tiny", licence="mit", dry_run=True)
    assert set(shown["files"]) == FILES - {"tokenizer.json"} and "me/tiny" not in hub.repositories
    with pytest.raises(UserError, match="no token of the hub"):
        model.push_to_hub("me/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    pushed = model.push_to_hub("me/tiny", licence="mit")
    assert (
        pushed["address"].endswith(hub.repositories["me/tiny"].commit) and "training | not recorded" in pushed["card"]
    )
    first, second = model.state_dict(), ls.load("hf:me/tiny").state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    folder = fetch_run("hf:me/tiny").path
    assert file_sha256(folder / "model.safetensors") == pushed["weights_sha256"]
    assert read_tensors(folder / "model.safetensors").keys() == first.keys()
    assert json.loads((folder / "recipe.json").read_bytes())["model"]["system"] == "mdlm"


def test_names_lose_the_folders_of_this_machine() -> None:
    for name, shown in {
        "/home/me/book.txt test": "book.txt test",
        "letters:~/texts/a.txt": "letters:a.txt",
        "data/a.csv": "a.csv",
        r"C:\texts\a.txt": "a.txt",
        "stream:/data/rows": "stream:rows",
        "hf:owner/name:config": "hf:owner/name:config",
        "letters:hf:owner/name": "letters:hf:owner/name",
        "stream:owner/name": "stream:owner/name",
        "text8 test": "text8 test",
        "pretrained:mdlm": "pretrained:mdlm",
    }.items():
        assert public_name(name) == shown


def test_an_imported_model_is_published_with_its_origin(
    workplace: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("owner/llada", write_llada(workplace / "llada"))
    write_llada(workplace / SECRET)
    assert main(["import", "hf:owner/llada", "--out", "imported"]) == 0
    assert main(["import", SECRET, "--out", "local"]) == 0
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    card = publish_run("imported", "me/again").card
    commit = hub.repositories["owner/llada"].commit
    assert f"imported from | hf:owner/llada, revision {commit}" in card and "training | not recorded" in card
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "owner/llada"
    first, second = ls.load("imported"), ls.load("hf:me/again")
    z = torch.full((1, first.length), first.vocab_size)
    assert torch.equal(first.log_posterior(z, 1.0), second.log_posterior(z, 1.0))
    with stage(Run("local", trained=False), "me/local") as publication:
        recipe = json.loads((publication.folder / "recipe.json").read_bytes())
    assert recipe["model"]["checkpoint"]["source"] == SECRET
    assert str(workplace) not in json.dumps(recipe)
