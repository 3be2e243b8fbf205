"""Plans of trainings: costs are those of the cost model, commands those of their phases, and the page agrees."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_helpers import complete_run
from tiny_run import RECIPE

import logosphere as ls
from logosphere.cli import main
from logosphere.cli.dry_run import GROUP_SIZES, format_plan
from logosphere.cli.train_options import parse_train_options, split_recipe, use_one_budget
from logosphere.data.corpus import Corpus
from logosphere.io import read_tensors
from logosphere.networks.base import Evaluations
from logosphere.networks.transformer import BlockTransformer
from logosphere.report.comparison import load_published_results
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import BEST_BYTES, CHECKPOINT_BYTES, GPUS, REACHED, cost
from logosphere.runs.create import create_run, initial_model
from logosphere.runs.plans import AR, MD4, PLANS, Phase, find_plan, plan_costs
from logosphere.runs.recipes import recipe

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
LARGE = ("text8", "text8-paper")
LARGER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("text8-medium", "text8-1b", "lm1b", "owt-1b")]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["train", *argv, "--dry-run"]) == 0
    return capsys.readouterr().out


def test_flops_of_the_plan_are_those_of_the_cost_model(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And of the formula: 6 P + 12 depth · width · length a token, twice 6 P + 24 … in blocks."""
    content = json.loads(dry_run(capsys, "text8-paper", "--json"))
    plan = find_plan("text8-paper", recipe("text8-paper"))
    bills = [cost(phase.config, 27) for phase in plan.phases]
    assert [phase["flops"] for phase in content["phases"]] == [bill.flops for bill in bills]
    assert content["total"]["flops"] == sum(phase["flops"] for phase in content["phases"])
    assert content["total"]["steps"] == 1_000_000 == 850_000 + 3 * 50_000
    attention, tokens = 12 * 12 * 768 * 256, 512 * 256
    matrices = bills[0].parameters
    assert bills[0].flops == 850_000 * tokens * (6 * matrices + attention)
    for bill in bills[1:]:
        assert bill.parameters == matrices
        assert bill.flops == 50_000 * tokens * 2 * (6 * matrices + 2 * attention)


