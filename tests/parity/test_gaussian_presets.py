"""The published Gaussian systems: losses, samplers and training of preset="paper" against the papers' equations.

References are float64. States, tables and squared errors of the package are float32, hence 1e-5.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from statistical_checks import bound_excess, mean_and_error
from torch import Tensor, nn
from toy_languages import generator, sticky_chain

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.networks.self_conditioning import SelfConditioning, bound_by_group
from logosphere.networks.transformer import FullTransformer
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.rng import CounterNoise, Noise
from logosphere.sampling.registry import sampler
from logosphere.systems import presets
from logosphere.types import Batch

V, L = 7, 5
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2}
NAMES = ["plaid", "cdcd", "diffusion-lm", "bit-diffusion"]


class RecordedNoise(Noise):
    """Normal numbers of a seed, recorded for the reference."""

    def __init__(self, seed: int):
        self.rng, self.normals, self.device = np.random.default_rng(seed), list[np.ndarray](), torch.device("cpu")

    def uniform(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.uniform(size=shape))

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        return torch.from_numpy(self.rng.uniform(size=(draws, blocks)))

    def normal(self, *shape: int) -> Tensor:
        self.normals.append(self.rng.standard_normal(shape).astype(np.float32).astype(np.float64))
        return torch.from_numpy(self.normals[-1]).float()


def built(name: str, **options: Any) -> Any:
    torch.manual_seed(3)
    return ls.build(name, **({"vocab_size": V, "length": L} | SMALL | options), preset="paper")


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def close(ours: Tensor, theirs: np.ndarray, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(array(ours), theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())


def betas() -> np.ndarray:
    left = [1 - math.sqrt(k / 2000 + 1e-4) for k in range(2001)]
    return np.array([min(1 - left[k + 1] / left[k], 0.999) for k in range(2000)])


def tokens(seed: int, rows: int = 4) -> Tensor:
    return torch.randint(V, (rows, L), generator=generator(seed))


@pytest.mark.parametrize("name", NAMES)
def test_presets_train_evaluate_and_sample(name: str) -> None:
    preset, known = presets(name)["paper"], ls.options(name)
    for option, value in preset.options.items():
        assert option in known and known[option] != value
    assert ls.OptimizerConfig(**preset.optim).lr > 0
    model = built(name)
    assert model.sampler == preset.sampler
    progress = list(ls.fit(model, [tokens(1), tokens(2)], steps=2, optim=ls.OptimizerConfig(**preset.optim)))
    assert all(math.isfinite(step.loss) for step in progress)
    bound = model.eval().nelbo(tokens(3), generator(4))
    assert bool(bound.total.isfinite().all()) and bound.kind == "bound"
    drawn = ls.sample(model, n=3, steps=4, rng=5)
    assert drawn.shape == (3, L) and 0 <= int(drawn.min()) and int(drawn.max()) < V


# ---- Diffusion-LM ------------------------------------------------------------------------------------------------


def test_diffusion_lm_loss() -> None:
    """|x_0 - x̂|² (|e - x̂|² in the first step), head(x_0) and ᾱ_T x_0², means over coordinates (Li et al. 2022)."""
    model = built("diffusion-lm").train()
    process, noise, d = model.process, RecordedNoise(6), 16
    with torch.no_grad():
        process.bias.copy_(torch.randn(V, generator=generator(1)))
    batch = Batch.of(tokens(2, rows=6))
    free = batch.free
    beta = betas()
    kept = np.cumprod(1 - beta)
    u = process.encode(batch, noise).u
    rows = array(process.codec.weight)
    e = rows[batch.tokens.numpy()]
    x0 = e + math.sqrt(1 - kept[0]) * noise.normals[0]
    close(u[..., d:], x0)
    assert torch.equal(u[..., :d], process.codec.encode(batch.tokens))
    # Quantiles in the middle of five of the 2,000 steps, all equally likely; the last one is the first of the chain.
    index = np.array([1999, 1500, 700, 3, 1, 0])
    w = torch.from_numpy((1999 - index + 0.5) / 2000)[:, None]
    z, t, _ = process.sample_zt(u, w, free, noise)
    signal = kept[index][:, None, None]
    close(z, np.sqrt(signal) * x0 + np.sqrt(1 - signal) * noise.normals[1])
    assert bool((t[-1] == T_DECODE).all()) and bool((t[:-1] > T_DECODE).all())
    out = torch.randn(6 * L, d, generator=generator(3))
    flat = u.flatten(0, 1), z.flatten(0, 1), t.flatten()
    nats = process.elbo_rate(out, *flat)
    loss = process.loss(nats, out, *flat, torch.ones(6 * L)).view(6, L)
    target = np.where((index == 0)[:, None, None], e, x0)
    guess = array(out).reshape(6, L, d)
    close(loss, ((target - guess) ** 2).mean(-1))
    logits = x0 @ rows.T + array(process.bias)
    chosen = np.take_along_axis(logits, batch.tokens.numpy()[..., None], -1)[..., 0]
    recon_nll = np.log(np.exp(logits).sum(-1)) - chosen
    auxiliary_loss = process.auxiliary_loss(batch, u, t, torch.zeros(6), noise)
    close(auxiliary_loss, (recon_nll + (kept[-1] * x0**2).mean(-1)).sum(1))


def test_diffusion_lm_bound_terms() -> None:
    """The term of the first step: -log p(x | x_0), the squared error of x_0 and the entropy of q(x_0 | x)."""
    model = built("diffusion-lm").eval()
    process, d, n = model.process, 16, 12
    rows, s0 = array(process.codec.weight), math.sqrt(betas()[0])
    x = np.random.default_rng(7).integers(V, size=n)
    x0 = rows[x] + s0 * np.random.default_rng(8).standard_normal((n, d))
    guess = torch.randn(n, d, generator=generator(9))
    u = torch.from_numpy(np.concatenate([rows[x], x0], -1)).float()
    ours = process.elbo_rate(guess, u, torch.zeros(n, d), torch.full((n,), T_DECODE))
    s2 = s0**2 * s0**2 / (s0**2 + (1 - s0**2) * s0**2)
    logits = x0 @ rows.T
    recon_nll = np.log(np.exp(logits).sum(-1)) - logits[np.arange(n), x]
    gap = ((x0 - array(guess)) ** 2).sum(-1) / (2 * s2) + d / 2 * math.log(2 * math.pi * s2)
    entropy = d / 2 * math.log(2 * math.pi * s0**2) + d / 2
    close(ours, recon_nll + gap - entropy)


def test_diffusion_lm_bound_is_the_entropy_of_an_oracle() -> None:
    """With the exact E[x_0 | z_t] and rows so far apart that x_0 determines its token, the bound is tight."""
    language = sticky_chain(3, 4)
    model = ls.build("diffusion-lm", vocab_size=3, length=4, denoiser=None, preset="paper", embedding=2)
    process = model.process
    with torch.no_grad():  # x_0·e_k is largest for its own row where all rows are of one length
        angle = 2 * math.pi / 3 * torch.arange(3)
        process.codec.weight.copy_(4 * torch.stack([angle.cos(), angle.sin()], -1))
    process.train()
    model.nelbo(language.sample(2000, generator(1)), generator(2), denoiser=Oracle(model, language), draws=4)
    process.update_statistics()
    process.eval()
    mean, error = mean_and_error(bound_excess(model, language, n=3000, draws=64))
    assert error < 0.03 * language.entropy() and abs(mean) < 3 * error
    biased = mean_and_error(
        bound_excess(model, language, n=500, draws=32, denoiser=Oracle(model, sticky_chain(3, 4, stay=0.5)))
    )
    assert biased[0] > 3 * biased[1]


def test_diffusion_lm_sampler() -> None:
    """x' = coef₁ x̂ + coef₂ x + √β ε, x̂ the nearest row; at the end argmax of head(x̂)."""
    model = built("diffusion-lm").eval()
    process, noise = model.process, RecordedNoise(10)
    with torch.no_grad():
        process.bias.copy_(torch.randn(V, generator=generator(1)))
    stepper = sampler("diffusion-lm", model).stepper
    beta = betas()
    kept = np.cumprod(1 - beta)
    rows = array(process.codec.weight)
    grid = process.grid(2000)
    assert len(grid) == 2001
    out = torch.randn(2, L, 16, generator=generator(11))
    near = rows[((array(out)[..., None, :] - rows) ** 2).sum(-1).argmin(-1)]
    z = torch.randn(2, L, 16, generator=generator(12))

    def evaluate(z: Tensor, t: Tensor, where: Tensor, of: Any = None) -> Tensor:
        return out[where]

    for k in (1999, 1200, 2, 1):
        t, s = grid[1999 - k].expand(2, L), grid[2000 - k].expand(2, L)
        moved = stepper(process, evaluate, z, t, s, noise)
        before = kept[k - 1]
        first = beta[k] * math.sqrt(before) / (1 - kept[k])
        second = (1 - before) * math.sqrt(1 - beta[k]) / (1 - kept[k])
        drawn = math.sqrt(beta[k]) * noise.normals[-1].reshape(2, L, 16)
        close(moved, first * near + second * array(z) + drawn, 2e-5)
    ended = stepper(process, evaluate, z, grid[1999].expand(2, L), torch.zeros(2, L), noise)
    likeliest = (near @ rows.T + array(process.bias)).argmax(-1)
    close(ended, rows[likeliest])


