"""RDLM against references in float64 that are written from its equations and share no code with the package.

Tolerances: 1e-9 where the package computes in double, 1e-6 where tables are kept in float32, more where a table of the
package is interpolated; each is stated at its test.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import integrate, optimize, special

import logosphere as ls
from logosphere.codecs.tokens import DigitCodec
from logosphere.geometry.bridge_tables import normal_parameters
from logosphere.geometry.bridges import Law
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.published import PublishedSphericalDiffusion
from logosphere.processes.spherical.times import rdlm_importance_density, rdlm_time, rdlm_time_density
from logosphere.rng import GeneratorNoise, Noise
from logosphere.sampling.steppers import GeodesicRandomWalk

Array = npt.NDArray[np.float64]
LOW, HIGH = 1e-3, 0.2
RATES = {
    "geometric": lambda tau: LOW ** (1 - tau) * HIGH**tau,
    "linear": lambda tau: LOW + (HIGH - LOW) * tau,
    "cosine": lambda tau: LOW + (HIGH - LOW) * math.sin(math.pi * tau / 2),
}
TINY = {"width": 16, "depth": 1, "heads": 2}


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of bridges are made once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


class Given(Noise):
    """Hands out normal and uniform numbers that a test has chosen."""

    def __init__(self, normal: Array, uniform: float = 0.5):
        self.given, self.share, self.device = normal, uniform, torch.device("cpu")

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, self.share, dtype=torch.float64)

    def low_discrepancy_times(self, draws: int, blocks: int) -> torch.Tensor:
        raise AssertionError("no quantile is needed here")

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.given).view(shape)


# ---- the references -----------------------------------------------------------------------------------------------


def integral(schedule: str, start: float, end: float) -> float:
    return float(integrate.quad(RATES[schedule], start, end, epsabs=0, epsrel=1e-12)[0])


def log_map(x: Array, k: int) -> Array:
    """log_x(e_k) by the angle: θ / sin θ (e_k - cos θ x)."""
    angle = math.acos(x[k])
    e = np.zeros_like(x)
    e[k] = 1
    return angle / math.sin(angle) * (e - x[k] * x)


def exp_map(x: Array, v: Array) -> Array:
    v = v - (v @ x) * x
    length = math.sqrt(v @ v)
    return math.cos(length) * x + math.sin(length) * v / length


def drift(schedule: str, p: Array, x: Array, tau: float) -> Array:
    """γ_τ Σ_k p_k log_x(e_k) with γ = β / ∫_τ^1 β."""
    gamma = RATES[schedule](tau) / integral(schedule, tau, 1)
    return gamma * sum(p[k] * log_map(x, k) for k in range(len(p)))


def softmax(out: Array) -> Array:
    weight = np.exp(out - out.max())
    return weight / weight.sum()


def points(n: int, tokens: int, seed: int) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """States on the sphere, logits and tokens."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, tokens + 1))
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.normal(size=(n, tokens)) * 2, rng.integers(0, tokens, n)


def paper(tokens: int = 27, **options: object) -> tuple[ls.Model, PublishedSphericalDiffusion]:
    model = ls.build("rdlm", vocab_size=tokens, length=4, preset="paper", **TINY, **options)
    assert isinstance(model.process, PublishedSphericalDiffusion)
    return model, model.process


# ---- schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", list(RATES))
def test_the_papers_time_is_that_of_its_rate(schedule: str) -> None:
    """s = ∫₀^τ β / ∫₀¹ β; the inverse is tabulated where it has no closed form, and good to 1e-7."""
    tau = np.linspace(0.01, 0.99, 23)
    whole = integral(schedule, 0, 1)
    s = np.array([integral(schedule, 0, t) / whole for t in tau])
    np.testing.assert_allclose(rdlm_time(schedule, torch.from_numpy(s)).numpy(), tau, atol=1e-7)


def test_the_total_noise_of_the_paper() -> None:
    _, process = paper()
    assert process.bridge.total_noise == pytest.approx(integral("geometric", 0, 1), rel=1e-9)
    assert process.bridge.total_noise == pytest.approx(0.0376, abs=5e-5)


