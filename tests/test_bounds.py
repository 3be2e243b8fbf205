"""The bound: continuous time is the limit of discrete steps, and formulas of papers and all estimators agree."""

import pytest
import torch
import torch.nn.functional as F
from discrete_helpers import V, random_states
from statistical_checks import bound_excess, mean_and_error
from torch import Tensor
from toy_languages import generator, skewed_chain, sticky_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.mixing import Hybrid, Masking, MixingDistribution, Uniform
from logosphere.rng import CounterNoise, GeneratorNoise
from logosphere.schedules.signal import SCHEDULES, Cosine, Polynomial, Schedule
from logosphere.types import Batch

curves = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=str)


MIXINGS: list[MixingDistribution] = [
    mixing(V, schedule) for schedule in SCHEDULES.values() for mixing in (Masking, Uniform)
]
MIXINGS += [Hybrid(V, 0.2), Hybrid(V, 0.6, Cosine()), Hybrid(V, 0.0)]


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda mixing: f"{type(mixing).__name__}-{mixing.schedule}")
def test_continuous_time_rate_is_the_limit_of_discrete_steps(mixing: MixingDistribution) -> None:
    """T · KL = rate + O(1/T) for z = x, the mask or another token; the error grows with the slope of the schedule."""
    limit = DiscreteDiffusion(mixing)
    out, x, z, t = random_states(limit)
    errors = []
    for timesteps in (200, 20_000):
        steps = DiscreteDiffusion(mixing, timesteps=timesteps)
        middle = (t * timesteps).round() / timesteps
        expected = limit.elbo_rate(out, x, z, middle)
        errors.append(float(((steps.elbo_rate(out, x, z, middle) - expected).abs() / (expected + 0.01)).max()))
    assert errors[1] < 3e-3
    assert errors[1] < 0.05 * errors[0] + 1e-9  # the error of the linear masked step is zero
    seen = {"mask": bool((z == V).any()), "itself": bool((z == x).any()), "other": bool(((z != x) & (z < V)).any())}
    assert seen == {"mask": mixing.has_mask, "itself": mixing.has_uniform, "other": mixing.has_uniform}


@curves
def test_masked_step_kl_is_unmask_probability_times_cross_entropy(schedule: Schedule) -> None:
    process = DiscreteDiffusion(Masking(V, schedule), timesteps=10)
    out, x, z, t = random_states(process)
    t = (t * 10).ceil() / 10
    reveal = (schedule.signal(t - 0.1) - schedule.signal(t)) / (1 - schedule.signal(t))
    cost = F.cross_entropy(out, x, reduction="none")
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), 10 * reveal * cost, rtol=1e-6, atol=1e-9)


@curves
def test_uniform_step_kl_matches_the_d3pm_sum(schedule: Schedule) -> None:
    """T · KL(q(z_s | z_t, x) || Σ_x̂ q(z_s | z_t, x̂) p(x̂ | z)), the sum written out as D3PM has it."""
    process = DiscreteDiffusion(Uniform(V, schedule), timesteps=10)
    out, x, z, t = random_states(process, low=0.15)
    t = (t * 10).ceil() / 10
    s = t - 0.1
    each = torch.stack([process._log_step(row.expand(len(x), V), z, t, s) for row in torch.eye(V).double()], 1).exp()
    model = (out.softmax(-1)[..., None] * each).sum(1)
    true = each[torch.arange(len(x)), x]
    divergence = (true * (true.log() - model.log())).sum(-1)
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), 10 * divergence, rtol=1e-4, atol=1e-7)


@curves
def test_continuous_uniform_rate_matches_udlm(schedule: Schedule) -> None:
    """UDLM (Schiff et al. 2024), with x̄ = V a x + 1 - a and i = z."""
    process = DiscreteDiffusion(Uniform(V, schedule))
    out, x, z, t = random_states(process)
    a, slope = schedule.signal(t)[:, None], -schedule.slope(t)
    bar = V * a * F.one_hot(x, V) + 1 - a
    model = V * a * process.context_probs(out, z, t) + 1 - a
    at, model_at = bar.gather(1, z[:, None]), model.gather(1, z[:, None])
    inner = V / at - V / model_at - (bar / at * ((model_at * bar) / (model * at)).log()).sum(1, keepdim=True)
    published = slope / (V * a[:, 0]) * inner[:, 0]
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), published, rtol=1e-5, atol=1e-7)
    assert published.min() >= 0


