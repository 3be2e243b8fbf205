"""Conventions that no tensor states: mask, shift, rows that are no tokens, and the start of a text.

Each is compared with the network's own logits, arranged by hand; without the convention the numbers differ.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from llama_fixtures import LLADA_20M, PUBLISHED, SMALL_MASK, load_model, write_small
from torch import Tensor

import logosphere as ls
from logosphere.model import Model
from logosphere.networks.attention import block_causal_mask
from logosphere.networks.published.denoiser import PublishedDenoiser

L = 16
FULL = sorted(name for name, model in PUBLISHED.items() if model.attention == "full")
BLOCKS = sorted(name for name, model in PUBLISHED.items() if model.attention == "blocks")
CAUSAL = sorted(name for name, model in PUBLISHED.items() if model.attention == "causal")


def published(model: Model) -> PublishedDenoiser:
    found = model.denoiser
    inner = found if isinstance(found, PublishedDenoiser) else found.inner  # type: ignore[union-attr]
    assert isinstance(inner, PublishedDenoiser)
    return inner


def draw(model: Model, masked: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens that are not the mask, and the same with some replaced by the mask; the first is known."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(SMALL_MASK, (3, L), generator=rng)
    hidden = torch.rand(3, L, generator=rng) < masked
    hidden[:, 0] = False
    return tokens, tokens.masked_fill(hidden, model.vocab_size)


def normalise(raw: Tensor, z: Tensor, vocab: int, mask: int | None) -> Tensor:
    """log p of tokens alone, and certainty where a token is visible."""
    allowed = torch.arange(raw.shape[-1]) < vocab
    if mask is not None:
        allowed[mask] = False
    log_p = raw.masked_fill(~allowed, -torch.inf)[..., :vocab].log_softmax(-1)
    copied = F.one_hot(z.clamp_max(vocab - 1), vocab).float().log()
    return torch.where((z == vocab)[..., None], log_p, copied)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.exp(), b.exp(), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", FULL)
def test_posterior_of_full_attention(name: str, tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path, name))
    inner, conventions = published(model), PUBLISHED[name]
    _, z = draw(model)

    def expect(mask: int, shift: bool) -> Tensor:
        raw = inner.network.head(inner.network.features(torch.where(z == model.vocab_size, mask, z), None))
        raw = torch.cat([raw[:, :1], raw[:, :-1]], 1) if shift else raw
        return normalise(raw, z, model.vocab_size, SMALL_MASK)

    found = model.log_posterior(z, 0.5)
    assert found.shape == (3, L, model.vocab_size)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, L))
    assert close(found, expect(SMALL_MASK, conventions.shift))
    assert not close(found, expect(SMALL_MASK, not conventions.shift)), "the shift matters"
    assert not close(found, expect(SMALL_MASK - 1, conventions.shift)), "the id of the mask matters"
    masked = z == model.vocab_size
    assert (found[masked][:, SMALL_MASK] == -torch.inf).all(), "the mask is not predicted"
    assert model.denoiser.answers_first is not conventions.shift  # type: ignore[union-attr]


@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_posterior_of_blocks(name: str, tmp_path: Path) -> None:
    """As generation computes it: each noisy block after the clean ones before it."""
    model = load_model(write_small(tmp_path, name))
    inner, shift = published(model), PUBLISHED[name].shift
    tokens, z = draw(model)
    size = model.block
    assert size == 4
    seen = block_causal_mask(L, size)[L:, L:]

    def expect(shift: bool) -> Tensor:
        raw = torch.empty(3, L, inner.config.rows)
        for start in range(0, L, size):
            stop = start + size
            ids = torch.cat([tokens[:, :start], z[:, start:stop]], 1)
            ids = torch.where(ids == model.vocab_size, SMALL_MASK, ids)
            out = inner.network.head(inner.network.features(ids, None, mask=seen[:stop, :stop]))
            raw[:, start:stop] = out[:, [max(i - 1, 0) for i in range(start, stop)]] if shift else out[:, start:]
        return normalise(raw, z, model.vocab_size, SMALL_MASK)

    assert model.denoiser is not None
    t = torch.full((3, L), 0.5)
    found = model.process.log_posterior(model.denoiser(z, t, tokens), z, t)
    assert close(found, expect(shift))
    assert not close(found, expect(not shift))


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_bound_of_causal_models_is_the_likelihood(name: str, tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path, name))
    network = published(model).network
    tokens, _ = draw(model)

    def nll(start: int) -> Tensor:
        ids = torch.cat([torch.full((3, 1), start), tokens[:, :-1]], 1)
        log_p = network.head(network.features(ids, None, causal=True)).log_softmax(-1)
        return -log_p.gather(-1, tokens[..., None]).sum((1, 2))

    bound = model.nelbo(tokens, 0)
    assert bound.kind == "exact" and bound.count.tolist() == [L] * 3
    torch.testing.assert_close(bound.total.float(), nll(1), atol=1e-3, rtol=1e-5)
    assert not torch.allclose(nll(1), nll(2), atol=1e-2), "the start of a text matters"


@torch.no_grad()
@pytest.mark.parametrize("name", ["dream", "diffullama", "diffugpt-s", "fast-dllm"])
def test_position_0_is_given_and_not_counted_with_a_shift(name: str, tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path, name))
    tokens, _ = draw(model)
    assert model.nelbo(tokens, 0).count.tolist() == [L - 1] * 3
    assert load_model(write_small(tmp_path, name), shift=False).nelbo(tokens, 0).count.tolist() == [L] * 3
    assert (ls.sample(model, n=2, steps=4, rng=0)[:, 0] == 1).all(), "a text begins with the start symbol"


@torch.no_grad()
def test_a_mask_that_is_an_ordinary_token(tmp_path: Path) -> None:
    """It stays visible where it is given, and its bound is infinite where it must be predicted."""
    model = load_model(write_small(tmp_path, "diffullama"))
    tokens, z = draw(model)
    z[:, 3] = SMALL_MASK
    log_p = model.log_posterior(z, 0.5)
    assert (log_p[:, 3].argmax(-1) == SMALL_MASK).all() and not log_p.isnan().any()
    tokens[0, 5] = SMALL_MASK
    total = model.nelbo(tokens, 0, draws=32).total
    assert total[0] == torch.inf and total[1:].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_model_is_saved_measured_and_sampled(name: str, tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path, name, shards=2))
    model.save(tmp_path / "run")
    loaded = ls.load(tmp_path / "run")
    tokens, z = draw(model)
    assert torch.equal(loaded.log_posterior(z, 0.5), model.log_posterior(z, 0.5))
    bound = loaded.nelbo(tokens, 0, draws=4)
    assert bound.total.isfinite().all() and bound.kind == ("exact" if PUBLISHED[name].system == "ar" else "bound")
    drawn = ls.sample(loaded, n=3, steps=8, rng=0)
    assert drawn.shape == (3, L) and ((drawn >= 0) & (drawn < model.vocab_size)).all()
    if PUBLISHED[name].mask is not None:
        assert (drawn != SMALL_MASK).all()
    known = torch.arange(L) < 6
    infilled = ls.sample(loaded, n=2, steps=8, rng=0, known=known, tokens=tokens[0])
    assert torch.equal(infilled[:, :6], tokens[:1, :6].expand(2, -1))


@torch.no_grad()
def test_a_larger_model_of_lladas_shape(tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path, "llada", LLADA_20M))
    assert sum(parameter.numel() for parameter in model.parameters()) == 2 * 8192 * 512 + 512 + 2 * 4_195_328
    tokens = torch.randint(8000, (2, model.length), generator=torch.Generator().manual_seed(0))
    assert model.length == 128 and model.nelbo(tokens, 0).total.isfinite().all()
    for sampler in ("ancestral", "confidence", "llada", "entropy", "margin"):
        assert ls.sample(model, n=1, steps=8, rng=0, sampler=sampler).shape == (1, 128)
