"""Cost estimates before a run, and a batch script that requeues itself at its time limit."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from logosphere.cli import main
from logosphere.data.corpora import open_corpus
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import cost
from logosphere.runs.create import build_model
from logosphere.runs.recipes import RECIPES, recipe
from logosphere.systems import build


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("system", ["mdlm", "ar", "d3pm-uniform"])
def test_parameters_are_counted_without_building_the_network(system: str) -> None:
    chosen = TrainConfig(system=system, length=16, steps=10)
    model = build(system, vocab_size=30, length=16, **vars(chosen.network))
    bill = cost(chosen, 30)
    assert bill.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert 6 * 0.8 * bill.parameters < bill.flops_per_token < 6 * 1.3 * bill.parameters
    two = cost(TrainConfig(system=system, length=16, steps=10, shard=True), 30, processes=2)
    assert 2 * two.state_bytes == bill.state_bytes and 2 * two.activation_bytes == bill.activation_bytes


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "text8", "--dry-run", "--json"]) == 0
    bill = json.loads(capsys.readouterr().out)
    assert 85e6 < bill["parameters"] < 95e6 and bill["days"]["A100"]["8"] * 8 == bill["days"]["A100"]["1"]
    for argv in (["demo"], ["text8-tiny", "--nproc", "4"], ["owt", "--network.width", "96"]):
        assert main(["train", *argv, "--dry-run"]) == 0
        assert "FLOPs per token" in capsys.readouterr().out
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["mdlm", "rdlm-heat", "d3pm-uniform", "plaid"])
def test_parameters_for_conditions_are_counted(system: str) -> None:
    """Labels, sources and signals add parameters."""
    Path("l.jsonl").write_text("".join(f'{{"text": "{"abcd"[i % 4] * 6}", "label": "{i % 3}"}}\n' for i in range(60)))
    Path("p.tsv").write_text("source\ttarget\n" + "".join(f"{i % 7}xyz\tabcdef\n" for i in range(60)))
    for data, length in {"labelled:l.jsonl": 8, "pairs:p.tsv": 8, "synthetic-promoters": 64}.items():
        chosen = TrainConfig(system=system, data=data, length=length, steps=10)
        corpus = open_corpus(data)
        model = build_model(chosen, corpus)
        bill = cost(chosen, corpus.tokenizer.size, conditions=corpus.conditions)
        assert bill.parameters == sum(parameter.numel() for parameter in model.parameters()), data
        assert corpus.conditions and bill.parameters > cost(chosen, corpus.tokenizer.size).parameters


def test_dry_run_reads_conditions_from_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.tsv").write_text("source\ttarget\n" + "".join(f"{i % 7}xyz\tabcdef\n" for i in range(60)))
    argv = ["train", "--data", "pairs:p.tsv", "--length", "8", "--dry-run", "--nproc", "3", "--json"]
    assert main(argv) == 0
    bill = json.loads(capsys.readouterr().out)
    model = build_model(replace(recipe("demo"), data="pairs:p.tsv", length=8), open_corpus("pairs:p.tsv"))
    assert bill["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert list(bill["days"]["A100"]) == ["1", "3", "8", "64"]
    assert main([*argv[:-3], "--nproc", "0"]) == 1 and "at least 1, not 0" in capsys.readouterr().err


def test_large_recipes_have_their_stated_sizes() -> None:
    for name in RECIPES:
        assert recipe(name) == recipe(name)
    sizes = {name: 12 * recipe(name).network.depth * recipe(name).network.width ** 2 for name in RECIPES}
    assert all(0.9e9 < sizes[f"{data}-1b"] < 1.3e9 for data in ("text8", "lm1b", "owt", "fineweb"))
    assert all(0.25e9 < sizes[f"{data}-medium"] < 0.4e9 for data in ("text8", "lm1b", "owt", "fineweb"))


STUBS = {
    "scontrol": 'if [ "$1" = show ]; then echo node1; else echo "scontrol $*" >> log; fi',
    "scancel": 'echo "scancel $*" >> log; kill -TERM $(cat pid)',
    "srun": 'echo "srun $*" >> log; echo $$ > pid; exec sleep ${SLEEP:-0}',
}


def run_script(script: Path, signal: bool) -> str:
    """Run a script with stubs of the Slurm commands and return their recorded calls."""
    Path("bin").mkdir(exist_ok=True)
    for name, body in STUBS.items():
        Path("bin", name).write_text(f"#!/bin/bash\n{body}\n")
        Path("bin", name).chmod(0o755)
    Path("log").unlink(missing_ok=True)
    Path("pid").unlink(missing_ok=True)
    more = {"PATH": f"{Path('bin').resolve()}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
    more |= {"SLURM_JOB_NODELIST": "node[1-2]", "SLEEP": "60" if signal else "0"}
    process = subprocess.Popen(["bash", str(script)], env=os.environ | more)
    if signal:
        while not Path("pid").exists():
            assert process.poll() is None
        process.terminate()
    assert process.wait(30) == 0
    return Path("log").read_text()


def test_batch_script_saves_requeues_and_resumes() -> None:
    argv = ["launch", "slurm", "--nodes", "2", "--gpus", "4", "--hours", "1.5", "--", "text8", "--out", "runs/a b"]
    assert main([*argv, "--seed", "3"]) == 0
    script = Path("train.sbatch")
    text = script.read_text()
    for line in ("--nodes=2", "--gpus-per-node=4", "--time=01:30:00", "--requeue", "--signal=B:TERM@180"):
        assert f"#SBATCH {line}\n" in text
    log = run_script(script, signal=False)
    assert "--nproc-per-node 4" in log and "-m logosphere train text8 --seed 3 --out runs/a b" in log
    assert "--resume" not in log and "requeue" not in log
    Path("runs/a b").mkdir(parents=True)
    Path("runs/a b/recipe.json").touch()
    log = run_script(script, signal=True)
    assert "--resume" in log and "scancel --signal=TERM 7" in log and "scontrol requeue 7" in log


@pytest.mark.parametrize(
    "argv, message",
    [
        (["slurm"], "A recipe and --out are missing"),
        (["slurm", "--", "text8"], "A recipe and --out are missing"),
        (["slurm", "--", "text9", "--out", "x"], "Did you mean 'text8'"),
        (["slurm", "--nodes", "0", "--", "demo", "--out", "x"], "at least 1 node"),
        (["slurm", "--hours", "0", "--", "demo", "--out", "x"], "above 0 hours"),
        (["slurm", "--file", ".", "--", "demo", "--out", "x"], "exists already"),
        (["slurm", "--partition", "a\n#SBATCH b", "--", "demo", "--out", "x"], "must not contain spaces"),
    ],
)
def test_invalid_launches_are_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *argv]) == 1
    assert message in capsys.readouterr().err and not Path("train.sbatch").exists()
