"""Equalities within the discrete family: the formulas of all papers agree under different output parameterizations."""

import pytest
import torch
import torch.nn.functional as F
from discrete_helpers import V, random_states
from statistical_checks import bound_excess, mean_and_error
from torch import Tensor
from toy_languages import generator, random_joint, skewed_chain, sticky_chain
from toy_models import EQUAL_BOUNDS, System, random_network

import logosphere as ls
from logosphere.data.languages import Language
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.mixing import Hybrid, Masking, Uniform, clipped_weight, dynamic_weight
from logosphere.processes.discrete.parameterization import Score
from logosphere.rng import GeneratorNoise
from logosphere.schedules.signal import SCHEDULES, Cosine, Polynomial, Schedule
from logosphere.types import Batch

curves = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=str)
LANGUAGES = {"sticky": sticky_chain(3, 4), "skewed": skewed_chain(5, 4), "table": random_joint()}


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize("system, other", EQUAL_BOUNDS, ids=lambda system: str(system))
def test_equivalent_systems_have_equal_bounds(system: System, other: System, language: Language) -> None:
    """MDLM = MD4 = ARDM = GIDD without random tokens; BD3-LM is MDLM in blocks; UDLM is D3PM in continuous time."""
    bounds = [bound_excess(one.model(language), language, n=60, draws=3) for one in (system, other)]
    torch.testing.assert_close(*bounds, rtol=0, atol=1e-6)


@curves
def test_masked_score_entropy_of_a_posterior_is_its_cross_entropy(schedule: Schedule) -> None:
    """SEDD-absorb with scores computed from x̂ is MDLM."""
    plain, scored = (DiscreteDiffusion(Masking(V, schedule), parameterization=form) for form in (None, Score()))
    out, x, z, t = random_states(plain)
    scores = scored.from_posterior(out.log_softmax(-1), z, t)
    torch.testing.assert_close(scored.elbo_rate(scores, x, z, t), plain.elbo_rate(out, x, z, t), rtol=1e-9, atol=1e-9)


