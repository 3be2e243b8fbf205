"""Data on the command line: the list of corpora, tables with a column of text, and options of compare for trainings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import SMALL, error_line, read_json, train

from logosphere.cli import main, parse_arguments
from logosphere.cli.compare_options import Compare
from logosphere.cli.train_options import parse_train
from logosphere.data.catalogue import CATALOGUE
from logosphere.runs.config import TrainConfig
from logosphere.runs.recipes import recipe
from logosphere.runs.run import Run
from logosphere.runs.system_specs import SystemSpec

pytestmark = pytest.mark.usefixtures("workplace")
TINY = ["--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]


def write_table(name: str = "reviews.csv", *, extra: bool = False) -> Path:
    """Sixty rows with a number and one column of text, or a second one."""
    rows = [f'{i},"{i} times, it was good",{i % 5}{",and a second text" if extra else ""}' for i in range(60)]
    Path(name).write_text("\n".join([f"id,review,stars{',remark' if extra else ''}", *rows, ""]))
    return Path(name)


def test_data_list_tells_what_is_here_and_what_a_download_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main(["data", "list", "--json"]) == 0
    rows = read_json(capsys)["corpora"]
    assert set(rows) == set(CATALOGUE)
    assert rows["pydoc"]["state"] == "here" and rows["captions"]["licence"].startswith("CC BY 4.0")
    assert (rows["text8"]["state"], rows["text8"]["bytes"]) == ("download", 31_344_016)
    assert rows["tinystories"]["place"] == "huggingface.co/datasets/roneneldan/TinyStories"
    assert rows["chorales"]["place"] == "github.com/czhuang/JSB-Chorales-dataset"
    assert main(["data"]) == 0
    listed = capsys.readouterr().out
    assert "31.3 MB from mattmahoney.net; licence: GFDL" in listed and "canonical form" in listed
    assert all(f"  {name} " in listed for name in CATALOGUE)
    (tmp_path / "text8.zip").write_bytes(b"")
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    assert main(["data", "list", "--json"]) == 0
    assert read_json(capsys)["corpora"]["text8"] | {"state": "here", "place": str(tmp_path / "text8.zip")} == (
        rows["text8"] | {"state": "here", "place": str(tmp_path / "text8.zip")}
    )


def test_data_get_tells_the_column_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(extra=True)
    assert main(["data", "get", "reviews.csv", "--column", "remark", "--json"]) == 0
    assert read_json(capsys)["column"] == "remark"
    line = error_line(capsys, ["data", "get", "reviews.csv"])
    assert line.endswith(
        "reviews.csv has several columns that may hold text (review, remark); choose one with --column."
    )
    write_table()
    assert main(["data", "get", "reviews.csv"]) == 0
    assert "read from the column 'review'; --column names another" in " ".join(capsys.readouterr().err.split())


def test_a_run_keeps_the_column_it_was_begun_with(capsys: pytest.CaptureFixture[str]) -> None:
    """The column was guessed; when the table has another one later, the run is resumed and evaluated with its own."""
    write_table()
    assert train("--data", "reviews.csv", steps=2) == 0
    assert json.loads(Path("run/recipe.json").read_text())["recipe"]["column"] == "review"
    write_table(extra=True)
    assert main(["train", "--out", "run", "--resume"]) == 0
    assert main(["evaluate", "run", "--sequences", "2", "--json"]) == 0
    own = read_json(capsys)
    assert main(["evaluate", "run", "--sequences", "2", "--json", "--data", "reviews.csv", "--column", "review"]) == 0
    assert read_json(capsys)["bits"] == own["bits"]
    write_table("other.csv", extra=True)
    assert "several columns" in error_line(capsys, ["evaluate", "run", "--data", "other.csv"])
    assert main(["export", "run", "--out", "small", "--sequences", "2", "--samples", "1", "--steps", "2"]) == 0
    error_line(capsys, ["train", "--data", "reviews.csv", "--out", "again", *SMALL])
    assert not Path("again").exists()


def test_other_data_have_a_column_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"data": "a.csv", "column": "body", "steps": 1}))
    assert parse_train([str(path)]).config.column == "body"
    assert parse_train([str(path), "--data", "a.csv"]).config.column == "body"
    assert parse_train([str(path), "--data", "b.csv"]).config.column == ""
    assert parse_train([str(path), "--data", "b.csv", "--column", "body"]).config.column == "body"


def test_compare_trains_as_its_options_say(capsys: pytest.CaptureFixture[str]) -> None:
    write_table()
    Path("small.json").write_text(json.dumps({"steps": 2, "batch": 4, "validations": 1, "validation_sequences": 4}))
    argv = ["compare", "--systems", "ar,mdlm", "--recipe", "small.json", "--data", "reviews.csv", "--out", "both"]
    argv += ["--length", "12", "--tokenizer", "byte", "--network.width", "16", "--network.depth=1", "--sequences", "4"]
    argv += ["--network.heads", "2", "--json"]
    assert main(argv) == 0
    rows = read_json(capsys)["rows"]
    assert [row["length"] for row in rows] == [12, 12] and all("reviews.csv test" in row["data"] for row in rows)
    for name in ("ar", "mdlm"):
        config = Run(Path("both", name)).config
        assert (config.length, config.tokenizer, config.column) == (12, "byte", "review")
        assert (config.network.width, config.network.depth, config.network.neighbours) == (16, 1, 1)
    assert main(argv) == 0, "the same command finds its runs"
    assert "is trained already" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", "both/ar", "both/mdlm", "--sequences", "4", "--column", "review"]) == 0


def parse_compare(*argv: str) -> Compare:
    arguments = parse_arguments("compare", ["--systems", "ar,mdlm", *argv])
    assert isinstance(arguments, Compare)
    return arguments


def test_compare_takes_what_is_not_given_from_its_recipe() -> None:
    assert parse_compare().config == recipe("demo")
    assert parse_compare("--recipe=text8-tiny").config == recipe("text8-tiny")
    tiny = recipe("text8-tiny")
    changed = parse_compare("--recipe", "text8-tiny", "--length", "32", "--network.width", "150").config
    assert changed == replace(tiny, length=32, network=replace(tiny.network, width=150))


def test_a_preset_of_compare_is_that_of_all_systems_that_name_none() -> None:
    common = TrainConfig(network=replace(TrainConfig().network, width=16, heads=2, neighbours=2))
    paper = SystemSpec.parse("mdlm").with_preset("paper").configure(common)
    assert paper == SystemSpec.parse("mdlm:preset=paper").configure(common) and paper.preset == "paper"
    assert paper.network != common.network, "the preset changes the network"
    fixed = SystemSpec.parse("mdlm").with_preset("paper").configure(common, ("neighbours",))
    assert fixed.network == replace(paper.network, neighbours=2)
    assert SystemSpec.parse("mdlm:preset=paper").with_preset("default").preset == "paper"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--length", "12"], "--length is for systems that are trained first; add for example --systems ar,mdlm."),
        (["--network.width=64"], "--network.width is for systems that are trained first"),
        (["--preset", "paper"], "--preset is for systems that are trained first"),
        (["--systems", "mdlm", "--preset", "papper"], "'mdlm' has no preset 'papper'; it has default, paper"),
        (["--systems", "mdlm", "--network.width", "15"], "A width of 15 does not split"),
        (["--systems", "mdlm", "--length", "0"], "The length must be at least 1, not 0"),
        (["--systems", "mdlm", "--tokenizer", "bpee:300"], "bpe"),
        (["--systems", "mdlm", "--column", "text"], "pydoc is no table"),
    ],
)
def test_options_of_compare_are_checked(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [] if "--systems" in argv else ["somewhere"]
    capsys.readouterr()
    assert main(["compare", *runs, *argv, "--steps", "1", "--out", "none"]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not list(Path("none").glob("*/model.safetensors"))
