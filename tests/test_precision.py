"""Precision of networks: which one auto is, how far bfloat16 moves a bound, and where it is recorded."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.networks.precision import MixedPrecision, find_precision, with_precision
from logosphere.sampling.generate import generate

CPU = torch.device("cpu")


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_the_processor_has_it(
    supported: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    assert find_precision("auto", CPU) == dtype
    assert find_precision("float32", CPU) == torch.float32
    assert find_precision("bfloat16", CPU) == torch.bfloat16


def test_another_precision_is_refused() -> None:
    with pytest.raises(UserError, match="auto, float32 or bfloat16, not 'float16'"):
        find_precision("float16", CPU)


@pytest.mark.parametrize("name", ["ar", "mdlm", "bd3lm", "rdlm", "rdlm-heat", "sedd-absorb", "plaid", "fisher-flow"])
def test_bfloat16_moves_a_bound_by_little_and_is_reported(name: str, tmp_path: Path) -> None:
    """A random network whose logits are not small; the same noise in both precisions."""
    language = skewed_chain(5, 8)
    model, tokens = random_network(name, language), language.sample(64, generator(1))
    exact, rounded = (
        ls.evaluate(model, [tokens], draws=2, rng=0, precision=precision) for precision in ("float32", "bfloat16")
    )
    assert rounded.bits == pytest.approx(exact.bits, rel=0.02)
    assert rounded.bits != exact.bits
    assert (exact.precision, rounded.precision) == ("float32", "bfloat16")
    assert "bfloat16" in str(rounded)
    assert "float" not in str(exact)
    rounded.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").precision == "bfloat16"


@pytest.mark.parametrize("name", ["ar", "mdlm", "bd3lm", "rdlm-heat"])
def test_predictions_in_bfloat16_are_float32_and_sampling_uses_them(name: str) -> None:
    model = random_network(name, skewed_chain(5, 8))
    assert model.denoiser is not None
    wrapped = with_precision(model.denoiser, torch.bfloat16)
    assert isinstance(wrapped, MixedPrecision)
    assert with_precision(model.denoiser, torch.float32) is model.denoiser
    z = model.process.prior(2, 8, noise=ls.rng.GeneratorNoise(generator(1), 2))
    context = model.process.codec.encode(torch.zeros(2, 8, dtype=torch.long))
    out = wrapped(z, torch.full((2, 8), 0.5), context=context)
    assert out.dtype == torch.float32
    assert not torch.equal(out, model.denoiser(z, torch.full((2, 8), 0.5), context=context))
    drawn = generate(model, n=4, steps=4, rng=0, precision="bfloat16")
    assert drawn.tokens.shape == (4, 8)


class WeightCasts(TorchDispatchMode):
    """Counts conversions of the given tensors to bfloat16."""

    def __init__(self, weights: list[torch.Tensor]):
        super().__init__()
        self.pointers, self.count = {weight.data_ptr() for weight in weights}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") == torch.bfloat16:
            self.count += args[0].data_ptr() in self.pointers
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["ar", "mdlm"])
def test_sampling_converts_each_weight_once(name: str) -> None:
    """Autocast forgets converted weights at the end of its context, which would be that of every step."""
    model = random_network(name, skewed_chain(5, 8))
    casts = []
    for steps in (2, 8):
        with WeightCasts(list(model.parameters())) as counter:
            generate(model, n=2, steps=steps, rng=0, precision="bfloat16")
        casts.append(counter.count)
    assert casts[0] == casts[1]
    assert 0 < casts[0] <= len(list(model.parameters()))
