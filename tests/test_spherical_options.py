"""Options of diffusion on the sphere: several starts, published variants, digits, self-conditioning, other steps."""

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy import special
from statistical_checks import MIN_P_VALUE, bound_excess, chi_square_p_value, mean_and_error
from toy_languages import generator, independent_tokens, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, joint_sphere_model

import logosphere as ls
from logosphere.codecs.tokens import DigitCodec, count_digits
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.geometry.bridge_tables import match_moments, mean_cosine, solve_rho
from logosphere.geometry.bridges import LogBridge, simulate_bridge
from logosphere.networks.base import Denoiser
from logosphere.networks.transformer import FullTransformer
from logosphere.processes.base import uniform_grid
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.digit_posterior import ValidCodes
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.processes.spherical.times import rdlm_importance_density, rdlm_time, rdlm_time_density
from logosphere.rng import GeneratorNoise, Noise
from logosphere.sampling.steppers import SphericalStepper


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


# ---- starts -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_a_start_drawn_for_each_sequence_has_a_bound(name: str) -> None:
    """The bound holds; where both starts are tight it exceeds H by at most the cost of the mixture."""
    language = sticky_chain(3, 4)
    model = joint_sphere_model(name, language, start="mask+uniform")
    assert model.process.kind == "bound"
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=48))
    assert -3 * error < mean < 3 * error + 0.02 * language.entropy()


def test_mixture_bound_of_long_sequences() -> None:
    """64 uniform tokens: states determine the start at some times only, so both components need draws at all times."""
    language = ls.languages.independent(torch.full((3,), 1 / 3, dtype=torch.float64), 64)
    model = joint_sphere_model("rdlm", language, start="mask+uniform")
    mean, error = mean_and_error(bound_excess(model, language, n=200, draws=16))
    assert -3 * error < mean < 3 * error + 0.02 * language.entropy()


def test_approximate_states_have_no_bound() -> None:
    """With the published moments the value is below the entropy of a uniform token; any-order uses no state table."""
    language = ls.languages.independent(torch.full((3,), 1 / 3, dtype=torch.float64), 1)
    model = joint_sphere_model("rdlm", language, transitions="published")
    mean, error = mean_and_error(bound_excess(model, language, n=4000, draws=16))
    assert model.process.kind == "surrogate" and mean < -10 * error
    assert joint_sphere_model("rdlm", language, transitions="normal").process.kind == "surrogate"
    assert joint_sphere_model("rdlm-heat", language, transitions="normal", path="any-order").process.kind == "bound"