@curves
def test_uniform_score_entropy_of_a_posterior_is_that_of_uniform_diffusion(schedule: Schedule) -> None:
    """SEDD-uniform with scores computed from x̂ is UDLM, and x̂ can be recovered from the scores."""
    plain, scored = (DiscreteDiffusion(Uniform(V, schedule), parameterization=form) for form in (None, Score()))
    out, x, z, t = random_states(plain)
    scores = scored.from_posterior(out.log_softmax(-1), z, t)
    torch.testing.assert_close(scored.elbo_rate(scores, x, z, t), plain.elbo_rate(out, x, z, t), rtol=1e-7, atol=1e-9)
    has_signal = schedule.signal(t) > 1e-6  # without signal x̂ cannot be recovered
    torch.testing.assert_close(
        scored.context_probs(scores, z, t)[has_signal], plain.context_probs(out, z, t)[has_signal], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("mixing", [Masking, Uniform])
def test_score_entropy_matches_sedd(mixing: type) -> None:
    """σ' Σ_{y≠z} Q(y, z) [s_y - R_y log s_y + R_y (log R_y - 1)] (SEDD eqs. 5, 12), for any scores."""
    schedule = Polynomial(1.5)
    process = DiscreteDiffusion(mixing(V, schedule), parameterization=Score())
    _, x, z, t = random_states(process)
    scores = torch.randn(len(x), V, generator=generator(3)).double()
    sigma = -schedule.signal(t).log()
    grown, rho = sigma.expm1()[:, None], (1 - V / (sigma.expm1() + V))[:, None]
    token, stay = F.one_hot(x, V).bool(), F.one_hot(z, V + 1)[:, :V].bool()
    if mixing is Masking:
        ratios, rate = torch.where(token, 1 / grown, 0.0), 1.0
    else:
        moved = torch.where(token, 1 / rho, torch.ones_like(rho))
        ratios, rate = torch.where((z == x)[:, None], rho.expand(-1, V), moved), 1 / V
    terms = scores.exp() - ratios * scores + torch.special.xlogy(ratios, ratios) - ratios
    published = schedule.slope(t) / schedule.signal(t) * rate * torch.where(stay, 0.0, terms).sum(1)
    torch.testing.assert_close(process.elbo_rate(scores, x, z, t), published, rtol=1e-9, atol=1e-9)


def test_score_entropy_depends_on_the_total_mass() -> None:
    """With all ratios doubled the cross-entropy is unchanged, and the score entropy grows by 2 - 1 - log 2."""
    process = DiscreteDiffusion(Masking(V, Cosine()), parameterization=Score())
    out, x, z, t = random_states(process)
    scores = process.from_posterior(out.log_softmax(-1), z, t)
    extra = process.elbo_rate(scores + torch.log(torch.tensor(2.0)), x, z, t) - process.elbo_rate(scores, x, z, t)
    rate = Cosine().slope(t) / Cosine().noise(t)
    torch.testing.assert_close(extra, rate * (1 - torch.log(torch.tensor(2.0))), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["sedd-absorb", "sedd-uniform"])
def test_untrained_score_network_is_uniform(name: str) -> None:
    """Its bound equals that of an untrained softmax network."""
    language, plain = skewed_chain(5, 4), {"sedd-absorb": "md4", "sedd-uniform": "udlm"}[name]
    size = {"vocab_size": 5, "length": 4, "width": 8, "depth": 1, "heads": 1}
    tokens, schedule = language.sample(40, generator(1)), ls.options(name)["schedule"]
    totals = [
        ls.build(system, **size, schedule=schedule).nelbo(tokens, generator(2), draws=4).total
        for system in (name, plain)
    ]
    torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p_u", [0.1, 0.5])
def test_hybrid_weights_match_gidd(p_u: float) -> None:
    """w(z, x, t) [KL(q(·|x) || q(·|x̂)) + R - log R - 1], R = q(z|x)/q(z|x̂) (GIDD eq. 9), for z = mask, x, another."""
    mixing = Hybrid(V, p_u)
    process = DiscreteDiffusion(mixing)
    out, x, z, t = random_states(process)
    c = 2 * p_u / (1 - p_u) * (t * (1 - t)).sqrt()
    slope = c * (1 - 2 * t) / (2 * t * (1 - t))
    moved = (c + (1 - t) * slope) / ((1 - t) * c)
    itself = (c + (1 - t) * slope) / (V * (1 - t) * (1 - t + c / V))
    w = torch.where(z == V, 1 / (t * (1 - t)), torch.where(z == x, itself, moved))
    torch.testing.assert_close(mixing.elbo_weight(x, z, t), w, rtol=1e-9, atol=1e-12)
    true, model = mixing.marginal(F.one_hot(x, V).double(), t), mixing.marginal(process.context_probs(out, z, t), t)
    ratio = (true / model).gather(1, z[:, None])[:, 0]
    published = w * ((true * (true / model).log()).sum(1) + ratio - ratio.log() - 1)
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), published, rtol=1e-6, atol=1e-9)


def test_hybrid_training_weights_are_bounded_and_do_not_change_the_bound() -> None:
    mixing = Hybrid(V, 0.1)
    plain, out_of = DiscreteDiffusion(mixing), random_states(DiscreteDiffusion(mixing), low=0.001)
    out, x, z, t = out_of
    nats, one = plain.elbo_rate(out, x, z, t), torch.ones_like(t)
    for weighting, most in ((clipped_weight, 1.0), (dynamic_weight, 2.0)):
        process = DiscreteDiffusion(mixing, weighting=weighting)
        assert torch.equal(process.elbo_rate(out, x, z, t), nats)
        weights = weighting(mixing, x, z, t)
        assert 0 < weights.min() and weights.max() <= most
        charged = process.loss(nats, out, x, z, t, one)
        torch.testing.assert_close(charged, nats * weights / mixing.elbo_weight(x, z, t))
    assert torch.equal(plain.loss(nats, out, x, z, t, one), nats)
    chosen = dynamic_weight(mixing, x, z, t)
    assert chosen[z == V].eq(2).all() and chosen[(z != x) & (z != V)].eq(1).all()


