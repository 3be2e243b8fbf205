"""Muon: orthogonal updates, equality with a plain float64 reference, exact resumption, one and two processes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed_helpers import run_in_processes
from run_helpers import LOW_RATE, complete_run, metric_values, metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE
from torch import Tensor
from toy_models import random_network
from training_helpers import LANGUAGE, batches

import logosphere as ls
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.io import read_tensors
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.training.auxiliary import train_remasker
from logosphere.training.checkpoint import latest
from logosphere.training.fit import fit
from logosphere.training.muon import block_matrices, orthogonalise
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Trainer, lr_at
from logosphere.types import Batch

MUON = OptimizerConfig(name="muon", lr=1e-2, matrix_lr=2e-2, warmup=2, weight_decay=0.1)


def reference_polynomial(matrix: Tensor) -> Tensor:
    """Five iterations on the singular values of one matrix, in float64."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ s.diag() @ vt


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 16, 64), (1, 1, 8)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_updates_have_singular_values_near_one(shape: tuple[int, ...], scale: float) -> None:
    matrices = scale * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = orthogonalise(matrices)
    assert torch.linalg.svdvals(matrices / scale).max() > 1.5
    values = torch.linalg.svdvals(found)
    assert 0.6 < values.min() and values.max() < 1.25
    for matrix, update in zip(matrices, found, strict=True):
        torch.testing.assert_close(update, reference_polynomial(matrix), rtol=0, atol=1e-5)


def test_bfloat16_iterations_are_orthogonal_too() -> None:
    matrices = torch.randn(4, 32, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert 0.6 < values.min() and values.max() < 1.25


def test_matrices_of_blocks_are_found() -> None:
    """Queries, keys and values are three matrices; embeddings, heads, time layers and local mixing are not included."""
    model = ls.build("plaid", vocab_size=5, length=6, width=16, depth=2, heads=2)
    names = {weight: name for name, weight in model.named_parameters()}
    found = {names[weight]: parts for weight, parts in block_matrices(model.denoiser).items()}
    assert len(found) == 8 and sorted(set(found.values())) == [1, 3]
    assert all(".blocks." in name and "modulation" not in name for name in found)
    assert all(parts == 3 for name, parts in found.items() if "qkv" in name)


def test_steps_equal_a_plain_reference() -> None:
    """Three steps against loops over single matrices in float64; all other parameters follow torch's AdamW."""
    model = random_network("mdlm", LANGUAGE)
    trainer = Trainer(model, optim=MUON)
    matrices = block_matrices(model.denoiser)
    weights = {p: p.detach().double().clone() for p in matrices}
    buffers = {p: torch.zeros_like(w) for p, w in weights.items()}
    rest = [p for p in trainer.parameters if p not in matrices]
    copies = [p.detach().clone().requires_grad_() for p in rest]
    adamw = torch.optim.AdamW(
        [{"params": [c for c in copies if c.dim() >= 2], "weight_decay": 0.1},
         {"params": [c for c in copies if c.dim() < 2], "weight_decay": 0.0}],
        betas=(MUON.beta1, MUON.beta2), eps=MUON.eps,
    )  # fmt: skip
    for step, tokens in zip(range(3), batches(), strict=False):
        lr = lr_at(MUON, step, step / 3)
        trainer.train_step(Batch.of(tokens, first=8 * step), step / 3)  # leaves the clipped gradients
        for group in adamw.param_groups:
            group["lr"] = lr
        for copy, parameter in zip(copies, rest, strict=True):
            copy.grad = parameter.grad
        adamw.step()
        for weight, parts in matrices.items():
            gradient, matrix = weight.grad.double(), weights[weight]
            buffers[weight] = 0.95 * buffers[weight] + 0.05 * gradient
            direction = 0.05 * gradient + 0.95 * buffers[weight]
            matrix *= 1 - 2 * lr * 0.1
            for rows, piece in zip(matrix.chunk(parts), direction.chunk(parts), strict=True):
                rows -= 2 * lr * 0.2 * max(piece.shape) ** 0.5 * reference_polynomial(piece)
    for weight, expected in weights.items():
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-3, atol=2e-4)
    for copy, parameter in zip(copies, rest, strict=True):
        torch.testing.assert_close(parameter, copy, rtol=1e-4, atol=1e-6)


