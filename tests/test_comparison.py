"""Comparisons: equal conditions, resuming, seeds and kinds in the table, and refusal of incomparable runs."""

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import error_line, read_json, train
from report_fixtures import REPORT
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.cli import main
from logosphere.data.corpus import Corpus
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.leaderboard import format_leaderboard as as_text
from logosphere.evaluation.leaderboard import rank_reports
from logosphere.evaluation.likelihood import elbo_over_time, has_decreasing_times
from logosphere.evaluation.report import Report
from logosphere.io import file_sha256, locked
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.compare import load_scorer
from logosphere.runs.comparison_report import shared_budget
from logosphere.runs.config import TrainConfig
from logosphere.runs.costs import count_step_flops
from logosphere.runs.loop import validate
from logosphere.runs.planned_runs import apply_budget
from logosphere.runs.run import Run
from logosphere.runs.settings import Budget
from logosphere.runs.system_specs import SystemSpec, parse_systems
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

pytestmark = pytest.mark.usefixtures("workplace")


RECIPE = "length: 16\nbatch: 4\nvalidations: 2\nvalidation_sequences: 8\nnetwork: {width: 16, depth: 1, heads: 2}\n"
LETTERS = np.zeros(99, dtype=np.uint8)
CORPUS = Corpus("letters", text8_tokenizer(), LETTERS, LETTERS, LETTERS, "00", {}, {}, None)
FEW = ["--sequences", "16", "--samples", "4", "--sampling-steps", "2", "4", "--temperatures", "0.8"]


def compare(*more: str, systems: str = "ar,mdlm", steps: int = 3) -> list[str]:
    Path("small.yaml").write_text(RECIPE)
    return ["compare", "--systems", systems, "--recipe", "small.yaml", "--steps", str(steps), "--out", "both", *more]


@pytest.mark.slow
def test_a_comparison_writes_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*compare("--seeds", "2", "--judge", "train", "--report", "out.html", "--json"), *FEW]) == 0
    rows = read_json(capsys)["rows"]
    assert {row["name"] for row in rows} == {"ar", "mdlm"} and all(len(row["seeds"]) == 2 for row in rows)
    board = json.loads(Path("out.json").read_text())
    assert Path("out.md").exists() and Path("out.html").stat().st_size < 5e6
    for entry in board["entries"]:
        assert entry["bits"] == pytest.approx(sum(seed["bits"] for seed in entry["seeds"]) / 2)
        assert (
            entry["costs"]["steps"] == 3 and entry["costs"]["tokens"] == 3 * 64 and entry["costs"]["peak_bytes"] > 1e6
        )
        assert [point["step"] for point in entry["curve"]] == [2, 3]
        assert {"judge:ar", "entropy", "spelling"} <= entry["samplings"][0]["metrics"].keys()
        assert "frontier" not in entry["samplings"][0]["metrics"]  # which needs more than four samples
        assert entry["animation"]["frames"] and len(entry["seeds"][0]["weights_sha256"]) == 64
    by_name = {entry["name"]: entry for entry in board["entries"]}
    assert by_name["ar"]["time_bins"] == [] and len(by_name["mdlm"]["time_bins"]) == 12
    assert [(s["steps"], s["temperature"]) for s in by_name["ar"]["samplings"]] == [(16, 1.0), (16, 0.8)]  # one a token
    assert all(s["nfe"] == s["steps"] for s in by_name["ar"]["samplings"])
    assert "needs at least 250 samples" in board["notes"][0] and "needs at least 250" in Path("out.html").read_text()
    assert [(s["steps"], s["temperature"]) for s in by_name["mdlm"]["samplings"]] == [(2, 1.0), (4, 1.0), (4, 0.8)]
    assert board["real"]["judge:ar"]["value"] > 0
    assert load_scorer("train", Path("both/judge")).version == file_sha256(Run("both/judge").weights_file())
    scorer = json.loads(Path("both/judge/recipe.json").read_text())
    assert scorer["corpus"]["name"].endswith("(validation split)")


def test_metrics_named_with_too_few_samples_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*compare("--report", "out.html", "--metrics", "frontier"), *FEW]
    assert "--samples 250" in error_line(capsys, few) and not Path("both").exists()


def test_stopped_comparison_resumes_without_repeating_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*compare(systems="ar"), *FEW]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("both/ar").rglob("*") if path.is_file()}
    assert main([*compare(systems="ar,mdlm"), *FEW]) == 0
    assert "trained already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "steps = 3, not 4" in error_line(capsys, [*compare(steps=4), *FEW])


