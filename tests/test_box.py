"""Models in the box: what is packed measures what its record says, loads in float32, and is found by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_cli import cache, said, train, workplace  # noqa: F401
from test_cli_mistakes import sentence

import logosphere as ls
from logosphere import box
from logosphere.cli import main
from logosphere.runs.export import make_record, read_record
from logosphere.runs.run import Run

PACK = ["--sequences", "8", "--samples", "2", "--steps", "4"]


@pytest.mark.parametrize("name", box.boxes() or [pytest.param("", marks=pytest.mark.skip("no box is packaged"))])
def test_a_packaged_box_measures_what_its_record_says(name: str) -> None:
    folder = box.located(f"box:{name}")
    record = read_record(folder)
    measured = make_record(folder, record.text)
    assert measured.bits == pytest.approx(record.bits, rel=1e-4) and measured.kind == record.kind
    assert measured.weights_sha256 == record.weights_sha256
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000 and (folder / "card.md").exists()


def test_nothing_is_written_into_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    folder = box.located(f"box:{box.boxes()[0]}")
    before = sorted(folder.rglob("*"))
    Path("text.txt").write_text(read_record(folder).text * 4)
    assert main(["evaluate", f"box:{box.boxes()[0]}", "--data", "text.txt", "--sequences", "4", "--draws", "1"]) == 0
    assert sorted(folder.rglob("*")) == before and list(Run(folder).results.glob("*.json"))


@pytest.fixture
def boxed(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:  # noqa: F811
    """A tiny run, packed where boxes are looked for."""
    shelf = workplace / "shelf"
    shelf.mkdir()
    monkeypatch.setattr(box, "__file__", str(shelf / "__init__.py"))
    assert train("--system", "rdlm", out="trained/run") == 0
    assert main(["export", "trained/run", "--out", str(shelf / "rdlm"), *PACK]) == 0
    capsys.readouterr()
    return shelf / "rdlm"


def test_a_box_holds_half_precision_and_is_read_as_float32(boxed: Path) -> None:
    stored = load_file(boxed / "model.safetensors")
    model = ls.load("box:rdlm")
    for name, weight in model.named_parameters():
        assert stored[name].dtype == torch.float16 and weight.dtype == torch.float32
        assert torch.equal(weight, stored[name].float())
    buffers = {
        name: tensor for name, tensor in model.state_dict().items() if name not in dict(model.named_parameters())
    }
    assert all(stored[name].dtype == tensor.dtype for name, tensor in buffers.items())


def test_its_record_is_kept_and_a_changed_weight_is_noticed(boxed: Path) -> None:
    record = read_record(boxed)
    assert make_record(boxed, record.text) == record and record.kind == "bound"
    text = (boxed / "card.md").read_text()
    assert "≤" in text and "CPU hours" in text and "tokens seen | 256" in text and text.count("\n    ") >= 2
    with pytest.raises(ls.UserError, match="damaged"):
        (boxed / "record.json").write_text("{}")
        read_record(boxed)


def test_sample_uses_the_box_when_there_is_no_run(boxed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = {path.name for path in boxed.iterdir()}
    assert main(["sample", "-n", "1", "--steps", "4", "--json"]) == 0
    from_box = said(capsys)["samples"]
    assert main(["sample", "box:rdlm", "-n", "1", "--steps", "4", "--temperature", "0.6", "--json"]) == 0
    assert said(capsys)["samples"] == from_box
    for words, told in ([], True), (["--temperature", "1"], False), (["box:rdlm"], False):
        assert main(["sample", *words, "-n", "1", "--steps", "4"]) == 0
        assert ("at a temperature of 0.6" in " ".join(capsys.readouterr().err.split())) == told
    assert main(["evaluate", "box:rdlm", "--sequences", "8", "--json"]) == 0
    assert said(capsys)["kind"] == "bound"
    assert main(["compare", "box:rdlm", "--sequences", "8", "--json"]) == 0
    assert {path.name for path in boxed.iterdir()} == inside  # a package is read, never written
    train(out="runs/mine")
    capsys.readouterr()
    assert main(["sample", "-n", "1", "--steps", "4", "--json"]) == 0
    assert said(capsys)["samples"] != from_box  # a run of one's own comes first


def test_texts_that_end_are_recorded_line_by_line_and_read_in_their_own_way(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shelf, lines = workplace / "shelf", [f"a tale of {'so ' * (number % 3)}few words" for number in range(60)]
    monkeypatch.setattr(box, "__file__", str(shelf / "__init__.py"))
    Path("tales.txt").write_text("\n".join(lines))
    assert train("--system", "mdlm", "--data", "lines:tales.txt", "--length", "32", out="trained/run") == 0
    assert main(["export", "trained/run", "--out", str(shelf / "stories"), *PACK]) == 0
    record = read_record(shelf / "stories")
    assert set(record.text.splitlines()) <= set(lines) and make_record(shelf / "stories", record.text) == record
    capsys.readouterr()
    assert main(["sample", "-n", "1", "--steps", "4"]) == 0
    way = box.reading("stories")
    told = " ".join(capsys.readouterr().err.split())
    assert f"at a temperature of {way.temperature} by the sampler '{way.sampler}'" in told


@pytest.mark.slow
def test_mistakes_with_boxes(boxed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'rdlm'" in sentence(capsys, ["sample", "box:rdml"])
    assert "exists already" in sentence(capsys, ["export", "trained/run", "--out", str(boxed), *PACK])
    monkeypatch.setattr("logosphere.runs.export.LARGEST", 100)
    assert "smaller network" in sentence(capsys, ["export", "trained/run", "--out", "other", *PACK])
    assert not Path("other").exists()
    monkeypatch.setattr(box, "__file__", str(boxed / "nothing.py"))
    assert "train a model" in sentence(capsys, ["sample", "box:rdlm"])
    assert "logosphere train" in sentence(capsys, ["sample"])


@pytest.mark.slow
def test_the_bench_measures_systems_and_runs(boxed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--network.width", "16", "--network.depth", "1", "--network.heads", "2", "--length", "16", "--batch", "2"]
    assert main(["bench", "box:rdlm", "--systems", "ar,mdlm", "--steps", "4", "--rounds", "2", *size, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows.keys() == {"rdlm", "ar", "mdlm"} and rows["ar"]["nfe"] == 16 and rows["mdlm"]["nfe"] == 4
    for row in rows.values():
        assert all(value > 0 for key, value in row.items() if key != "name")
    assert main(["bench", "--systems", "ar", "--steps", "4", "--rounds", "1", *size]) == 0
    assert "train tok/s" in capsys.readouterr().out
    assert "'mdlm'" in sentence(capsys, ["bench", "--systems", "mdml"])
    assert "--systems" in sentence(capsys, ["bench"])
    assert "at least 1" in sentence(capsys, ["bench", "--systems", "ar", "--rounds", "0"])


def test_the_studio_opens_the_box_and_measures_it_on_its_own_text(boxed: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from logosphere.studio.app import studio
    from logosphere.studio.shelf import shelf

    books = shelf([])  # no run in runs/
    assert [book.name for book in books] == ["box:rdlm"]
    with testclient.TestClient(studio(books, "secret", 8000), base_url="http://127.0.0.1:8000") as client:
        written = client.post("/secret/generate", json={"system": 0, "steps": 2}).text
        assert "event: done" in written and "logosphere sample box:rdlm" in written
        assert '"sequences":16' in client.post("/secret/time/0").text