def test_muon_learns_and_accumulation_gives_the_same_losses() -> None:
    whole, parts = (
        [
            progress.loss
            for progress in fit(random_network("mdlm", LANGUAGE, tied=False), batches(), steps=30, optim=MUON, **how)
        ]
        for how in ({}, {"accumulate": 3})
    )
    assert parts[:4] == pytest.approx(whole[:4], rel=1e-4)
    assert sum(whole[-5:]) < 0.9 * sum(whole[:5])


def test_a_resumed_run_is_bit_identical(corpus: Corpus, tmp_path: Path) -> None:
    recipe = replace(RECIPE, optim=MUON)
    whole, _ = complete_run(recipe, corpus, tmp_path / "whole")
    run = create_run(recipe, corpus, tmp_path / "stopped")
    list(run_training(run, corpus, stop_after(5)))
    names = {name.partition(".")[2] for name in read_tensors(latest(run.state) / "optimizer.safetensors")}
    assert names == {"exp_avg", "exp_avg_sq", "step", "momentum_buffer"}
    list(run_training(Run(run.path), corpus))
    assert metrics_without_times(run) == metrics_without_times(whole)
    for name in ("model.safetensors", "ema.safetensors"):
        assert tensor_bytes(run.path / name) == tensor_bytes(whole.path / name)
    states = [tensor_bytes(latest(one.state) / "optimizer.safetensors") for one in (run, whole)]
    assert states[0] == states[1]


def test_a_checkpoint_of_adamw_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    run, _ = complete_run(RECIPE, corpus, tmp_path / "run")
    other, _ = complete_run(replace(RECIPE, optim=MUON), corpus, tmp_path / "other")
    (latest(other.state) / "optimizer.safetensors").write_bytes(
        (latest(run.state) / "optimizer.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match="belongs to another checkpoint"):
        list(run_training(Run(other.path), corpus))


def test_two_processes_take_the_steps_of_one(corpus: Corpus, tmp_path: Path) -> None:
    """Bit for bit those of two accumulated parts; up to rounding those of one part."""
    recipe = replace(LOW_RATE, steps=6, validations=1, optim=replace(MUON, lr=1e-3, matrix_lr=1e-3, warmup=3))
    parts, _ = complete_run(replace(recipe, accumulate=2), corpus, tmp_path / "parts")
    whole, _ = complete_run(recipe, corpus, tmp_path / "whole")
    shared = create_run(recipe, corpus, tmp_path / "shared")

    def work(group: ProcessGroup) -> int:
        return len(list(run_training(Run(shared.path), corpus, group=group)))

    run_in_processes(2, work, tmp_path / "team")
    assert metric_values(shared) == metric_values(parts)
    for name in ("model.safetensors", "ema.safetensors"):
        assert tensor_bytes(shared.path / name) == tensor_bytes(parts.path / name)
    assert metric_values(shared) == pytest.approx(metric_values(whole), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sgd"}, "must be adamw, muon or auto, not 'sgd'"),
        ({"name": "muon", "matrix_lr": 0.0}, "matrix_lr must be above 0"),
        ({"matrix_lr": 1e-3}, "matrix_lr is a setting of muon"),
        ({"name": "muon", "momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        OptimizerConfig(**settings)


def test_networks_and_trainings_without_muon_say_so() -> None:
    with pytest.raises(UserError, match="leave out --shard"):
        Trainer(random_network("mdlm", LANGUAGE), optim=MUON, sharded=True)
    with pytest.raises(UserError, match="leave out --shard"):
        replace(RECIPE, optim=MUON, shard=True)
    convolution = ls.build("mdlm", vocab_size=5, length=8, width=16, depth=2, body="convolution")
    with pytest.raises(UserError, match="linear layers in blocks"):
        Trainer(convolution, optim=MUON)
    model = random_network("g-star", LANGUAGE)
    with pytest.raises(UserError, match="auxiliary networks are trained by adamw"):
        next(train_remasker(model, batches(), steps=1, optim=MUON))