@pytest.mark.parametrize("timesteps", [None, 50])
@pytest.mark.parametrize("mask", [True, False], ids=["masked", "uniform"])
def test_hybrid_loss_adds_weighted_cross_entropy(mask: bool, timesteps: int | None) -> None:
    """T (KL_t + λ CE), which is the loss of D3PM (eq. 5) in nats per sequence; in continuous time nats + λ CE."""
    plain = DiscreteDiffusion((Masking if mask else Uniform)(V, Cosine()), timesteps=timesteps)
    hybrid = DiscreteDiffusion((Masking if mask else Uniform)(V, Cosine()), timesteps=timesteps, hybrid=0.3)
    out, x, z, t = random_states(plain)
    nats = plain.elbo_rate(out, x, z, t)
    one = torch.ones_like(nats)
    assert torch.equal(hybrid.elbo_rate(out, x, z, t), nats) and torch.equal(plain.loss(nats, out, x, z, t, one), nats)
    torch.testing.assert_close(
        hybrid.loss(nats, out, x, z, t, one),
        nats + 0.3 * (timesteps or 1) * F.cross_entropy(out, x, reduction="none"),
    )


def test_absorbing_hybrid_loss_is_mostly_cross_entropy() -> None:
    """λ = 0.01 and T = 1000: Σ_t KL_t = CE/T·Σ 1, λ CE at a fraction t of the positions, so 0.005/(0.001 + 0.005)."""
    process = DiscreteDiffusion(Masking(V, Polynomial(1.0)), timesteps=1000, hybrid=0.01)
    t = torch.arange(1, 1001).double() / 1000
    x, z, out = torch.zeros(1000).long(), torch.full((1000,), V), torch.zeros(1000, V).double()
    nats, one = process.elbo_rate(out, x, z, t), torch.ones(1000)
    total, bound = ((t * cost).sum() for cost in (process.loss(nats, out, x, z, t, one), nats))
    assert float(1 - bound / total) == pytest.approx(5 / 6, abs=2e-3)


def counted(w: Tensor, free: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor, Tensor]:
    process = DiscreteDiffusion(Masking(V, schedule), exact_count=True)
    sample_zt = process.sample_zt(torch.zeros_like(free).long(), w, free, GeneratorNoise(generator(2), len(free)))
    return sample_zt.z == V, sample_zt.t, sample_zt.weight


@pytest.mark.parametrize("schedule", [SCHEDULES[name] for name in ("linear", "quadratic", "cosine")], ids=str)
def test_exact_count_masks_the_stated_number_of_positions(schedule: Schedule) -> None:
    """ceil(w n) of the n free positions of each block, at least one and never a known one; each has weight n/l."""
    rng = generator(3)
    free = torch.rand(300, 12, generator=rng) < 0.7
    free[:20] = False
    w = torch.rand(300, 3, generator=rng).double()
    hidden, t, weight = counted(w, free, schedule)
    n = free.view(300, 3, 4).sum(2)
    assert torch.equal(hidden.view(300, 3, 4).sum(2), (w * n).ceil().long())
    assert not (hidden & ~free).any()
    assert t[~free].eq(0).all()
    rate = (schedule.slope(t) / schedule.noise(t) * weight).view(300, 3, 4)
    weights = (n / (w * n).ceil()).float()[..., None].expand_as(rate)
    torch.testing.assert_close(rate[free.view(300, 3, 4)], weights[free.view(300, 3, 4)], rtol=1e-4, atol=1e-5)


def test_free_positions_are_masked_equally_often() -> None:
    hidden, _, _ = counted(torch.rand(8000, 1, generator=generator(4)).double(), torch.ones(8000, 6).bool(), Cosine())
    weights = hidden.double().mean(0)
    assert (weights - (1 + 1 / 6) / 2).abs().max() < 3.5 * (0.25 / 8000) ** 0.5


