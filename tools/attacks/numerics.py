"""Attacks through numbers: options, weights and predictions that are not finite, and weights of other types."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from attacks import attack
from attacks.files import refuse
from logosphere import build, evaluate, load, sample, systems
from logosphere.errors import UserError
from logosphere.io import FILES, write_recipe, write_tensors
from logosphere.model import Model
from logosphere.sampling.decoding import DecodingConfig
from logosphere.types import Condition

NAN, INF = math.nan, math.inf
TOKENS = torch.zeros(2, 8, dtype=torch.long)


@dataclass(frozen=True)
class NumberWorld:
    """Models whose weights an attack may change, as `fresh` makes them."""

    folder: Path

    def save(self, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
        """A saved model with changed weights, without the hash of the former ones."""
        model = fresh("mdlm")
        path = self.folder / "attack"
        model.save(path)
        write_tensors(path / "model.safetensors", change(model.state_dict()))
        assert model.spec is not None
        write_recipe(path / "recipe.json", {"model": model.spec.content(), FILES: {}})
        return path


@contextmanager
def open_world(folder: Path) -> Iterator[NumberWorld]:
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder / "data-home")}):
        yield NumberWorld(folder)


def fresh(name: str, **options: Any) -> Model:
    return build(name, vocab_size=9, length=8, width=8, depth=1, heads=1, **options)


# ---- options --------------------------------------------------------------------------------------------------------

OPTIONS = (
    {"temperature": NAN}, {"temperature": INF}, {"temperature": -INF}, {"temperature": 0.0}, {"temperature": -1.0},
    {"temperature": "1"}, {"temperature": None}, {"top_p": NAN}, {"top_p": INF}, {"top_p": 0.0}, {"top_p": 2.0},
    {"min_p": NAN}, {"min_p": INF}, {"min_p": -0.1}, {"min_p": 1.1}, {"guidance": NAN}, {"guidance": INF},
    {"guidance": -INF}, {"guidance": "strong"}, {"top_k": NAN}, {"top_k": 0}, {"top_k": -1}, {"top_k": 2.5},
    {"steps": NAN}, {"steps": INF}, {"steps": 0}, {"steps": -1}, {"steps": 10**12}, {"n": NAN}, {"n": -1}, {"n": 0},
    {"rng": NAN}, {"rng": -1}, {"rng": 2**64}, {"rng": 0.5}, {"temperature": True}, {"temperature": complex(1, 1)},
)  # fmt: skip


@attack(*OPTIONS)
def sample_with_option(changes: dict[str, object], world: NumberWorld) -> None:
    """An option of sampling is not finite, out of its range or of another type."""
    refuse(lambda: sample(fresh("mdlm"), **({"n": 1, "steps": 2, "rng": 0} | changes)))


DECODING = (
    {"cfg_scale": NAN}, {"cfg_scale": INF}, {"cfg_scale": -1.0}, {"alg_temp": NAN}, {"alg_temp": INF},
    {"alg_temp": -1.0},
)  # fmt: skip


@attack(*DECODING)
def decode_with_option(changes: dict[str, Any], world: NumberWorld) -> None:
    """An option of published decoding loops is not finite."""
    refuse(lambda: sample(fresh("mdlm"), n=1, steps=2, rng=0, decoding=DecodingConfig(**changes)))


@attack(NAN, INF, -INF)
def guide_with_option(strength: float, world: NumberWorld) -> None:
    """The strength of guidance is not finite."""
    model = fresh("mdlm", labels=2)
    condition = Condition.of(labels=torch.tensor([1]))
    refuse(lambda: sample(model, n=1, steps=2, rng=0, condition=condition, guidance=strength))


@attack(1e38, -1e38, 1e300, 1e20)
def guide_beyond_range(strength: float, world: NumberWorld) -> None:
    """A finite guidance makes predictions that are not."""
    model = fresh("mdlm", labels=2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    condition = Condition.of(labels=torch.tensor([1]))
    accept_finite(lambda: sample(model, n=1, steps=4, rng=0, condition=condition, guidance=strength))


def accept_finite(call: Callable[[], object]) -> None:
    """A call may be refused by a sentence; it may not end in another way."""
    try:
        call()
    except UserError:
        return


# ---- weights --------------------------------------------------------------------------------------------------------


@attack(*[(name, value) for name in systems() for value in (3e38, -3e38)])
def overflow_weights(variant: tuple[str, float], world: NumberWorld) -> None:
    """All weights are the largest number that float32 has: predictions overflow, and no text may come of them."""
    name, value = variant
    model = fresh(name)
    assert model.denoiser is not None
    with torch.no_grad():
        for weight in model.denoiser.parameters():
            weight.fill_(value)
    assert "not finite" in refuse(lambda: sample(model, n=1, steps=2, rng=0))
    assert "not a finite number" in refuse(lambda: evaluate(model, [TOKENS], rng=0))


@attack("ar", "mdlm", "rdlm", "d3pm-uniform", "plaid", "ld4lg")
def lose_weights(name: str, world: NumberWorld) -> None:
    """One weight of a live model is NaN: likelihoods are refused, and the first module is named."""
    model = fresh(name)
    assert model.denoiser is not None
    with torch.no_grad():
        next(model.denoiser.parameters()).reshape(-1)[:] = NAN
    assert "not finite" in refuse(lambda: sample(model, n=1, steps=2, rng=0))
    sentence = refuse(lambda: evaluate(model, [TOKENS], rng=0))
    assert "not a finite number" in sentence and "first in" in sentence and "nan" not in sentence


@attack(NAN, INF, -INF)
def save_weights(value: float, world: NumberWorld) -> None:
    """A file of weights holds a number that is not finite; the error names the tensor."""

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        name = next(name for name, tensor in tensors.items() if tensor.numel() > 8)
        tensors[name] = tensors[name].clone()
        tensors[name].reshape(-1)[3] = value
        return tensors

    assert "not finite in " in refuse(lambda: load(world.save(change)))


TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@attack(*TYPES)
def save_other_type(dtype: torch.dtype, world: NumberWorld) -> None:
    """Weights are whole numbers."""
    refuse(lambda: load(world.save(lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})))


@attack(1e39, 1e308, -1e300)
def save_wider_type(value: float, world: NumberWorld) -> None:
    """Weights in float64 are finite there, and not in the type of the model."""
    refuse(
        lambda: load(
            world.save(
                lambda tensors: {name: torch.full_like(t, value, dtype=torch.float64) for name, t in tensors.items()}
            )
        )
    )


@attack(torch.float16, torch.bfloat16, torch.float64)
def save_fitting_type(dtype: torch.dtype, world: NumberWorld) -> None:
    """Weights in another type of floating point are read."""
    model = load(world.save(lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()}))
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


# ---- predictions ----------------------------------------------------------------------------------------------------


class Predicts(torch.nn.Module):
    """A network of a user that predicts one number everywhere."""

    def __init__(self, value: float):
        super().__init__()
        self.value = value

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        return torch.full((*z.shape[:2], 9), self.value)


@attack(NAN, INF, -INF)
def predict(value: float, world: NumberWorld) -> None:
    """The logits of a network of a user are not finite."""
    model = build("mdlm", vocab_size=9, length=8, denoiser=Predicts(value))
    assert "not finite" in refuse(lambda: sample(model, n=1, steps=2, rng=0))
    if value != -INF:
        assert "not a finite number" in refuse(lambda: evaluate(model, [TOKENS], rng=0))
