"""Steps of the published samplers against their equations, one step at a time.

Stochastic steps are compared by the frequencies of many equal positions, deterministic ones position by position.
"""

from typing import Any

import discrete_reference as ref
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import chisquare

import logosphere as ls
from logosphere.rng import GeneratorNoise
from logosphere.sampling.loop import FinalStep, cosine_grid
from logosphere.sampling.registry import sampler
from logosphere.sampling.steppers import as_stepper
from logosphere.sampling.steppers.jumps import analytic_step, euler_step, ratios
from logosphere.sampling.steppers.remasking import Cap, full_remask, max_sigma, remask_probabilities

V, N = 5, 40_000
RNG = np.random.default_rng(1)
CHANCE = 1e-4


def model_of(name: str, **options: Any) -> ls.Model:
    return ls.build(name, vocab_size=V, length=4, width=8, depth=1, heads=1, preset="paper", **options)


def frequencies(states: torch.Tensor, size: int = V + 1) -> np.ndarray:
    return np.bincount(states.flatten().numpy(), minlength=size)


def fits(counts: np.ndarray, p: np.ndarray) -> bool:
    kept = p > 1e-12
    return counts[~kept].sum() == 0 and chisquare(counts[kept], p[kept] / p[kept].sum() * counts.sum()).pvalue > CHANCE


def one_step(
    model: ls.Model, name: str, z: torch.Tensor, t: float, s: float, out: np.ndarray, seed: int = 1
) -> torch.Tensor:
    """One step of a sampler from the states z, with the same prediction at every position or one for each."""
    move = as_stepper(sampler(name, model).stepper).begin_sampling()
    logits = torch.as_tensor(out)

    def evaluate(z: torch.Tensor, t: torch.Tensor, where: torch.Tensor, denoiser: Any = None) -> torch.Tensor:
        return logits.expand(*z.shape, logits.shape[-1])[where]

    times = [torch.full(z.shape, time, dtype=torch.float32) for time in (t, s)]
    return move(model.process, evaluate, z, *times, GeneratorNoise(torch.Generator().manual_seed(seed), len(z)))


def sedd_noise(t: float, masked: bool) -> tuple[float, float]:
    """σ_t and σ'_t."""
    if masked:
        return -np.log(1 - (1 - 1e-3) * t), (1 - 1e-3) / (1 - (1 - 1e-3) * t)
    sigma = 1e-4 ** (1 - t) * 20.0**t
    return sigma, sigma * np.log(20 / 1e-4)


