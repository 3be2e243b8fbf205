"""Published networks in a sampler: kept keys and values are those of exact evaluations, but for the dual cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ddit_fixtures import HF, Shape, random_tensors, write_checkpoint
from llama_fixtures import PUBLISHED, SMALL_MASK, load_model, write_small
from torch import Tensor

import logosphere as ls
from logosphere.model import Model
from logosphere.networks.base import CachePlan, Denoiser, Wrapper
from logosphere.networks.block_cache import BlockCacheSession
from logosphere.networks.published.sessions import BlockSession, CausalSession
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.generate import generate

L, BLOCK = 16, 4
IN_ORDER = sorted(name for name, model in PUBLISHED.items() if model.attention != "full")
FULL = sorted(name for name, model in PUBLISHED.items() if model.attention == "full")
DDIT: dict[str, tuple[dict[str, Any], Shape]] = {
    "ddit in blocks": ({"model_type": "bd3lm", **HF, "model_length": L, "block_size": BLOCK}, Shape(length=L)),
    "causal ddit": ({"model_type": "mdlm", **HF, "model_length": L, "bos_token_id": 3}, Shape(modulated=False)),
}


def load(name: str, folder: Path) -> Model:
    if name not in DDIT:
        return load_model(write_small(folder, name))
    config, shape = DDIT[name]
    return load_model(write_checkpoint(folder, random_tensors(shape), config, "backbone."))


class Compared(Wrapper):
    """A denoiser that is evaluated without its session as well."""

    def __init__(self, inner: Denoiser, exact: Denoiser, seen: list[float]):
        super().__init__(inner)
        self.exact, self.seen = exact, seen

    def forward(self, z: Tensor, t: Tensor, context: Tensor, where: Any = None) -> Tensor:
        out, exact = self.inner(z, t, context, where), self.exact(z, t, context, where)
        self.seen.append(float((out.softmax(-1) - exact.softmax(-1)).abs().max()) if out.numel() else 0.0)
        return out

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Compared(inner, self.exact, self.seen)


def find_session(denoiser: Denoiser) -> Denoiser:
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.inner
    return denoiser


@pytest.mark.parametrize("name", [*IN_ORDER, *DDIT])
def test_sessions_of_causal_and_block_models_are_exact(name: str, tmp_path: Path) -> None:
    model, seen = load(name, tmp_path), []
    assert isinstance(model.denoiser, Denoiser)
    found = find_session(model.denoiser.begin_sampling())
    assert isinstance(found, CausalSession if model.process.kind == "exact" else BlockSession)
    prompt = torch.tensor([1, 5, 2, 7, 3, 3]).expand(3, -1)
    tokens = torch.cat([prompt, torch.zeros(3, L - 6, dtype=torch.long)], 1)
    compared = Compared(model.denoiser, model.denoiser, seen)
    for sampler in ("auto",) if model.process.kind == "exact" else ("auto", "sdar", "fast-dllm-v2"):
        seen.clear()
        chosen = None if sampler == "auto" else sampler
        for given in ({}, {"known": torch.arange(L) < 6, "tokens": tokens}):
            drawn = generate(model, 3, 16, 0, compared, sampler=chosen, **given).tokens
            assert not given or torch.equal(drawn[:, :6], prompt)
        assert len(seen) > 8 and max(seen) < 1e-5


class CountedPositions:
    """Counts the positions that a network computes."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch):
        network = find_session(model.denoiser).network  # type: ignore[union-attr, arg-type]
        self.positions, features = 0, network.features

        def count(inputs: Tensor, *arguments: Any, **options: Any) -> Tensor:
            self.positions += inputs.shape[1]
            return features(inputs, *arguments, **options)

        monkeypatch.setattr(network, "features", count)


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "sdar", "fast-dllm"])
def test_each_finished_position_is_computed_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(name, tmp_path)
    counted = CountedPositions(model, monkeypatch)
    ls.sample(model, n=2, steps=L, rng=0)
    once = L if model.process.kind == "exact" else L - BLOCK  # the last block is never read again
    steps = 0 if model.process.kind == "exact" else L * BLOCK  # one block in each step
    assert counted.positions <= once + steps


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("name", FULL)
def test_caches_of_full_attention(name: str, dual: bool, tmp_path: Path) -> None:
    """A window that computes everything is exact; one that computes a block reads what was kept of the others."""
    model = load(name, tmp_path)
    assert isinstance(model.denoiser, Denoiser)
    session = model.denoiser.with_cache(CachePlan((4, 8, 12), dual, 0))
    assert isinstance(find_session(session), BlockCacheSession)
    z = torch.randint(SMALL_MASK, (3, L), generator=torch.Generator().manual_seed(0))
    z[:, 6:] = model.vocab_size
    t, where = torch.full((3, L), 0.5), (torch.arange(L) >= 8).logical_and(torch.arange(L) < 12).expand(3, -1)
    with torch.no_grad():
        exact = model.denoiser(z, t, z, where)
        torch.testing.assert_close(session(z, t, z, where), exact)
        torch.testing.assert_close(session(z, t, z, where), exact)  # from what was kept
        later = z.clone()
        later[:, 9] = 3
        cached, exact = session(later, t, later, where), model.denoiser(later, t, later, where)
        assert not torch.allclose(cached, exact), "positions outside of the block are those of the first evaluation"
        suffix = later.clone()
        suffix[:, 14] = 5
        whole = session(suffix, t, suffix, where)
        assert torch.allclose(whole, cached) == dual
        kept = torch.tensor([False, True, True])
        picked = session.select_rows(kept)(suffix[kept], t[kept], suffix[kept], where[kept])
        torch.testing.assert_close(picked, whole[4:])


@pytest.mark.parametrize("name", ["llada", "dream", "diffugpt-s"])
def test_a_run_reports_what_its_cache_changes(name: str, tmp_path: Path) -> None:
    model = load(name, tmp_path)
    known, tokens = torch.arange(L) < 4, torch.ones(2, L, dtype=torch.long)

    def run(**options: Any) -> Any:
        config = DecodingConfig(block_length=4, **options)
        return generate(model, 2, 12, 0, None, known, tokens, sampler="llada", decoding=config)

    assert run().cache is None
    refreshed, kept = run(cache="dual", cache_refresh=1).cache, run(cache="dual").cache
    assert refreshed.kl < 1e-9 and refreshed.total_variation < 1e-5
    assert kept.kl > 1e-6 and 0 < kept.total_variation < 1 and kept.speed_up > 0
    assert (kept.evaluations, kept.compared) == (12, 4) and "12 evaluations" in str(kept)
    assert torch.equal(run().tokens, run(cache="dual", cache_refresh=1).tokens)
    block = load("sdar", tmp_path)  # whose cache is exact
    assert generate(block, 1, 8, 0, decoding=DecodingConfig(cache="prefix")).cache is None