# ---- Plaid -------------------------------------------------------------------------------------------------------


def grads(value: Tensor, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    return list(torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True))


def test_conditioned_sequences_train_the_network_alone() -> None:
    """Every fourth sequence is self-conditioned and gives no gradient to embeddings and schedule; others get zeros."""
    model = built("plaid").train()
    process = model.process
    process.on_step_start(1.0)
    with torch.no_grad():  # heads are initialised to zero, which would block the gradient of the layers below
        for parameter in model.denoiser.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(20)))
    batch = Batch.of(tokens(21, rows=8))
    noise = CounterNoise(1, 2, batch.ids, batch.global_index, batch.total)
    w = noise.low_discrepancy_times(1, 1)[:, 0]
    calls: list[Tensor] = []
    inner = next(part for part in model.denoiser.modules() if isinstance(part, FullTransformer))
    inner.register_forward_pre_hook(lambda module, given: calls.append(given[0][..., 16:]))
    torch.manual_seed(5)
    first = int(torch.randint(4, ()))
    torch.manual_seed(5)
    bound = bound_by_group(process, model.denoiser, batch, w, noise, 4)
    assert [len(call) for call in calls] == [6, 2, 2]
    assert not calls[0].any() and not calls[1].any() and calls[2].abs().sum((1, 2)).gt(0).all()
    conditioned = torch.arange(8) % 4 == first
    codec, schedule = list(process.codec.parameters()), process.schedule_parameters()
    learns = [p for p in model.denoiser.parameters() if p.requires_grad]
    assert all(p.requires_grad for p in codec + schedule)
    held = grads(bound.loss[conditioned].sum(), codec + schedule)
    assert all(grad is None or not bool(grad.any()) for grad in held)
    plain = grads(bound.loss[~conditioned].sum(), codec + schedule)
    whole = grads(bound.loss.sum(), codec + schedule)
    for one, other in zip(plain, whole, strict=True):
        assert one is not None and other is not None and bool(one.any())
        torch.testing.assert_close(one, other)
    assert any(grad is not None and bool(grad.any()) for grad in grads(bound.loss[conditioned].sum(), learns))


