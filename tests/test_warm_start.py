"""Warm starts: a run initialised from another starts with its bound and records all earlier trainings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_helpers import EXPORT_OPTIONS, SMALL, error_line
from cli_helpers import train as trained
from distributed_helpers import run_in_processes
from run_helpers import complete_run, metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE

from logosphere import pretrained
from logosphere.cli import main
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.create import create_run, initial_model
from logosphere.runs.loop import Validated, run_training
from logosphere.runs.run import Run
from logosphere.runs.training_records import sum_records
from logosphere.training.optimizer import OptimizerConfig

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.fixture
def parent(corpus: Corpus, tmp_path: Path) -> Run:
    return complete_run(RECIPE, corpus, tmp_path / "parent")[0]


def child_of(parent: Run):
    return replace(RECIPE, begin=str(parent.path), seed=6, optim=OptimizerConfig(lr=1e-3, warmup=2))


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["mdlm", "rdlm-heat", "ar", "ld4lg"])
def test_the_initial_validation_equals_that_of_the_parent(system: str, corpus: Corpus, tmp_path: Path) -> None:
    """Learned time samplers and autoencoders are included."""
    recipe = replace(RECIPE, system=system)
    run, events = complete_run(recipe, corpus, tmp_path / "parent")
    last = [event.report for event in events if isinstance(event, Validated)][-1]
    child = create_run(replace(recipe, begin=str(run.path)), corpus, tmp_path / "child")
    first = next(run_training(child, corpus))
    assert isinstance(first, Validated) and first.step == 0 and first.report.nats == last.nats
    assert child.metrics()[0]["val/bpc"] == last.bits
    assert tensor_bytes(child.path / "best.safetensors") == tensor_bytes(run.path / "ema.safetensors")


def test_a_resumed_child_is_bit_identical(parent: Run, corpus: Corpus, tmp_path: Path) -> None:
    """This holds also if the parent changes meanwhile and if the child was killed before its first checkpoint."""
    uninterrupted, _ = complete_run(child_of(parent), corpus, tmp_path / "straight")
    resumed = create_run(child_of(parent), corpus, tmp_path / "broken")
    list(zip(range(3), run_training(resumed, corpus), strict=False))  # a validation and two steps, never saved
    (parent.path / "ema.safetensors").unlink()
    for steps in (0, 5, 99):
        list(run_training(Run(resumed.path), corpus, stop_after(steps)))
    assert (
        metrics_without_times(resumed) == metrics_without_times(uninterrupted)
        and len(uninterrupted.metrics()) == 1 + 12 + 3
    )
    for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
        assert tensor_bytes(resumed.path / name) == tensor_bytes(uninterrupted.path / name)


@pytest.mark.slow
def test_warm_start_in_several_processes(parent: Run, corpus: Corpus, tmp_path: Path) -> None:
    single, _ = complete_run(child_of(parent), corpus, tmp_path / "alone")
    for shard in (False, True):
        path = tmp_path / f"team-{shard}"
        create_run(replace(child_of(parent), shard=shard), corpus, path)

        def work(group: ProcessGroup, path: Path = path) -> int:
            return len(list(run_training(Run(path), corpus, group=group)))

        assert run_in_processes(2, work, tmp_path / f"meeting-{shard}") == [1 + 12 + 3 + 3] * 2
        for key in ("train/loss", "val/bpc"):
            curves = [[line[key] for line in run.metrics() if key in line] for run in (Run(path), single)]
            assert curves[0] == pytest.approx(curves[1], rel=1e-4), key


def test_costs_are_summed_over_all_trainings(parent: Run, corpus: Corpus, tmp_path: Path) -> None:
    child, _ = complete_run(child_of(parent), corpus, tmp_path / "child")
    other = tmp_path / "other.txt"
    other.write_text("the dog sat on the cat and the mat sat on the log\n" * 40)
    again = replace(child_of(child), steps=5, data=str(other))
    grandchild, _ = complete_run(again, open_corpus(str(other), parent.tokenizer), tmp_path / "grandchild")
    own = [run.trainings[-1] for run in (parent, child, grandchild)]
    assert grandchild.trainings == tuple(own) and parent.trainings == (own[0],)
    assert [one.steps for one in own] == [12, 12, 5] and [one.tokens for one in own] == [384, 384, 160]
    assert [one.begin for one in own] == [None, str(parent.path), str(child.path)]
    whole = sum_records(grandchild.trainings)
    assert whole.steps == 29 and whole.tokens == 928 and whole.data == f"{corpus.name}, then {other}"
    assert whole.cpu_seconds == pytest.approx(
        sum(run.metrics()[-2]["cpu_seconds"] for run in (parent, child, grandchild))
    )


def test_incompatible_parents_are_refused_with_the_difference(parent: Run, corpus: Corpus, tmp_path: Path) -> None:
    recipe = child_of(parent)
    other = tmp_path / "other.txt"
    other.write_text("the ket sat on the met and the dog sat on the log\n" * 40)
    foreign = open_corpus(str(other), "characters")
    for config, message, text in (
        (replace(recipe, system="md4"), r"system \(mdlm there, md4 here\)", corpus),
        (replace(recipe, length=9), r"length \(8 there, 9 here\)", corpus),
        (replace(recipe, network=NetworkConfig(width=32, depth=1, heads=2)), r"width \(16 there, 32 here\)", corpus),
        (replace(recipe, options=("schedule=cosine",)), r"schedule \(nothing there, cosine here\)", corpus),
        (recipe, r"tokenizer .*of equal size", foreign),
    ):
        with pytest.raises(UserError, match=message):
            create_run(config, text, tmp_path / "child")
    assert not (tmp_path / "child").exists()
    dropout = replace(recipe, network=NetworkConfig(width=16, depth=1, heads=2, dropout=0.2))
    initial_model(create_run(dropout, corpus, tmp_path / "child"), corpus)


def test_damaged_parents_are_refused(parent: Run, corpus: Corpus, tmp_path: Path) -> None:
    weights, recipe = parent.path / "ema.safetensors", child_of(parent)
    whole = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged or not a safetensors file"):
        create_run(recipe, corpus, tmp_path / "child")
    weights.write_bytes(whole)
    content = json.loads((parent.path / "recipe.json").read_text())
    for broken, message in (
        ({"begun": {"trainings": [{"data": 3}]}}, "no valid record of the trainings"),
        ({"model": 3}, "'model' must hold names and values"),
    ):
        (parent.path / "recipe.json").write_text(json.dumps(content | broken))
        with pytest.raises(UserError, match=message):
            create_run(recipe, corpus, tmp_path / "child")
    with pytest.raises(UserError, match="no run in"):
        create_run(replace(recipe, begin=str(tmp_path / "nowhere")), corpus, tmp_path / "child")
    assert not (tmp_path / "child").exists()


def test_the_command_takes_other_settings_from_the_parent(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pretrained, "__file__", str(workplace / "bundle" / "__init__.py"))
    assert trained("--system", "ar", "--device", "cpu", "--recompute", out="parent") == 0
    assert main(["export", "parent", "--out", "bundle/small", *EXPORT_OPTIONS]) == 0
    assert main(["train", "--begin", "box:small", "--steps", "2", "--out", "child", "--optim.lr", "1e-4"]) == 0
    ours, theirs = Run("child"), Run("parent")
    expected = replace(
        theirs.config, begin="box:small", seed=1, steps=2, optim=ours.config.optim, device="auto", recompute=False
    )
    assert ours.config == expected and ours.config.optim.lr == 1e-4
    assert json.loads(Path("child/recipe.json").read_text())["begun"]["with"] == "box:small"
    assert main(["export", "child", "--out", "bundle/larger", *EXPORT_OPTIONS]) == 0
    card = Path("bundle/larger/card.md").read_text()
    assert "tokens seen | 384, in 6 steps, over 2 trainings" in card and "CPU hours, over 2 trainings" in card
    assert "began with | box:small" in card and "which had seen 256 tokens" in card
    assert Run("box:larger").trainings == ours.trainings and len(ours.trainings) == 2
    capsys.readouterr()
    assert "mdlm here" in error_line(capsys, ["train", "--begin", "box:small", "--system", "mdlm", "--out", "other"])
    assert "'small'" in error_line(capsys, ["train", "--begin", "box:smal", "--out", "other"])
    assert "system" in error_line(capsys, ["train", "demo", "--begin", "box:small", "--out", "other", *SMALL])
