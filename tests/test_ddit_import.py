"""Imported checkpoints in the DDiT layout: their predictions are those that formulas in float64 give, family by family.

Every folder has random weights under its published names. The reference is told the σ (or time) that belongs to the
corruption level a_t of the process, and turns logits into p(x | z) by the likelihood of each state.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ddit_fixtures import (
    HF,
    Reference,
    Shape,
    cached_angles,
    import_folder,
    inverse_frequencies,
    random_tensors,
    write_checkpoint,
)
from torch import Tensor

import logosphere as ls
from logosphere.errors import UserError
from logosphere.model import Model

ROWS, LENGTH, MASK = 11, 8, 10
TIME = 0.6
FINAL = 1e-3
"""a_1 of the log-linear schedule."""
P_U = 0.1
HYDRA = {"hidden_size": 12, "cond_dim": 6, "length": LENGTH, "n_blocks": 2, "n_heads": 2, "scale_by_sigma": True}
GIDD = {"vocab_size": ROWS, "max_seq_len": LENGTH, "hidden_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "timestep_cond_dim": 6, "p_uniform": P_U}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A family: its files, and its posterior by formulas."""

    config: dict[str, Any]
    system: str
    told: Callable[[float], float] | None
    """What the network reads at time t: by a_t = 1 - (1 - 1e-3) t for σ."""
    posterior: str
    shape: Shape = Shape()  # noqa: RUF009
    prefix: str = "backbone."
    extra: dict[str, Tensor] = field(default_factory=dict)
    tokens: int = MASK


def sigma_at(t: float) -> float:
    return -math.log(1 - (1 - FINAL) * t)


def nothing(t: float) -> float:
    return 0.0


FREQUENCIES = {"backbone.rotary_emb.inv_freq": inverse_frequencies(6)}
BUFFERS = {"sampling_eps_min": torch.tensor(1e-3), "sampling_eps_max": torch.tensor(1.0)}
CASES = {
    "mdlm": Case({"model_type": "mdlm", **HF, "time_conditioning": False}, "mdlm", nothing, "masked",
                 extra=FREQUENCIES),
    "mdlm that reads σ": Case({"model_type": "mdlm", **HF, "time_conditioning": True}, "mdlm", sigma_at, "masked"),
    "bd3lm": Case({"model_type": "bd3lm", **HF, "block_size": 4, "cross_attn": True}, "bd3lm", nothing, "blocks",
                  extra=FREQUENCIES | BUFFERS),
    "udlm": Case({"model_type": "udlm", **HF, "time_conditioning": True}, "udlm", sigma_at, "uniform", tokens=ROWS),
    "duo": Case({"model_type": "duo", **HF}, "udlm", sigma_at, "uniform", extra=FREQUENCIES, tokens=ROWS),
    "sedd": Case({"tokens": MASK, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "model": HYDRA},
                 "sedd-absorb", sigma_at, "masked", prefix="", extra={"rotary_emb.inv_freq": inverse_frequencies(6)}),
    "gidd": Case({"model_type": "dit", **GIDD}, "gidd", lambda t: t, "hybrid", prefix="",
                 extra=cached_angles(6, 16)),
    "gidd without random tokens": Case({"model_type": "dit", **GIDD, "p_uniform": 0.0}, "gidd", lambda t: t, "masked",
                                       prefix="", extra=cached_angles(6, 16)),
    "ar": Case({"model_type": "mdlm", **HF, "bos_token_id": 3}, "ar", None, "causal", Shape(modulated=False)),
    "rdlm": Case({"model": HYDRA}, "rdlm", lambda t: 1 - t, "states", Shape(27, states=True), "", tokens=27),
}  # fmt: skip


def make(folder: Path, case: Case) -> tuple[Model, Reference]:
    tensors = random_tensors(case.shape)
    folder = write_checkpoint(folder / "source", tensors, case.config, case.prefix, **case.extra)
    return import_folder(folder), Reference(tensors, case.shape)