def test_zero_uniform_fraction_is_masked_diffusion() -> None:
    hybrid, masked = DiscreteDiffusion(Hybrid(V, 0.0)), DiscreteDiffusion(Masking(V, Polynomial(1.0)))
    for process in (hybrid, masked):
        assert not process.mixing.has_uniform and not process.time_conditional
    x, t = torch.randint(V, (500, 3), generator=generator(1)), torch.rand(500, 3, generator=generator(2))
    z = [process.corrupt(x, t, GeneratorNoise(generator(3), 500)) for process in (hybrid, masked)]
    assert torch.equal(*z)
    where = z[0] == V
    out = torch.randn(int(where.sum()), V, generator=generator(4))
    torch.testing.assert_close(
        *[process.elbo_rate(out, x[where], z[0][where], t[where]) for process in (hybrid, masked)], rtol=1e-6, atol=1e-9
    )
    stepped = [
        p.step(out, z[0][where], t[where], t[where] / 2, GeneratorNoise(generator(5), 500)) for p in (hybrid, masked)
    ]
    assert torch.equal(*stepped)


def test_absorbing_d3pm_step_with_probability_on_the_mask() -> None:
    """T·KL with x̂ that puts p_m on the mask itself, against the closed form for the linear schedule:

    (dt/t) [log(1 + a_t p_m/t) - log x̂_x] + (1 - dt/t) [log(1 + a_t p_m/t) - log(1 + a_s p_m/(t - dt))]
    """
    process, T = DiscreteDiffusion(Masking(V, Polynomial(1.0))), 20
    t = (torch.arange(2, 20) / T).double()
    s, z = t - 1 / T, torch.full_like(t, V).long()
    x = torch.randint(V, t.shape, generator=generator(1))
    predicted = torch.randn(len(t), V + 1, generator=generator(2)).double().softmax(-1)
    true = F.one_hot(x, V + 1).double()
    log_q, log_p = process._log_step(true, z, t, s), process._log_step(predicted, z, t, s)
    divergence = torch.where(log_q > -torch.inf, log_q.exp() * (log_q - log_p), 0.0).sum(-1)
    on_mask, of_x = predicted[:, V], predicted.gather(1, x[:, None])[:, 0]
    late, early, lift = (1 + (1 - t) * on_mask / t).log(), (1 + (1 - s) * on_mask / s).log(), 1 / (T * t)
    torch.testing.assert_close(divergence, lift * (late - of_x.log()) + (1 - lift) * (late - early))


@curves
def test_uniform_rate_matches_the_duo_form(schedule: Schedule) -> None:
    """Duo's form of the uniform rate (Sahoo et al. 2025) needs only Σ_j log x̄_j, log x̄_z and log x̄_x."""
    process = DiscreteDiffusion(Uniform(V, schedule))
    out, x, z, t = random_states(process)
    a = schedule.signal(t)
    bar = V * a[:, None] * process.context_probs(out, z, t) + (1 - a)[:, None]
    log_bar, at, same = bar.log(), bar.gather(1, z[:, None])[:, 0], z == x
    of_z, of_x = log_bar.gather(1, z[:, None])[:, 0], log_bar.gather(1, x[:, None])[:, 0]
    kappa = (1 - a) / (V * a + 1 - a)
    true_at = torch.where(same, V * a + 1 - a, 1 - a)
    sums = torch.where(same, kappa, 1.0) * (log_bar.sum(1) - V * of_z)
    jump = torch.where(same, 0.0, V * a / (1 - a) * (of_x - of_z))
    offset = torch.where(same, (V - 1) * kappa, -1 / kappa) * kappa.log()
    rate = -schedule.slope(t) / (V * a) * (V * (1 / true_at - 1 / at) + sums + jump - offset)
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), rate, rtol=1e-5, atol=1e-7)


