"""Gaussian diffusion against its papers' equations, implemented in float64 without code of the package.

The package keeps states and tables in float32 (eps 6e-8). Sums of a few such products agree to 1e-6 of their size,
squared errors, which are differences of such sums, to 1e-5.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import logosphere as ls
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.processes.gaussian.token import GaussianTokenDiffusion
from logosphere.processes.gaussian.updates import ancestral, ancestral_large, ddim, q_sample
from logosphere.processes.time_sampler import TimeSampler
from logosphere.rng import Noise
from logosphere.sampling.steppers.gaussian import DPMSolverPP2M, ScoreTemperature
from logosphere.schedules.learned import LearnedNetwork, LearnedTanh

V, L, D = 7, 5, 4
SIZE: dict[str, Any] = {"vocab_size": V, "length": L, "width": 16, "depth": 1, "heads": 2}
LAST = 1 - T_DECODE
"""Times of the package start at T_DECODE, which is time 0 of the papers."""


class RecordedNoise(Noise):
    """Normal numbers of a seed, recorded for the reference."""

    def __init__(self, seed: int = 0):
        self.rng, self.normals, self.device = np.random.default_rng(seed), list[np.ndarray](), torch.device("cpu")

    def uniform(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.uniform(size=shape))

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        raise NotImplementedError

    def normal(self, *shape: int) -> Tensor:
        self.normals.append(self.rng.standard_normal(shape).astype(np.float32).astype(np.float64))
        return torch.from_numpy(self.normals[-1]).float()


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def close(ours: Tensor, theirs: np.ndarray, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(array(ours), theirs, rtol=tolerance, atol=tolerance * scale)


def built(name: str, **options: Any) -> Any:
    torch.manual_seed(3)
    return ls.build(name, **(SIZE | options))


def at(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, shape)).float()


# ---- schedules ---------------------------------------------------------------------------------------------------


def default_gamma(model: Any, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plaid's default: m(t) ∝ t + Σ s tanh k (t - c); γ and dγ/dt."""
    schedule = model.process.schedule
    high, low = array(schedule.ends)
    s, k, c = np.logaddexp(0, array(schedule.heights)), np.logaddexp(0, array(schedule.rates)), array(schedule.centres)

    def raw(x: np.ndarray) -> np.ndarray:
        return x + (s * np.tanh(k * (x[..., None] - c))).sum(-1)

    length = raw(np.array([1.0])) - raw(np.array([0.0]))
    slope = (1 + (s * k / np.cosh(k * (t[..., None] - c)) ** 2).sum(-1)) / length
    return -high + (high - low) * (raw(t) - raw(np.array([0.0]))) / length, (high - low) * slope


