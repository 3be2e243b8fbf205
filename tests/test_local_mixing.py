"""Local mixing: which neighbouring positions are mixed, which networks have it, and files from before it existed."""

import json
from pathlib import Path

import pytest
import torch
from toy_languages import generator
from toy_models import SMALL

import logosphere as ls
from logosphere.errors import UserError
from logosphere.networks.backbone import LocalMixing, shift


@pytest.mark.parametrize("by", [-7, -5, -2, -1, 1, 2, 5, 7])
@pytest.mark.parametrize("axis", [1, 2])
def test_shift_pads_with_zeros(axis: int, by: int) -> None:
    h = torch.randn(2, 5, 4, 3, generator=generator(1))
    expected = torch.zeros_like(h)
    for i in range(h.shape[axis]):
        if 0 <= i + by < h.shape[axis]:
            expected.select(axis, i).copy_(h.select(axis, i + by))
    assert torch.equal(shift(h, axis, by), expected)


@pytest.mark.parametrize("reach", [1, 2])
def test_only_positions_within_reach_are_mixed(reach: int) -> None:
    mixing = LocalMixing(4, reach)
    h = torch.randn(1, 9, 4, generator=generator(2))
    other = h.clone()
    other[0, 4] += 1
    changed = (mixing(h) != mixing(other)).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [i for i in range(4 - reach, 5 + reach) if i != 4]


def test_in_an_image_neighbours_lie_along_all_axes() -> None:
    mixing = LocalMixing(4, 1, (3, 5))
    h = torch.randn(1, 15, 4, generator=generator(3))
    other = h.clone()
    other[0, 7] += 1  # row 1, column 2
    changed = (mixing(h) != mixing(other)).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [2, 6, 8, 12]


@pytest.mark.parametrize("system", ["mdlm", "rdlm-heat", "gidd", "gaussian-ce", "g-star"])
def test_bidirectional_systems_have_nonzero_mixing_weights(system: str) -> None:
    torch.manual_seed(0)
    model = ls.build(system, vocab_size=5, length=8, **SMALL)
    weights = {name: weight for name, weight in model.named_parameters() if "trunk.neighbours" in name}
    assert weights and all(weight.std() > 0 for weight in weights.values())
    plain = ls.build(system, vocab_size=5, length=8, neighbours=0, **SMALL)
    assert not any("neighbours" in name for name in plain.state_dict())


@pytest.mark.parametrize(("system", "options"), [("ar", {}), ("mdlm", {"block": 4}), ("bd3lm", {})])
def test_blockwise_systems_have_no_local_mixing(system: str, options: dict[str, int]) -> None:
    model = ls.build(system, vocab_size=5, length=8, **options, **SMALL)
    assert not any("neighbours" in name for name in model.state_dict())


@pytest.mark.slow
def test_local_mixing_learns_pair_statistics_faster() -> None:
    """Every token determines the next one, so pair statistics are all there is to learn."""
    follows = torch.randperm(100, generator=generator(1))

    def texts(n: int, seed: int) -> torch.Tensor:
        rows = [torch.randint(100, (n,), generator=generator(seed))]
        for _ in range(15):
            rows.append(follows[rows[-1]])
        return torch.stack(rows, 1)

    nats = {}
    for reach in (0, 1):
        torch.manual_seed(0)
        model = ls.build("mdlm", vocab_size=100, length=16, width=64, depth=2, heads=4, neighbours=reach, tied=False)
        batches = (ls.Batch.of(texts(64, seed), first=64 * seed) for seed in range(60))
        for _ in ls.fit(model, batches, steps=60, optim=ls.OptimizerConfig(lr=5e-3, warmup=10)):
            pass
        nats[reach] = float(model.eval().nelbo(texts(256, 99), generator(5), draws=4).total.mean()) / 16
    assert nats[1] < nats[0] - 0.4


@pytest.mark.parametrize("reach", [-1, 9])
def test_invalid_reach_is_refused(reach: int) -> None:
    with pytest.raises(UserError, match="neighbours must be from 0 to 8"):
        ls.build("mdlm", vocab_size=5, length=8, neighbours=reach, **SMALL)


def test_version_1_files_load_without_local_mixing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=5, length=8, neighbours=0, tied=False, **SMALL)
    model.save(tmp_path)
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    del recipe["model"]["options"]["neighbours"]
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"version": 1}))
    assert ls.load(tmp_path).state_dict().keys() == model.state_dict().keys()
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(UserError, match="neighbours"):
        ls.load(tmp_path)