@curves
def test_masked_step_matches_the_md4_form(schedule: Schedule) -> None:
    """T expm1(λ_t - λ_s) a_s log p with λ = log a/(1 - a) (Shi et al. 2024, section 4)."""
    process = DiscreteDiffusion(Masking(V, schedule), timesteps=10)
    out, x, z, t = random_states(process, low=0.15)
    t = (t * 10).ceil() / 10
    s = t - 0.1
    late, early = (schedule.signal(at).log() - schedule.noise(at).log() for at in (t, s))
    form = 10 * torch.expm1(late - early) * schedule.signal(s) * -F.cross_entropy(out, x, reduction="none")
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), form, rtol=1e-5, atol=1e-9)


def test_clipping_is_for_training_only() -> None:
    language = skewed_chain(3, 4)
    plain, tight = (System("bd3lm", {"clip": clip}).model(language) for clip in ((0.0, 1.0), (0.45, 0.55)))
    for model in (plain, tight):
        model.eval()
    assert torch.equal(bound_excess(plain, language, n=50, draws=2), bound_excess(tight, language, n=50, draws=2))
    tight.train()
    x = language.sample(200, generator(1))
    z, t, _ = tight.process.sample_zt(
        x, torch.rand(200, 1).double(), torch.ones(200, 4).bool(), GeneratorNoise(generator(2), 200)
    )
    assert {int(n) for n in (z == 3).sum(1)} <= {2, 3}


def test_importance_sampled_steps_leave_the_bound_unbiased() -> None:
    """After some training the distribution of steps is not uniform, and an oracle's bound is still the entropy."""
    language = sticky_chain(3, 4)
    model = random_network("multinomial", language, timesteps=50, importance_sampling=True)
    for _ in ls.fit(model, (language.sample(64, generator(i)) for i in range(12)), steps=12):
        pass
    p = model.process.time_sampler.eval().probabilities(4)
    assert float(p.sum()) == pytest.approx(1) and p.max() > 3 * p.min() > 0
    even = System("multinomial", {"timesteps": 50}).model(language)
    (mean, error), (plain, _) = (
        mean_and_error(bound_excess(m, language, n=1500, draws=64)) for m in (model.eval(), even)
    )
    assert abs(mean - plain) < 4 * error < 0.1


def test_masked_sampling_uses_the_md4_cosine_grid() -> None:
    language = skewed_chain(3, 4)
    md4, mdlm = (System(name).model(language).process for name in ("md4", "mdlm"))
    assert md4.grid(8)[1] > mdlm.grid(8)[1] and md4.grid(8)[0] == 1 and md4.grid(8)[-1] == 0


