"""Models of published checkpoints: filled strictly, saved and loaded alike, position 0 given where it has no answer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_fixtures import SmallFamily, llada_config, llada_shapes, random_tensors, write_llada

import logosphere as ls
from logosphere.checkpoints.families import TensorInfo, Tensors
from logosphere.checkpoints.files import open_checkpoint
from logosphere.checkpoints.load import match, read_parameters
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.published import registry


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CLASSES, "llama", "published_fixtures:SmallNetwork")


def make_model(folder: Path, *, shift: bool = False, special: dict[str, int] | None = None) -> Model:
    family, weights = SmallFamily(), open_checkpoint(write_llada(folder))
    described = family.describe(dict(weights.config), weights.tensors)
    described = replace(described, network=replace(described.network, shift=shift))
    network = registry.build_network(described.network)
    network.load_state_dict(dict(read_parameters(weights, match(family, described, weights.tensors), torch.float32)))
    return ls.build(
        described.system, vocab_size=described.vocab_size, length=described.length, published=network,
        checkpoint={"special": special or {}},
    ).eval()  # fmt: skip


def test_saved_and_loaded_models_are_equal(tmp_path: Path) -> None:
    model = make_model(tmp_path / "a")
    model.save(tmp_path / "run")
    loaded = ls.load(tmp_path / "run")
    assert loaded.spec == model.spec
    z = model.corrupt(torch.randint(38, (3, 8), generator=torch.Generator().manual_seed(0)), 0.5, 0)
    log_p = loaded.log_posterior(z, 0.5)
    assert torch.equal(log_p, model.log_posterior(z, 0.5))
    assert log_p.shape == (3, 8, 38) and torch.allclose(log_p.exp().sum(-1), torch.ones(3, 8))


def test_position_0_is_not_counted_where_it_has_no_answer(tmp_path: Path) -> None:
    tokens = torch.randint(38, (4, 8), generator=torch.Generator().manual_seed(1))
    assert make_model(tmp_path / "a").nelbo(tokens, 0).count.tolist() == [8] * 4
    model = make_model(tmp_path / "b", shift=True)
    bound = model.nelbo(tokens, 0)
    known = torch.zeros(4, 8, dtype=torch.bool)
    known[:, 0] = True
    assert bound.count.tolist() == [7] * 4
    assert torch.equal(bound.total, model.nelbo(tokens, 0, known=known).total)


def test_samples_begin_with_bos_where_position_0_has_no_answer(tmp_path: Path) -> None:
    model = make_model(tmp_path / "a", shift=True, special={"bos": 7})
    assert (ls.sample(model, n=3, steps=4, rng=0)[:, 0] == 7).all()
    given = ls.sample(model, n=2, steps=4, rng=0, known=[1] + [0] * 7, tokens=[5] * 8)
    assert (given[:, 0] == 5).all()
    with pytest.raises(UserError, match="does not predict the first position"):
        ls.sample(make_model(tmp_path / "b", shift=True), n=1, steps=2, rng=0)


def headers(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    return {name: TensorInfo(shape, "F32") for name, shape in shapes.items()}


def test_unused_missing_and_misshapen_tensors_are_named() -> None:
    family, shapes = SmallFamily(), llada_shapes()
    described = family.describe(llada_config(), headers(shapes))
    assert match(family, described, headers(shapes)).parameters == sum(
        tensor.numel() for tensor in random_tensors(shapes).values()
    )
    q = "model.transformer.blocks.1.q_proj.weight"
    for changed, words in (
        (shapes | {"extra.bias": (3,)}, "extra.bias"),
        ({name: shape for name, shape in shapes.items() if name != q}, "lacks .*q_proj"),
        (shapes | {q: (16, 15)}, "q_proj.*shape"),
    ):
        with pytest.raises(UserError, match=words):
            match(family, described, headers(changed))
    with pytest.raises(UserError, match="type I64"):
        match(family, described, {**headers(shapes), q: TensorInfo((16, 16), "I64")})


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    from published_fixtures import write_shards

    write_llada(tmp_path)
    tensors = random_tensors(llada_shapes())
    tensors["model.transformer.ln_f.weight"][3] = torch.nan
    write_shards(tmp_path, tensors)
    family, weights = SmallFamily(), open_checkpoint(tmp_path)
    matched = match(family, family.describe(dict(weights.config), weights.tensors), weights.tensors)
    with pytest.raises(UserError, match="not finite in model.transformer.ln_f.weight"):
        dict(read_parameters(weights, matched, torch.float32))