def test_exact_count_and_independent_masking_estimate_the_same_bound() -> None:
    """For a network that ignores the time and is far from optimal, exact counts have the smaller error.

    The schedule is quadratic, because independent masks on the linear one have infinite variance (∫ dt/t).
    """
    language = skewed_chain(5, 6)
    model = random_network(
        "mdlm", language, seed=1, neighbours=0
    )  # with the neighbour initialisation its error would hide the difference
    independent = System("mdlm", {"exact_count": False, "schedule": "quadratic"}).model(language)
    counts = bound_excess(model, language, n=3000, draws=12)
    by_chance = bound_excess(independent, language, n=3000, draws=12, denoiser=model.denoiser)
    by_count = bound_excess(model, language, n=3000, draws=12, denoiser=model.denoiser)
    mean, error = mean_and_error(by_chance - by_count)
    assert abs(mean) < 3 * error < 0.05 * language.entropy()
    assert by_count.std() < 0.85 * by_chance.std()
    assert counts.std() < 0.8 * bound_excess(independent, language, n=3000, draws=12).std()


def test_exact_count_bound_does_not_depend_on_the_schedule() -> None:
    language = sticky_chain(3, 4)
    linear, cosine = (System("mdlm", {"schedule": name}).model(language) for name in ("linear", "cosine"))
    errors = bound_excess(linear, language, n=50, draws=4) - bound_excess(cosine, language, n=50, draws=4)
    assert errors.abs().max() < 1e-5


@pytest.mark.parametrize("name", ["mdlm", "d3pm-absorbing", "d3pm-uniform"])
def test_one_block_of_full_length_equals_no_blocks(name: str) -> None:
    language = skewed_chain(3, 4)
    whole, blocked = System(name).model(language), System(name, {"block": 4}).model(language)
    assert torch.equal(bound_excess(whole, language, n=50, draws=2), bound_excess(blocked, language, n=50, draws=2))


@pytest.mark.parametrize("name", ["mdlm", "d3pm-absorbing", "d3pm-uniform", "ar"])
def test_bound_does_not_depend_on_the_batch_split(name: str) -> None:
    language = skewed_chain(3, 4)
    model = random_network(name, language).eval()
    batch = Batch.of(language.sample(10, generator(5)))

    def total(part: Batch) -> Tensor:
        with torch.no_grad():
            return model.bound(part, CounterNoise(1, 2, part.ids, part.global_index, part.total), draws=2).total

    parts = [total(batch.select(slice(0, 3))), total(batch.select(slice(3, 10)))]
    torch.testing.assert_close(torch.cat(parts), total(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_fully_known_sequences_have_zero_bound(name: str) -> None:
    model = random_network(name, skewed_chain(5, 6)).eval()
    tokens = torch.zeros(2, 6, dtype=torch.long)
    if model.process.codec.local:
        bound = model.nelbo(tokens, generator(1), known=torch.ones(2, 6, dtype=torch.bool))
        assert bound.total.tolist() == [0, 0] and bound.count.tolist() == [0, 0]


def test_terms_of_the_bound_sum_to_the_total() -> None:
    language = sticky_chain(3, 4)
    for name, options in (("mdlm", {}), ("d3pm-uniform", {"timesteps": 2}), ("d3pm-uniform", {"timesteps": 1})):
        model = System(name, options).model(language)
        bound = model.nelbo(language.sample(50, generator(6)), generator(7), denoiser=Oracle(model, language), draws=4)
        torch.testing.assert_close(bound.total, bound.recon + bound.diffusion + bound.prior)
        assert bool(bound.recon.any()) == (name != "mdlm")
        assert bool(bound.diffusion.any()) == (options.get("timesteps") != 1)


def test_polynomial_schedule_with_power_below_one() -> None:
    """A power of 1/2 has infinite slope at 0; the masked rate p/t is still finite."""
    process = DiscreteDiffusion(Masking(V, Polynomial(0.5)))
    out, x, z, t = random_states(process)
    torch.testing.assert_close(process.elbo_rate(out, x, z, t), 0.5 / t * F.cross_entropy(out, x, reduction="none"))