def test_the_bound_of_a_mixture_is_never_above_the_mean_of_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a network that is exact for one start and wrong for the other, the mixture weights the better one."""
    language = sticky_chain(3, 4)
    model = joint_sphere_model("rdlm-heat", language, start="mask+uniform")
    exact = Oracle(model, language)
    drawn: list[int | None] = []
    draw_start = SphericalDiffusion._sample_start

    def record_component(process: SphericalDiffusion, t: torch.Tensor, noise: Noise) -> torch.Tensor:
        drawn.append(process.component)
        return draw_start(process, t, noise)

    monkeypatch.setattr(SphericalDiffusion, "_sample_start", record_component)

    class OneSided(Oracle):
        def forward(self, z, t, context, where=None):  # type: ignore[no-untyped-def]
            out = exact(z, t, context, where)
            return torch.zeros_like(out) if drawn[-1] == 1 else out

    tokens = language.sample(500, generator(3))
    one_sided = OneSided(model, language)
    mixed = model.nelbo(tokens, generator(4), denoiser=one_sided, draws=32).total
    alone_value = joint_sphere_model("rdlm-heat", language).nelbo(tokens, generator(5), denoiser=exact, draws=32).total
    assert float(mixed.mean()) < float(alone_value.mean()) + math.log(2) + 0.15
    assert float(mixed.mean()) > language.entropy()


@pytest.mark.slow
def test_the_published_step_mixture_falls_below_the_entropy() -> None:
    """27 letters: uniform start before t = 0.35 in the time of the paper, mask after it. A bound cannot be below H."""
    language = skewed_chain(27, 4)
    model = joint_sphere_model("rdlm", language, start="step:0.35", total_noise=0.0376)
    assert model.process.kind == "surrogate"
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=60))
    assert mean < -4 * error
    for start in ("mask", "uniform"):
        mean, error = mean_and_error(
            bound_excess(
                joint_sphere_model("rdlm", language, start=start, total_noise=0.0376), language, n=2000, draws=60
            )
        )
        assert mean > -3 * error


@pytest.mark.parametrize("start", ["linear", "sqrt", "step:0.3", "mask+uniform"])
def test_mixture_paths_train_and_sample(start: str) -> None:
    language = sticky_chain(3, 4)
    model = ls.build("rdlm", vocab_size=3, length=4, start=start, **SMALL)
    for progress in ls.fit(model, (language.sample(16, generator(i)) for i in range(3)), steps=3):
        assert progress.kind == ("bound" if start == "mask+uniform" else "surrogate")
    assert ls.sample(model, n=2, steps=4).shape == (2, 4)


# ---- published variants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 27, 255])
def test_the_mean_cosine_is_kummers_function(n: int) -> None:
    """E cos(ρ|z|) = ₁F₁(n/2; 1/2; -ρ²/2), and not exp(-ρ²/2) times that."""
    rho = torch.tensor([0.02, 0.1, 0.3]) / math.sqrt(n) * 3
    truth = torch.tensor([special.hyp1f1(n / 2, 0.5, -(float(r) ** 2) / 2) for r in rho]).double()
    torch.testing.assert_close(mean_cosine(rho, n), truth, atol=2e-4, rtol=0)
    drawn = torch.randn(200_000, n, generator=generator(1)).norm(dim=1)
    simulated = torch.cos(rho[:, None] * drawn).mean(1).double()
    torch.testing.assert_close(simulated, truth, atol=3e-3, rtol=0)
    if n == 3:
        assert (mean_cosine(rho, n, published=True) - truth).abs().max() > 0.01


def test_rho_inverts_the_mean_cosine_and_the_published_one_is_too_small() -> None:
    mean = torch.tensor([0.99, 0.9, 0.7]).double()
    rho = solve_rho(mean, 3)
    torch.testing.assert_close(mean_cosine(rho, 3), mean, atol=1e-6, rtol=0)
    ratio = rho / solve_rho(mean, 3, published=True)
    assert ratio[0] == pytest.approx(math.sqrt(4 / 3), abs=0.01)


def test_the_moment_matched_normal_has_the_mean_of_the_bridge() -> None:
    simulated = simulate_bridge(
        LogBridge(0.0376), 28, 0.0, torch.linspace(0, 0.3, 41, dtype=torch.float64), particles=4096
    )
    normal = match_moments(simulated, 28)
    torch.testing.assert_close(normal.a.mean(1), simulated.a.mean(1), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.b.mean(1), simulated.b.mean(1), atol=1e-3, rtol=0)
    assert float(normal.a[-1].std()) == pytest.approx(
        float(simulated.a[-1].std()), rel=0.12
    )  # one variance for all directions


def test_published_time_schedules() -> None:
    s = torch.linspace(0, 1, 11).double()
    t = rdlm_time("geometric", s)
    torch.testing.assert_close((200**t - 1) / 199, s)
    for schedule in ("geometric", "linear", "cosine"):
        t = rdlm_time(schedule, s)
        assert t[0] == pytest.approx(0, abs=1e-6) and t[-1] == pytest.approx(1, abs=1e-6) and (t.diff() > 0).all()
        density = rdlm_time_density(schedule, torch.linspace(0, 0.3, 101).double())
        assert float(density.sum()) == pytest.approx(1) and (density > 0).all()
    times = torch.linspace(0, 0.34, 321).double()
    drawn = rdlm_importance_density("geometric", times, 0.3, 0.6)
    t = rdlm_time("geometric", times)
    assert float(drawn[(t > 0.3) & (t < 0.6)].sum()) > 0.999 and float(drawn.sum()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"transitions": "normal"},
        {"transitions": "published"},
        {"time_sampler": "geometric", "window": [0.3, 0.6], "loss": "importance-weighted"},
        {"time_sampler": "linear"},
        {"time_sampler": "cosine", "loss": "drift"},
        {"loss": "bound-weighted"},
        {"switch": 0.5},
        {"self_conditioning": True},
        {"self_conditioning": True, "input": "state", "posterior_head": False},
        {"base": 2},
        {"base": 2, "digits": "heads"},
        {"timesteps": 16},
    ],
    ids=str,
)
def test_every_option_learns(options: dict[str, object]) -> None:
    language = sticky_chain(3, 4, stay=0.95)
    torch.manual_seed(0)
    model = ls.build("rdlm", vocab_size=3, length=4, **SMALL, **options)
    tokens = language.sample(300, generator(11))
    before = float(model.eval().nelbo(tokens, generator(12), draws=8).total.mean())
    for _ in ls.fit(
        model,
        (language.sample(32, generator(i)) for i in range(200)),
        steps=200,
        optim=ls.OptimizerConfig(lr=5e-3, warmup=20),
    ):
        pass
    mean, error = mean_and_error(model.eval().nelbo(tokens, generator(12), draws=8).total)
    assert language.entropy() - 3 * error < mean < before - 0.1
    assert ls.sample(model, n=3, steps=8).shape == (3, 4)


# ---- the bound of the sampling chain, and the steps of samplers ----------------------------------------------------


def test_the_sampling_chain_has_a_bound() -> None:
    """≥ H for any number of steps, and closer to it with more steps."""
    language = sticky_chain(3, 4)
    means = []
    for steps in (8, 64, 256):
        model = joint_sphere_model("rdlm-heat", language, timesteps=steps)
        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=48))
        assert mean > -3 * error
        means.append(mean)
    assert means == sorted(means, reverse=True) and means[-1] < 0.05 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("rule", list(SPHERICAL_STEPS))
@pytest.mark.parametrize("spacing", ["uniform", "information"])
def test_every_step_rule_samples_the_language(rule: str, spacing: str) -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language)
    drawn = ls.sample(
        model, n=3000, steps=192, rng=generator(5), denoiser=Oracle(model, language),
        stepper=SphericalStepper(SPHERICAL_STEPS[rule]),
        grid=uniform_grid if spacing == "uniform" else model.process.grid,
    )  # fmt: skip
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 3000) > MIN_P_VALUE


def test_a_lower_temperature_gives_likelier_samples() -> None:
    language = skewed_chain(5, 2)
    model = joint_sphere_model("rdlm-heat", language)
    oracle = Oracle(model, language)
    cold = ls.sample(model, n=400, steps=32, rng=generator(6), denoiser=oracle, temperature=0.3)
    warm = ls.sample(model, n=400, steps=32, rng=generator(6), denoiser=oracle)
    assert language.log_prob(cold).mean() > language.log_prob(warm).mean()


# ---- digits -------------------------------------------------------------------------------------------------------


def test_digits_are_counted_exactly() -> None:
    for base, m in ((5, 3), (6, 3), (2, 29), (3, 10), (10, 2)):
        assert count_digits(base**m, base) == m
        assert count_digits(base**m + 1, base) == m + 1
    assert count_digits(30_522, 3) == 10


def test_digit_codes_are_decoded_to_every_token() -> None:
    for vocab_size, base in ((7, 2), (27, 3), (100, 10), (30, 7)):
        codec = DigitCodec(vocab_size, base)
        tokens = torch.arange(vocab_size)[None]
        z = codec.encode(tokens)
        assert z.shape == (1, vocab_size * codec.digits, base + 1)
        assert torch.equal(codec.decode(z), tokens) and torch.equal(codec.decode_partial(z), tokens)


@pytest.mark.parametrize(("vocab_size", "base"), [(7, 2), (8, 2), (5, 3), (11, 4), (9, 3), (13, 12)])
def test_invalid_codes_are_left_out_exactly(vocab_size: int, base: int) -> None:
    """Marginals, normaliser and draws against an enumeration of all codes."""
    codec = DigitCodec(vocab_size, base)
    valid, m = ValidCodes(codec), codec.digits
    log_p = torch.randn(1, m, base, generator=generator(1)).double().log_softmax(-1)
    joint = torch.zeros(vocab_size).double()
    for token, code in zip(range(vocab_size), itertools.product(range(base), repeat=m), strict=False):
        joint[token] = sum(log_p[0, i, digit] for i, digit in enumerate(code)).exp()  # type: ignore[union-attr]
    assert float(valid.remaining(log_p)[0, 0].exp()) == pytest.approx(float(joint.sum()))
    p = joint / joint.sum()
    digits = codec.to_digits(torch.arange(vocab_size))
    truth = torch.stack([torch.zeros(base).double().index_add(0, digits[:, i], p) for i in range(m)])
    torch.testing.assert_close(valid.marginals(log_p)[0], truth)
    drawn = valid.draw(log_p.expand(20_000, -1, -1), GeneratorNoise(generator(2), 20_000))
    numbers = (drawn * codec.powers).sum(1)
    assert chi_square_p_value(torch.bincount(numbers, minlength=vocab_size), p * 20_000) > MIN_P_VALUE


class DigitOracle(Denoiser):
    """The exact posterior of tokens as marginals of their digits."""

    reads_time = True

    def __init__(self, model: ls.Model, language: Language):
        super().__init__()
        self.block = model.length
        self.model, self.language = model, language

    def forward(self, z, t, context, where=None):  # type: ignore[no-untyped-def]
        codec = self.model.process.codec
        evidence = self.model.process.log_likelihood(z, t).unflatten(1, (-1, codec.digits))
        digits = codec.to_digits(torch.arange(self.language.vocab_size))
        by_token = sum(evidence[:, :, i][..., digits[:, i]] for i in range(codec.digits))
        posterior = self.language.posterior(by_token).double().exp()
        rows = [
            torch.zeros(*posterior.shape[:2], codec.base).double().index_add(2, digits[:, i], posterior)
            for i in range(codec.digits)
        ]
        out = torch.stack(rows, 2).flatten(1, 2).clamp_min(1e-30).log().float()
        return out if where is None else out[where]


def test_the_bound_with_digits_is_tight() -> None:
    language = skewed_chain(4, 2)
    model = ls.build("rdlm-heat", vocab_size=4, length=2, denoiser=None, base=2, path="joint", any_order_fraction=0.0)
    mean, error = mean_and_error(
        bound_excess(model, language, n=2000, draws=200, denoiser=DigitOracle(model, language))
    )
    assert abs(mean) < 3 * error + 0.01 * language.entropy() and error < 0.02 * language.entropy()


def test_samples_with_digits_are_valid_tokens() -> None:
    language = independent_tokens(5, 2)
    model = ls.build("rdlm-heat", vocab_size=5, length=2, denoiser=None, base=2, path="joint", any_order_fraction=0.0)
    drawn = ls.sample(model, n=2000, steps=96, rng=generator(3), denoiser=DigitOracle(model, language))
    assert int(drawn.max()) < 5
    known, tokens = torch.tensor([True, False]), torch.tensor([4, 0])
    filled = ls.sample(model, n=50, steps=8, denoiser=DigitOracle(model, language), known=known, tokens=tokens)
    assert (filled[:, 0] == 4).all()


def test_invalid_options_are_refused() -> None:
    for options, hint in (
        ({"base": 1}, "at least 2"),
        ({"base": 9}, "below 4"),
        ({"timesteps": 1}, "from 2 to 5,000"),
        ({"switch": 1.5}, "0 to 1"),
        ({"window": [0.3, 0.6]}, "geometric"),
        ({"time_sampler": "geometric", "window": [0.6, 0.3]}, "between 0 and 1"),
        ({"start": "step:soon"}, "step:0.35"),
        ({"transitions": "aproximate"}, "choice for transitions"),
        ({"digits": "hands"}, "heads"),
    ):
        with pytest.raises(UserError, match=hint):
            ls.build("rdlm", vocab_size=4, length=4, denoiser=None, **options)
    model = ls.build("mdlm", vocab_size=4, length=4, **SMALL)
    with pytest.raises(UserError, match="sphere"):
        ls.sample(model, stepper=SphericalStepper(SPHERICAL_STEPS["matched"]))


def test_times_outside_the_unit_interval_are_refused() -> None:
    model = ls.build("rdlm", vocab_size=4, length=4, denoiser=None)
    for t in (-0.1, 1.1):
        with pytest.raises(UserError, match="between 0"):
            model.corrupt(torch.zeros(1, 4, dtype=torch.long), torch.tensor(t), generator(1))


def test_self_conditioning_keeps_state_only_while_sampling() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm", vocab_size=3, length=4, self_conditioning=True, **SMALL).eval()
    network = next(module for module in model.modules() if isinstance(module, FullTransformer))
    torch.nn.init.normal_(network.head.weight)
    z = model.corrupt(torch.zeros(2, 4, dtype=torch.long), torch.tensor(0.6), generator(1))
    t = torch.full((2, 4), 0.6)
    first, second = (model.denoiser(z, t, context=z) for _ in range(2))
    torch.testing.assert_close(first, second)  # a function of the state
    session = model.denoiser.begin_sampling()
    assert not torch.allclose(session(z, t, context=z), session(z, t, context=z))
    assert F.softmax(first, -1).isfinite().all()
