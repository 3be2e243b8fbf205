"""Bundled checkpoints: each reproduces its record, loads in float32 and is found by name."""

import json
import time
from pathlib import Path

import pytest
import torch
from cli_helpers import EXPORT_OPTIONS, error_line, read_json, train
from safetensors.torch import load_file
from sign_weights import write_sums

import logosphere as ls
from logosphere import pretrained
from logosphere.cli import main
from logosphere.runs.evaluate import make_record, read_record
from logosphere.runs.run import Run

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.mark.parametrize(
    "name", pretrained.list_pretrained() or [pytest.param("", marks=pytest.mark.skip("no checkpoint is bundled"))]
)
def test_a_bundled_checkpoint_reproduces_its_record(name: str) -> None:
    folder = pretrained.resolve_folder(f"pretrained:{name}")
    record = read_record(folder)
    measured = make_record(folder, record.text)
    assert measured.bits == pytest.approx(record.bits, rel=1e-4) and measured.kind == record.kind
    assert measured.weights_sha256 == record.weights_sha256
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000 and (folder / "card.md").exists()


def test_the_prefix_box_is_the_same_as_pretrained() -> None:
    for name in pretrained.list_pretrained():
        assert pretrained.resolve_folder(f"box:{name}") == pretrained.resolve_folder(f"pretrained:{name}")
    assert pretrained.resolve_folder("runs/box") == Path("runs/box")


def test_nothing_is_written_into_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    folder = pretrained.resolve_folder(f"pretrained:{pretrained.list_pretrained()[0]}")
    before = sorted(folder.rglob("*"))
    Path("text.txt").write_text(read_record(folder).text * 4)
    assert (
        main(
            [
                "evaluate",
                f"pretrained:{pretrained.list_pretrained()[0]}",
                "--data",
                "text.txt",
                "--sequences",
                "4",
                "--draws",
                "1",
            ]
        )
        == 0
    )
    assert sorted(folder.rglob("*")) == before and list(Run(folder).results.glob("*.json"))