def test_interrupt_at_the_last_step_stops_the_comparison(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt during the last step of a training must prevent the next training."""

    def interrupted(recipe: TrainConfig, trainer: Trainer, corpus: Corpus, group: ProcessGroup) -> Report:
        if trainer.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return validate(recipe, trainer, corpus, group)

    with monkeypatch.context() as patch:
        patch.setattr("logosphere.runs.loop.validate", interrupted)
        assert main([*compare(), *FEW]) == 130
    assert "Stopped after ar" in capsys.readouterr().err and not Path("both/mdlm").exists()
    assert main([*compare("--json"), *FEW]) == 0
    assert {row["name"] for row in read_json(capsys)["rows"]} == {"ar", "mdlm"}


def test_every_system_sees_the_same_data_in_the_same_order() -> None:
    assert main([*compare("--seeds", "2"), *FEW]) == 0
    recipes = {path.parent.name: json.loads(path.read_text())["recipe"] for path in Path("both").glob("*/recipe.json")}
    assert {name: recipe["seed"] for name, recipe in recipes.items()} == {
        "ar": 0,
        "ar-seed1": 1,
        "mdlm": 0,
        "mdlm-seed1": 1,
    }
    same = [
        {key: value for key, value in recipe.items() if key not in ("system", "seed")} for recipe in recipes.values()
    ]
    assert all(recipe == same[0] for recipe in same)


def test_system_specs_accept_options() -> None:
    found = parse_systems("ar, mdlm:schedule=cosine:optim.lr=1e-3,rdlm:window=[0.2, 0.7]")
    assert [c.options for c in found] == [(), ("schedule=cosine",), ("window=[0.2, 0.7]",)]
    recipe = found[1].configure(TrainConfig())
    assert recipe.optim.lr == 1e-3 and recipe.options == ("schedule=cosine",) and recipe.system == "mdlm"
    for wrong, message in (
        ("mdlm:schedule", "name=value"),
        ("ar,ar", "twice"),
        ("mdlm:optim.lr=fast", "learning rate"),
        ("ar,mdlm:length=32", "'length' in 'mdlm:length=32' must be the same .* set it with --length"),
        ("mdlm:network.width=32", "same for all systems .* set it with --network.width"),
        ("mdlm:decoder_depth=1", "same for all systems .* set it with --network.decoder-depth"),
        ("mdlm:cpu_minutes=1", "same for all systems .* set it with --cpu-minutes"),
        ("mdlm:optim.clip=2", "same for all systems .* set it in the recipe"),
        ("mdlm:schedul=cosine", "'mdlm' has no option 'schedul'. Did you mean 'schedule'?"),
        ("arr", "'ar'"),
    ):
        with pytest.raises(UserError, match=message):
            parse_systems(wrong)
    assert SystemSpec.parse("ar").name == "ar"


def test_budgets_are_converted_to_steps() -> None:
    recipe = TrainConfig(length=16, batch=4, system="mdlm")
    assert apply_budget(Budget(tokens=640.0), recipe, CORPUS).steps == 10
    assert apply_budget(Budget(tokens=1.0), recipe, CORPUS).steps == 1
    each = count_step_flops(ls.build("mdlm", vocab_size=27, length=16, **vars(recipe.network)), 4)
    assert apply_budget(Budget(flops=7.5 * each), recipe, CORPUS).steps == 7
    timed = apply_budget(Budget(cpu_minutes=2.0), recipe, CORPUS)
    assert (timed.steps, timed.cpu_minutes) == (None, 2.0)
    assert apply_budget(Budget(), recipe, CORPUS) == recipe
    for wrong in ({"steps": 3, "tokens": 10.0}, {"flops": -1.0}):
        with pytest.raises(UserError, match="budget"):
            Budget(**wrong)


def test_budget_is_reported_only_if_shared_by_all_runs() -> None:
    one = TrainConfig(steps=20)
    assert shared_budget([one, replace(one, system="ar", seed=3, optim=replace(one.optim, lr=1.0))]) == "20 steps"
    assert shared_budget([one, replace(one, steps=30)]) == "equal operations, 20 to 30 steps"
    assert shared_budget([one, replace(one, batch=8)]) == ""
    assert shared_budget([replace(one, steps=None, cpu_minutes=2.0)]) == "2 CPU minutes"


@pytest.mark.thorough
@pytest.mark.parametrize(("system", "decreasing"), [("mdlm", False), ("rdlm-heat", True)])
def test_time_bins_average_to_the_bound(system: str, decreasing: bool) -> None:
    """Bins run from data to noise, also where the quantiles of a process run the other way."""
    language = skewed_chain(5, 6)
    model = random_network(system, language).eval()
    tokens = language.sample(2000, generator(1))
    bins = elbo_over_time(model, lambda: [Batch.of(tokens)], bins=5)
    bound = model.nelbo(tokens, generator(2), draws=8).total.double()
    bits, error = float(bound.mean()) / 6 / math.log(2), float(bound.std()) / 2000**0.5 / 6 / math.log(2)
    mean = sum(part.bits for part in bins) / 5
    assert abs(mean - bits) < 3 * math.hypot(error, sum(part.error**2 for part in bins) ** 0.5 / 5)
    assert [part.low for part in bins] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert has_decreasing_times(model, Batch.of(tokens)) == decreasing
    assert elbo_over_time(random_network("ar", language), lambda: [Batch.of(tokens)], bins=5) == []


@pytest.mark.parametrize("name", ["mdlm", "udlm", "rdlm", "rdlm-heat", "gaussian-ce", "bfn", "cosmos"])
def test_time_bins_are_ordered_from_data_to_noise(name: str) -> None:
    language, times = skewed_chain(5, 6), list[float]()
    model = random_network(name, language)
    assert model.denoiser is not None
    model.denoiser.register_forward_pre_hook(lambda _, inputs: times.append(float(inputs[1].mean())))
    batch = Batch.of(language.sample(64, generator(1)))
    bins = elbo_over_time(model, lambda: [batch], bins=3)
    assert len(times) == 3 and times == sorted(times) and times[0] < times[2]
    assert [part.low for part in bins] == pytest.approx([0, 1 / 3, 2 / 3])


def seeded(name: str, *rows: torch.Tensor, kind: str = "bound") -> list[Report]:
    return [
        replace(
            REPORT,
            name=name,
            kind=kind,
            bits=float(row.mean()) / 6 / math.log(2),
            nats=row.tolist(),
            counts=[6] * len(row),
        )
        for row in rows
    ]


def test_seeds_are_averaged_and_their_spread_is_reported() -> None:
    hard = 10 + torch.randn(200, generator=generator(3)).double()
    a, b = seeded("a", hard, hard + 0.4), seeded("b", hard + 1.0, hard + 1.8)
    first, second = rank_reports({"b": b, "a": a})
    scale = 1 / 6 / math.log(2)
    assert [first.name, second.name] == ["a", "b"]
    assert first.report.bits == pytest.approx((float(hard.mean()) + 0.2) * scale)
    assert first.spread == pytest.approx(0.4 * scale / math.sqrt(2))
    assert second.above == pytest.approx(1.2 * scale)
    # Differences of 1.0 and 1.4 by seed: the error of their mean is 0.2, and pairing leaves none over sequences.
    assert second.above_error == pytest.approx(0.2 * scale, rel=1e-6)
    assert "seeds ±" in as_text([first, second])


def test_surrogates_are_ranked_separately() -> None:
    hard = 10 + torch.randn(50, generator=generator(4)).double()
    kinds = {"s": ("surrogate", -5), "b": ("bound", 1), "e": ("exact", 0), "t": ("surrogate", -4)}
    groups = {name: seeded(name, hard + shift, kind=kind) for name, (kind, shift) in kinds.items()}
    rows = rank_reports(groups)
    assert [row.name for row in rows] == ["e", "b", "s", "t"] and rows[2].above == 0 and rows[3].above > 0
    lines = as_text(rows).splitlines()
    starts = {kind: lines[0].index(kind) for kind in ("exact", "bound", "surrogate")}
    assert [line.index(sign) for line, sign in zip(lines[1:], "=≤~~", strict=True)] == [
        starts["exact"], starts["bound"], starts["surrogate"], starts["surrogate"]
    ]  # fmt: skip


def test_incomparable_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.txt").write_text("another text of letters and spaces " * 100)
    assert train(steps=1, out="a") == 0 and train("--data", "other.txt", steps=1, out="b") == 0
    assert train("--length", "32", steps=1, out="c") == 0
    assert "differ in text" in error_line(capsys, ["compare", "a", "b"])
    assert "differ in length (16 and 32)" in error_line(capsys, ["compare", "a", "c"])
    Path("empty").mkdir()
    assert "empty is empty" in error_line(capsys, ["compare", "a", "empty"])
    assert "no run in nowhere" in error_line(capsys, ["compare", "a", "nowhere"])
    Path("parent/child").mkdir(parents=True)
    Path("parent/child/recipe.json").write_text("{}")
    assert "child" in error_line(capsys, ["compare", "parent"])
    with locked(Path("a/.lock"), wait=False):
        assert "still being trained" in error_line(capsys, ["compare", "a"])
    assert "'spelling'" in error_line(capsys, ["compare", "a", "--metrics", "speling"])
    assert ".html" in error_line(capsys, ["compare", "a", "--report", "out.pdf"])
    assert "--system ar" in error_line(
        capsys, ["compare", "a", "--report", "o.html", "--judge", "a", "--sequences", "8"]
    )


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--systems", "mdml"], "'mdlm'"),
        (["--systems", "ar", "--seeds", "0"], "at least 1 seed"),
        (["--systems", "ar", "--steps", "3", "--tokens", "9"], "one budget"),
        ([], "--systems"),
    ],
)
def test_invalid_comparisons_are_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_line(capsys, ["compare", *argv])
    assert not Path("runs").exists()
