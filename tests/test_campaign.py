"""Campaigns: resumable, within their budgets, with complete records, and repeated from them to the last bit."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import error_line, read_json
from text_fixtures import PROSE

from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.report.experiment_rows import read_rows
from logosphere.report.row_records import RowRecord, pack, read_record, unpack, write_record
from logosphere.runs.campaign import read_campaign
from logosphere.runs.reproduce import compare_numbers, find_row

pytestmark = pytest.mark.usefixtures("workplace")
RECORD = Path(__file__).parent / "leaderboard_record.json"
"""A tiny row of this text, made by the campaign of this test."""

RECIPE = """
data: tiny.txt
tokenizer: characters
length: 16
batch: 4
steps: 4
precision: float32
validation_sequences: 8
network: {width: 16, depth: 1, heads: 2}
"""
CAMPAIGN = """
recipe: recipe.yaml
sequences: 16
draws: 2
validations: 3
rows:
  ar: ar
  masked: mdlm
  masked, cosine: "mdlm:schedule=cosine"
  deep: {system: mdlm, network: {depth: 2}}
rates:
  factors: [0.5, 1]
  part: short
  sequences: 8
  families: {masked: [masked, "masked, cosine"]}
parts:
  - {name: short, steps: 6, seeds: 2, rows: [ar, masked, "masked, cosine", deep], fewer_seeds: {deep: 1}}
  - {name: long, steps: 9, rows: [masked]}
