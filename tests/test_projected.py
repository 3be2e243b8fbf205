"""Projected states: W X sampled in the width of the network has the distribution of W times a sampled X."""

from pathlib import Path

import pytest
import torch
from run_helpers import forget_hashes
from toy_languages import generator
from toy_models import SMALL

import logosphere as ls
from logosphere.errors import UserError
from logosphere.io import read_tensors, write_tensors
from logosphere.processes.spherical.projected import ProjectedSphericalDiffusion, ProjectedState
from logosphere.rng import CounterNoise, GeneratorNoise


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


def build_projected(**options: object) -> tuple[ls.Model, ProjectedSphericalDiffusion]:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=1, projected=True, **SMALL, **options)
    process = model.process
    assert isinstance(process, ProjectedSphericalDiffusion)
    return model, process


def moments(h: torch.Tensor) -> torch.Tensor:
    """Means, all second moments, and the fourth moment of the length."""
    return torch.cat([h, (h[:, :, None] * h[:, None]).flatten(1), h.norm(dim=1, keepdim=True) ** 4], 1)


@pytest.mark.parametrize("time", [0.8, 0.4, 0.1])
def test_projections_have_the_distribution_of_projected_dense_states(time: float) -> None:
    model, process = build_projected()
    n = 20_000
    tokens, t = torch.full((n, 1), 7), torch.full((n, 1), time)
    W = process.codec.weight.detach()
    process.eval()
    dense = process.corrupt(process.codec.encode(tokens), t, GeneratorNoise(generator(1), n))[:, 0, :40] @ W.T
    process.train()
    projected = process.codec.project(process.corrupt(tokens, t, GeneratorNoise(generator(2), n)))[:, 0].detach()
    ours, theirs = moments(projected.double()), moments(dense.double())
    error = (ours.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() / error).max() < 4.5


def test_sampled_coordinates_match_the_projection() -> None:
    """W applied to the coordinates gives W X, and the coordinates have the distribution of X."""
    model, process = build_projected()
    n = 20_000
    tokens, t = torch.full((n, 1), 7), torch.full((n, 1), 0.4)
    process.train()
    z = process.corrupt(tokens, t, GeneratorNoise(generator(2), n))[:, 0].detach()
    state = ProjectedState.unpack(z, process.codec.projection_width)
    x = process.sample_coordinates(state, process.codec.cholesky().detach())
    W = process.codec.weight.detach()
    torch.testing.assert_close(x @ W.T, state.projection, atol=1e-3, rtol=1e-3)
    process.eval()
    dense = process.corrupt(process.codec.encode(tokens), t, GeneratorNoise(generator(3), n))[:, 0, :40]
    ours, theirs = moments(x.double()[:, :12]), moments(dense.double()[:, :12])
    error = (ours.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() / error).max() < 4.5


def test_noise_does_not_depend_on_the_batching() -> None:
    model, process = build_projected()
    ids, tokens, t = torch.arange(6), torch.arange(6)[:, None], torch.full((6, 1), 0.5)
    whole = process.train().sample_projected(tokens, t, CounterNoise(0, 1, ids, ids, 6))
    part = process.sample_projected(tokens[2:4], t[2:4], CounterNoise(0, 1, ids[2:4], ids[2:4], 6))
    torch.testing.assert_close(whole.projection[2:4], part.projection)
    assert torch.equal(whole.keys[2:4], part.keys)


def test_packed_states_unpack_bit_identically() -> None:
    """Tokens and keys are exact too; half of the positions are scored."""
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=6, projected=True, **SMALL)
    process, ids = model.process.train(), torch.arange(3)
    tokens, t = torch.randint(0, 40, (3, 6), generator=generator(1)), torch.full((3, 6), 0.5)
    state = process.sample_projected(tokens, t, CounterNoise(0, 1, ids, ids, 3))
    assert int(state.keys.max()) > 2**44
    packed = state.pack()
    for field, again in zip(state, ProjectedState.unpack(packed, process.codec.projection_width), strict=True):
        assert torch.equal(field, again) and field.dtype == again.dtype
    scored = process.needs_prediction(packed, torch.ones(3, 6, dtype=torch.bool))
    assert torch.equal(scored.sum(1), torch.full((3,), 3))


def test_files_with_the_projection_in_the_network_are_migrated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=6, projected=True, **SMALL)
    model.save(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    tensors["denoiser.inner.stem.weight"] = tensors.pop("process.codec.weight")
    write_tensors(tmp_path / "model.safetensors", tensors)
    forget_hashes(tmp_path)
    assert torch.equal(ls.load(tmp_path).process.codec.weight, model.process.codec.weight)


def test_training_uses_a_surrogate_and_evaluation_a_bound() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=8, projected=True, any_order_fraction=0.0, **SMALL)
    tokens = torch.randint(0, 40, (1, 8), generator=generator(1))  # one sequence to memorise
    before = float(model.eval().nelbo(tokens.expand(64, -1), generator(2), draws=8).total.mean())
    for progress in ls.fit(
        model, (tokens.expand(32, -1) for _ in range(120)), steps=120, optim=ls.OptimizerConfig(lr=1e-2, warmup=10)
    ):
        assert progress.kind == "surrogate"
    bound = model.eval().nelbo(tokens.expand(64, -1), generator(2), draws=8)
    assert bound.kind == "bound" and float(bound.total.mean()) < 0.7 * before
    assert ls.sample(model.train(), n=2, steps=8).shape == (2, 8)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UserError, match="start=mask"):
        ls.build("rdlm", vocab_size=40, length=1, projected=True, start="uniform", **SMALL)
    with pytest.raises(UserError, match="larger than the width"):
        ls.build("rdlm", vocab_size=10, length=1, projected=True, **SMALL)