def test_conditioned_rows_do_not_depend_on_the_batch_split() -> None:
    losses = []
    for accumulate in (1, 2):
        model = built("plaid")
        batches = (tokens(30 + i, rows=8) for i in range(4))
        losses.append([step.loss for step in ls.fit(model, batches, steps=4, accumulate=accumulate)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_batches_smaller_than_the_period_are_trained() -> None:
    model = built("plaid")
    for step in ls.fit(model, [tokens(i, rows=1) for i in range(6)], steps=6):
        assert math.isfinite(step.loss)


def test_bound_self_conditions_at_the_same_state() -> None:
    """The estimate is a function of z_t and t: two evaluations of one state, without earlier states."""
    model = built("plaid").eval()
    inner = next(part for part in model.denoiser.modules() if isinstance(part, SelfConditioning)).inner
    calls: list[tuple[Tensor, Tensor]] = []
    inner.register_forward_pre_hook(lambda module, given: calls.append((given[0], given[1])))
    model.nelbo(tokens(40), generator(41), draws=2)
    assert len(calls) == 4
    for first, second in (calls[:2], calls[2:]):
        assert torch.equal(first[0][..., :16], second[0][..., :16]) and torch.equal(first[1], second[1])
        assert not first[0][..., 16:].any() and bool(second[0][..., 16:].any())


def test_states_are_scaled_to_variance_one() -> None:
    """z/√(α²/d + σ²) and √d x̂ for unit embeddings."""
    model = built("plaid").eval()
    inner = next(part for part in model.denoiser.modules() if isinstance(part, SelfConditioning)).inner
    calls: list[Tensor] = []
    inner.inner.register_forward_pre_hook(lambda module, given: calls.append(given[0]))
    z, last = torch.randn(2, L, 16, generator=generator(42)), torch.randn(2, L, 16, generator=generator(43))
    t = torch.full((2, L), 0.3)
    signal = 1 / (1 + np.exp(-array(model.process.logsnr(t))))[..., None]
    inner(torch.cat([z, last], -1), t, z)
    close(calls[0][..., :16], array(z) / np.sqrt(signal / 16 + 1 - signal))
    close(calls[0][..., 16:], array(last) * 4)


def test_plaid_sampler() -> None:
    """VDM's step (equation 33) at ε̂/0.9, equal steps of the schedule's time, likeliest tokens at the end."""
    model = built("plaid").eval()
    process, noise = model.process, RecordedNoise(50)
    stepper = sampler("plaid", model).stepper
    grid = process.grid(5)
    torch.testing.assert_close(grid[:-1], T_DECODE + (1 - T_DECODE) * torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]))
    z, out = torch.randn(2, L, 16, generator=generator(51)), torch.randn(2, L, V, generator=generator(52))

    def evaluate(z: Tensor, t: Tensor, where: Tensor, of: Any = None) -> Tensor:
        return out[where]

    rows = array(process.codec.table())
    p = np.exp(array(out))
    clean = p / p.sum(-1, keepdims=True) @ rows
    gt, gs = (-array(process.logsnr(grid[i])) for i in (1, 2))
    a2t, a2s = 1 / (1 + np.exp(gt)), 1 / (1 + np.exp(gs))
    eps = (array(z) - np.sqrt(a2t) * clean) / np.sqrt(1 - a2t) / 0.9
    warm = (array(z) - np.sqrt(1 - a2t) * eps) / np.sqrt(a2t)
    c = -np.expm1(gs - gt)
    drawn = np.sqrt(c * (1 - a2s))
    moved = stepper(process, evaluate, z, grid[1].expand(2, L), grid[2].expand(2, L), noise)
    expected = (1 - c) * np.sqrt(a2s / a2t) * array(z) + c * np.sqrt(a2s) * warm
    close(moved, expected + drawn * noise.normals[-1].reshape(2, L, 16))
    ended = stepper(process, evaluate, z, grid[4].expand(2, L), torch.zeros(2, L), noise)
    close(ended, rows[array(out).argmax(-1)])


