"""The bound of networks that were trained by the published protocol (benchmarks/rdlm_paper_bound.py)."""

from pathlib import Path

import pytest
import torch
from rdlm_paper_bound import PaperTime, bound_model
from torch import Tensor
from toy_languages import generator
from toy_models import SMALL

import logosphere as ls
from logosphere.networks.base import Denoiser

V, L = 3, 4


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


class Exact(Denoiser):
    """The posterior of independent, uniform tokens in the time of a process; it keeps the times that it was given."""

    def __init__(self, model: ls.Model):
        super().__init__()
        self.block, self.reads_time, self.of = model.length, True, (model.process,)
        self.times = torch.empty(0)

    def forward(self, z: Tensor, t: Tensor, context: Tensor, where: Tensor | None = None) -> Tensor:
        self.times = t
        out = self.of[0].log_likelihood(z, t)
        return out if where is None else out[where]


def published(start: str) -> ls.Model:
    return ls.build("rdlm", vocab_size=V, length=L, **SMALL, preset="paper", start=start)


@pytest.mark.parametrize("start", ["mask", "uniform"])
def test_the_network_is_given_the_time_of_the_paper(start: str) -> None:
    trained = published(start)
    trained.denoiser = Exact(trained)
    model = bound_model(trained, start)
    t = torch.tensor([[0.9, 0.6, 0.3, 0.05]])
    z = model.corrupt(torch.tensor([[0, 1, 2, 0]]), t, generator(1))
    assert isinstance(model.denoiser, PaperTime)
    model.denoiser(z, t, z)
    torch.testing.assert_close(trained.process._s(trained.denoiser.times), model.process._s(t), rtol=1e-4, atol=1e-5)


def test_the_exact_posterior_in_the_time_of_the_paper_has_the_entropy_as_its_bound() -> None:
    trained = published("mask")
    trained.denoiser = Exact(trained)
    model = bound_model(trained, "mask")
    assert model.process.kind == "bound"
    tokens = torch.randint(V, (2000, L), generator=generator(2))
    total = model.nelbo(tokens, generator(3), draws=4).total.double()
    entropy, error = L * torch.tensor(float(V)).log(), total.std() / len(total) ** 0.5
    assert (total.mean() - entropy).abs() < 4 * error + 0.01 * entropy