@pytest.mark.parametrize("name", ["md4", "ardm", "bd3lm", "udlm", "sedd-absorb", "sedd-uniform", "gidd", "multinomial"])
def test_every_system_trains_its_network(name: str) -> None:
    """Also at extreme times: every weight gets a finite gradient that is not zero everywhere."""
    language = sticky_chain(3, 4)
    model = random_network(name, language, seed=1)
    loss = model.train().bound(some(language), GeneratorNoise(generator(1), 64)).loss.sum()
    loss.backward()
    for weight in model.parameters():
        assert weight.grad is not None and bool(weight.grad.isfinite().all())
    assert any(bool(weight.grad.any()) for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize(
    "system, lost",
    [
        (System("md4", {"eps": 0.02}), 2 * 0.02 * torch.log(torch.tensor(3.0))),
        (System("sedd-uniform", {"schedule": "geometric:0.02,20,0"}), torch.tensor(0.13)),
        (System("genmd4", {"t_min": 0.02, "eps": 0.02}), 2 * 0.02 * torch.log(torch.tensor(3.0))),
    ],
    ids=str,
)
def test_truncated_schedules_still_bound_the_entropy(system: System, lost: Tensor) -> None:
    """An oracle's bound exceeds the entropy by at most the cost of decoding at both ends without context."""
    language = sticky_chain(3, 4)
    mean, error = mean_and_error(bound_excess(system.model(language), language, n=2000, draws=16))
    assert -3 * error < mean < 4 * float(lost) + 3 * error
    assert error < 0.03


def some(language: Language) -> Batch:
    return Batch.of(language.sample(64, generator(9)))


def build(name: str, **options) -> None:
    ls.build(name, vocab_size=3, length=4, denoiser=None, **options)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: build("gidd", p_u=1.0), "p_u.*below 1, not 1.0"),
        (lambda: build("gidd", p_u=-0.1), "at least 0"),
        (lambda: build("gidd", loss="clipp"), "Did you mean 'clip'"),
        (lambda: build("md4", loss="ce"), "'ce' is not a choice for loss"),
        (lambda: build("multinomial", timesteps=0), "timesteps must be at least 1"),
        (lambda: build("d3pm-absorbing", hybrid=-1.0), "must be at least 0"),
        (lambda: build("d3pm-uniform", schedule=[0.1, 1.2], timesteps=2), "between 0 and 1.*not monotone"),
        (lambda: build("d3pm-uniform", schedule=[0.1, 0.2]), "set timesteps=2"),
        (lambda: build("d3pm-uniform", frequencies=[0.5, 0.5]), "3 frequencies"),
        (lambda: build("d3pm-uniform", frequencies=[0.5, 0.2, 0.1]), "must be probabilities"),
        (lambda: build("udlm", schedule="geometric:3,1"), "0 < low < high"),
        (lambda: build("udlm", schedule="log-linear:1"), "below 1"),
        (lambda: build("udlm", schedule=[0.0, 0.5, 1.0]), "noise > 0 for every t > 0"),
        (lambda: build("bd3lm", clip=[0.5, 0.4]), "interval"),
        (lambda: build("bd3lm", clip=[0.5]), "interval"),
        (lambda: build("bd3lm", block=3), "does not split"),
        (lambda: build("mdlm", times="even"), "There is no time sampler 'even'"),
        (lambda: build("mdlm", t_min=0.1), "t_min=0.1 needs times=uniform"),
        (lambda: build("mdlm", times="uniform", t_min=1.0), "t_min must be at least 0 and below 1"),
        (lambda: build("md4", eps=0.7), "eps, the noise at the start"),
        (lambda: build("genmd4", eps=1.0), "t_min and eps"),
        (lambda: build("d3pm-uniform", reconstruction="networks"), "Did you mean 'network'"),
        (lambda: build("d3pm-uniform", timesteps=None, reconstruction="network"), "a number of timesteps"),
        (lambda: build("d3pm-uniform", timesteps=None, schedule="offset-cosine"), "at least 1, not None"),
        (lambda: build("d3pm-gaussian", widths="formulas"), "Did you mean 'formula'"),
        (lambda: build("multinomial", max_beta=0.0), "max_beta must be above 0"),
        (lambda: build("gidd", schedule="geometric:0.01,20,0"), "begins with noise"),
        (lambda: DiscreteDiffusion(Uniform(3, Cosine()), exact_count=True), "exact_count"),
        (lambda: DiscreteDiffusion(Hybrid(3, 0.1), parameterization=Score()), "Score entropy"),
    ],
)
def test_invalid_options_are_refused(call, message: str) -> None:
    with pytest.raises(ls.UserError, match=message):
        call()


@pytest.mark.parametrize("name", ["mdlm", "gidd", "sedd-absorb"])
def test_mask_token_in_the_data_is_refused(name: str) -> None:
    model = ls.build(name, vocab_size=3, length=4, denoiser=None)
    with pytest.raises(ls.UserError, match="from 0 to 2"):
        model.nelbo(torch.tensor([[0, 1, 2, 3]]), torch.Generator())


def test_tabulated_schedule_matches_the_linear_schedule(timesteps: int = 4) -> None:
    """β_t = 1/(T - t + 1) is the linear schedule; the bound of both is the same number."""
    language, betas = skewed_chain(3, 4), [1 / (timesteps - step) for step in range(timesteps)]
    by_name, by_table = (
        System("d3pm-absorbing", {"timesteps": timesteps, "schedule": schedule}).model(language)
        for schedule in ("linear", betas)
    )
    difference: Tensor = bound_excess(by_name, language, n=50, draws=2) - bound_excess(
        by_table, language, n=50, draws=2
    )
    assert difference.abs().max() < 1e-5
