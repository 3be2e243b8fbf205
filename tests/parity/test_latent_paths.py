"""Latent systems against a float64 implementation of the published equations: paths, losses, bounds and samplers.

Times and states are float32, so a few operations on them agree to 1e-5, not to the rounding of
float64; where the package computes in float64 the tolerance is 1e-9.
"""

import math

import numpy as np
import pytest
import torch
from tiny_encoder import use_tiny_encoder
from toy_languages import generator

import logosphere as ls
from logosphere.model import Model
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.rng import GeneratorNoise
from logosphere.sampling.registry import sampler

SYSTEMS = ["ld4lg", "planner", "tencdm", "cosmos"]
CASES = [(name, preset) for name in SYSTEMS for preset in ("default", "paper")]
D = {"ld4lg": 1.0, "planner": 1.0, "tencdm": 9.0, "cosmos": 5.0}
"""d of tan-d; 1 is cosine."""
ENDS = {"ld4lg": (15.0, -15.0), "planner": (14.2986, -14.2986), "tencdm": (8.5179, None), "cosmos": (15.0, None)}
VOCABULARY, LENGTH = 11, 16


@pytest.fixture(autouse=True)
def encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_encoder(monkeypatch, VOCABULARY)


def built(name: str, preset: str, **options: object) -> Model:
    torch.manual_seed(0)
    tiny = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}
    return ls.build(name, vocab_size=VOCABULARY, length=LENGTH, preset=preset, **tiny | options).eval()


# ---- the equations --------------------------------------------------------------------------------------------------


def signal(t: np.ndarray, d: float) -> np.ndarray:
    """α² = 1/(1 + d² tan²(πt/2)) of TEncDM and COSMOS; cos²(πt/2) for d = 1."""
    return np.where(t >= 1, 0.0, 1 / (1 + d**2 * np.tan(np.pi * np.minimum(t, 1 - 1e-15) / 2) ** 2))


def time_at(logsnr: float | None, d: float) -> float:
    """The time at which tan-d has a log-SNR."""
    return 1.0 if logsnr is None else 2 / math.pi * math.atan(math.exp(-logsnr / 2) / d)


def ends(name: str, preset: str) -> tuple[float, float]:
    """The times of the schedule between which the path runs."""
    high, low = ENDS[name] if preset == "paper" else (3.0, None)
    return time_at(high, D[name]), time_at(low, D[name])


def package_time(t: np.ndarray, name: str, preset: str) -> torch.Tensor:
    begins, last = ends(name, preset)
    return torch.from_numpy(T_DECODE + (1 - T_DECODE) * (t - begins) / (last - begins))


def schedule_time(t: torch.Tensor, name: str, preset: str) -> np.ndarray:
    begins, last = ends(name, preset)
    return begins + (last - begins) * (t.double().numpy() - T_DECODE) / (1 - T_DECODE)