# ---- CDCD and Bit Diffusion --------------------------------------------------------------------------------------


def test_cdcd_loss_and_sampler() -> None:
    """Cross-entropy alone; an Euler step of dx = (x - x̂)/t dt in x = z √(1 + t²), x̂ brought to length 16."""
    model = built("cdcd").train()
    process = model.process
    rows = array(process.codec.table())
    x = torch.randint(V, (9,), generator=generator(60))
    u, z, out = process.codec.rows(x), torch.zeros(9, 256), torch.randn(9, V, generator=generator(61))
    t = torch.linspace(0.1, 0.9, 9)
    p = np.exp(array(out)) / np.exp(array(out)).sum(-1, keepdims=True)
    nats = process.elbo_rate(out, u, z, t)
    close(process.loss(nats, out, u, z, t, torch.ones(9)), -np.log(p[np.arange(9), x.numpy()]))
    z = torch.randn(9, 1, 256, generator=generator(62))
    now, then = torch.full((9, 1), 0.6), torch.full((9, 1), 0.5)
    level = [math.exp(-float(process.logsnr(s[0, 0])) / 2) for s in (now, then)]
    stepper = sampler("renormalised", model).stepper
    moved = stepper(process, lambda z, t, where, of=None: out, z, now, then, RecordedNoise(1))
    clean = p @ rows
    clean = 16 * clean / np.linalg.norm(clean, axis=-1, keepdims=True)
    state = array(z)[:, 0] * math.sqrt(1 + level[0] ** 2)
    state = state + (level[1] - level[0]) * (state - clean) / level[0]
    close(moved[:, 0], state / math.sqrt(1 + level[1] ** 2))