def test_hours_follow_from_the_stated_utilisation(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(dry_run(capsys, "text8-paper", "--json", "--nproc", "4"))
    assumed = content["assumptions"]
    assert assumed["utilisation"] == REACHED and assumed["measured"] is False
    for part in (*content["phases"], content["total"]):
        for gpu, peak in GPUS.items():
            assert list(part["hours"][gpu]) == ["1", "4", "8", "64"]
            for number, hours in part["hours"][gpu].items():
                assert hours == pytest.approx(part["flops"] / (peak * REACHED * int(number)) / 3600)
    first, *blocks = content["phases"]
    assert first["memory"]["1"] > first["memory"]["4"] > first["memory"]["8"]
    assert all(block["memory"]["1"] > 80e9 > first["memory"]["1"] for block in blocks)
    assert "* More than 80 GB" in " ".join(dry_run(capsys, "text8-paper").split())


@pytest.mark.parametrize("name", [*LARGE, *LARGER])
def test_dry_runs_of_large_recipes_are_complete_and_write_nothing(
    name: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, content = dry_run(capsys, name), json.loads(dry_run(capsys, name, "--json"))
    rows = ("parameters", "tokens", "FLOPs", "memory of 1 device", "memory of each of 8", "disk", "hours on 1 × A100",
            "hours on 8 × A100", "hours on 8 × H100")  # fmt: skip
    for row in rows:
        assert re.search(rf"^  {row} +[\d.,e+]+", text, flags=re.MULTILINE), row
    assert "an assumption, not a measurement" in " ".join(text.split())
    assert bool(content["expected"]) == bool(content["published"]) == (name in PLANS)
    for phase in content["phases"]:
        assert phase["flops"] == phase["tokens"] * phase["flops_per_token"]
        assert phase["disk_bytes"] >= 36 * phase["parameters"] and phase["memory"]["8"] > 0
    written = [path.relative_to(elsewhere) for path in elsewhere.rglob("*") if path.is_file()]
    assert all(path.parts[:2] == ("cache", "bridge_tables") for path in written), "tables of the sphere are cached"


def test_a_network_states_what_it_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find_plan("text8-paper", recipe("text8-paper")).phases[-1].config
    before = cost(chosen, 27)
    monkeypatch.setattr(BlockTransformer, "evaluations", lambda self, draws: Evaluations(positions=1.5, pairs=2.0))
    after, attention = cost(chosen, 27), 12 * 12 * 768 * 256
    matrices = (before.flops_per_token - 4 * attention) / 2
    assert after.flops_per_token == 1.5 * matrices + 2 * attention
    assert after.activation_bytes < before.activation_bytes and after.parameters == before.parameters


def test_commands_of_a_plan_are_those_of_its_phases() -> None:
    plan = find_plan("text8-paper", recipe("text8-paper"))
    folder = None
    for phase in plan.phases:
        program, command, *argv = shlex.split(phase.command)
        assert (program, command) == ("logosphere", "train")
        name, rest = split_recipe(argv)
        arguments = parse_train_options(rest, recipe(name))
        assert use_one_budget(arguments.config, rest) == phase.config
        assert phase.config.begin == folder
        folder = str(arguments.out)


def test_a_changed_training_has_no_expected_figures(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = recipe("text8-paper")
    assert find_plan("text8-paper", replace(config, accumulate=4, seed=3)).expected
    for changed in (replace(config, steps=10), replace(config, batch=64), replace(config, system="mdlm", options=())):
        plan = find_plan("text8-paper", changed)
        assert len(plan.phases) == 1 and not plan.expected and not plan.published
    assert main(["train", "text8-paper", "--steps", "10", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "Expected" not in printed.out and "plan of text8-paper is left out" in printed.err


def test_expected_figures_lie_between_the_published_ones_and_have_reasons() -> None:
    plan = find_plan("text8-paper", recipe("text8-paper"))
    published = {result.system: result for result in load_published_results("text8", "character")}
    assert (published["md4"].value, published["md4"].kind) == (MD4, "bound")
    assert (published["ar"].value, published["ar"].kind) == (AR, "exact")
    assert published["rdlm"].kind == "surrogate"
    assert [one.value for one in plan.published] == sorted(one.value for one in published.values())
    assert [one.phase for one in plan.expected] == [phase.name for phase in plan.phases]
    values = [(one.low, one.high) for one in plan.expected]
    assert values == sorted(values, reverse=True) == [(1.37, 1.38), (1.35, 1.36), (1.34, 1.35), (1.32, 1.34)]
    for one in plan.expected:
        assert one.kind == "bound" and one.reason and one.source and one.assumes


def test_the_page_shows_the_plan_that_is_printed(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change: paste the output of the command, without its last line, which depends on the machine."""
    printed = dry_run(capsys, "text8-paper")
    body, _, machine = printed.rstrip().rpartition("\n\n")
    assert machine.startswith("On a free core of this machine")
    shown = re.search(
        r"<!-- plan: text8-paper -->\n```text\n(.*?)\n```\n<!-- /plan -->", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert shown is not None and shown[1] == body
    assert "\n  ~ 1.32  rdlm " in body and "≤ 1.32  rdlm" not in body
    plan = find_plan("text8-paper", recipe("text8-paper"))
    assert format_plan(plan, plan_costs(plan, GROUP_SIZES)) == body


def tiny(phase: Phase) -> TrainConfig:
    """The training of a phase with a small network, for eight tokens."""
    options = tuple(re.sub("^block=.*", f"block={BLOCK_OF[phase.name]}", one) for one in phase.config.options)
    network = replace(phase.config.network, width=16, depth=1, heads=2)
    return replace(RECIPE, system=phase.config.system, options=options, network=network)


BLOCK_OF = {"one block": 8, "blocks of 16": 4, "blocks of 8": 2, "blocks of 4": 1}


def test_weights_of_a_phase_fit_the_next() -> None:
    shapes = []
    for phase in find_plan("text8-paper", recipe("text8-paper")).phases:
        chosen = tiny(phase)
        model = ls.build(
            chosen.system, vocab_size=27, length=8, **vars(chosen.network), **chosen.system_options()
        )  # fmt: skip
        shapes.append({name: weight.shape for name, weight in model.state_dict().items()})
    assert all(found == shapes[0] for found in shapes)


def test_a_phase_begins_with_the_weights_of_the_one_before_it(corpus: Corpus, tmp_path: Path) -> None:
    first, second, *_ = find_plan("text8-paper", recipe("text8-paper")).phases
    run, _ = complete_run(tiny(first), corpus, tmp_path / "parent")
    child = create_run(replace(tiny(second), begin=str(run.path)), corpus, tmp_path / "child")
    model = initial_model(child, corpus)
    weights = read_tensors(run.weights_file())
    assert model.block < model.length
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_disk_of_a_finished_run(corpus: Corpus, tmp_path: Path) -> None:
    """A finished run has one checkpoint and the best average; the estimate has two checkpoints."""
    chosen = replace(RECIPE, network=replace(RECIPE.network, width=64, depth=2))
    run, _ = complete_run(chosen, corpus, tmp_path / "run")
    files = {path.stat().st_ino: path.stat().st_size for path in run.path.rglob("*.safetensors")}
    bill = cost(chosen, corpus.tokenizer.size)
    one = (CHECKPOINT_BYTES + BEST_BYTES) * bill.parameters
    assert one <= sum(files.values()) < 1.15 * one
    assert bill.disk_bytes == one + CHECKPOINT_BYTES * bill.parameters