"""


@pytest.fixture(autouse=True)
def files(workplace: object) -> None:
    Path("tiny.txt").write_text(PROSE)
    Path("recipe.yaml").write_text(RECIPE)
    Path("board.yaml").write_text(CAMPAIGN)


def campaign(*more: str) -> list[str]:
    return ["compare", "--campaign", "board.yaml", "--out", "out", *more]


def test_a_campaign_records_every_row_and_does_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(campaign("--json", "--only", "short/masked", "short/masked, cosine", "long")) == 0
    printed = read_json(capsys)
    assert [row["name"] for row in printed["rows"]] == [
        "short/masked/0", "short/masked/1", "short/masked, cosine/0", "short/masked, cosine/1", "long/masked/0",
    ]  # fmt: skip
    records, problems = read_rows(Path("board"))
    assert problems == [] and len(records) == 5
    by_name = {record.name: record for record in records}
    first = by_name["short/masked/0"]
    assert first.steps == 6 and first.tokens == 6 * 64 and first.budget == {"steps": 6} and first.cpu_seconds
    assert len(first.test.nats) == first.test.sequences == 10 and first.test.length == 16
    bits = sum(first.test.nats) / sum(first.test.counts) / 0.6931471805599453
    assert bits == pytest.approx(first.test.bits, rel=1e-6)
    assert [point.step for point in first.curve] == [2, 4, 6] and first.curve[-1].tokens == 384
    trials = first.learning_rate["trials"]
    assert set(trials) == {"0.5", "1"} and first.learning_rate["factor"] == float(min(trials, key=trials.get))
    assert by_name["short/masked, cosine/1"].learning_rate == first.learning_rate  # a sibling
    assert by_name["long/masked/0"].learning_rate == first.learning_rate  # and another budget
    assert first.overhead_seconds is None or first.overhead_seconds > 0
    assert first.versions["torch"] and first.date and "--only" in first.command
    files = {path: path.stat().st_mtime_ns for path in Path("board").rglob("*.json")}
    shutil.rmtree("out")  # records alone say what is done
    assert main(campaign("--only", "short/masked", "short/masked, cosine", "long")) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == files and not list(Path("out").rglob("*.safetensors"))


def test_a_row_is_repeated_to_the_last_bit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(campaign("--only", "short/deep")) == 0
    capsys.readouterr()
    assert main(["compare", "--reproduce", "board", "short/deep", "--out", "again", "--json"]) == 0
    found = read_json(capsys)
    assert found["identical"] and found["agrees"] and found["difference"] == 0 and found["steps"] == 6
    path = next(Path("board").rglob("*.json"))
    record = read_record(path)
    nats = tuple(value + 3.0 for value in record.test.nats)
    write_record(replace(record, test=replace(record.test, nats=nats, bits=record.test.bits + 0.27)), Path("other"))
    assert main(["compare", "--reproduce", "other", "deep", "--out", "again"]) == 1
    assert "does not agree" in capsys.readouterr().out


def test_the_recorded_tiny_row_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """On the machine of the record to the last bit; processors differ in the last digits."""
    write_record(read_record(RECORD), Path("board"))
    assert main(["compare", "--reproduce", "board", "short/masked", "--out", "again", "--json"]) == 0
    found = read_json(capsys)
    assert found["identical"] or abs(found["difference"]) < 1e-5


@pytest.mark.slow
def test_trainings_keep_their_budget_and_a_campaign_adds_little() -> None:
    """CPU time within 2% of the budget; what is neither training nor evaluation is less than 3% of a minute.

    Most of it is the same for all lengths: building a model and saving it. In a process of its own, since the checks of
    shapes in tests take time in every step.
    """
    larger = RECIPE.replace("width: 16, depth: 1", "width: 96, depth: 3").replace("batch: 4", "batch: 32")
    Path("recipe.yaml").write_text(larger.replace("length: 16", "length: 64"))
    text = CAMPAIGN.replace("steps: 9, rows: [masked]", "cpu_minutes: 0.5, rows: [masked]")
    Path("board.yaml").write_text(text[: text.index("rates:")] + text[text.index("parts:") :])
    command = [sys.executable, "-m", "logosphere", *campaign("--only", "long")]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
    (record,), _ = read_rows(Path("board"))
    assert record.cpu_seconds == pytest.approx(30, rel=0.02) and record.note == ""
    assert record.overhead_seconds is not None and record.overhead_seconds < 0.03 * 60


def test_a_damaged_record_is_kept_aside_and_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(campaign("--only", "short/deep")) == 0
    path = next(Path("board").rglob("*.json"))
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    assert main(campaign("--only", "short/deep")) == 0
    assert "is damaged" in capsys.readouterr().err
    assert path.with_suffix(".json.damaged").read_bytes() == whole[:300]
    assert read_record(path).test == read_record(write_record(read_record(path), Path("copy"))).test


def test_a_changed_campaign_does_not_take_records_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(campaign("--only", "short/deep")) == 0
    Path("board.yaml").write_text(CAMPAIGN.replace("depth: 2", "depth: 1"))
    assert "is of a training with network = " in error_line(capsys, campaign("--only", "short/deep"))


@pytest.mark.parametrize(
    "change, message",
    [
        (("parts:", "sections:"), "unknown entry 'sections'"),
        (("rows: [masked]}", "rows: [maskd]}"), "there is no row 'maskd'. Did you mean 'masked'"),
        (("steps: 9", "steps: 9, cpu_minutes: 1"), "must have one budget"),
        (("steps: 9", "steps: many"), "must be a number"),
        (("part: short", "part: shorter"), "there is no part 'shorter'"),
        (("seeds: 2", "seeds: 0"), "at least 1, not 0"),
        (("name: long", "name: short"), "two parts have the name 'short'"),
        (("factors: [0.5, 1]", "factors: [0, 1]"), "must be numbers above 0"),
        (("depth: 2", "dept: 2"), "unknown entry 'dept'. Did you mean 'depth'"),
        (("[masked, \"masked, cosine\"]}", "[masked, masked]}"), "is in two families"),
        (("rows:\n", "rows: {a\n"), "cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_in_a_campaign_are_one_sentence(change: tuple[str, str], message: str) -> None:
    Path("board.yaml").write_text(CAMPAIGN.replace(*change))
    with pytest.raises(UserError) as problem:
        read_campaign(Path("board.yaml"))
    assert message in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--campaign", "none.yaml"], "cannot be read"),
        (["--campaign", "board.yaml", "--only", "shrt"], "Did you mean 'short'"),
        (["--campaign", "board.yaml", "--only", "short/x"], "has no row 'x'"),
        (["--campaign", "board.yaml", "--systems", "ar"], "leave out --systems"),
        (["--campaign", "board.yaml", "--reproduce", "board", "a"], "give one of them"),
        (["--systems", "ar", "--records", "x"], "belongs to a campaign"),
        (["--reproduce", "nowhere", "a"], "There are no records in nowhere"),
        (["--reproduce", "tests.json", "a"], "There are no records in tests.json"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert message in error_line(capsys, ["compare", *argv])
    assert not Path("out").exists() and not Path("board").exists()


def damage(content: dict, name: str, value: object) -> dict:
    target = content["test"] if name in content["test"] else content
    if value is None:
        del target[name]
    else:
        target[name] = value
    return content


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("version", 0, "of an earlier version (0), not 1"),
        ("version", 9, "of another version (9)"),
        ("format", "x", "no record of a leaderboard"),
        ("system", None, "damaged"),
        ("bits", None, "damaged"),
        ("bits", "low", "not a finite number"),
        ("kind", "guess", "its kind is 'guess'"),
        ("nats", "&&&", "not base64"),
        ("nats", pack([1.0, 2.0]), "it has 2 nats"),
        ("nats", pack([float("nan")] * 16), "not finite"),
        ("row", ["a"], "not a text"),
        ("curve", [{"step": 1}], "damaged"),
        ("extra", 1, "unknown entry 'extra'"),
        ("recipe", 3, "must be objects"),
    ],
)
def test_a_damaged_record_is_named_in_one_sentence(name: str, value: object, message: str) -> None:
    content = json.loads(RECORD.read_text())
    Path("records").mkdir()
    Path("records/whole.json").write_text(json.dumps(content))
    Path("records/damaged.json").write_text(json.dumps(damage(content, name, value)))
    records, problems = read_rows(Path("records"))
    assert len(records) == 1 and len(problems) == 1
    assert message in problems[0] and "damaged.json" in problems[0] and "\n" not in problems[0]


def test_numbers_are_packed_in_four_bytes() -> None:
    values = [0.5, 87.25, 123.0]
    assert unpack(pack(values), "it") == tuple(values) and len(pack(values * 1000)) == 16_000
    with pytest.raises(ValueError, match="cut off"):
        unpack("AAA=", "it")


def make_row(bits: float, shift: float = 0.0, seed: int = 0, **fields: object) -> RowRecord:
    record = read_record(RECORD)
    nats = tuple(value + shift for value in record.test.nats)
    return replace(record, seed=seed, test=replace(record.test, bits=bits, nats=nats), **fields)


def test_rows_are_found_by_part_row_and_seed() -> None:
    rows = [make_row(2.0), make_row(2.1, seed=1), make_row(2.0, part="long")]
    assert find_row(rows, "short/masked/1", "x").seed == 1 and find_row(rows, "long/masked", "x").part == "long"
    with pytest.raises(UserError, match="row of long and of short; write for example long/masked"):
        find_row(rows, "masked", "x")
    with pytest.raises(UserError, match="no row 'short/maskd' in x. Did you mean 'short/masked'"):
        find_row(rows, "short/maskd", "x")


def test_a_difference_within_the_spread_of_seeds_agrees() -> None:
    record = read_record(RECORD)
    bits = record.test.bits
    alone = compare_numbers(record, make_row(bits + 0.05, 0.5).test, [record], 6)
    assert alone.paired and not alone.seeds_known and not alone.agrees  # every sequence is worse by the same
    siblings = [record, make_row(bits + 0.06, seed=1)]
    found = compare_numbers(record, make_row(bits + 0.05, 0.5).test, siblings, 6)
    assert found.seeds_known and found.agrees and found.error == pytest.approx(0.06, rel=0.05)
    with pytest.raises(UserError, match="cannot be compared"):
        compare_numbers(record, replace(record.test, kind="surrogate"), [record], 6)