def test_cdcd_self_conditions_half_of_the_sequences() -> None:
    model = built("cdcd")
    inner = next(part for part in model.denoiser.modules() if isinstance(part, SelfConditioning)).inner
    calls: list[int] = []
    inner.register_forward_pre_hook(lambda module, given: calls.append(len(given[0])))
    list(ls.fit(model, [tokens(70, rows=6)], steps=1))
    assert calls == [3, 3, 3]


def test_bit_diffusion_loss_and_sampler() -> None:
    """The mean of squares at uniform times; DDPM with variance β towards x̂ in [-1, 1]; the bits of x̂ at the end."""
    model = built("bit-diffusion", vocab_size=8).train()
    process, noise = model.process, RecordedNoise(80)
    w = torch.from_numpy(np.linspace(0.001, 0.999, 500))[:, None]
    u = process.codec.encode(torch.randint(8, (500, L), generator=generator(81)))
    t = process.sample_zt(u, w, torch.ones(500, L, dtype=torch.bool), noise).t[:, 0]
    np.testing.assert_allclose((array(t) - T_DECODE) / (1 - T_DECODE), 1 - array(w)[:, 0], atol=1e-6)
    x, z, out = u[:6, 0], torch.zeros(6, 3), 2 * torch.randn(6, 3, generator=generator(82))
    t = torch.linspace(0.1, 0.9, 6)
    close(
        process.loss(process.elbo_rate(out, x, z, t), out, x, z, t, torch.ones(6)),
        ((array(x) - array(out)) ** 2).mean(-1),
    )
    stepper = sampler("bit-diffusion", model).stepper
    z, s = torch.randn(6, 1, 3, generator=generator(83)), torch.full((6, 1), 0.4)
    moved = stepper(process, lambda z, t, where, of=None: out, z, torch.full((6, 1), 0.5), s, noise)
    paper_t = (np.array([0.5, 0.4], dtype=np.float32).astype(float) - T_DECODE) / (1 - T_DECODE)
    now, then = np.cos(math.pi / 2 * (paper_t + 0.0002) / 1.00025) ** 2
    clean = np.clip(array(out), -1, 1)
    alpha, eps = now / then, (array(z)[:, 0] - math.sqrt(now) * clean) / math.sqrt(1 - now)
    mean = (array(z)[:, 0] - (1 - alpha) / math.sqrt(1 - now) * eps) / math.sqrt(alpha)
    close(moved[:, 0], mean + math.sqrt(1 - alpha) * noise.normals[-1].reshape(6, 3), 2e-5)
    ended = stepper(
        process, lambda z, t, where, of=None: out, z, torch.full((6, 1), T_DECODE), torch.zeros(6, 1), noise
    )
    close(ended[:, 0], np.where(array(out) > 0, 1.0, -1.0))


def test_bit_diffusion_conditions_on_clipped_estimates() -> None:
    model = built("bit-diffusion").eval()
    conditioned = next(part for part in model.denoiser.modules() if isinstance(part, SelfConditioning))
    out = torch.tensor([[[3.0, -2.0, 0.25]]])
    assert conditioned.estimate(out, out, torch.ones(1, 1)).tolist() == [[[1.0, -1.0, 0.25]]]


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("plaid", {"self_conditioning": 0.3}, "every n-th"),
        ("plaid", {"self_conditioning_by": "batches"}, "self_conditioning_by=rows"),
        ("plaid", {"head_warmup": 2.0}, "head_warmup"),
        ("plaid", {"norm": None}, "scaled"),
        ("cdcd", {"max_snr": 0.0}, "max_snr"),
        ("diffusion-lm", {"target": "noise"}, "target"),
        ("diffusion-lm", {"timesteps": 1}, "at least 2 steps"),
        ("diffusion-lm", {"max_logsnr": 3.0}, "max_logsnr=None"),
        ("diffusion-lm", {"predicts": "v"}, "noisy start"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        built(name, **options)