def draws(name: str, preset: str, n: int = 64) -> tuple[np.ndarray, torch.Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Times of the schedule and of the package, clean latents, noise and network outputs."""
    rng = np.random.default_rng(1)
    t = schedule_time(
        package_time(rng.uniform(ends(name, preset)[0] + 0.05, 0.95, n), name, preset).float(), name, preset
    )
    width = built(name, preset).process.codec.features
    u, noise, out = rng.normal(size=(3, n, width)).astype(np.float32).astype(np.float64)
    return t, package_time(t, name, preset).float(), u, noise, out


def levels(t: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    a2 = signal(t, D[name])[:, None]
    return np.sqrt(a2), np.sqrt(1 - a2)


# ---- schedules and times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, preset", CASES)
def test_the_schedule_is_the_published_one(name: str, preset: str) -> None:
    begins, last = ends(name, preset)
    t = np.linspace(begins, min(last, 0.999), 200)[1:-1]
    a2 = signal(t, D[name])
    found = built(name, preset).process.logsnr(package_time(t, name, preset)).numpy()
    np.testing.assert_allclose(found, np.log(a2) - np.log1p(-a2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_path_of_the_preset_has_the_published_ends(name: str) -> None:
    high, low = ENDS[name]
    path = built(name, "paper").process
    first, last = path.logsnr(torch.tensor([T_DECODE, 1.0], dtype=torch.float64)).tolist()
    assert first == pytest.approx(high, abs=1e-9) and last == pytest.approx(-math.inf if low is None else low, abs=1e-9)
    if name == "tencdm":  # eps = 0.001 of its decoder
        assert time_at(first, 9) == pytest.approx(0.001, rel=1e-5)
    if name == "planner":  # t_min of its code
        assert time_at(first, 1) == pytest.approx(0.0005, rel=1e-4)


@pytest.mark.parametrize("name, preset", CASES)
def test_times_are_uniform_over_the_path(name: str, preset: str) -> None:
    process = built(name, preset).process.train()
    w = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)[:, None]
    u = torch.zeros(99, process.codec.latents, process.codec.features)
    t = process.sample_zt(u, w, torch.ones(u.shape[:2], dtype=torch.bool), GeneratorNoise(generator(0), 99)).t[:, 0]
    begins, last = ends(name, preset)
    np.testing.assert_allclose(schedule_time(t, name, preset), last - (last - begins) * w[:, 0].numpy(), atol=2e-6)


@pytest.mark.parametrize("name, preset", CASES)
def test_the_forward_kernel(name: str, preset: str) -> None:
    t, times, u, _, _ = draws(name, preset)
    alpha, sigma = levels(t, name)
    noise = GeneratorNoise(generator(3), 64).normal(64, 1, u.shape[1])[:, 0].double().numpy()
    state = torch.from_numpy(u).float()[:, None]
    found = built(name, preset).process.corrupt(state, times[:, None], GeneratorNoise(generator(3), 64))[:, 0]
    np.testing.assert_allclose(found.numpy(), alpha * u + sigma * noise, rtol=1e-5, atol=1e-6)


# ---- losses and bounds ----------------------------------------------------------------------------------------------


def losses_and_errors(name: str, preset: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Loss and nats of the package, and the squared errors of x0 and of the network's prediction target."""
    t, times, u, noise, out = draws(name, preset)
    process = built(name, preset).process
    alpha, sigma = levels(t, name)
    z = (alpha * u + sigma * noise).astype(np.float32).astype(np.float64)
    noise = (z - alpha * u) / sigma
    clean = alpha * z - sigma * out if name == "ld4lg" else out
    target = alpha * noise - sigma * u if name == "ld4lg" else u
    numbers = [torch.from_numpy(part).float() for part in (out, u, z)]
    nats = process.elbo_rate(*numbers, times)
    loss = process.loss(nats, *numbers, times, torch.ones(64)) * process.codec.latents / process.codec.length
    error = ((clean - u) ** 2).mean(1)
    target_error = ((target - out) ** 2).mean(1)
    if name == "planner":  # the error of the noise, with the P2 weight
        eps_error = ((noise - (z - alpha * out) / sigma) ** 2).mean(1)
        snr = (alpha**2 / sigma**2)[:, 0]
        np.testing.assert_allclose(eps_error / (1 + snr), alpha[:, 0] ** 2 * error, rtol=1e-6)
        if preset == "paper":
            target_error = eps_error / (1 + snr)
    return loss.numpy(), nats.numpy(), error, target_error


@pytest.mark.parametrize("name, preset", CASES)
def test_the_loss_of_the_second_stage(name: str, preset: str) -> None:
    """A mean over features; the trainer takes it over latents and texts."""
    loss, _, _, target_error = losses_and_errors(name, preset)
    np.testing.assert_allclose(loss, target_error, rtol=2e-5)


@pytest.mark.parametrize("name, preset", CASES)
def test_the_integrand_of_the_bound(name: str, preset: str) -> None:
    """-½ dSNR/dt |u - x̂|², with SNR = 1/(d² tan²(πt/2)) and -dSNR/dt = π (1 + T²)/(d² T³) for T = tan(πt/2)."""
    _, nats, error, _ = losses_and_errors(name, preset)
    t = draws(name, preset)[0]
    begins, last = ends(name, preset)
    tan = np.tan(np.pi * t / 2)
    falls = np.pi * (1 + tan**2) / (D[name] ** 2 * tan**3) * (last - begins) / (1 - T_DECODE)
    width = built(name, preset).process.codec.features
    np.testing.assert_allclose(nats, 0.5 * falls * error * width, rtol=2e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_preset_reports_a_bound(name: str) -> None:
    """No paper reports a likelihood; ours is a bound for every encoder, decoder, denoiser and end of the path."""
    model = built(name, "paper")
    bound = model.nelbo(torch.randint(VOCABULARY, (3, LENGTH)), generator(1))
    assert bound.kind == "bound" and bool(torch.isfinite(bound.total).all())


# ---- samplers -------------------------------------------------------------------------------------------------------


def estimate(name: str, z: np.ndarray, alpha: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A network output that depends on the state, and the corresponding x̂."""
    out = (0.4 * z - 0.2).astype(np.float32).astype(np.float64)
    return out, alpha * z - sigma * out if name == "ld4lg" else out


def published_step(name: str, z: np.ndarray, t: float, s: float, noise: np.ndarray, *, last: bool) -> np.ndarray:
    a2, a2_next = signal(np.array(t), D[name]), signal(np.array(s), D[name])
    alpha, sigma = np.sqrt(a2), np.sqrt(1 - a2)
    out, clean = estimate(name, z, alpha, sigma)
    eps = (z - alpha * clean) / sigma
    if name in ("tencdm", "cosmos"):
        tan, d = np.tan(np.pi * min(t, 0.95) / 2), D[name]
        beta = np.pi * d**2 * tan * (1 + tan**2) / (1 + d**2 * tan**2)
        score = -eps / sigma
        mean = z - (-beta / 2 * z - beta * score) * (t - s)
        return mean if last else mean + np.sqrt(beta * (t - s)) * noise
    if last:
        return clean
    if name == "ld4lg":
        ratio = a2 / a2_next
        return (z - (1 - ratio) / sigma * eps) / np.sqrt(ratio) + np.sqrt(1 - ratio) * noise
    return np.sqrt(a2_next) * clean + np.sqrt(1 - a2_next) * eps


@pytest.mark.parametrize("steps", [4, 20, 50])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_step_of_the_published_sampler(name: str, steps: int) -> None:
    """Each step starts at the previous result, with the same noise; the grid is uniform in the schedule's time."""
    model, end = built(name, "paper"), {"tencdm": 0.01, "cosmos": 0.05}.get(name, 0.0)
    published_sampler = sampler(model.sampler, model)
    assert published_sampler.grid is not None
    grid, even = published_sampler.grid(steps), np.linspace(1, end, steps + 1)
    begins, ending = ends(name, "paper")
    even = np.clip(even, begins, ending)
    np.testing.assert_allclose(schedule_time(grid[1:-1], name, "paper"), even[1:-1], rtol=2e-6)
    count, width = model.process.codec.latents, model.process.codec.features
    z = torch.randn(3, count, width, generator=generator(2))
    for i in range(steps):
        t, s = grid[i].expand(3, count), grid[i + 1].expand(3, count)

        def evaluate(z: torch.Tensor, t: torch.Tensor, where: torch.Tensor, denoiser: object = None) -> torch.Tensor:
            alpha, sigma = levels(schedule_time(t[where], name, "paper"), name)
            return torch.from_numpy(estimate(name, z[where].double().numpy(), alpha, sigma)[0]).float()

        noise = GeneratorNoise(generator(i), 3).normal(3 * count, width).double().numpy()
        before = z.flatten(0, 1).double().numpy()
        times = [float(schedule_time(grid[i + j], name, "paper")) for j in (0, 1)]
        last = i == steps - 1
        expected = published_step(name, before, times[0], even[-1] if last else times[1], noise, last=last)
        z = published_sampler.stepper.begin_sampling()(
            model.process, evaluate, z, t, s, GeneratorNoise(generator(i), 3)
        )
        size = np.abs(expected).max()
        np.testing.assert_allclose(z.flatten(0, 1).numpy(), expected, rtol=1e-5, atol=1e-5 * size)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_of_the_default_sampler_is_the_posterior(name: str) -> None:
    """q(z_s | z_t, x̂) by Bayes' rule for Gaussians: precisions add up."""
    process = built(name, "default").process
    times = torch.tensor([[0.7], [0.4]]).expand(2, process.codec.latents)
    t, s = (schedule_time(row[:1], name, "default") for row in times)
    (alpha, sigma), (alpha_s, sigma_s) = levels(t, name), levels(s, name)
    rng = np.random.default_rng(5)
    z, out = rng.normal(size=(2, process.codec.latents, process.codec.features)).astype(np.float32).astype(np.float64)
    clean = alpha * z - sigma * out if name == "ld4lg" else out
    forward, spread = alpha / alpha_s, sigma**2 - (alpha / alpha_s) ** 2 * sigma_s**2
    variance = 1 / (1 / sigma_s**2 + forward**2 / spread)
    mean = variance * (alpha_s * clean / sigma_s**2 + forward * z / spread)
    noise = GeneratorNoise(generator(6), 1).normal(*z.shape).double().numpy()
    inputs = [torch.from_numpy(part).float() for part in (out, z)]
    found = process.step(*inputs, times[0], times[1], GeneratorNoise(generator(6), 1))
    np.testing.assert_allclose(found.numpy(), mean + np.sqrt(variance) * noise, rtol=1e-5, atol=1e-5)


def test_published_latent_samplers_refuse_other_processes() -> None:
    model = ls.build("plaid", vocab_size=5, length=4, width=16, depth=1, heads=2)
    for name in ("euler-tencdm", "euler-cosmos", "ddpm-ld4lg", "ddim-planner"):
        with pytest.raises(ls.UserError, match="needs latent diffusion such as tencdm"):
            ls.sample(model, 1, 2, sampler=name)
