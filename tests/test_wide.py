"""Large vocabularies: W X drawn in the width of the network has the law it would have by way of X."""

from pathlib import Path

import pytest
import torch
from toy_languages import generator
from toy_models import SMALL

import logosphere as ls
from logosphere.errors import UserError
from logosphere.noise import Drawn, Keyed
from logosphere.processes.spherical.projected import ProjectedSphericalDiffusion, Read


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of bridges are made once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


def wide(**options: object) -> tuple[ls.Model, ProjectedSphericalDiffusion]:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=1, projected=True, **SMALL, **options)
    process = model.process
    assert isinstance(process, ProjectedSphericalDiffusion)
    return model, process


def moments(h: torch.Tensor) -> torch.Tensor:
    """Means, all second moments, and the fourth moment of the length."""
    return torch.cat([h, (h[:, :, None] * h[:, None]).flatten(1), h.norm(dim=1, keepdim=True) ** 4], 1)


@pytest.mark.parametrize("time", [0.8, 0.4, 0.1])
def test_what_the_network_reads_has_the_law_of_the_dense_state(time: float) -> None:
    model, process = wide()
    n = 20_000
    tokens, t = torch.full((n, 1), 7), torch.full((n, 1), time)
    W = process._stem[0].weight.detach()
    process.eval()
    dense = process.corrupt(process.codec.encode(tokens), t, Drawn(generator(1), n))[:, 0, :40] @ W.T
    process.train()
    read = process.read(tokens, t, Drawn(generator(2), n))[:, 0].detach()
    ours, theirs = moments(read.double()), moments(dense.double())
    error = (ours.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() / error).max() < 4.5


def test_coordinates_belong_to_what_was_read() -> None:
    """W applied to the coordinates gives back W X, and the coordinates have the law of X."""
    model, process = wide()
    n = 20_000
    tokens, t = torch.full((n, 1), 7), torch.full((n, 1), 0.4)
    process.train()
    read = process.read(tokens, t, Drawn(generator(2), n))[:, 0].detach()
    x = process.coordinates(Read(*(field[:, 0] for field in process._last)))
    W = process._stem[0].weight.detach()
    torch.testing.assert_close(x @ W.T, read, atol=1e-3, rtol=1e-3)
    process.eval()
    dense = process.corrupt(process.codec.encode(tokens), t, Drawn(generator(3), n))[:, 0, :40]
    ours, theirs = moments(x.double()[:, :12]), moments(dense.double()[:, :12])
    error = (ours.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() / error).max() < 4.5


def test_noise_does_not_depend_on_how_a_batch_is_cut() -> None:
    model, process = wide()
    ids, tokens, t = torch.arange(6), torch.arange(6)[:, None], torch.full((6, 1), 0.5)
    whole = process.train().read(tokens, t, Keyed(0, 1, ids, ids, 6))
    keys = process._last.keys
    part = process.read(tokens[2:4], t[2:4], Keyed(0, 1, ids[2:4], ids[2:4], 6))
    torch.testing.assert_close(whole[2:4], part)
    assert torch.equal(keys[2:4], process._last.keys)


def test_it_trains_on_a_surrogate_and_is_measured_by_a_bound() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=40, length=8, projected=True, any_order_fraction=0.0, **SMALL)
    tokens = torch.randint(0, 40, (1, 8), generator=generator(1))  # one sentence to learn by heart
    before = float(model.eval().nelbo(tokens.expand(64, -1), generator(2), draws=8).total.mean())
    for progress in ls.fit(
        model, (tokens.expand(32, -1) for _ in range(120)), steps=120, optim=ls.OptimizerConfig(lr=1e-2, warmup=10)
    ):
        assert progress.kind == "surrogate"
    bound = model.eval().nelbo(tokens.expand(64, -1), generator(2), draws=8)
    assert bound.kind == "bound" and float(bound.total.mean()) < 0.7 * before
    assert ls.sample(model.train(), n=2, steps=8).shape == (2, 8)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match="start=mask"):
        ls.build("rdlm", vocab_size=40, length=1, projected=True, start="uniform", **SMALL)
    with pytest.raises(UserError, match="larger than the width"):
        ls.build("rdlm", vocab_size=10, length=1, projected=True, **SMALL)