def test_clocks_on_a_table_share_out_the_papers_time() -> None:
    """Each tabulated time stands for the interval up to half of the way to its neighbours."""
    times = np.sort(np.random.default_rng(0).uniform(0, 0.4, 50))
    edges = np.concatenate([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
    tau = np.log1p(199 * edges) / math.log(200)
    law = np.diff(tau) / tau[-1]
    np.testing.assert_allclose(rdlm_time_density("geometric", torch.from_numpy(times)).numpy(), law, rtol=1e-9)
    own = np.log1p(199 * times) / math.log(200)
    law = law * np.where((own > 0.3) & (own < 0.6), 1, 1e-4)
    drawn = rdlm_importance_density("geometric", torch.from_numpy(times), 0.3, 0.6).numpy()
    np.testing.assert_allclose(drawn, law / law.sum(), rtol=1e-7)  # 10⁻⁴ is rounded to float32


# ---- what is minimised and measured -------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", list(RATES))
def test_the_published_integrand(schedule: str) -> None:
    """|η_θ - η_x|² / 2β per unit of the paper's time, to 1e-9; ∫β of every schedule is its own."""
    total = integral(schedule, 0, 1)
    _, process = paper(time_sampler=schedule, total_noise=total)
    x, out, token = points(12, 27, 1)
    tau = np.concatenate([np.random.default_rng(2).uniform(0, 1, 10), [0.999, 1 - 1e-4]])
    truth = []
    for i in range(12):
        wanted = drift(schedule, np.eye(27)[token[i]], x[i], tau[i])
        apart = drift(schedule, softmax(out[i]), x[i], tau[i]) - wanted
        truth.append(apart @ apart / (2 * RATES[schedule](tau[i])))
    u = torch.from_numpy(np.eye(28)[token])
    nats = process.elbo_rate(torch.from_numpy(out), u, torch.from_numpy(x), torch.from_numpy(1 - tau))
    np.testing.assert_allclose(nats.numpy(), truth, rtol=1e-9)


def test_the_default_integrand() -> None:
    """(η_θ - η_x)² / 2V of the bridge's own time times the width of the cell; float32 tables of times: 1e-5."""
    process = ls.build("rdlm", vocab_size=27, length=4, denoiser=None).process
    assert isinstance(process, SphericalDiffusion)
    times = process.times.double().numpy()
    x, out, token = points(9, 27, 3)
    nodes = np.array([1, 20, 100, 160, 200, 250, 300, len(times) - 2, len(times) - 1])
    truth = []
    for i, node in enumerate(nodes):
        s, p = times[node], softmax(out[i])
        apart = sum((p[k] - (k == token[i])) * log_map(x[i], k) for k in range(27)) / (1 - s)
        after = times[node + 1] if node + 1 < len(times) else s
        nats = apart @ apart / (2 * process.bridge.total_noise) * (after - times[node - 1]) / 2
        truth.append(nats + (-math.log(p[token[i]]) if node == len(times) - 1 else 0))
    u = torch.from_numpy(np.eye(28)[token])
    t = torch.from_numpy(1 - nodes / len(times)).float()
    nats = process.elbo_rate(torch.from_numpy(out), u, torch.from_numpy(x), t)
    np.testing.assert_allclose(nats.numpy(), truth, rtol=1e-5)


def test_times_are_drawn_from_the_window_and_weighted_by_its_inverse() -> None:
    """τ = F⁻¹(w) with F the integral of 1 in (0.3, 0.6) and 10⁻⁴ elsewhere, over its total Z; the weight is Z / w."""
    _, process = paper()
    density = lambda tau: 1.0 if 0.3 < tau < 0.6 else 1e-4  # noqa: E731
    total = 0.3 + 0.7e-4

    def cumulative(tau: float) -> float:
        inside = min(max(tau - 0.3, 0), 0.3)
        return (inside + 1e-4 * (tau - inside)) / total

    w = np.concatenate([np.random.default_rng(4).uniform(0, 1, 20), [1e-6, 5e-5, 0.99995]])
    truth = np.array([optimize.brentq(lambda tau, w=w: cumulative(tau) - w, 0, 1, xtol=1e-14) for w in w])
    t, weight = process.importance_time(torch.from_numpy(w))
    np.testing.assert_allclose(1 - t.numpy(), truth, atol=1e-6)
    np.testing.assert_allclose(weight.numpy(), [total / density(tau) for tau in truth], rtol=1e-12)
    assert process.quantiles[2].tolist() == pytest.approx([3000.7, 0.30007, 3000.7, 3000.7], rel=1e-6)


def test_the_published_loss() -> None:
    """Z / w · Σ_positions -log p_θ(x), a sum over the positions of a sequence and a mean over sequences."""
    _, process = paper()
    process.train()
    x, out, token = points(8, 27, 5)
    weight = np.random.default_rng(6).uniform(0.3, 3000, 8)
    truth = np.array([-math.log(softmax(out[i])[token[i]]) * weight[i] for i in range(8)])
    u, half = torch.from_numpy(np.eye(28)[token]), torch.full((8,), 0.5, dtype=torch.float64)
    loss = process.loss(half, torch.from_numpy(out), u, torch.from_numpy(x), half, torch.from_numpy(weight))
    np.testing.assert_allclose(loss.numpy(), 4 * truth, rtol=1e-9)  # the trainer divides by the 4 tokens a sequence has


def test_times_of_training_and_of_values() -> None:
    """One time a sequence: within the window and weighted in training, (1 - 10⁻⁴) w and unweighted in values."""
    _, process = paper()
    free, w = torch.ones(64, 4, dtype=torch.bool), (torch.arange(64)[:, None] + 0.5) / 64
    t, weight = process.eval()._sample_times(w, free, GeneratorNoise(torch.Generator().manual_seed(0), 64))
    torch.testing.assert_close(1 - t, ((1 - 1e-4) * w).expand(64, 4), atol=1e-6, rtol=0)
    assert (weight == 1).all()
    t, weight = process.train()._sample_times(w, free, GeneratorNoise(torch.Generator().manual_seed(0), 64))
    assert (t == t[:, :1]).all() and t[:, 0].unique().numel() == 64
    inside = (1 - t > 0.3) & (1 - t < 0.6)
    assert inside.float().mean() > 0.95
    torch.testing.assert_close(weight[inside], torch.full_like(weight[inside], 0.30007))


def test_the_number_of_the_published_protocol_is_a_surrogate() -> None:
    for preset in ("paper", "paper-lm1b"):
        model = ls.build("rdlm", vocab_size=27, length=4, preset=preset, **TINY)
        tokens = torch.zeros(2, 4, dtype=torch.long)
        assert model.nelbo(tokens, torch.Generator().manual_seed(0)).kind == "surrogate"
        assert model.process.recon_time == 0  # no reconstruction term
        assert float(model.nelbo(tokens, torch.Generator().manual_seed(0)).recon.sum()) == 0


# ---- transitions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "uniform"), [(4, False), (4, True), (28, False), (28, True)])
@pytest.mark.parametrize("published", [True, False])
def test_the_riemannian_normal(d: int, uniform: bool, published: bool) -> None:
    """α and ρ by the paper's moment matching of E a and E b, with ρ by a root of its equation 115 or the right one."""
    rng = np.random.default_rng(7)
    cosine = 1 / math.sqrt(d) if uniform else 0.0
    sine = math.sqrt(1 - cosine**2)
    angle = np.linspace(0.15, 0.9, 6)[:, None] + rng.normal(size=(6, 400)) * 0.05
    length = 1 - np.abs(rng.normal(size=(6, 400))) * 0.02
    a, b = (length * np.cos(angle)).astype(np.float32), (length * np.sin(angle)).astype(np.float32)
    law = Law(torch.arange(6).double(), torch.from_numpy(a), torch.from_numpy(b))
    alpha, rho = normal_parameters(law, d, cosine, published=published, scale=1.14).numpy()
    mean_a = a.astype(float).mean(1)
    mean_start = (cosine * a.astype(float) + sine * b.astype(float)).mean(1)  # E <X, x₀>
    ratio = mean_a / mean_start
    truth = np.sqrt((ratio - cosine) ** 2 / (sine**2 + (ratio - cosine) ** 2))
    np.testing.assert_allclose(alpha, truth, rtol=1e-6)
    n = d - 1
    for i in range(6):
        mean_cosine = mean_start[i] / math.sqrt(1 - truth[i] ** 2)

        def gap(rho: float, mean_cosine: float = mean_cosine) -> float:
            factor = math.exp(-(rho**2) / 2) if published else 1.0
            return float(factor * special.hyp1f1(n / 2, 0.5, -(rho**2) / 2)) - mean_cosine

        assert rho[i] == pytest.approx(1.14 * optimize.brentq(gap, 1e-9, math.pi / 2 / math.sqrt(n)), rel=1e-6)


@pytest.mark.parametrize("tau", [0.2, 0.45, 0.97])
def test_a_published_state(tau: float) -> None:
    """exp_μ(ρ z): from the uniform point before 0.35, from the mask after it; tables in float32: 1e-6."""
    _, process = paper()
    process.train()
    rng = np.random.default_rng(8)
    token, z = rng.integers(0, 27, 6), rng.normal(size=(6, 28))
    which = int(tau < 0.35)
    start = np.full(28, 1 / math.sqrt(28)) if which else np.eye(28)[27]
    cosine = start[0]
    rows = process.rows.numpy()
    alpha, rho = (np.interp(tau, rows, process.normals[which, i].double().numpy()) for i in (0, 1))
    truth = []
    for i in range(6):
        mean = alpha * (np.eye(28)[token[i]] - cosine * start) / math.sqrt(1 - cosine**2)
        mean += math.sqrt(1 - alpha**2) * start
        truth.append(exp_map(mean, rho * z[i]))
    u = torch.from_numpy(np.eye(28)[token])[:, None]
    t = torch.full((6, 1), 1 - tau, dtype=torch.float64)
    np.testing.assert_allclose(process.corrupt(u, t, Given(z)).numpy()[:, 0], truth, atol=1e-6)


@pytest.mark.parametrize("start", ["mask", "uniform"])
def test_moments_of_the_bridge_against_a_walk_of_whole_states(start: str) -> None:
    """Means of <X, e> for 3 digits from 8,000 walks of 400 steps: 4 standard errors and 0.002, the error of steps."""
    _, process = paper(tokens=3, start=start)
    rng = np.random.default_rng(9)
    x = np.tile(np.full(4, 0.5) if start == "uniform" else np.eye(4)[3], (8000, 1))
    dt = 0.7 / 400
    for tau in np.arange(400) * dt:
        gamma = math.log(200) / (200 ** (1 - tau) - 1)
        angle = np.arccos(np.clip(x[:, :1], -1, 1))
        v = gamma * dt * angle / np.sin(angle) * (np.eye(4)[0] - x[:, :1] * x)
        v += math.sqrt(RATES["geometric"](tau) * dt) * rng.normal(size=x.shape)
        v -= (v * x).sum(1, keepdims=True) * x
        length = np.linalg.norm(v, axis=1, keepdims=True)
        x = np.cos(length) * x + np.sin(length) * v / length
    node = int(process._node(torch.tensor([0.3]))[0])
    error = 4 * x[:, 0].std() / math.sqrt(8000) + 0.002
    assert abs(float(process.a[0, node].double().mean()) - x[:, 0].mean()) < error
    assert float(process.a[0, node].std()) == pytest.approx(x[:, 0].std(), rel=0.05)


# ---- the sampler --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", list(RATES))
def test_a_step_of_the_published_walk(schedule: str) -> None:
    """exp_X(η_θ dτ + √(β dτ) z) with drift and rate at the beginning of the step; the last step ends at 1 - 10⁻⁵."""
    _, process = paper(time_sampler=schedule, total_noise=integral(schedule, 0, 1))
    x, out, _ = points(5, 27, 10)
    z = np.random.default_rng(11).normal(size=(5, 28))
    tau = np.array([0.0, 0.3, 0.6, 0.9, 255 / 256 * (1 - 1e-5)])
    then = np.array([0.01, 0.31, 0.65, 0.92, 1.0])
    truth = []
    for i in range(5):
        dt = min(then[i], 1 - 1e-5) - tau[i]
        v = drift(schedule, softmax(out[i]), x[i], tau[i]) * dt + math.sqrt(RATES[schedule](tau[i]) * dt) * z[i]
        truth.append(exp_map(x[i], v))
    walked = GeodesicRandomWalk.step(
        process, torch.from_numpy(out), torch.from_numpy(x), torch.from_numpy(1 - tau), torch.from_numpy(1 - then),
        Given(z),
    )  # fmt: skip
    np.testing.assert_allclose(walked.numpy(), truth, atol=1e-9)


def test_the_published_sampler_begins_steps_and_ends_as_published() -> None:
    """At 1/√d in all coordinates; m (1 - 10⁻⁵) / M; and the largest token coordinate of X, not of the prediction."""
    model, process = paper()
    assert model.sampler == "rdlm"
    torch.testing.assert_close(process.prior(2, 4, Given(np.zeros(0))), torch.full((2, 4, 28), 28**-0.5))
    walk = GeodesicRandomWalk()
    grid = walk.grid(process, 256)
    assert len(grid) == 257 and float(grid[-1]) == 0
    truth = torch.from_numpy(1 - np.arange(256) * (1 - 1e-5) / 256)
    torch.testing.assert_close(grid[:-1].double(), truth, atol=1e-7, rtol=0)
    x = torch.zeros(1, 1, 28)
    x[..., 3], x[..., 27] = 0.6, 0.8
    out = torch.zeros(1, 27)
    out[0, 5] = 1.0
    t = torch.full((1, 1), 1 / 256)
    evaluate = lambda z, t, where, denoiser=None: out  # noqa: E731
    z = walk(process, evaluate, x, t, torch.zeros(1, 1), Given(np.zeros((1, 28)) + 1e-12))
    walked = walk.step(process, out, x[0], t[0], torch.zeros(1), Given(np.zeros((1, 28)) + 1e-12))
    assert int(z.argmax()) == int(walked[0, :27].argmax()) and float(z.max()) == 1
    assert int(walked[0, :27].argmax()) == 3


# ---- the heat bridge ----------------------------------------------------------------------------------------------


def heat_slope(cosine: float, tau: float) -> float:
    """d log p_τ / d cos θ on S³, where p ∝ Σ_m (θ + 2πm) / sin θ · exp(-(θ + 2πm)² / 2τ)."""
    angle = math.acos(cosine)
    around = angle + 2 * math.pi * np.arange(-8, 9)
    weight = np.exp(-(around**2 - angle**2) / (2 * tau))
    value, slope = (around * weight).sum(), ((1 - around**2 / tau) * weight).sum()
    return float(-(slope / value - 1 / math.tan(angle)) / math.sin(angle))


def test_the_integrand_of_the_heat_bridge() -> None:
    """3 tokens on S³; the kernel is a table over 1,025 cosines and 96 times, linear in between: 0.1%."""
    process = ls.build(
        "rdlm-heat", vocab_size=3, length=4, denoiser=None, path="joint", any_order_fraction=0.0, total_noise=0.3
    ).process
    assert isinstance(process, SphericalDiffusion)
    times = process.times.double().numpy()
    x, out, token = points(40, 3, 12)
    x = np.abs(x)
    nodes = np.linspace(5, len(times) - 5, 40).astype(int)
    truth = []
    for i, node in enumerate(nodes):
        p, left = softmax(out[i]), 0.3 * (1 - times[node])
        pull = np.array([0.3 * heat_slope(x[i, k], left) for k in range(3)])
        apart = sum((p[k] - (k == token[i])) * pull[k] * (np.eye(4)[k] - x[i, k] * x[i]) for k in range(3))
        truth.append(apart @ apart / 0.6 * (times[node + 1] - times[node - 1]) / 2)
    u = torch.from_numpy(np.eye(4)[token])
    t = torch.from_numpy(1 - nodes / len(times)).float()
    nats = process.elbo_rate(torch.from_numpy(out), u, torch.from_numpy(x), t)
    np.testing.assert_allclose(nats.numpy(), truth, rtol=0.001)


# ---- digits -------------------------------------------------------------------------------------------------------


def test_digits_as_published_and_by_default() -> None:
    """m = ⌈log_b V⌉ digits, the smallest place first as published; the default has the largest first."""
    model = ls.build("rdlm", vocab_size=30_522, length=2, preset="paper-lm1b", **TINY)
    codec = model.process.codec
    assert isinstance(codec, DigitCodec) and codec.digits == 10
    token = 20_197
    digits = [token // 3**i % 3 for i in range(10)]
    assert codec.written(torch.tensor([token]))[0].tolist() == digits
    assert DigitCodec(30_522, 3).written(torch.tensor([token]))[0].tolist() == digits[::-1]
    states = codec.encode(torch.tensor([[token, 5]]))
    assert states.shape == (1, 20, 4) and codec.decode(states).tolist() == [[token, 5]]


@pytest.mark.parametrize("codes", ["valid", "published"])
def test_the_likelihood_of_digits(codes: str) -> None:
    """Published: the product over digits, also of codes of no token. Default: that product over its sum over tokens."""
    process = ls.build("rdlm", vocab_size=7, length=1, denoiser=None, base=2, codes=codes).process
    out = np.random.default_rng(13).normal(size=(3, 2))
    log_p = np.log(np.stack([softmax(row) for row in out]))
    token = 5
    order = range(3) if codes == "published" else reversed(range(3))
    digits = [token // 2**i % 2 for i in order]
    joint = [math.exp(sum(log_p[i, d] for i, d in enumerate(c))) for c in itertools.product(range(2), repeat=3)]
    truth = -sum(log_p[i, d] for i, d in enumerate(digits))
    if codes == "valid":
        truth += math.log(sum(joint[:7]))
    u = torch.from_numpy(np.eye(3)[digits])
    found = process.cross_entropy(torch.from_numpy(out), u)
    assert float(found.sum()) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("smallest_first", [False, True])
def test_codes_of_no_token_become_the_nearest_token(smallest_first: bool) -> None:
    codec = DigitCodec(11, 4, smallest_first=smallest_first)
    z = torch.randn(200, 2, 5, generator=torch.Generator().manual_seed(14))
    digits = codec.written(torch.arange(11))
    score = torch.stack([z[:, 0, digits[k, 0]] + z[:, 1, digits[k, 1]] for k in range(11)], 1)
    assert torch.equal(codec.decode(z)[:, 0], score.argmax(1))
    assert ((z[..., :4].argmax(-1) * codec.powers).sum(1) >= 11).any()
