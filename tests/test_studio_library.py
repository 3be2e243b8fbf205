"""What the studio offers: runs and reports that appear later, figures with errors and kinds, and tunnels."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from cli_helpers import error_line
from starlette.testclient import TestClient

import logosphere as ls
from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.pretrained import PREFIX, list_pretrained, resolve_folder
from logosphere.runs.run import Run
from logosphere.studio.app import create_app
from logosphere.studio.figures import find_figure, read_card
from logosphere.studio.library import Library
from logosphere.studio.security import parse_allowed_host
from logosphere.types import SIGN

ROOT = Path(__file__).parent.parent
EVENTS = ("begun", "done")
TOKEN, HOST = "secret", "127.0.0.1:8000"
SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("library") / "run"
    assert main(["train", "--system", "mdlm", "--out", str(run), *SMALL, "--steps", "2"]) == 0
    return run


@pytest.fixture
def workplace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return trained


def change_seed(run: Path) -> None:
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["recipe"]["seed"] = 4
    (run / "recipe.json").write_text(json.dumps(recipe))


def listed(client: TestClient) -> dict[str, dict]:
    return {one["name"]: one for one in client.get(f"/{TOKEN}/systems").json()["systems"]}


def test_runs_and_reports_that_begin_later_are_listed(workplace: Path) -> None:
    library = Library()
    with TestClient(create_app(library, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        before = listed(client)
        assert list(before) == [f"{PREFIX}{name}" for name in list_pretrained()]
        shutil.copytree(workplace, "runs/later")
        after = listed(client)
        assert next(iter(after)) == "runs/later" and after["runs/later"]["saved"]
        assert {name: one["number"] for name, one in before.items()} == {
            name: one["number"] for name, one in after.items() if name in before
        }  # numbers that a page knows stay valid
        stream = client.post(f"/{TOKEN}/generate", json={"system": after["runs/later"]["number"], "steps": 2}).text
        assert "event: done" in stream
        for end in ("html", "md", "json"):
            Path(f"out.{end}").write_text("a report")
        offered = client.get(f"/{TOKEN}/systems").json()["reports"]
        assert [one["name"] for one in offered] == ["out.html"]
        assert client.get(offered[0]["path"].removeprefix("..")).text == "a report"
        shutil.rmtree("runs/later")
        assert listed(client).keys() == before.keys()
        shutil.copytree(workplace, "runs/later")
        change_seed(Path("runs/later"))  # another run in the same place
        again = listed(client)["runs/later"]["number"]
        assert again != after["runs/later"]["number"] and library.models[again].folder.config.seed == 4


def test_a_run_that_has_saved_nothing_yet_is_listed_and_says_so(workplace: Path) -> None:
    shutil.copytree(workplace, "runs/a")
    shutil.copytree("runs/a", "runs/young")
    for weights in Path("runs/young").glob("*.safetensors"):
        weights.unlink()
    with TestClient(create_app(Library(), TOKEN, 8000), base_url=f"http://{HOST}") as client:
        young = listed(client)["runs/young"]
        assert not young["saved"] and client.get(f"/{TOKEN}/curves/{young['number']}").json()["train"]
        stream = client.post(f"/{TOKEN}/generate", json={"system": young["number"]}).text
        assert "event: failed" in stream and "Nothing has been saved" in stream


def test_a_damaged_run_is_reported_and_the_others_open(workplace: Path) -> None:
    shutil.copytree(workplace, "runs/good")
    shutil.copytree("runs/good", "runs/bad")
    Path("runs/bad/recipe.json").write_text("{")
    library = Library()
    assert "runs/good" in {one["name"] for one in library.describe()} and "runs/bad" in library.unreadable
    with pytest.raises(UserError):
        Library(["runs/bad"])


def test_weights_that_are_saved_later_are_used(workplace: Path) -> None:
    shutil.copytree(workplace, "runs/a")
    model = Library(["runs/a"]).models[0]
    before = model.model
    assert model.model is before
    os.utime(model.folder.weights_file(), ns=(1, 1))
    assert model.model is not before


def save_model(folder: str, **more: object) -> None:
    ls.build("mdlm", length=12, width=16, depth=1, heads=2, **more).save(folder)


def test_a_model_saved_without_a_training_run_is_offered(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no figure, no curve and no held-out text; it samples, in the browser and by the code that is copied."""
    save_model("runs/my-model", tokenizer=ls.make_tokenizer("characters", ["the fox"]))
    found = {one["name"]: one["number"] for one in Library().describe()}
    assert "runs/my-model" in found
    library = Library(["runs/my-model"])
    (about,) = library.describe()
    assert about["figure"] is None and about["saved"] and not about["trained"]
    with TestClient(create_app(library, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        assert client.get(f"/{TOKEN}/curves/0").json() == {"train": [], "val": []}
        stream = client.post(f"/{TOKEN}/generate", json={"system": 0, "steps": 2, "seed": 3}).text
        begun, done = (json.loads(stream.partition(f"event: {name}\ndata: ")[2].split("\n")[0]) for name in EVENTS)
        measured = client.post(f"/{TOKEN}/time/0").text
    assert "event: failed" in measured and "logosphere evaluate runs/my-model --data FILE" in measured
    capsys.readouterr()
    exec(begun["python"], {})
    assert capsys.readouterr().out == done["texts"][0] + "\n"


def test_a_named_model_without_a_tokenizer_is_refused_at_the_start(workplace: Path) -> None:
    save_model("runs/plain", vocab_size=5)
    with pytest.raises(UserError, match="runs/plain was saved without a tokenizer"):
        Library(["runs/plain"])
    library = Library()
    assert "without a tokenizer" in library.unreadable["runs/plain"]
    assert "runs/plain" not in {one["name"] for one in library.describe()}


# ---- figures -------------------------------------------------------------------------------------------------


def test_figures_of_bundled_checkpoints_are_those_of_the_readme() -> None:
    """The same number, error, kind and split; the record's figure on 16 sequences is not shown."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in list_pretrained():
        figure = find_figure(Run(f"{PREFIX}{name}"))
        assert figure is not None and figure.error and " test, " in figure.data
        shown = figure.bits, figure.error
        if figure.data.startswith("text8"):
            stated = re.findall(rf"{SIGN[figure.kind]} (\d\.\d+) ± (\d\.\d+)", readme)
            near = [bits for bits, error in stated if (float(bits), float(error)) == pytest.approx(shown, abs=6e-4)]
            assert near, (name, shown)


def test_a_run_shows_its_test_figure_or_says_that_it_is_a_validation(workplace: Path) -> None:
    shutil.copytree(workplace, "runs/a")
    validated = find_figure(Run("runs/a"))
    line = [line for line in Run("runs/a").metrics() if "val/kind" in line][-1]
    assert validated is not None and validated.data == "the validation split at step 2"
    assert (validated.bits, validated.error, validated.kind) == (line["val/bpc"], line["val/error"], "bound")
    assert main(["evaluate", "runs/a", "--sequences", "8"]) == 0
    tested = find_figure(Run("runs/a"))
    report = json.loads(next(Path("runs/a/eval").glob("*-test.json")).read_text())
    assert tested is not None and tested.data.endswith(" test, 8 sequences")
    assert (tested.bits, tested.error, tested.kind) == (report["bits"], report["error"], "bound")
    weights = Path("runs/a/model.safetensors")
    later = max(path.stat().st_mtime for path in Path("runs/a/eval").iterdir()) + 10
    os.utime(weights, (later, later))  # trained further: the evaluation was of other weights
    assert find_figure(Run("runs/a")) == validated


def test_a_card_without_a_likelihood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("# A model")
    with pytest.raises(UserError, match="no likelihood"):
        read_card(tmp_path)
    assert read_card(resolve_folder(f"{PREFIX}rdlm")).kind_and_path == "bound, any-order path"


def test_the_bound_over_time_has_an_error_and_is_of_the_test_split(workplace: Path) -> None:
    shutil.copytree(workplace, "runs/a")
    model = Library(["runs/a"]).models[0]
    held_out = model.held_out(4)
    from logosphere.data.batches import eval_batches
    from logosphere.data.corpora import open_corpus

    test = open_corpus(model.folder.config.data, model.tokenizer).test
    assert (held_out.tokens == next(iter(eval_batches(test, 16, 4, 4))).tokens).all()
    with TestClient(create_app(Library(["runs/a"]), TOKEN, 8000), base_url=f"http://{HOST}") as client:
        stream = client.post(f"/{TOKEN}/time/0").text
    done = json.loads(stream.strip().split("data: ")[-1])
    slices = [json.loads(part.split("data: ")[1]) for part in stream.strip().split("\n\n")[:-1]]
    assert done["unit"] == "character" and done["kind_and_path"] == "bound"
    assert done["error"] == pytest.approx(sum(one["error"] for one in slices) / len(slices)) and done["error"] > 0


# ---- tunnels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("localhost:9000", ["localhost:9000"]),
        ("Box.example", ["box.example", "box.example:8000"]),
        ("[::1]:443", ["[::1]:443"]),
    ],
)
def test_allowed_hosts(text: str, hosts: list[str]) -> None:
    assert parse_allowed_host(text, 8000) == hosts


@pytest.mark.parametrize("text", ["", "*", "a b", "http://x", "x:0", "x:99999", "x/y", "evil.example:80:80", "-x"])
def test_wrong_hosts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--allow-host"):
        parse_allowed_host(text, 8000)


def test_a_tunnel_is_allowed_by_a_flag_only() -> None:
    library, path = Library([f"{PREFIX}rdlm"]), f"/{TOKEN}/systems"
    tunnel = {"host": "localhost:9000", "origin": "http://localhost:9000"}
    with TestClient(create_app(library, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        refused = client.get(path, headers=tunnel)
        assert refused.status_code == 403 and "--allow-host" in refused.text
    with TestClient(create_app(library, TOKEN, 8000, allowed=["localhost:9000"]), base_url=f"http://{HOST}") as client:
        assert client.get(path, headers=tunnel).status_code == 200
        assert (
            client.get(path, headers={"host": "localhost:9000", "origin": "https://localhost:9000"}).status_code == 200
        )
        assert client.get(path).status_code == 200  # its own address stays valid
        for headers in ({"host": "localhost:9001"}, {"host": "evil.example"}, {"origin": "http://evil.example"}):
            assert client.get(path, headers=headers).status_code == 403
        assert client.get("/wrong/systems", headers=tunnel).status_code == 403


def test_a_wrong_host_stops_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--allow-host" in error_line(capsys, ["studio", f"{PREFIX}rdlm", "--allow-host", "http://x"])


def test_a_running_training_is_described_anew_when_it_logs(workplace: Path) -> None:
    """The page asks often: files are read again only when they have changed, and then they are."""
    shutil.copytree(workplace, "runs/a")
    model = Library(["runs/a"]).models[0]
    before = model.describe()
    assert model.describe() is before
    with Path("runs/a/metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "val/bpc": 3.5, "val/error": 0.25, "val/kind": "bound"}\n')
    os.utime("runs/a/metrics.jsonl", ns=(7, 7))
    after = model.describe()["figure"]
    assert (after["bits"], after["error"], after["data"]) == (3.5, 0.25, "the validation split at step 3")
