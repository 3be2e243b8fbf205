"""Integrands, transitions and steps of the discrete systems against the papers' equations, at random (x, z, t).

Tables in float64 agree to 1e-6; the matrices of d3pm-gaussian are float32, so divergences agree to 1e-5.
"""

from typing import Any

import discrete_reference as ref
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

import logosphere as ls
from logosphere.networks.wrappers import LogisticHead
from logosphere.rng import GeneratorNoise
from logosphere.schedules.signal import find_schedule

V, N = 7, 60
RNG = np.random.default_rng(0)
TIMES = RNG.uniform(0.02, 0.98, N)
TOKENS, STATES = RNG.integers(0, V, N), RNG.integers(0, V, N)
LOGITS = RNG.normal(size=(N, V)) * 1.5
HIDDEN = np.full(N, V)
PRESETS = ("default", "paper")


def process_of(name: str, preset: str, **options: Any) -> Any:
    return ls.build(name, vocab_size=V, length=8, denoiser=None, preset=preset, **options).process


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(array) for array in arrays]


def nats(process: Any, x: Any, z: Any, t: Any, logits: Any = LOGITS) -> np.ndarray:
    """The package's integrand, with the network's logits as context."""
    logits, x, z, t = tensors(logits, x, z, t)
    return process.elbo_rate(process.add_evidence(logits, z, t), x, z, t).numpy()


def step_probabilities(process: Any, z: Any, t: Any, s: Any, logits: Any = LOGITS) -> np.ndarray:
    logits, z, t, s = tensors(logits, z, t, s)
    return process.log_transition(process.add_evidence(logits, z, t), z, t, s).softmax(-1).numpy()


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=1e-9)


# ---- masked diffusion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "remdm", "star", "p2", "g-star", "llada", "ardm", "bd3lm"])
@pytest.mark.parametrize("preset", PRESETS)
def test_masked_integrands_are_those_of_mdlm(name: str, preset: str) -> None:
    """1/t times the cross-entropy, for the log-linear schedule as for the linear one."""
    process = process_of(name, preset)
    curve = [
        ref.log_linear(t) if preset == "paper" and name not in ("llada", "ardm", "bd3lm") else (1 - t, 1.0)
        for t in TIMES
    ]
    expected = [ref.masked_integrand(logits, x, *at) for logits, x, at in zip(LOGITS, TOKENS, curve, strict=True)]
    close(nats(process, TOKENS, HIDDEN, TIMES), expected)
    close(process.mixing.mask_mass(torch.as_tensor(TIMES)), [1 - a for a, _ in curve])
    later = [ref.log_linear(t * 0.6) if at[1] < 1 else (1 - t * 0.6, 1.0) for t, at in zip(TIMES, curve, strict=True)]
    steps = [ref.masked_posterior(out, a, s) for out, (a, _), (s, _) in zip(LOGITS, curve, later, strict=True)]
    close(step_probabilities(process, HIDDEN, TIMES, TIMES * 0.6), steps)


@pytest.mark.parametrize("kind", ["linear", "md4-cosine"])
def test_md4_has_the_published_schedule_integrand_and_constants(kind: str) -> None:
    process = process_of("md4", "paper", schedule=kind)
    curve = [ref.md4_schedule(t, kind) for t in TIMES]
    close(
        nats(process, TOKENS, HIDDEN, TIMES),
        [ref.masked_integrand(out, x, *at) for out, x, at in zip(LOGITS, TOKENS, curve, strict=True)],
    )
    close(process.schedule.signal(torch.as_tensor(TIMES)), [a for a, _ in curve])
    earlier = [ref.md4_schedule(t / 2, kind)[0] for t in TIMES]
    steps = [ref.masked_posterior(out, a, s) for out, (a, _), s in zip(LOGITS, curve, earlier, strict=True)]
    close(step_probabilities(process, HIDDEN, TIMES, TIMES / 2), steps)
    a_0, a_1 = ref.md4_schedule(0.0, kind)[0], ref.md4_schedule(1.0, kind)[0]
    close(process.initial_recon, (1 - a_0) * np.log(V))
    close(process.mixing.prior_kl(), a_1 * np.log(V))