def published_gamma(model: Any, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plaid's own: W₂ tanh(W₁ (t - ½) + b), W₁ = softplus, W₂ = 0.01 softplus, brought to [0, 1]; γ and dγ/dt."""
    schedule = model.process.schedule
    high, low = array(schedule.ends)
    w1, b = np.logaddexp(0, array(schedule.rates)), array(schedule.offsets)
    w2 = 0.01 * np.logaddexp(0, array(schedule.heights))

    def raw(x: np.ndarray) -> np.ndarray:
        return np.tanh((x[..., None] - 0.5) * w1 + b) @ w2

    length = raw(np.array([1.0])) - raw(np.array([0.0]))
    slope = (w1 / np.cosh((t[..., None] - 0.5) * w1 + b) ** 2) @ w2 / length
    return -high + (high - low) * (raw(t) - raw(np.array([0.0]))) / length, (high - low) * slope


def cosine_bits(t: np.ndarray) -> np.ndarray:
    """Bit Diffusion: α² = cos²(π/2 (t + 0.0002)/1.00025)."""
    return np.cos(math.pi / 2 * (t + 0.0002) / 1.00025) ** 2


def sqrt_table(steps: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Diffusion-LM: β_k and ᾱ_k of the sqrt schedule."""
    betas = []
    for k in range(steps):
        before, after = 1 - math.sqrt(k / steps + 1e-4), 1 - math.sqrt((k + 1) / steps + 1e-4)
        betas.append(min(1 - after / before, 0.999))
    return np.array(betas), np.cumprod(1 - np.array(betas))


@pytest.mark.parametrize("preset, gamma", [("default", default_gamma), ("paper", published_gamma)])
def test_plaid_schedule_and_forward(preset: str, gamma: Any) -> None:
    model = built("plaid", preset=preset)
    paper_t = np.random.default_rng(1).uniform(0.01, 1, (6, L))
    t = torch.from_numpy(T_DECODE + LAST * paper_t).float()
    paper_t = (array(t) - T_DECODE) / LAST
    g, _ = gamma(model, paper_t)
    np.testing.assert_allclose(array(model.process.logsnr(t)), -g, rtol=1e-6)
    u, noise = at(2, 6, L, 16), RecordedNoise(3)
    z = model.process.corrupt(u, t, noise)
    alpha, sigma = np.sqrt(sigmoid(-g))[..., None], np.sqrt(sigmoid(g))[..., None]
    close(z, alpha * array(u) + sigma * noise.normals[0], 1e-6)


def test_bit_diffusion_schedule() -> None:
    process = built("bit-diffusion", preset="paper").process
    paper_t = np.linspace(0, 1, 101)
    signal = cosine_bits(paper_t)
    ours = process.schedule.logsnr(torch.from_numpy(paper_t))
    # 1 - α² loses digits at the clean end, so each end is compared by the precise quantity
    np.testing.assert_allclose(torch.sigmoid(ours).numpy(), signal, rtol=1e-9)
    noise = np.sin(math.pi / 2 * (paper_t + 0.0002) / 1.00025) ** 2
    np.testing.assert_allclose(torch.sigmoid(-ours).numpy(), noise, rtol=1e-9)


def test_diffusion_lm_schedule() -> None:
    process = built("diffusion-lm", preset="paper").process
    _, signal = sqrt_table()
    ours = process.schedule.logsnr(torch.arange(2000, dtype=torch.float64) / 1999)
    np.testing.assert_allclose(torch.sigmoid(ours).numpy(), signal, rtol=1e-8)
    np.testing.assert_allclose(process.noisy_start.deviation, math.sqrt(1 - signal[0]), rtol=1e-8)
    back = process.schedule.time(ours)
    np.testing.assert_allclose(back.numpy(), np.arange(2000) / 1999, atol=1e-9)


def test_cdcd_noise_levels() -> None:
    """z = x + t ε with t from 1 to 300 and |x|² = 256, scaled by 1/√(1 + t²)."""
    process = built("cdcd", preset="paper").process
    alpha, sigma = (array(level)[:, 0] for level in process.alpha_sigma(torch.tensor([T_DECODE, 1.0])))
    np.testing.assert_allclose(sigma / alpha, [1, 300], rtol=1e-6)
    np.testing.assert_allclose(alpha, 1 / np.sqrt(1 + np.array([1.0, 300.0]) ** 2), rtol=1e-6)
    np.testing.assert_allclose((array(process.codec.table()) ** 2).sum(-1), 256, rtol=1e-6)


# ---- the bound ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset, gamma", [("default", default_gamma), ("paper", published_gamma)])
def test_plaid_bound(preset: str, gamma: Any) -> None:
    """½ e^{-γ} γ' |e - Σ p_k e_k|², the cross-entropy at γ_0, and the KL at γ_1."""
    model = built("plaid", preset=preset).eval()
    process, rng = model.process, np.random.default_rng(4)
    t = torch.from_numpy(T_DECODE + LAST * rng.uniform(0.01, 1, 40)).float()
    t[:10] = T_DECODE
    tokens = rng.integers(V, size=40)
    rows = array(process.codec.weight)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    u, z, out = process.codec.rows(torch.from_numpy(tokens)), at(5, 40, 16), at(6, 40, V)
    g, slope = gamma(model, (array(t) - T_DECODE) / LAST)
    p = softmax(array(out))
    diffusion = 0.5 * np.exp(-g) * slope / LAST * ((rows[tokens] - p @ rows) ** 2).sum(-1)
    recon_nll = -np.log(p[np.arange(40), tokens])
    close(
        process.elbo_rate(out, u, z, t), np.where(array(t) <= float(np.float32(T_DECODE)), recon_nll, diffusion), 1e-5
    )
    high = sigmoid(array(process.schedule.ends)[1])  # α² at the noisy end
    kl = 0.5 * (high * (rows[tokens] ** 2) + (1 - high) - 1 - np.log(1 - high)).sum(-1)
    close(process.prior_kl(u[None])[0], kl, 1e-5)


def test_plaid_output_prior_and_its_warmup() -> None:
    """logits + b (α/σ²) z·e_k with b from 0 to 1 over 5,000 of 92,000 steps, and 1 in evaluation."""
    model = built("plaid", preset="paper")
    process = model.process
    rows = array(process.codec.weight)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    z, out, t = at(7, 9, 16), at(8, 9, V), at(9, 9, low=0.1, high=0.9)
    g, _ = published_gamma(model, (array(t) - T_DECODE) / LAST)
    along = (np.sqrt(sigmoid(-g)) / sigmoid(g))[:, None] * (array(z) @ rows.T)
    for step, scale in ((0, 0.0), (1250, 0.25), (5000, 1.0), (50000, 1.0)):
        process.train().on_step_start(step / 92000)
        close(process.add_evidence(out, z, t).softmax(-1), softmax(array(out) + scale * along), 1e-5)
        close(process.eval().add_evidence(out, z, t).softmax(-1), softmax(array(out) + along), 1e-5)


def test_bit_diffusion_bound() -> None:
    """-½ dSNR/dt |u - x̂|² for bits, by a difference quotient of the published SNR."""
    process = built("bit-diffusion", preset="paper").process.eval()
    paper_t = np.random.default_rng(10).uniform(0.05, 0.95, 30)
    t = torch.from_numpy(T_DECODE + LAST * paper_t).float()
    paper_t = (array(t) - T_DECODE) / LAST
    u, out = at(11, 30, 3).sign(), at(12, 30, 3)

    def snr(x: np.ndarray) -> np.ndarray:
        return 1 / np.tan(math.pi / 2 * (x + 0.0002) / 1.00025) ** 2

    slope = (snr(paper_t - 1e-6) - snr(paper_t + 1e-6)) / 2e-6
    error = ((array(u) - array(out)) ** 2).sum(-1)
    close(process.elbo_rate(out, u, at(13, 30, 3), t), 0.5 * slope / LAST * error, 1e-5)


# ---- steps -------------------------------------------------------------------------------------------------------

NOW, THEN = np.array([[-3.0], [0.4], [2.0]]), np.array([[-2.5], [0.5], [6.0]])


@pytest.mark.parametrize("name", ["ancestral", "ancestral_large", "ddim", "q_sample"])
def test_steps(name: str) -> None:
    """DDPM in ᾱ and β (Ho et al. 2020, both variances), DDIM (Song et al. 2020), q-sampling."""
    z, clean, noise = at(14, 3, D), at(15, 3, D), RecordedNoise(16)
    move = {"ancestral": ancestral, "ancestral_large": ancestral_large, "ddim": ddim, "q_sample": q_sample}[name]
    ours = move(clean, z, torch.from_numpy(NOW), torch.from_numpy(THEN), noise)
    now, then = sigmoid(NOW), sigmoid(THEN)  # ᾱ_t and ᾱ_{t-1}
    beta, x, x0 = 1 - now / then, array(z), array(clean)
    eps = (x - np.sqrt(now) * x0) / np.sqrt(1 - now)
    mean = (x - beta / np.sqrt(1 - now) * eps) / np.sqrt(1 - beta)
    if name == "ddim":
        close(ours, np.sqrt(then) * x0 + np.sqrt(1 - then) * eps, 2e-6)
    elif name == "q_sample":
        close(ours, np.sqrt(then) * x0 + np.sqrt(1 - then) * noise.normals[0], 2e-6)
    else:
        variance = beta if name == "ancestral_large" else beta * (1 - then) / (1 - now)
        close(ours, mean + np.sqrt(variance) * noise.normals[0], 2e-6)


def test_dpm_solver_2m() -> None:
    """x' = (σ'/σ) x - α' (e^{-h} - 1) ((1 + 1/2r) x̂ - x̂_before/2r), r = h_before/h (Lu et al. 2022, algorithm 2)."""
    model = built(
        "gaussian-ce", codec="one-hot", schedule="linear", max_logsnr=2.0, min_logsnr=-6.0, time_sampler="even"
    ).eval()
    process, stepper = model.process, DPMSolverPP2M()
    outputs = [at(20 + i, 2, L, V) for i in range(4)]
    times = [1.0, 0.8, 0.55, 0.3, 0.2]
    z, x = (first := at(19, 2, L, V)), array(first)
    half = [float(process.logsnr(torch.tensor(t)) / 2) for t in times]
    before = None
    for i, out in enumerate(outputs):

        def evaluate(z: Tensor, t: Tensor, where: Tensor, of: Any = None, out: Tensor = out) -> Tensor:
            return out[where]

        t, s = torch.full((2, L), times[i]), torch.full((2, L), times[i + 1])
        z = stepper(process, evaluate, z, t, s, RecordedNoise())
        clean, h = softmax(array(out)), half[i + 1] - half[i]
        aim = clean
        if before is not None:
            r = (half[i] - half[i - 1]) / h
            aim = (1 + 1 / (2 * r)) * clean - before / (2 * r)
        now, then = 2 * half[i], 2 * half[i + 1]
        ratio = math.sqrt(sigmoid(-then) / sigmoid(-now))
        x, before = ratio * x - math.sqrt(sigmoid(then)) * math.expm1(-h) * aim, clean
        close(z, x, 1e-5)


def test_score_temperature() -> None:
    """ε̂/0.9 in place of ε̂."""
    process: GaussianTokenDiffusion = built("plaid").process
    z, out, t = at(30, 8, 16), at(31, 8, V), at(32, 8, low=0.1, high=0.9)
    g, _ = default_gamma(built("plaid"), (array(t) - T_DECODE) / LAST)
    alpha, sigma = np.sqrt(sigmoid(-g))[:, None], np.sqrt(sigmoid(g))[:, None]
    clean = softmax(array(out)) @ array(process.codec.table())
    eps = (array(z) - alpha * clean) / sigma / 0.9
    close(ScoreTemperature(0.9)(process, out, z, t, RecordedNoise()), (array(z) - sigma * eps) / alpha, 1e-5)


# ---- time sampling ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("schedule_type", [LearnedTanh, LearnedNetwork])
def test_the_shape_of_a_schedule_follows_the_variance(schedule_type: Any) -> None:
    """E over uniform t of the gradient = ∇ ∫ (f(λ_t) λ'_t)² dt, which Plaid gets by 2·loss; f is any function of λ."""
    torch.manual_seed(5)
    schedule = schedule_type(3.0, -6.0)
    with torch.no_grad():
        schedule.heights += 0.5 * torch.randn_like(schedule.heights)
    t = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000

    def f(logsnr: Tensor) -> Tensor:
        return 0.3 + torch.exp(-((logsnr - 1) ** 2) / 4)

    shape = [schedule.rates, schedule.heights]
    value, first, _ = schedule.shape(t)
    logsnr, speed = 3 - 9 * value, 9 * first
    theirs = torch.autograd.grad((f(logsnr) * speed).square().mean(), shape)
    nats = (f(logsnr) * speed).detach()
    ours = torch.autograd.grad(schedule.variance_loss(t, nats).mean(), shape)
    for one, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * scale)


def test_time_warp() -> None:
    """Times follow the decrease of the cross-entropy: F(t) = H(t)/H is uniform, up to floors of 8% and 2%."""
    steps = 128
    even = torch.full((steps + 1,), 1 / (steps + 1), dtype=torch.float64)
    time_sampler = TimeSampler(even, entropy_warp=True).train()
    middle = (np.arange(steps) + 0.5) / steps  # step 0 is the noisy end
    fall = np.exp(-0.5 * ((middle - 0.6) / 0.15) ** 2)
    entropy = 3 * (1 - np.cumsum(fall) / fall.sum())
    time_sampler.observe(torch.arange(steps), torch.ones(steps), torch.from_numpy(entropy))
    time_sampler.observe(torch.tensor([steps]), torch.ones(1), torch.zeros(1))
    time_sampler.update_statistics()
    drawn = time_sampler.probabilities().numpy()[:-1].reshape(32, 4).sum(1)
    expected = 0.9 * (fall / fall.sum()).reshape(32, 4).sum(1) + 0.08 / 32
    assert np.abs(drawn - expected).max() < 0.006 and abs(np.cumsum(drawn) - np.cumsum(expected)).max() < 0.02


def test_published_time_warp() -> None:
    """F(t_w) is linear in w: draws cover equal parts of the cross-entropy, up to 0.001 nats in each of 100 bins."""
    steps = 100
    time_sampler = TimeSampler(
        torch.full((steps + 1,), 1 / (steps + 1), dtype=torch.float64), entropy_warp=True, pure_warp=True, bins=100
    )
    middle = (np.arange(steps) + 0.5) / steps

    def entropy(x: np.ndarray) -> np.ndarray:
        return 3.2 * sigmoid(-(x - 0.55) / 0.08)

    assert np.allclose(time_sampler.train().probabilities().numpy()[:-1], 1 / steps)
    time_sampler.observe(torch.arange(steps), torch.ones(steps), torch.from_numpy(entropy(middle)))
    time_sampler.update_statistics()
    w = torch.from_numpy((np.arange(1000) + 0.5) / 1000)
    step, fraction, weight = time_sampler.sample_interval(w)
    x = (step + fraction).numpy() / steps
    floor = 1e-3 * steps
    along = (entropy(np.array(0.0)) - entropy(x) + floor * x) / (
        entropy(np.array(0.0)) - entropy(np.array(1.0)) + floor
    )
    assert np.abs(along - w.numpy()).max() < 0.005 and bool(weight.isfinite().all())


def test_separate_decode_step_of_the_time_sampler() -> None:
    """Plaid: the bound uses 1/8 of the draws to decode; training uses a fraction by deviation, the rest uniform."""
    rng = np.random.default_rng(8)
    time_sampler = TimeSampler(torch.full((129,), 1 / 129, dtype=torch.float64), separate_last=True)
    assert time_sampler.eval().probabilities()[-1] == 1 / 8
    step = torch.arange(128).repeat(200)
    nats = torch.from_numpy(rng.gamma(2.0, 1.5, len(step)) * (1 + step.numpy() / 64))
    recon_nll = torch.from_numpy(rng.gamma(1.0, 0.5, 20_000))
    time_sampler.train().observe(step, nats, nats)
    time_sampler.observe(torch.full((20_000,), 128), recon_nll, recon_nll)
    time_sampler.update_statistics()
    p = time_sampler.probabilities()
    expected = float(recon_nll.std()) / float(recon_nll.std() + nats.std())
    assert float(p[-1]) == pytest.approx(expected, rel=0.02)
    torch.testing.assert_close(p[:-1], torch.full((128,), (1 - float(p[-1])) / 128, dtype=torch.float64))


# ---- self-conditioning -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plaid", "cdcd", "bit-diffusion"])
def test_self_conditioning_without_an_estimate_is_the_plain_network(name: str) -> None:
    model = built(name, preset="paper").eval()
    conditioned = next(part for part in model.denoiser.modules() if isinstance(part, SelfConditioning))
    width = conditioned.reads
    z, t = at(40, 3, L, width), torch.full((3, L), 0.4)
    null = conditioned.inner(torch.cat([z, torch.zeros_like(z)], -1), t, z)
    assert torch.equal(conditioned.predict(z, t, z, None, None), null)
    assert torch.equal(conditioned.with_self_conditioning(False)(z, t, z), null)
    estimate = conditioned.estimate(null, z, t)
    expected_out = conditioned.inner(torch.cat([z, estimate.detach()], -1), t, z)
    torch.testing.assert_close(conditioned(z, t, z), expected_out)
    torch.testing.assert_close(conditioned.with_self_conditioning(True)(z, t, z), expected_out)