@pytest.fixture
def exported(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A tiny run, exported to the folder of the bundled checkpoints."""
    package = workplace / "package"
    package.mkdir()
    monkeypatch.setattr(pretrained, "__file__", str(package / "__init__.py"))
    assert train("--system", "rdlm", out="trained/run") == 0
    assert main(["export", "trained/run", "--out", str(package / "rdlm"), *EXPORT_OPTIONS]) == 0
    write_sums(package)
    capsys.readouterr()
    return package / "rdlm"


def test_a_checkpoint_stores_half_precision_and_loads_as_float32(exported: Path) -> None:
    stored = load_file(exported / "model.safetensors")
    model = ls.load("pretrained:rdlm")
    for name, weight in model.named_parameters():
        assert stored[name].dtype == torch.float16 and weight.dtype == torch.float32
        assert torch.equal(weight, stored[name].float())
    buffers = {
        name: tensor for name, tensor in model.state_dict().items() if name not in dict(model.named_parameters())
    }
    assert all(stored[name].dtype == tensor.dtype for name, tensor in buffers.items())


def test_the_record_is_reproducible_and_a_damaged_one_is_refused(exported: Path) -> None:
    record = read_record(exported)
    assert make_record(exported, record.text) == record and record.kind == "bound"
    text = (exported / "card.md").read_text()
    assert "≤" in text and "CPU hours" in text and "tokens seen | 256" in text and "Samples" not in text
    with pytest.raises(ls.UserError, match="damaged"):
        (exported / "record.json").write_text("{}")
        read_record(exported)


def test_sample_uses_a_bundled_checkpoint_when_there_is_no_run(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = {path.name for path in exported.iterdir()}
    assert main(["sample", "-n", "1", "--steps", "4", "--json"]) == 0
    from_bundled = read_json(capsys)["samples"]
    assert main(["sample", "pretrained:rdlm", "-n", "1", "--steps", "4", "--temperature", "0.6", "--json"]) == 0
    assert read_json(capsys)["samples"] == from_bundled
    for argv, has_note in ([], True), (["--temperature", "1"], False), (["pretrained:rdlm"], False):
        assert main(["sample", *argv, "-n", "1", "--steps", "4"]) == 0
        assert ("at a temperature of 0.6" in " ".join(capsys.readouterr().err.split())) == has_note
    assert main(["evaluate", "pretrained:rdlm", "--sequences", "8", "--json"]) == 0
    assert read_json(capsys)["kind"] == "bound"
    assert main(["compare", "pretrained:rdlm", "--sequences", "8", "--json"]) == 0
    assert {path.name for path in exported.iterdir()} == inside  # nothing is written into a package
    train(out="runs/mine")
    capsys.readouterr()
    assert main(["sample", "-n", "1", "--steps", "4", "--json"]) == 0
    assert read_json(capsys)["samples"] != from_bundled  # a run of the user comes before bundled checkpoints


@pytest.mark.skipif(not pretrained.list_pretrained(), reason="no checkpoint is bundled")
def test_a_new_user_sees_paragraphs(capsys: pytest.CaptureFixture[str]) -> None:
    """`logosphere sample` without a run: four texts of at least 60 words in all, without their ends, in seconds."""
    started = time.process_time()
    assert main(["sample"]) == 0
    assert time.process_time() - started < 5
    printed = capsys.readouterr().out
    texts = printed.strip().split("\n\n")
    assert len(texts) == 4 and len(printed.split()) >= 60 and len(set(texts)) == 4
    default = pretrained.default_pretrained()
    assert default is not None
    tokenizer = Run(default).tokenizer
    if tokenizer.eos is not None and (end := tokenizer.decode([tokenizer.eos]).strip()):
        assert end not in printed


def test_texts_with_an_end_are_recorded_by_line_and_use_their_sampling_defaults(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package, lines = workplace / "package", [f"a tale of {'so ' * (number % 3)}few words" for number in range(60)]
    monkeypatch.setattr(pretrained, "__file__", str(package / "__init__.py"))
    Path("tales.txt").write_text("\n".join(lines))
    assert train("--system", "mdlm", "--data", "lines:tales.txt", "--length", "32", out="trained/run") == 0
    export = ["export", "trained/run", "--with-samples"]
    assert main([*export, "--out", str(package / "stories"), *EXPORT_OPTIONS]) == 0
    write_sums(package)
    record = read_record(package / "stories")
    assert set(record.text.splitlines()) <= set(lines) and make_record(package / "stories", record.text) == record
    capsys.readouterr()
    assert main(["sample", "-n", "1", "--steps", "4"]) == 0
    defaults = pretrained.sampling_defaults("stories")
    stderr = " ".join(capsys.readouterr().err.split())
    assert f"at a temperature of {defaults.temperature} with the sampler '{defaults.sampler}'" in stderr


@pytest.mark.slow
def test_errors_of_names_and_sizes(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "'rdlm'" in error_line(capsys, ["sample", "pretrained:rdml"])
    assert "exists already" in error_line(capsys, ["export", "trained/run", "--out", str(exported), *EXPORT_OPTIONS])
    monkeypatch.setattr("logosphere.runs.evaluate.LARGEST", 100)
    assert "smaller network" in error_line(capsys, ["export", "trained/run", "--out", "other", *EXPORT_OPTIONS])
    assert not Path("other").exists()
    monkeypatch.setattr(pretrained, "__file__", str(exported / "nothing.py"))
    assert "train a model" in error_line(capsys, ["sample", "pretrained:rdlm"])
    assert "logosphere train" in error_line(capsys, ["sample"])


@pytest.mark.slow
def test_bench_measures_systems_and_runs(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--network.width", "16", "--network.depth", "1", "--network.heads", "2", "--length", "16", "--batch", "2"]
    assert (
        main(["bench", "pretrained:rdlm", "--systems", "ar,mdlm", "--steps", "4", "--rounds", "2", *size, "--json"])
        == 0
    )
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows.keys() == {"rdlm", "ar", "mdlm"} and rows["ar"]["nfe"] == 16 and rows["mdlm"]["nfe"] == 4
    for row in rows.values():
        assert all(value > 0 for key, value in row.items() if key != "name")
    assert main(["bench", "--systems", "ar", "--steps", "4", "--rounds", "1", *size]) == 0
    assert "train tok/s" in capsys.readouterr().out
    assert "'mdlm'" in error_line(capsys, ["bench", "--systems", "mdml"])
    assert "--systems" in error_line(capsys, ["bench"])
    assert "at least 1" in error_line(capsys, ["bench", "--systems", "ar", "--rounds", "0"])


def test_the_studio_evaluates_a_bundled_checkpoint_on_its_record_text(exported: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from logosphere.studio.app import create_app
    from logosphere.studio.library import Library

    library = Library()  # no run in runs/
    assert [model.name for model in library.models] == ["pretrained:rdlm"]
    with testclient.TestClient(create_app(library, "secret", 8000), base_url="http://127.0.0.1:8000") as client:
        stream = client.post("/secret/generate", json={"system": 0, "steps": 2}).text
        assert "event: done" in stream and "logosphere sample pretrained:rdlm" in stream
        assert '"sequences":16' in client.post("/secret/time/0").text