def test_md4_default_has_no_constants() -> None:
    process = process_of("md4", "default")
    assert process.initial_recon == 0 and process.mixing.prior_kl() == 0
    close(
        nats(process, TOKENS, HIDDEN, TIMES),
        [ref.masked_integrand(out, x, 1 - t, 1.0) for out, x, t in zip(LOGITS, TOKENS, TIMES, strict=True)],
    )


def test_md4_bound_includes_the_constants() -> None:
    """The bound of a certain and correct prediction is the sum of the two constants."""
    model = ls.build("md4", vocab_size=V, length=4, denoiser=None, preset="paper")
    tokens = torch.randint(V, (50, 4), generator=torch.Generator().manual_seed(1))

    def certain(z: torch.Tensor, t: torch.Tensor, context: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return 1e4 * torch.nn.functional.one_hot(tokens, V).float()[where]

    bound = model.nelbo(tokens, torch.Generator().manual_seed(2), denoiser=certain)
    assert bound.kind == "bound"
    close(bound.total.double(), np.full(50, 4 * 2e-4 * np.log(V)), 1e-4)


@pytest.mark.parametrize("preset", PRESETS)
def test_genmd4_has_the_published_integrand_and_reconstruction(preset: str) -> None:
    process = process_of("genmd4", preset)
    with torch.no_grad():
        process.raw.copy_(torch.randn(V, generator=torch.Generator().manual_seed(3)))
    process.double()
    powers = process.powers.detach().numpy()
    logits, x, z, t = tensors(LOGITS, TOKENS, HIDDEN, TIMES)
    found = process.elbo_rate(logits, x, z, t).detach()
    close(found, [ref.genmd4_integrand(out, k, powers, s) for out, k, s in zip(LOGITS, TOKENS, TIMES, strict=True)])
    eps = 1e-4 if preset == "paper" else 0.0
    batch = ls.Batch.of(torch.arange(V)[None])
    read = process.encode(batch, GeneratorNoise(torch.Generator(), 1)).recon
    each = [ref.genmd4_reconstruction(k, powers, 1e-3, eps) for k in range(V)]
    close(read.detach(), [sum(each) if preset == "paper" else 0.0])
    hidden = process.corrupt(
        torch.full((1, 200_000), 2), torch.full((1, 200_000), 0.4), GeneratorNoise(torch.Generator().manual_seed(1), 1)
    )
    p_mask = (1 - eps) * 0.4 ** powers[2]
    assert float((hidden == V).double().mean()) == pytest.approx(
        p_mask, abs=4 * (p_mask * (1 - p_mask) / 200_000) ** 0.5
    )


def test_genmd4_network_predicts_the_posterior_in_the_paper() -> None:
    """Its softmax is p(x | mask); by default the likelihood of the mask under the powers is added."""
    z, t = torch.full((2, 8), V), torch.full((2, 8), 0.3)
    for preset, informed in (("paper", False), ("default", True)):
        model = ls.build("genmd4", vocab_size=V, length=8, width=16, depth=1, heads=2, preset=preset)
        with torch.no_grad():
            model.process.raw.add_(torch.randn(V, generator=torch.Generator().manual_seed(3)))
            raw, out = model.denoiser.eval().inner(z, t, z), model.denoiser(z, t, z)
        added = (out - raw).detach()
        assert torch.equal(added, torch.zeros_like(added)) is not informed
        states_in = torch.full((2, 8), 4)
        assert bool((model.denoiser(states_in, t, states_in).argmax(-1) == 4).all())


# ---- chains ------------------------------------------------------------------------------------------------------


T = 12


def chain_of(name: str, steps: int = T) -> list[np.ndarray]:
    if name == "d3pm-absorbing":
        return ref.absorbing_chain(V, steps)
    if name == "d3pm-uniform":
        return ref.uniform_chain(V, ref.cosine_betas(steps))
    if name == "multinomial":
        return ref.uniform_chain(V, 1 - ref.multinomial_alphas(steps))
    return ref.gaussian_chain(V, steps)


CHAINS = ["d3pm-absorbing", "d3pm-uniform", "multinomial", "d3pm-gaussian"]


@pytest.mark.parametrize("name", CHAINS)
def test_chain_marginals_are_products_of_the_published_matrices(name: str) -> None:
    process, bars = process_of(name, "paper", timesteps=T), ref.products(chain_of(name))
    for step in (1, 5, T):
        t = torch.full((V,), step / T).double()
        if name == "d3pm-gaussian":
            found, tolerance = process.products[step].double(), 1e-5
        else:
            found, tolerance = process.mixing.marginal(torch.eye(V).double(), t), 1e-6
        np.testing.assert_allclose(found.numpy(), bars[step][:V], rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("name", CHAINS)
def test_chain_integrands_and_losses_match_the_papers(name: str) -> None:
    """T·KL_t, the last step, and T (KL_t + λ CE), with the softmax of the network as p̃ (D3PM) or x̂ (Multinomial)."""
    process, chain = process_of(name, "paper", timesteps=T), chain_of(name)
    bars, step = ref.products(chain), RNG.integers(1, T + 1, N)
    masked, tolerance = name == "d3pm-absorbing", 1e-5 if name == "d3pm-gaussian" else 1e-6
    z = HIDDEN if masked else STATES
    expected, losses = [], []
    for logits, x, state, at in zip(LOGITS, TOKENS, z, step, strict=True):
        x_hat = np.append(softmax(logits), 0.0) if masked else softmax(logits)
        unmask_nll = -log_softmax(logits)[x]
        if at > 1:
            kl = ref.chain_kl(chain, bars, x_hat, x, state, at)
        elif name == "multinomial":  # the posterior is also used in the last step
            kl = -np.log(ref.chain_step(chain, bars, x_hat, state, 1)[x])
        else:
            kl = unmask_nll
        weight = {"d3pm-absorbing": 0.01, "d3pm-gaussian": 0.001}.get(name, 0.0)
        expected.append(T * kl)
        losses.append(T * (kl + weight * unmask_nll))
    found = nats(process, TOKENS, z, step / T)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-6)
    logits, x, states, t = tensors(LOGITS, TOKENS, z, step / T)
    out = process.add_evidence(logits, states, t)
    charged = process.loss(process.elbo_rate(out, x, states, t), out, x, states, t, torch.ones(N))
    np.testing.assert_allclose(charged.numpy(), losses, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("name", CHAINS)
def test_chain_steps_match_the_papers(name: str) -> None:
    process, chain = process_of(name, "paper", timesteps=T), chain_of(name)
    bars, step = ref.products(chain), RNG.integers(1, T + 1, N)
    masked = name == "d3pm-absorbing"
    z = HIDDEN if masked else STATES
    for logits, state, at, found in zip(
        LOGITS, z, step, step_probabilities(process, z, step / T, (step - 1) / T), strict=True
    ):
        x_hat = np.append(softmax(logits), 0.0) if masked else softmax(logits)
        last = at == 1 and name in ("d3pm-uniform", "d3pm-gaussian")
        expected = x_hat if last else ref.chain_step(chain, bars, x_hat, state, at)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_chain_defaults_use_the_posterior_in_the_last_step() -> None:
    """As in Multinomial Diffusion: p(x | z_1) ∝ x̂(x) q(z_1 | x)."""
    process, chain = (
        process_of("d3pm-uniform", "default", timesteps=T, schedule="offset-cosine"),
        chain_of("d3pm-uniform"),
    )
    bars = ref.products(chain)
    expected = [
        -T * np.log(ref.chain_step(chain, bars, softmax(out), z, 1)[x])
        for out, x, z in zip(LOGITS, TOKENS, STATES, strict=True)
    ]
    close(nats(process, TOKENS, STATES, np.full(N, 1 / T)), expected, 1e-5)


def test_the_last_beta_of_multinomial_diffusion() -> None:
    process = process_of("multinomial", "paper")
    levels = np.array(process.schedule.levels)
    close(levels[1:] / levels[:-1], ref.multinomial_alphas(1000), 1e-6)
    assert 1 - levels[-1] / levels[-2] == pytest.approx(0.968, abs=1e-3)
    assert process.time_sampler is not None and process.time_sampler.min_variance


def test_published_gaussian_matrices_of_many_values() -> None:
    """V = 64 in 1000 steps: the first, a middle and the last product."""
    process = ls.build("d3pm-gaussian", vocab_size=64, length=4, denoiser=None, preset="paper").process
    bars = ref.products(ref.gaussian_chain(64, 1000))
    for step in (1, 300, 1000):
        np.testing.assert_allclose(process.products[step].numpy(), bars[step], rtol=1e-5, atol=1e-8)


def test_logistic_head_matches_d3pm() -> None:
    model = ls.build("d3pm-gaussian", vocab_size=9, length=4, width=8, depth=1, heads=1, preset="paper")
    head = next(part for part in model.denoiser.modules() if isinstance(part, LogisticHead)).double()
    numbers, seen = RNG.normal(size=(N, 2)), RNG.integers(0, 9, N)
    found = head._logits(*tensors(numbers, np.linspace(-1, 1, 9)[seen])).softmax(-1)
    expected = [
        ref.logistic(loc, scale, np.linspace(-1, 1, 9)[k], 9) for (loc, scale), k in zip(numbers, seen, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-8)


# ---- continuous time with random tokens --------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_udlm_has_the_published_integrand(preset: str) -> None:
    curve = [ref.log_linear(t) if preset == "paper" else (1 - t, 1.0) for t in TIMES]
    expected = [ref.udlm_integrand(out, x, z, *at) for out, x, z, at in zip(LOGITS, TOKENS, STATES, curve, strict=True)]
    close(nats(process_of("udlm", preset), TOKENS, STATES, TIMES), expected)


@pytest.mark.parametrize("name", ["sedd-absorb", "sedd-uniform"])
def test_sedd_has_the_published_score_entropy(name: str) -> None:
    """For arbitrary ratios, which belong to no distribution, with the exponential of Q."""
    process, masked = process_of(name, "paper"), name == "sedd-absorb"
    expected = []
    for scores, x, z, t in zip(LOGITS, TOKENS, STATES, TIMES, strict=True):
        if masked:
            sigma, rate = -np.log(1 - (1 - 1e-3) * t), (1 - 1e-3) / (1 - (1 - 1e-3) * t)
        else:
            sigma = 1e-4 ** (1 - t) * 20.0**t
            rate = sigma * np.log(20 / 1e-4)
        expected.append(ref.score_entropy(scores, x, V if masked else z, sigma, rate, masked))
    scores, x, z, t = tensors(LOGITS, TOKENS, HIDDEN if masked else STATES, TIMES)
    close(process.elbo_rate(scores, x, z, t), expected, 1e-5 if not masked else 1e-6)


def test_sedd_network_output_is_scaled_as_published() -> None:
    """log s = logits - log(e^σ - 1) - log V at masks; log V is float32 in the package, hence 1e-7."""
    process = process_of("sedd-absorb", "paper")
    logits, z, t = tensors(LOGITS, HIDDEN, TIMES)
    sigma = -np.log(1 - (1 - 1e-3) * TIMES)
    expected = LOGITS - np.log(np.expm1(sigma))[:, None] - np.log(V)
    np.testing.assert_allclose(
        process.parameterization.scale_scores(process.mixing, logits, z, t).numpy(), expected, rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_gidd_has_the_published_integrand_and_weights(preset: str) -> None:
    process = process_of("gidd", preset)
    states = RNG.integers(0, V + 1, N)
    states[::5] = TOKENS[::5]
    divergence = np.array(
        [ref.gidd_divergence(out, x, z, t, 0.1) for out, x, z, t in zip(LOGITS, TOKENS, states, TIMES, strict=True)]
    )
    weight = np.array([ref.gidd_weight(x, z, t, 0.1, V) for x, z, t in zip(TOKENS, states, TIMES, strict=True)])
    close(nats(process, TOKENS, states, TIMES), weight * divergence)
    logits, x, z, t = tensors(LOGITS, TOKENS, states, TIMES)
    out = process.add_evidence(logits, z, t)
    charged = process.loss(process.elbo_rate(out, x, z, t), out, x, z, t, torch.ones(N))
    if preset == "paper":
        weights = np.array([ref.gidd_code_weight(*row, 0.1, V) for row in zip(TOKENS, states, TIMES, strict=True)])
        clean = weights[states == TOKENS]
        assert clean.min() > 0.0317 and clean.max() < 0.0357  # nearly constant: B/8 times e^{0.13} to e^{0.25}
    else:
        ratio = 2 / 9 * np.sqrt(TIMES / (1 - TIMES)) / V  # (B/V) e^{-λ/2}, the paper's equation
        weights = np.where(states == V, 2.0, np.where(states == TOKENS, np.minimum(ratio, 2), 1.0))
    close(charged, weights * divergence)
    cut = process_of("gidd", preset, loss="clip-2")
    close(cut.loss(cut.elbo_rate(out, x, z, t), out, x, z, t, torch.ones(N)), np.minimum(weight, 2) * divergence)


@pytest.mark.parametrize(
    "name",
    ["mdlm", "md4", "genmd4", "ardm", "bd3lm", "llada", "d3pm-absorbing", "multinomial", "udlm", "sedd-absorb",
     "sedd-uniform"],
)  # fmt: skip
def test_preset_bounds_are_bounds(name: str) -> None:
    """With the exact posterior as denoiser the bound is the entropy, plus a small term where the ends are counted.

    Also for models in training mode. (The last step of d3pm-uniform does not use the posterior.)
    """
    transition = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    language = ls.languages.markov(transition, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 4)
    model = ls.build(name, vocab_size=3, length=4, denoiser=None, preset="paper")
    rng = torch.Generator().manual_seed(5)
    tokens = language.sample(1500, rng)
    bound = model.nelbo(tokens, rng, denoiser=ls.languages.oracle(model, language), draws=16)
    over = bound.total.double() + language.log_prob(tokens)
    error = float(over.std()) / 1500**0.5
    assert bound.kind == "bound" and error < 0.06 and model.training
    assert -3.5 * error < float(over.mean()) < 0.03 + 3.5 * error


# ---- training times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, low, high, stratified",
    [
        ("mdlm", 1e-3, 1, True), ("md4", 0, 1, True), ("genmd4", 1e-3, 1, True), ("udlm", 1e-3, 1, True),
        ("gidd", 1e-4, 1 - 1e-4, True), ("sedd-absorb", 1e-3, 1, False), ("sedd-uniform", 1e-3, 1, False),
        ("llada", 1e-3, 1, False), ("d3pm-absorbing", 0, 1, False), ("d3pm-gaussian", 0, 1, False),
    ],
)  # fmt: skip
def test_training_times_are_uniform_and_unweighted(name: str, low: float, high: float, stratified: bool) -> None:
    """Times are stratified over the batch or independent; bounds are evaluated with the default time sampler."""
    rows = 4000
    process = process_of(name, "paper").train()
    tokens, free = torch.zeros(rows, 8).long(), torch.ones(rows, 8).bool()
    noise = GeneratorNoise(torch.Generator().manual_seed(1), rows)
    drawn = process.sample_zt(tokens, noise.low_discrepancy_times(1, 1)[:, 0], free, noise)
    assert torch.equal(drawn.weight, torch.ones_like(drawn.weight))
    times = drawn.t[:, 0].double().sort().values
    assert low <= float(times[0]) and float(times[-1]) <= high + 1e-6
    even = low + (high - low) * (torch.arange(rows).double() + 0.5) / rows
    deviation = float((times - even).abs().max())
    assert (deviation < 1.1e-3) if stratified else (1e-3 < deviation < 0.05)
    with torch.no_grad():
        measured = process.sample_zt(tokens, noise.low_discrepancy_times(1, 1)[:, 0], free, noise)
    if process.max_steps is None and name != "llada":  # llada is evaluated with exact counts
        assert not torch.equal(measured.weight, torch.ones_like(measured.weight))


def test_bd3lm_resamples_masks_outside_the_clip_range() -> None:
    """Blocks of 4 and [0.45, 0.95]: two or three masks, distributed as a truncated binomial."""
    process = ls.build("bd3lm", vocab_size=V, length=4, denoiser=None, preset="paper").process.train()
    rows = 40_000
    noise = GeneratorNoise(torch.Generator().manual_seed(1), rows)
    tokens, free = torch.zeros(rows, 4).long(), torch.ones(rows, 4).bool()
    drawn = process.sample_zt(tokens, noise.low_discrepancy_times(1, 1)[:, 0], free, noise)
    counts = (drawn.z == V).sum(1)
    rates = drawn.t[:, 0].double().numpy()
    assert rates.min() >= 0.45 and rates.max() <= 0.95
    expected = np.mean([ref.clipped_counts(rate, 4, 0.45, 0.95) for rate in rates[::40]], 0)
    found = np.bincount(counts.numpy(), minlength=5) / rows
    np.testing.assert_allclose(found, expected, atol=0.012)
    assert found[2] + found[3] == 1
    places = (drawn.z == V).double().mean(0)
    assert float((places - places.mean()).abs().max()) < 0.015


def test_llada_trains_with_independent_masks_and_evaluates_with_exact_counts() -> None:
    process = process_of("llada", "paper").train()
    noise = GeneratorNoise(torch.Generator().manual_seed(1), 2000)
    tokens, free = torch.zeros(2000, 8).long(), torch.ones(2000, 8).bool()
    w = noise.low_discrepancy_times(1, 1)[:, 0]
    drawn = process.sample_zt(tokens, w, free, noise)
    assert bool(((drawn.z == V).sum(1) == 0).any())  # independent masks may be none
    with torch.no_grad():
        counted = process.sample_zt(tokens, w, free, noise)
    assert torch.equal((counted.z == V).sum(1), (w[:, 0] * 8).ceil().long())


@pytest.mark.parametrize("name, value", [("linear", 0.7), ("md4-cosine", 1 - np.cos(np.pi / 2 * 0.7))])
def test_schedules_by_name(name: str, value: float) -> None:
    close(find_schedule(name).signal(torch.tensor(0.3).double()), value)


@pytest.mark.slow
def test_published_gidd_evaluation_omits_both_ends() -> None:
    """Its value is the integral over [1e-4, 1 - 1e-4]: below the bound with the same network, and a surrogate."""
    language = ls.languages.markov([[0.8, 0.2], [0.3, 0.7]], [0.5, 0.5], 6)
    tokens = language.sample(400, torch.Generator().manual_seed(0))
    values = {}
    for protocol in ("bound", "published"):
        model = ls.build("gidd", vocab_size=2, length=6, preset="paper", protocol=protocol, denoiser=None)
        oracle = ls.languages.oracle(model, language)
        found = model.nelbo(tokens, 1, denoiser=oracle, draws=256)
        values[protocol] = float(found.total.mean())
        assert found.kind == {"bound": "bound", "published": "surrogate"}[protocol]
    error = float(found.total.std()) / 20
    assert values["published"] < values["bound"] - 0.01
    assert abs(values["bound"] - float(-language.log_prob(tokens).mean())) < 5 * error
    with pytest.raises(ls.UserError, match="t_min"):
        ls.build("gidd", vocab_size=2, length=6, protocol="published")