@pytest.mark.parametrize("masked", [True, False], ids=["absorb", "uniform"])
@pytest.mark.parametrize("t, s", [(0.9, 0.8), (0.6, 0.55), (0.95, 0.2), (0.3, 0.0)])
def test_sedd_steps_keep_the_mass_of_raw_scores(masked: bool, t: float, s: float) -> None:
    """Euler and analytic probabilities with arbitrary ratios; large steps clip negative entries."""
    process = model_of("sedd-absorb" if masked else "sedd-uniform").process
    sigma_t, rate = sedd_noise(t, masked)
    sigma_s = 0.0 if s == 0 else sedd_noise(s, masked)[0]
    for _ in range(10):
        scores, z = RNG.normal(size=V) - 1, V if masked else int(RNG.integers(V))
        here, late, early = (
            torch.tensor([z]),
            torch.tensor([t], dtype=torch.float64),
            torch.tensor([s], dtype=torch.float64),
        )
        ratio = ratios(process, torch.as_tensor(scores)[None], here, late)
        analytic = analytic_step(process, ratio, here, late, early)[0].numpy()
        if masked and s == 0:
            analytic[-1] = 0
        expected = ref.sedd_analytic(scores, z, sigma_t, sigma_s, masked)
        np.testing.assert_allclose(analytic / analytic.sum(), expected, rtol=1e-6, atol=1e-9)
        if s > 0:
            euler = euler_step(process, ratio, here, late, early)[0].numpy()
            expected = ref.sedd_euler(scores, z, rate, t - s, masked)
            np.testing.assert_allclose(euler / euler.sum(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["euler", "analytic"])
def test_doubled_scores_double_the_unmasking_rate(name: str) -> None:
    """The ancestral step normalises scores and would unmask as many; here their total mass matters."""
    model, counts = model_of("sedd-absorb"), []
    sigma, rate = sedd_noise(0.8, True)
    scores = RNG.normal(size=V) - 3
    for factor in (1.0, 2.0):
        raw = scores + np.log(factor)
        drawn = one_step(model, name, torch.full((N // 4, 4), V), 0.8, 0.75, raw)
        t, s = np.float32(0.8), np.float32(0.75)
        step = ref.sedd_euler(raw, V, rate, float(t - s), True)
        if name == "analytic":
            step = ref.sedd_analytic(raw, V, sedd_noise(float(t), True)[0], sedd_noise(float(s), True)[0], True)
        assert fits(frequencies(drawn), step)
        counts.append((drawn != V).double().mean())
    assert float(counts[1] / counts[0]) == pytest.approx(2, rel=0.1)


def test_sedd_ends_with_noise_removal() -> None:
    """The last step is the analytic one from 1e-5 to 0, and leaves no mask."""
    for name in ("euler", "analytic"):
        grid = sampler(name, model_of("sedd-absorb")).grid
        assert grid is not None
        torch.testing.assert_close(grid(4), torch.tensor([1.0, 2 / 3 + 1e-5 / 3, 1 / 3 + 2e-5 / 3, 1e-5, 0.0]))
        drawn = one_step(model_of("sedd-absorb"), name, torch.full((1000, 4), V), 1e-5, 0.0, np.zeros(V))
        assert int(drawn.max()) < V


def test_mdlm_removes_the_last_noise_greedily() -> None:
    """n - 1 ancestral steps to 1e-5 with a cache; then argmax."""
    model = model_of("mdlm")
    built_sampler = sampler(model.sampler, model)
    assert model.sampler == "mdlm" and built_sampler.cached and isinstance(built_sampler.grid, FinalStep)
    logits = RNG.normal(size=V)
    z = torch.full((N // 4, 4), V)
    a_t, a_s = (ref.log_linear(float(np.float32(time)))[0] for time in (0.7, 0.4))
    assert fits(frequencies(one_step(model, "mdlm", z, 0.7, 0.4, logits)), ref.masked_posterior(logits, a_t, a_s))
    assert bool((one_step(model, "mdlm", z, 1e-5, 0.0, logits) == int(logits.argmax())).all())


def test_md4_steps_on_a_cosine_grid() -> None:
    grid = sampler("md4", model_of("md4")).grid
    assert grid is not None
    steps = np.cos(np.pi / 2 * np.arange(5) / 4)
    np.testing.assert_allclose(cosine_grid(4).numpy(), steps, atol=1e-6)
    np.testing.assert_allclose(grid(5).numpy(), np.append(1e-5 + (1 - 1e-5) * steps, 0.0), atol=1e-6)


def test_remdm_steps_have_the_published_probabilities() -> None:
    """σ = min(0.04, (1 - a_s)/a_t); tokens are masked with σ, masks unmasked with (a_s - (1 - σ) a_t)/(1 - a_t)."""
    t, s = (torch.tensor(time, dtype=torch.float64) for time in (0.5, 0.45))
    a_t, a_s = ref.log_linear(0.5)[0], ref.log_linear(0.45)[0]
    noise_t, noise_s = 1 - torch.tensor(a_t, dtype=torch.float64), 1 - torch.tensor(a_s, dtype=torch.float64)
    model = model_of("remdm")
    torch.testing.assert_close(model.process.schedule.noise(torch.stack([t, s])), torch.stack([noise_t, noise_s]))
    sigma = Cap()(noise_t, noise_s, noise_t)
    assert float(sigma) == min(0.04, (1 - a_s) / a_t)
    assert float(max_sigma(noise_t, noise_s)) == pytest.approx(min(1, (1 - a_s) / a_t), rel=1e-12)
    hide, lift = remask_probabilities(sigma, noise_t, noise_s)
    assert float(hide) == 0.04 and float(lift) == pytest.approx((a_s - 0.96 * a_t) / (1 - a_t), rel=1e-9)
    logits = RNG.normal(size=V)
    lifted = one_step(model, "remdm-cap", torch.full((N // 4, 4), V), 0.5, 0.45, logits)
    assert fits(frequencies(lifted), np.append(float(lift) * softmax(logits), 1 - float(lift)))
    kept = one_step(model, "remdm-cap", torch.full((N // 4, 4), 2), 0.5, 0.45, logits)
    assert fits(frequencies(kept), np.array([0, 0, 0.96, 0, 0, 0.04]))


def test_star_remasks_every_position_independently() -> None:
    """Below t = 0.3, z_s is the mask with probability 1 - a_s for any z_t, and otherwise a sampled or the old token."""
    model, logits = model_of("star"), RNG.normal(size=V)
    masked = 1 - ref.log_linear(float(np.float32(0.15)))[0]
    assert float(full_remask(torch.tensor(0.2), torch.tensor(masked), torch.tensor(0.0))) == pytest.approx(masked)
    for z, tokens in ((V, softmax(logits)), (3, np.eye(V)[3])):
        moved = one_step(model, "star", torch.full((N // 4, 4), z), 0.2, 0.15, logits)
        assert fits(frequencies(moved), np.append((1 - masked) * tokens, masked))
    before = one_step(model, "star", torch.full((100, 4), 3), 0.6, 0.5, logits)
    assert bool((before == 3).all())  # ancestral: tokens are kept


def test_g_star_remasks_by_error_logits() -> None:
    """ceil((1 - a_s) L) positions by logit + Gumbel noise: the softmax of the logits, drawn without replacement."""
    model = model_of("g-star")
    error_logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    model.remasker = _FixedErrorPredictor(error_logits)
    moved = one_step(model, "g-star", torch.full((N, 4), 2), 0.25, 0.2, np.zeros(V))
    remasked = moved == V
    assert torch.equal(remasked.sum(1), torch.ones(N).long())  # ceil(0.2 · 4)
    assert fits(remasked.sum(0).numpy(), softmax(error_logits.numpy().astype(float)))


class _FixedErrorPredictor(torch.nn.Module):
    def __init__(self, error_logits: torch.Tensor):
        super().__init__()
        self.error_logits = error_logits

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.error_logits.expand(z.shape)


def test_p2_keeps_the_most_confident_tokens() -> None:
    """Tokens are scored by log p of themselves, masks by log p of the sampled token; the lowest are masked."""
    model = model_of("p2")
    z = torch.tensor([[2, V, 1, V]])
    context = np.log(
        np.array([[0.1, 0.1, 0.6, 0.1, 0.1], [0, 0, 0, 1, 0], [0.7, 0.05, 0.1, 0.1, 0.05], [1, 0, 0, 0, 0]]) + 1e-9
    )
    out = model.process.add_evidence(torch.as_tensor(context)[None], z, torch.full((1, 4), 0.5)).numpy()
    moved = one_step(model, "p2", z, 0.5, 0.25, out)
    assert moved.tolist() == [[2, 3, V, 0]]  # one mask is left; token 1 had probability 0.05


def test_llada_commits_the_most_confident_tokens() -> None:
    """Low-confidence remasking at temperature 0: argmax everywhere, the k of highest probability are committed."""
    model = ls.build("llada", vocab_size=V, length=16, width=8, depth=1, heads=1, preset="paper")
    built_sampler = sampler(model.sampler, model)
    assert model.sampler == "llada-greedy" and built_sampler.blocks == 4
    logits = RNG.normal(size=(1, 4, V)) * 2
    z = torch.tensor([[V, V, 1, V]])
    moved = one_step(model, "llada-greedy", z, 0.75, 0.5, logits)
    confidence = log_softmax(logits, -1).max(-1)[0]
    confidence[2] = -np.inf
    best = int(confidence.argmax())  # of three masks two remain at 1 - a_s = 0.5, so one is committed
    expected = z.clone()
    expected[0, best] = int(logits[0, best].argmax())
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("name", ["ardm", "bd3lm"])
def test_one_position_at_a_time_in_a_random_order(name: str) -> None:
    model = model_of(name)
    assert model.sampler == "first-hitting"
    logits = RNG.normal(size=V)
    moved = one_step(model, "first-hitting", torch.full((N, 4), V), 1.0, 0.75, logits)
    revealed = moved != V
    assert torch.equal(revealed.sum(1), torch.ones(N).long())
    assert fits(revealed.sum(0).numpy(), np.full(4, 0.25))
    assert fits(frequencies(moved[revealed], V), softmax(logits))
    assert model.block == 4


@pytest.mark.parametrize("name", ["d3pm-uniform", "udlm", "gidd", "multinomial"])
def test_ancestral_steps_draw_from_the_published_posterior(name: str) -> None:
    """Frequencies of a step from a token, against the kernel of the paper: q(z_t | z_s) q(z_s | x̂)/q(z_t | x̂)."""
    model = model_of(name)
    logits, z, t, s = RNG.normal(size=V), 2, 0.5, 0.25
    here = torch.full((N // 4, 4), z)
    out = model.process.add_evidence(
        torch.as_tensor(logits).expand(1, V), torch.tensor([z]), torch.tensor([t], dtype=torch.float64)
    )
    marginals = [_marginals(name, time) for time in (s, t)]
    forward = np.linalg.solve(marginals[0], marginals[1])  # q(z_t | z_s)
    joint = forward[:, z] * (softmax(np.append(logits, -np.inf) if name == "gidd" else logits) @ marginals[0])
    moved = one_step(model, "ancestral", here, t, s, out[0].numpy())
    assert fits(frequencies(moved, len(joint)), joint / joint.sum())


def _marginals(name: str, t: float) -> np.ndarray:
    """q(z_t | x), rows by x; a mask stays a mask in GIDD."""
    if name == "gidd":
        rows = np.stack([ref.gidd_marginal(row, t, 0.1) for row in np.eye(V)])
        c = 2 / 9 * np.sqrt(t * (1 - t))
        noise = np.append(np.full(V, c / V), t) / (1 + c)
        return np.vstack([rows, (1 - t) / (1 + c) * np.eye(V + 1)[V] + noise])
    if name == "udlm":
        a = ref.log_linear(t)[0]
    else:
        betas = ref.cosine_betas(1000) if name == "d3pm-uniform" else 1 - ref.multinomial_alphas(1000)
        a = np.prod(1 - betas[: round(1000 * t)])
    return a * np.eye(V) + (1 - a) / V


@pytest.mark.parametrize(
    "name", ["mdlm", "remdm", "star", "g-star", "p2", "llada", "md4", "genmd4", "sedd-absorb", "gidd"]
)
def test_published_samplers_start_fully_masked(name: str) -> None:
    """Although a schedule may leave signal at t = 1, which p(z_1) of the bound then contains."""
    process = model_of(name).process
    assert bool((process.prior(200, 4, GeneratorNoise(torch.Generator().manual_seed(1), 200)) == V).all())
    if name in ("mdlm", "sedd-absorb"):
        tokens = torch.zeros(1, 4).long()
        np.testing.assert_allclose(process.prior_kl(tokens).numpy(), 1e-3 * np.log(V), rtol=1e-5)
