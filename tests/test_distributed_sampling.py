"""Distributed sampling: several processes generate the texts of one, since a text depends on the seed and its index."""

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
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
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


def scrambled_model(system: str, **options: object) -> Model:
    """A small model with random weights, whose predictions depend on its input unlike those of an untrained one."""
    torch.manual_seed(1)
    model = ls.build(system, vocab_size=6, length=8, width=16, depth=1, heads=2, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def sample_with(model: Model, name: str, group: ProcessGroup, **more: object) -> list[object]:
    chosen = sampler(name, model)
    rng = torch.Generator().manual_seed(3)
    drawn = generate(model, n=5, steps=4, rng=rng, sampler=chosen, group=group, **more)
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
    pairs = [(fits.get(info.supports, "mdlm"), name) for name, info in SAMPLERS.items()]
    pairs = [("cdcd" if name == "renormalised" else system, name) for system, name in pairs]
    pairs += [("udlm", "tau-leaping-pc"), ("rdlm-heat", "ancestral"), ("gaussian-ce", "heun")]
    own = [(name, ls.build(name, vocab_size=6, length=8, denoiser=None).sampler) for name in ls.systems()]
    return sorted({("g-star" if name == "g-star" else system, name) for system, name in pairs + own})


@pytest.mark.slow
def test_several_processes_generate_the_texts_of_one(tmp_path: Path) -> None:
    """Two processes with three and two texts, for all systems and samplers; evaluations are counted too."""
    todo = [(system, name, scrambled_model(system)) for system, name in cases()]
    assert len({system for system, _, _ in todo}) == len(ls.systems())
    assert {name for _, name, _ in todo} >= set(SAMPLERS)

    def work(group: ProcessGroup) -> list[object]:
        return [sample_with(model, name, group) for _, name, model in todo]

    results = run_in_processes(2, work, tmp_path / "team")
    assert results[0] == results[1]
    for (system, name, model), shared in zip(todo, results[0], strict=True):
        single = json.loads(json.dumps(sample_with(model, name, SINGLE)))
        assert shared[0] == single[0], (system, name)
        # A step is evaluated if any text of its process needs it, so several processes may evaluate less often.
        assert shared[1] <= single[1], (system, name)


def test_conditions_prompts_and_idle_processes(tmp_path: Path) -> None:
    conditional, with_digits = scrambled_model("mdlm", labels=5), scrambled_model("rdlm", base=2)
    for module in conditional.modules():
        if isinstance(module, Conditioner):
            module.withheld.fill_(1)  # as if trained for guidance
    known = torch.arange(8) < torch.tensor([[0], [1], [2], [3], [8]])
    tokens = torch.arange(40).view(5, 8) % 6

    def work(group: ProcessGroup) -> list[object]:
        condition = Condition.of(labels=torch.arange(5))
        guided = sample_with(
            conditional, "ancestral", group, condition=condition, guidance=2.0, known=known, tokens=tokens
        )
        renoised = sample_with(conditional, "ancestral", group, renoise_known=True, known=known, tokens=tokens)
        return [guided[0], renoised[0]]

    single = work(SINGLE)
    for size in (2, 7):
        assert all(result == single for result in run_in_processes(size, work, tmp_path / f"team-{size}")), size
    assert all(single[0][row][place] == tokens[row, place] for row, place in known.nonzero().tolist())
    digits = run_in_processes(2, lambda group: sample_with(with_digits, "ancestral", group), tmp_path / "digits")
    assert digits[1][0] == sample_with(with_digits, "ancestral", SINGLE)[0]


def test_packed_noise_is_a_function_of_the_sequence() -> None:
    """The noise of a row is the same in any batch, and whether or not other rows were drawn before."""
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
def test_the_command_line_samples_in_several_processes(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = create_run(RECIPE, corpus, tmp_path / "run")
    list(run_training(run, corpus))
    argv = ["sample", str(run.path), "-n", "3", "--steps", "8", "--length", "40", "--json"]
    assert main(argv) == main([*argv, "--nproc", "2"]) == 0
    single, shared = (json.loads(line) for line in capfd.readouterr().out.strip().splitlines())
    assert shared["samples"] == single["samples"] and len(single["samples"]) == 3
    assert main([*argv[:-3], "--watch", "--nproc", "2"]) == 1
    assert "leave out --nproc" in capfd.readouterr().err