def draw_tokens(count: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(tokens, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    found: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return found


def likelihood(case: Case, z: int, t: float) -> np.ndarray:
    """q(z | x) of every token x, up to a factor."""
    tokens = case.tokens
    same = np.arange(tokens) == z
    if case.posterior in ("masked", "blocks"):
        return np.ones(tokens) if z == tokens else same.astype(float)
    if case.posterior == "uniform":
        a = 1 - (1 - FINAL) * t
        return a * same + (1 - a) / tokens
    random = math.sqrt(t * (1 - t)) * 2 * P_U / (1 - P_U)  # GIDD: c_t, and α_t = (1 - t)/C_t
    return np.ones(tokens) if z == tokens else (1 - t) * same + random / tokens


def block_causal(block: int) -> np.ndarray:
    """Which of [noisy ; clean] each position sees."""
    visible = np.zeros((2 * LENGTH, 2 * LENGTH), dtype=bool)
    for i in range(2 * LENGTH):
        for j in range(2 * LENGTH):
            b, c = i % LENGTH // block, j % LENGTH // block
            if j < LENGTH:
                visible[i, j] = i < LENGTH and b == c
            else:
                visible[i, j] = c < b if i < LENGTH else c <= b
    return visible


def expected_probs(case: Case, reference: Reference, z: Tensor, t: float, told: float | None) -> np.ndarray:
    """p(x | z) of one sequence of states."""
    if case.posterior == "states":  # letters a … z and then the space, in theirs
        theirs = np.concatenate([z[:, 1:27].numpy(), z[:, :1].numpy(), z[:, 27:].numpy()], 1).astype(float)
        out = reference.logits(theirs, np.full(LENGTH, told))
        return softmax(np.concatenate([out[:, 26:], out[:, :26]], 1))
    if case.posterior == "causal":
        ids = np.concatenate([[case.config["bos_token_id"]], z.numpy()[:-1]])
        out = reference.logits(ids, None, visible=np.tril(np.ones((LENGTH, LENGTH), dtype=bool)))
        return softmax(out[:, : case.tokens])
    if case.posterior == "blocks":
        positions = np.tile(np.arange(LENGTH), 2)
        out = reference.logits(
            np.tile(z.numpy(), 2), np.zeros(2 * LENGTH), positions=positions, visible=block_causal(4)
        )[:LENGTH]
    else:
        out = reference.logits(z.numpy(), np.full(LENGTH, told))
    p = softmax(out[:, : case.tokens]) * np.stack([likelihood(case, int(state), t) for state in z])
    found: np.ndarray = p / p.sum(-1, keepdims=True)
    return found


@pytest.mark.parametrize("name", CASES)
class TestEveryFamily:
    """Predictions, bounds, samples and saved runs."""

    def test_predictions_are_those_of_the_formulas(self, tmp_path: Path, name: str) -> None:
        case = CASES[name]
        model, reference = make(tmp_path, case)
        assert model.spec is not None and model.spec.system == case.system
        tokens = draw_tokens(4, case.tokens)
        z = tokens if case.posterior == "causal" else model.corrupt(tokens, TIME, 1)
        log_p = model.log_posterior(z, TIME)
        assert log_p.shape == (4, LENGTH, case.tokens)  # without a column of the mask
        assert torch.allclose(log_p.logsumexp(-1), torch.zeros(4, LENGTH), atol=1e-5)
        told = None if case.told is None else case.told(TIME)
        expected = np.stack([expected_probs(case, reference, row, TIME, told) for row in z])
        assert np.abs(log_p.exp().numpy() - expected).max() < 2e-5
        if case.told in (None, nothing):
            return
        assert told is not None  # a network that is told something else predicts something else
        for wrong in (0.9 * told, 1 - told, 0.0):
            other = np.stack([expected_probs(case, reference, row, TIME, wrong) for row in z])
            assert np.abs(other - expected).max() > 1e-3

    def test_bounds_are_finite_and_samples_are_tokens(self, tmp_path: Path, name: str) -> None:
        case = CASES[name]
        model, _ = make(tmp_path, case)
        bound = model.nelbo(draw_tokens(2, case.tokens), 0)
        assert bool(torch.isfinite(bound.total).all()) and bound.count.tolist() == [LENGTH] * 2
        drawn = ls.sample(model, n=2, steps=4, rng=0)
        assert drawn.shape == (2, LENGTH) and int(drawn.min()) >= 0 and int(drawn.max()) < case.tokens

    def test_saved_models_are_loaded_alike(self, tmp_path: Path, name: str) -> None:
        case = CASES[name]
        model, _ = make(tmp_path, case)
        model.save(tmp_path / "run")
        loaded, tokens = ls.load(tmp_path / "run"), draw_tokens(2, case.tokens)
        z = tokens if case.posterior == "causal" else model.corrupt(tokens, TIME, 1)
        assert loaded.spec == model.spec
        assert torch.equal(loaded.log_posterior(z, TIME), model.log_posterior(z, TIME))


def test_sigma_is_that_of_the_corruption_level(tmp_path: Path) -> None:
    """exp(-σ) is the fraction of tokens that the process leaves."""
    for name in ("duo", "sedd", "mdlm that reads σ"):
        model, _ = make(tmp_path / name, CASES[name])
        tokens = torch.zeros(4000, LENGTH, dtype=torch.long)
        z = model.corrupt(tokens, TIME, 0)
        kept = float((z == 0).double().mean())
        left = math.exp(-sigma_at(TIME))
        expected = left + (1 - left) / ROWS if name == "duo" else left
        assert abs(kept - expected) < 4 * math.sqrt(expected * (1 - expected) / z.numel())


def test_scores_of_sedd_are_scaled(tmp_path: Path) -> None:
    """log p_t(k)/p_t(mask) = out - log(e^σ - 1) - log(V - 1) at masks."""
    case = CASES["sedd"]
    model, reference = make(tmp_path, case)
    z = torch.full((1, LENGTH), MASK)
    assert model.denoiser is not None
    found = model.denoiser(z, torch.full((1, LENGTH), TIME), z)[0].detach().numpy()
    out = reference.logits(z[0].numpy(), np.full(LENGTH, sigma_at(TIME)))[:, :MASK]
    expected = out - math.log(math.expm1(sigma_at(TIME))) - math.log(ROWS - 1)
    assert np.abs(found - expected).max() < 1e-5


class TestRowsOfTheTable:
    """The mask's row and rows that are no tokens."""

    def test_a_mask_between_the_tokens(self, tmp_path: Path) -> None:
        config = {"model_type": "mdlm", **HF, "mask_token_id": 4}
        tensors = random_tensors(Shape())
        model = import_folder(write_checkpoint(tmp_path / "source", tensors, config, "backbone."))
        assert model.vocab_size == ROWS
        z = torch.full((1, LENGTH), ROWS)
        z[0, 2] = 7
        found = model.log_posterior(z, TIME)[0].exp().numpy()
        theirs = torch.where(z == ROWS, 4, z)[0].numpy()
        out = Reference(tensors, Shape()).logits(theirs, np.zeros(LENGTH))
        out[:, 4] = -np.inf
        expected = softmax(out)
        expected[2] = np.arange(ROWS) == 7
        assert np.abs(found - expected).max() < 2e-5
        other = Reference(tensors, Shape()).logits(np.where(theirs == 4, MASK, theirs), np.zeros(LENGTH))
        assert np.abs(found - softmax(other)).max() > 1e-2  # another row as the mask
        tokens = draw_tokens(2, ROWS).clamp_min(5)
        assert bool(torch.isfinite(model.nelbo(tokens, 0).total).all())
        assert not bool((ls.sample(model, n=20, steps=4, rng=0) == 4).any())

    def test_rows_beyond_the_tokens_get_no_probability(self, tmp_path: Path) -> None:
        config = {"model_type": "mdlm", **HF, "mask_token_id": MASK}
        tensors = random_tensors(Shape())
        model = import_folder(write_checkpoint(tmp_path / "source", tensors, config, "backbone."), tokens=8)
        z = torch.full((1, LENGTH), 8)
        found = model.log_posterior(z, TIME)[0].exp().numpy()
        out = Reference(tensors, Shape()).logits(np.full(LENGTH, MASK), np.zeros(LENGTH))
        assert found.shape == (LENGTH, 8) and np.abs(found - softmax(out[:, :8])).max() < 2e-5
        assert np.abs(softmax(out)[:, :8] - softmax(out[:, :8])).max() > 1e-2  # with the other rows
        wrong = Reference(tensors, Shape()).logits(np.full(LENGTH, 8), np.zeros(LENGTH))  # the mask is not the 9th row
        assert np.abs(softmax(wrong[:, :8]) - softmax(out[:, :8])).max() > 1e-2


def test_digits_of_rdlm(tmp_path: Path) -> None:
    """Ten base-3 digits for each token of BERT: the network predicts three classes at ten positions."""
    shape = Shape(3, states=True)
    folder = write_checkpoint(tmp_path / "source", random_tensors(shape), {"model": {"n_heads": 2, "length": 2}})
    model = import_folder(folder)
    assert (model.vocab_size, model.length) == (30_522, 2)
    tokens = torch.randint(30_522, (2, 2), generator=torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(model.nelbo(tokens, 0).total).all())
    assert ls.sample(model, n=2, steps=3, rng=0).shape == (2, 2)
    z, t = model.corrupt(tokens, 0.5, 1), torch.full((2, 20), 0.5)
    assert model.denoiser is not None and model.denoiser(z, t, z).shape == (2, 20, 3)


def test_constants_of_training_are_known_and_others_are_not(tmp_path: Path) -> None:
    case = CASES["bd3lm"]
    for extra, words in (({"sampling_eps_other": torch.tensor(0.1)}, "sampling_eps_other"),
                         ({"sampling_eps_min": torch.zeros(3)}, "sampling_eps_min")):  # fmt: skip
        folder = write_checkpoint(tmp_path / words, random_tensors(Shape()), case.config, "backbone.", **extra)
        with pytest.raises(UserError, match=words):
            import_folder(folder)


def test_another_rotary_table_is_refused(tmp_path: Path) -> None:
    extra = {"backbone.rotary_emb.inv_freq": inverse_frequencies(6) * 1.01}
    folder = write_checkpoint(tmp_path / "a", random_tensors(Shape()), CASES["mdlm"].config, "backbone.", **extra)
    with pytest.raises(UserError, match=r"rotary_emb\.inv_freq"):
        import_folder(folder)
