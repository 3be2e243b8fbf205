"""Every system and preset at small, unusual and large vocabulary sizes: finite numbers, or a UserError."""

import pytest
import torch
from tiny_encoder import use_tiny_encoder
from torch import Tensor, nn

import logosphere as ls
from logosphere.errors import UserError
from logosphere.networks.base import Denoiser

SIZES = (2, 3, 230, 256, 2048, 50_257)
SMALL = {"width": 16, "depth": 1, "heads": 2}
CASES = [
    pytest.param(name, preset, size, marks=[] if size in (2, 256) else pytest.mark.slow, id=f"{name}-{preset}-{size}")
    for name in ls.systems()
    for preset in ls.presets(name)
    for size in SIZES
]


def record_finiteness(model: ls.Model) -> list[bool]:
    """A list that records from now on whether each output of the networks of a model is finite."""
    finite: list[bool] = []

    def record(module: nn.Module, inputs: object, out: Tensor) -> None:
        finite.append(bool(torch.isfinite(out).all()))

    assert model.denoiser is not None
    for module in model.denoiser.modules():
        if isinstance(module, Denoiser):
            module.register_forward_hook(record)
    return finite


@pytest.mark.parametrize(("name", "preset", "size"), CASES)
def test_training_bounds_and_samples_are_finite(
    name: str, preset: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiny_encoder(monkeypatch, size)  # in place of pretrained encoders, which are an extra
    torch.manual_seed(0)
    try:
        model = ls.build(name, vocab_size=size, length=8, preset=preset, **SMALL)
    except UserError as refusal:
        assert str(refusal).endswith(".") and str(size) in str(refusal).replace(",", "")
        return
    tokens = torch.randint(size, (4, 8), generator=torch.Generator().manual_seed(1))
    (progress,) = ls.fit(model, [tokens], steps=1)
    assert torch.isfinite(torch.tensor([progress.loss, progress.nats, progress.gradient])).all()
    finite = record_finiteness(model.eval())
    bound = model.nelbo(tokens, 2, draws=4)
    # Where few times are informative (fisher-flow at 50,257 tokens), four draws may all cost nothing.
    assert bool(torch.isfinite(bound.total).all()) and float(bound.total.mean()) >= 0
    drawn = ls.sample(model, n=4, steps=4, rng=3)
    assert drawn.shape == (4, 8) and 0 <= int(drawn.min()) and int(drawn.max()) < size
    assert finite and all(finite)  # a sampler does not stop at NaN and would draw arbitrary tokens
