"""The leaderboard: boards and ranks from records, the generated page, and agreement with the literature."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import leaderboard
import pytest
from leaderboard_fixtures import make_record, make_records

from logosphere.errors import UserError
from logosphere.report.comparison import load_all_published_results
from logosphere.report.experiment_rows import read_rows
from logosphere.report.leaderboard import Board, extrapolate_rows, make_boards
from logosphere.report.leaderboard_page import describe_rank, render_board_markdown, render_leaderboard
from logosphere.report.literature import Pair, compare_pair, read_pairs, render_literature, summarise_literature
from logosphere.report.row_records import write_record
from logosphere.runs.campaign import read_campaign
from logosphere.runs.reproduce import LEADERBOARD, find_row, load_rows
from logosphere.runs.system_specs import SystemSpec


def find_board(boards: list[Board], part: str) -> Board:
    return next(board for board in boards if board.part == part)


def test_surrogates_are_ranked_apart() -> None:
    board = find_board(make_boards(make_records()), "text8-3min")
    assert [row.name for row in board.rows] == ["ar", "mdlm", "md4", "udlm", "bfn <b>", "fisher-flow"]
    assert board.rows[-1].ranked.above == 0 and describe_rank(board.rows[-1]) == "~ 1"  # although 1.9 is the lowest
    assert [describe_rank(row) for row in board.rows[:2]] == ["1", "2–3"]
    assert board.has_seeds and board.is_paired and board.several_commits and board.common_commit == "abcdef123456"
    assert board.rows[1].ranked.row.bits == (2.70, 2.71) and board.rows[1].family == "discrete"


def test_rows_of_other_budgets_splits_and_sequences_are_on_other_boards() -> None:
    rows = [make_record("a", 2.0), make_record("b", 2.1, minutes=20), make_record("c", 2.2, sequences=32)]
    valid = replace(rows[0], test=replace(rows[0].test, data="text8 valid"))
    boards = make_boards([*rows, valid])
    assert len(boards) == 4 and all(len(board.rows) == 1 for board in boards)
    assert [board.on_test for board in boards] == [True, True, True, False]


def test_rows_without_sequences_are_not_paired_and_the_board_says_so() -> None:
    boards = make_boards([make_record("a", 2.0), make_record("b", 2.03, nats=False)])
    assert not boards[0].is_paired and boards[0].rows[1].ranked.highest == 2 and boards[0].rows[1].ranked.lowest == 1
    assert "not paired" in render_leaderboard(boards, [])
    (paired,) = make_boards([make_record("a", 2.0), make_record("b", 2.03)])
    assert paired.rows[1].ranked.lowest == 2


def test_curves_are_extrapolated_to_longer_budgets_and_checked() -> None:
    boards = make_boards(make_records())
    found = {one.row: one for one in extrapolate_rows(find_board(boards, "text8-3min"), boards)}
    assert set(found) == {"ar", "mdlm", "md4", "udlm"}
    assert found["mdlm"].prediction.value == pytest.approx(1.70 + (20 / 3) ** -0.5, abs=0.02)
    assert found["mdlm"].measured == pytest.approx(2.45) and found["ar"].measured is None
    assert "Not measured" in render_leaderboard(boards, [])


class Page(HTMLParser):
    """Addresses that a page would fetch, and the texts of its cells."""

    def __init__(self, content: str):
        super().__init__()
        self.fetched, self.tags = list[str](), list[str]()
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def test_the_page_is_self_contained_and_names_everything() -> None:
    page = render_leaderboard(make_boards(make_records()), load_all_published_results(), ["x.json is damaged"])
    parsed = Page(page)
    assert parsed.fetched == [] and "link" not in parsed.tags and "b" not in parsed.tags and "@import" not in page
    assert len(page.encode()) < 1e6 and "x.json is damaged" in page and "bfn &lt;b&gt;" in page
    for text in ("abcdef123456", "fedcba654321", "~ 1.32", "15.36", "below the entropy of a known source", "‡"):
        assert text in page
    assert "logosphere compare --reproduce leaderboard &quot;text8-3min/mdlm/0&quot;" in page
    exact = re.findall(r'<td class="kind-exact".*?</td>', page)
    assert exact and all("= " in cell for cell in exact)
    surrogates = re.findall(r'<td class="kind-surrogate".*?</td>', page)
    assert surrogates and not any("≤" in cell for cell in surrogates)


def test_two_thousand_rows_stay_below_a_megabyte() -> None:
    """The whole campaign has some two hundred trainings."""
    rows = [make_record(f"row {i}", 2 + i / 100, seed=seed, curve=16) for i in range(100) for seed in (0, 1)]
    assert len(render_leaderboard(make_boards(rows), load_all_published_results()).encode()) < 1e6


def test_markdown_has_a_column_for_each_kind() -> None:
    text = render_board_markdown(find_board(make_boards(make_records()), "text8-3min"))
    lines = text.splitlines()
    assert lines[0] == "| rank | system | = exact | ≤ bound | ~ surrogate | above the best | seeds | commit |"
    assert lines[2].startswith("| 1 | ar | = 2.005 ±") and "| 0, 1 (± 0.007) | abcdef1 |" in lines[2]
    assert lines[-1].startswith("| ~ 1 | fisher-flow | | | ~ 1.900".replace("| |", "|  |").replace("| |", "|  |"))
    assert lines[-2].endswith("fedcba6 ‡ |")


PAIR = Pair({"system": "mdlm"}, {"system": "udlm"}, "≤ 27.0, ≤ 31.3", "a paper")


def test_pairs_are_compared_on_every_board_with_both() -> None:
    boards = make_boards(make_records())
    (found,) = compare_pair(PAIR, boards)
    assert found.verdict == "same order" and found.difference == pytest.approx(0.2)
    (opposite,) = compare_pair(Pair(PAIR.worse, PAIR.better, "", ""), boards)
    assert opposite.verdict == "reversed" and opposite.difference == pytest.approx(-0.2)
    (close,) = compare_pair(Pair({"system": "mdlm"}, {"system": "md4"}, "", ""), boards)
    assert close.verdict == "not separated"
    assert compare_pair(Pair({"system": "mdlm"}, {"system": "fisher-flow"}, "", ""), boards) == []  # a surrogate
    nobody = Pair({"system": "ar"}, {"system": "plaid"}, "", "")
    table = render_literature([PAIR, nobody], boards)
    assert "+0.200 ±" in table and "no record has both" in table
    assert "| same order | 1 |" in summarise_literature([PAIR, nobody], boards)


def test_generated_files_are_up_to_date() -> None:
    assert leaderboard.find_stale() == []


def test_new_records_appear_without_a_change_of_code(tmp_path: Path) -> None:
    for name in ("benchmarks/results", "docs"):
        (tmp_path / name).mkdir(parents=True)
    for name in leaderboard.TEXTS:
        (tmp_path / name).write_text((leaderboard.ROOT / name).read_text())
    (tmp_path / leaderboard.PAIRS).write_text((leaderboard.ROOT / leaderboard.PAIRS).read_text())
    results = json.loads((leaderboard.ROOT / "benchmarks/results/sphere.json").read_text())
    experiment = next(one for one in results["experiments"] if one["name"] == "flagship-20min")
    figure = next(r for r in experiment["records"] if r.get("kind") == "bound" and r["split"] == "test")
    new = figure | {"row": "a new row", "seed": 7, "value": 1.234, "commit": "0123456789ab"}
    broken = {"row": "broken", "metric": "bits_per_character", "sequences": 1, "split": "test", "value": None}
    experiment["records"] += [new, broken]
    (tmp_path / "benchmarks/results/sphere.json").write_text(json.dumps(results))
    write_record(make_record("mine", 2.2), tmp_path / "benchmarks" / "leaderboard")
    (tmp_path / "benchmarks/leaderboard/text8-3min/cut.json").write_text('{"format": "logo')
    files = leaderboard.render_all(tmp_path)
    page = files[tmp_path / leaderboard.PAGE]
    assert "a new row" in page and "≤ 1.234" in page and "0123456789ab" in page and "mine" in page
    assert "benchmarks/leaderboard/text8-3min/cut.json is damaged" in page and "A record of flagship-20min" in page
    assert "| a new row |" in files[tmp_path / "docs/leaderboard.md"] and str(tmp_path) not in page


def test_every_pair_names_systems_and_every_reason_a_source() -> None:
    pairs = read_pairs(leaderboard.ROOT / leaderboard.PAIRS)
    assert len(pairs) >= 15 and all("arXiv" in pair.source and pair.figures for pair in pairs)
    for pair in pairs:
        for fields in (pair.better, pair.worse):
            SystemSpec.parse(fields["system"])
    assert all(pair.comparable == ("~" not in pair.figures) for pair in pairs)


def test_unreadable_pairs_and_results_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pairs.json").write_text('{"pairs": [{"better": {}}]}')
    with pytest.raises(UserError, match="cannot be read"):
        read_pairs(tmp_path / "pairs.json")
    (tmp_path / "results.json").write_text('{"experiments": 3}')
    rows, problems = read_rows(tmp_path / "results.json")
    assert rows == [] and len(problems) == 1 and "is damaged: 'experiments' is no list" in problems[0]


def test_the_leaderboard_of_the_project_has_rows_to_repeat() -> None:
    rows, problems = load_rows(LEADERBOARD)
    assert problems == []
    row = find_row(rows, "flagship-3min/mdlm", LEADERBOARD)
    assert row.test.data == "text8 test" and row.steps and row.seed == 0 and "--system" in row.arguments


def test_the_campaign_of_the_repository_is_valid() -> None:
    campaign = read_campaign(leaderboard.ROOT / "benchmarks" / "leaderboard.yaml")
    assert [part.name for part in campaign.parts] == [
        "text8-3min-seeds",
        "text8-20min",
        "text8-120min",
        "stories-20min",
    ]
    for part in campaign.parts:
        for row in part.rows:
            spec = SystemSpec.parse(row.system)
            assert spec.system
    assert campaign.rates is not None and len(campaign.rates.factors) == 3
    short, middle, long, second = campaign.parts
    assert short.budget.cpu_minutes == 3 and middle.budget.cpu_minutes == 20 and long.budget.cpu_minutes == 120
    assert len(middle.rows) == len(second.rows) == 12 and {len(seeds) for seeds in middle.seeds.values()} == {2}
    tuned = {rows[0] for rows in campaign.rates.families.values()}
    assert all(campaign.rates.tuned_row(row.name) in tuned for row in short.rows)
    trainings = {part.name: sum(map(len, part.seeds.values())) for part in (short, middle, long)}
    hours = sum(trainings[part.name] * (part.budget.cpu_minutes or 0) for part in (short, middle, long)) / 60
    assert 20 < hours < 40
