"""Tasks on the command line: a task of one's own end to end, the results of the harness, and one sentence per error."""

import json
import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_helpers import error_line, read_json, train

from logosphere.cli import main
from logosphere.errors import UserError
from logosphere.runs.run import Run
from logosphere.runs.settings import TaskConfig
from logosphere.runs.task_model import TaskModel
from logosphere.runs.tasks import Metric, TaskReport, check_names, explained, read_metrics

needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra 'eval' is not installed")
FOUND = {
    "results": {
        "cloze": {"alias": "cloze", "acc,none": 0.5, "acc_stderr,none": 0.1, "perplexity,none": 9.0,
                  "perplexity_stderr,none": "N/A"},
        "sums": {"alias": "sums", "exact_match,strict": 0.0, "exact_match_stderr,strict": 0.0},
    },
    "higher_is_better": {"cloze": {"acc": True, "perplexity": False}, "sums": {"exact_match": True}},
    "n-samples": {"cloze": {"original": 100, "effective": 26}, "sums": {"original": 9, "effective": 9}},
}  # fmt: skip


def test_metrics_are_read_with_their_errors() -> None:
    acc, perplexity, exact = read_metrics(FOUND)
    assert acc == Metric("cloze", "acc", "none", 0.5, 0.1, True, 26)
    assert (perplexity.value, perplexity.higher_is_better) == (9.0, False) and math.isnan(perplexity.error)
    assert (exact.task, exact.filter, exact.documents) == ("sums", "strict", 9)


@pytest.mark.parametrize(
    ("kind", "words"), [("bound", "likelihoods are minus the bound, 32 draws each"), ("exact", "likelihoods are exact")]
)
def test_the_table_names_the_kind(kind, words: str) -> None:
    report = TaskReport("run", tuple(read_metrics(FOUND)), kind, 32, 64, None, 0, "ema", "x", "0.4")
    table = str(report).splitlines()
    assert report.likelihoods == words and len(table) == 4
    assert "0.5000 ± 0.1000" in table[1] and "±" not in table[2] and "exact_match (strict)" in table[3]
    assert report.summary()["kind"] == kind and report.summary()["benchmark"] == "tasks"


def test_unknown_tasks_are_refused_with_a_suggestion() -> None:
    check_names(["arc_easy"], ["arc_easy", "arc_challenge"])
    with pytest.raises(UserError, match="no task 'arc_eazy' among 2 of the harness. Did you mean 'arc_easy'"):
        check_names(["arc_easy", "arc_eazy"], ["arc_easy", "arc_challenge"])


class OfflineModeIsEnabled(ConnectionError):
    """An error of the name that huggingface_hub has."""


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OfflineModeIsEnabled("offline"), "The data of wiki cannot be fetched without a network"),
        (FileNotFoundError("rows.json"), r"wiki has no data \(FileNotFoundError: rows.json\)"),
        (KeyError("text"), r"wiki cannot be evaluated \(KeyError: 'text'\)"),
        (UserError("Too long."), "^Too long.$"),
    ],
)
def test_errors_of_the_harness_become_a_sentence(problem: Exception, message: str) -> None:
    with pytest.raises(UserError, match=message), explained(["wiki"]):
        raise problem


def test_an_error_behind_another_one_is_found() -> None:
    with pytest.raises(UserError, match="without a network"), explained(["wiki"]):
        try:
            raise ConnectionError("no route")
        except ConnectionError as first:
            raise ValueError("cannot load") from first


def test_task_names_are_read_once_each() -> None:
    assert TaskConfig(tasks="a, b,,a").names == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "3"], "name them with --tasks"),
        (["--tasks", ","], "must name tasks separated by commas"),
        (["--tasks", "a", "--limit", "0"], "--limit must be at least 1 document, not 0"),
        (["--tasks", "a", "--tasks-folder", "nowhere"], "there is none at nowhere"),
        (["--tasks", "a", "--data", "text8"], "leave out --data or --tasks"),
        (["--tasks", "a", "--nproc", "2"], "needs a single process"),
        (["--tasks", "a", "--infilling"], "--infilling and --tasks are measures of their own"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line(capsys, ["evaluate", "run", *options])


def test_a_missing_harness_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logosphere.runs.tasks.find_spec", lambda name: None)
    assert train(steps=2) == 0
    assert "pip install 'logosphere[eval]'" in error_line(capsys, ["evaluate", "run", "--tasks", "arc_easy"])
    assert not Path("run/eval").exists() or not list(Path("run/eval").glob("tasks*"))


def write_task(folder: Path, rows: list[dict[str, object]]) -> None:
    """A task with choices and a local file."""
    folder.mkdir()
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (folder / "choice.yaml").write_text(
        "task: tiny_choice\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files: {{test: {(folder / 'rows.json').resolve()}}}\ntest_split: test\n"
        "output_type: multiple_choice\ntarget_delimiter: ''\n"
        "doc_to_text: '{{question}}'\ndoc_to_choice: '{{choices}}'\n"
        "doc_to_target: '{{answer}}'\nmetric_list:\n  - metric: acc\n"
    )


@needs_harness
@pytest.mark.filterwarnings("ignore")  # warnings of the harness do not concern this package
@pytest.mark.parametrize("system", ["ar", "mdlm"])
def test_a_task_of_ones_own(system: str, capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    assert train("--system", system, steps=3) == 0
    rows = [{"question": f"the {letter}", "choices": [" king", " zzzz"], "answer": 0} for letter in "abcdef"]
    write_task(workplace / "tasks", rows)
    command = ["evaluate", "run", "--tasks", "tiny_choice", "--tasks-folder", "tasks", "--limit", "4", "--draws", "8"]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = read_json(capsys)
    (metric,) = found["metrics"]
    model = TaskModel.of(Run("run"), draws=8)
    scores = model.score_continuations(
        [(f"the {letter}", choice) for letter in "abcd" for choice in (" king", " zzzz")]
    )
    right = [scores[2 * i][0] > scores[2 * i + 1][0] for i in range(4)]
    assert metric["value"] == pytest.approx(sum(right) / 4) and metric["documents"] == 4 == found["limit"]
    assert found["kind"] == ("exact" if system == "ar" else "bound")
    assert found["draws"] == (0 if system == "ar" else 8)
    (saved,) = Path("run/eval").glob("tasks-tiny_choice*.json")
    assert json.loads(saved.read_text())["metrics"] == found["metrics"]
    assert "no task 'tiny_choise'" in error_line(capsys, [*command[:2], "--tasks", "tiny_choise", *command[4:6]])
    (workplace / "tasks" / "rows.json").unlink()
    assert "tiny_choice has no data" in error_line(capsys, command)
