"""Texts that several processes write together are those that one writes: a text depends on the seed and its number."""

import json
from pathlib import Path

import pytest
import torch
from distributed_helpers import run_in_processes
from tiny_run import RECIPE

import logosphere as ls
from logosphere.cli import main
from logosphere.data.corpus import Corpus
from logosphere.model import Model
from logosphere.networks.conditioning import Conditioner
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import CounterNoise, GeneratorNoise
from logosphere.runs.loop import create_run, run_training
from logosphere.sampling.generate import generate
from logosphere.sampling.registry import (
    BAYESIAN_FLOW,
    EULER_FLOW,
    GAUSSIAN,
    GAUSSIAN_OR_FLOW,
    LATENT,
    SAMPLERS,
    SPHERE,
    UNIFORM,
    sampler,
)
from logosphere.types import Condition


def model_of(system: str, **options: object) -> Model:
    """A small model whose answers depend on what it sees, as those of an untrained one do not."""
    torch.manual_seed(1)
    model = ls.build(system, vocab_size=6, length=8, width=16, depth=1, heads=2, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def written(model: Model, name: str, group: ProcessGroup, **more: object) -> list[object]:
    way = sampler(name, model)
    rng = torch.Generator().manual_seed(3)
    drawn = generate(model, n=5, steps=4, rng=rng, sampler=way, group=group, **more)
    return [drawn.tokens.tolist(), round(drawn.nfe, 6)]


def cases() -> list[tuple[str, str]]:
    """Every system with its own sampler, and every sampler with a system that it fits."""
    fits = {
        UNIFORM: "udlm",
        SPHERE: "rdlm",
        GAUSSIAN: "gaussian-ce",
        GAUSSIAN_OR_FLOW: "fisher-flow",
        EULER_FLOW: "fisher-flow",
        BAYESIAN_FLOW: "bfn",
        LATENT: "ld4lg",
    }
    made = [(fits.get(info.supports, "mdlm"), name) for name, info in SAMPLERS.items()]
    made = [("cdcd" if name == "renormalised" else system, name) for system, name in made]
    made += [("udlm", "tau-leaping-pc"), ("rdlm-heat", "ancestral"), ("gaussian-ce", "heun")]
    own = [(name, ls.build(name, vocab_size=6, length=8, denoiser=None).sampler) for name in ls.systems()]
    return sorted({("g-star" if name == "g-star" else system, name) for system, name in made + own})


@pytest.mark.slow
def test_a_team_writes_what_one_process_writes(tmp_path: Path) -> None:
    """Two processes of three and two texts each: all systems, all samplers; the counts of evaluations too."""
    todo = [(system, name, model_of(system)) for system, name in cases()]
    assert len({system for system, _, _ in todo}) == len(ls.systems())
    assert {name for _, name, _ in todo} >= set(SAMPLERS)

    def work(group: ProcessGroup) -> list[object]:
        return [written(model, name, group) for _, name, model in todo]

    results = run_in_processes(2, work, tmp_path / "team")
    assert results[0] == results[1]
    for (system, name, model), shared in zip(todo, results[0], strict=True):
        alone = json.loads(json.dumps(written(model, name, SINGLE)))
        assert shared[0] == alone[0], (system, name)
        # Whether a step asks at all is decided by all texts of a process, so some ask less often.
        assert shared[1] <= alone[1], (system, name)


def test_conditions_prompts_and_idle_processes_are_shared_out_too(tmp_path: Path) -> None:
    told, split = model_of("mdlm", labels=5), model_of("rdlm", base=2)
    for module in told.modules():
        if isinstance(module, Conditioner):
            module.withheld.fill_(1)  # as if trained for guidance
    known = torch.arange(8) < torch.tensor([[0], [1], [2], [3], [8]])
    tokens = torch.arange(40).view(5, 8) % 6

    def work(group: ProcessGroup) -> list[object]:
        condition = Condition.of(labels=torch.arange(5))
        guided = written(told, "ancestral", group, condition=condition, guidance=2.0, known=known, tokens=tokens)
        around = written(told, "ancestral", group, renoise_known=True, known=known, tokens=tokens)
        return [guided[0], around[0]]

    alone = work(SINGLE)
    for size in (2, 7):
        assert all(result == alone for result in run_in_processes(size, work, tmp_path / f"team-{size}")), size
    assert all(alone[0][row][place] == tokens[row, place] for row, place in known.nonzero().tolist())
    digits = run_in_processes(2, lambda group: written(split, "ancestral", group), tmp_path / "digits")
    assert digits[1][0] == written(split, "ancestral", SINGLE)[0]


def test_packed_noise_belongs_to_the_sequence() -> None:
    """Asked about together or apart, after other rows were asked about or not."""
    where = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1]]).bool()
    ids = torch.tensor([4, 7, 9])
    whole, part = CounterNoise(1, 2, ids, torch.arange(3), 3), CounterNoise(1, 2, ids[2:], torch.tensor([2]), 3)
    first, lone = whole.for_positions(where).uniform(4, 2), part.for_positions(where[2:]).uniform(2, 2)
    assert torch.equal(first[2:], lone) and len(first.unique()) == 8
    whole.for_positions(where[:, :1].expand(-1, 3)).uniform(3)  # only the first row
    inner = torch.tensor([False, True])
    again, lone = (
        whole.for_positions(where).for_positions(torch.cat([inner, inner])).uniform(2),
        part.for_positions(where[2:]).for_positions(inner).uniform(1),
    )
    assert torch.equal(again[1:], lone) and not torch.isin(again, first).any()
    later = whole.for_step(3).for_positions(where).uniform(4, 2)
    assert not torch.isin(later, first).any() and torch.equal(
        later, CounterNoise(1, 3, ids, ids, 3).for_positions(where).uniform(4, 2)
    )
    drawn = GeneratorNoise(torch.Generator().manual_seed(1), 3)
    assert drawn.for_positions(where) is drawn.for_step(2) is drawn


@pytest.mark.slow
def test_the_command_line_writes_in_processes(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = create_run(RECIPE, corpus, tmp_path / "run")
    list(run_training(run, corpus))
    words = ["sample", str(run.path), "-n", "3", "--steps", "8", "--length", "40", "--json"]
    assert main(words) == main([*words, "--nproc", "2"]) == 0
    alone, shared = (json.loads(line) for line in capfd.readouterr().out.strip().splitlines())
    assert shared["samples"] == alone["samples"] and len(alone["samples"]) == 3
    assert main([*words[:-3], "--watch", "--nproc", "2"]) == 1
    assert "leave out --nproc" in capfd.readouterr().err
