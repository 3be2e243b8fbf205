"""Samplers of Gaussian diffusion: orders of convergence, distributions of samples, evaluations; gradient guidance."""

import functools
import math

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, generator, independent_tokens, random_joint, sticky_chain
from toy_models import SMALL, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.guidance import GradientGuided, GradientGuidedState
from logosphere.rng import GeneratorNoise
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import TimeGrid, sample_loop
from logosphere.sampling.registry import GAUSSIAN, GAUSSIAN_OR_FLOW, SAMPLERS, sampler
from logosphere.sampling.steppers.gaussian import GaussianStepper
from logosphere.types import Batch

NAMES = [name for name, info in SAMPLERS.items() if info.supports in (GAUSSIAN, GAUSSIAN_OR_FLOW)]


def plain(language: Language, **options: object) -> Model:
    """One-hot tokens and a schedule linear in λ."""
    options = {
        "codec": "one-hot",
        "schedule": "linear",
        "max_logsnr": 2.0,
        "min_logsnr": -6.0,
        "spacing": "logsnr",
    } | options
    return ls.build(
        "gaussian-ce", vocab_size=language.vocab_size, length=language.length, denoiser=None, **options
    ).eval()


@functools.cache
def end_of_path(name: str, steps: int) -> Tensor:
    """The final states of a sampler before decoding, always from the same noise."""
    language = sticky_chain(3, 4)
    model = plain(language)
    given = Batch.of(torch.zeros(32, 4, dtype=torch.long))
    grid = TimeGrid.diffuse(4, steps + 1, model.process.grid)
    stepper = sampler(name, model).stepper.begin_sampling()
    return list(
        sample_loop(model.process, Oracle(model, language), grid, given, GeneratorNoise(generator(1), 32), stepper)
    )[-2].z.double()


@pytest.mark.thorough
@pytest.mark.parametrize("name, order", [("ddim", 1), ("dpm++", 2), ("heun", 2)])
def test_orders_of_convergence(name: str, order: int) -> None:
    """Twice the steps, 2^order times less error; against 400 steps of Heun's method."""
    truth = end_of_path("heun", 400)
    errors = [float((end_of_path(name, steps) - truth).square().mean().sqrt()) for steps in (24, 48, 96)]
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert order - 0.35 < math.log2(coarse / fine) < order + 0.6
    assert errors[-1] < (0.03 if order == 1 else 0.002)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ddim", "dpm++", "heun", "token-drawn"])
def test_samples_follow_the_language(name: str) -> None:
    language = random_joint()
    model = plain(language)
    steps = 96 if name in ("ddim", "token-drawn") else 48
    drawn = ls.sample(
        model, n=2500, steps=steps, rng=generator(2), denoiser=Oracle(model, language), sampler=sampler(name, model)
    )
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_token_resampling_is_exact_for_independent_tokens() -> None:
    """For any number of steps; dependencies between tokens are lost."""
    for language, right in ((independent_tokens(4, 3), True), (sticky_chain(3, 3), False)):
        model = plain(language)
        how = {"sampler": sampler("ssd", model), "denoiser": Oracle(model, language)}
        drawn = ls.sample(model, n=2500, steps=4, rng=generator(3), **how)
        assert (sequence_p_value(drawn, language) > MIN_P_VALUE) == right


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_samplers_count_evaluations_and_keep_known_tokens(name: str) -> None:
    language = independent_tokens(4, 6)
    model = random_network("plaid", language)
    known, tokens = torch.tensor([True, False] * 3), language.sample(5, generator(4))
    drawn = generate(model, 5, 9, generator(5), known=known, tokens=tokens, sampler=sampler(name, model))
    assert drawn.nfe == (17 if name == "heun" else 9)
    assert torch.equal(drawn.tokens[:, known], tokens[:, known]) and drawn.tokens.max() < 4
    again = generate(model, 5, 9, generator(5), known=known, tokens=tokens, sampler=sampler(name, model))
    assert torch.equal(drawn.tokens, again.tokens)


@pytest.mark.parametrize("name", ["ddim", "dpm++", "heun", "q-sampling"])
def test_gaussian_samplers_work_on_latents(name: str) -> None:
    model = random_network("tencdm", independent_tokens(4, 6), encoder=None)
    drawn = generate(model, 3, 5, generator(5), sampler=sampler(name, model))
    assert drawn.nfe == (9 if name == "heun" else 5) and drawn.tokens.shape == (3, 6)


@pytest.mark.parametrize("name", NAMES)
def test_gaussian_samplers_refuse_other_processes(name: str) -> None:
    with pytest.raises(UserError, match="plaid"):
        sampler(name, random_network("mdlm", independent_tokens(4, 6)))


def test_incompatible_settings_are_refused() -> None:
    model = random_network("bit-diffusion", independent_tokens(4, 6))
    with pytest.raises(UserError, match="predicts tokens"):
        ls.sample(model, n=2, steps=3, sampler=sampler("token-drawn", model))
    with pytest.raises(UserError, match="one length"):
        ls.sample(model, n=2, steps=3, sampler=sampler("renormalised", model))
    with pytest.raises(UserError, match="ahead"):
        GaussianStepper(ahead=1.0)


def test_clamping_rounds_to_embeddings() -> None:
    """A clamped last step ends at α e + noise around one embedding, never between embeddings."""
    language = ls.languages.independent([0.1, 0.1, 0.7, 0.1], 2)
    model = plain(language)
    given = Batch.of(torch.zeros(200, 2, dtype=torch.long))
    grid = TimeGrid.diffuse(2, 2, model.process.grid)
    stepper = sampler("clamped", model).stepper
    frame = next(
        sample_loop(model.process, Oracle(model, language), grid, given, GeneratorNoise(generator(6), 200), stepper)
    )
    nearest = model.process.codec.nearest(frame.z)
    assert (nearest == 2).float().mean() > 0.9  # at the noisy end all positions round to the likeliest token


# ---- guidance ---------------------------------------------------------------------------------------------------


def test_guidance_by_a_factorised_classifier_is_exact() -> None:
    """log c = Σ_i φ(x_i): samples of independent tokens follow p(x) e^{φ(x)}, normalised."""
    language, preference = independent_tokens(4, 2), torch.tensor([0.0, 1.0, -1.0, 0.5])
    model = plain(language)
    guided = GradientGuided(Oracle(model, language), lambda p: (p @ preference).sum(1))
    drawn = ls.sample(model, n=2500, steps=64, rng=generator(7), denoiser=guided)
    sequences, p = enumerate_sequences(language)
    tilted = p * preference[sequences].sum(1).exp()
    assert sequence_p_value(drawn, language, tilted / tilted.sum()) > MIN_P_VALUE
    assert sequence_p_value(drawn, language) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rdlm", "gaussian-ce", "mdlm"])
def test_gradient_guidance_works_for_every_token_predicting_process(name: str) -> None:
    language = independent_tokens(4, 6)
    model = random_network(name, language, neighbours=0)  # without it the network may favour the guided token
    preference = torch.tensor([0.0, 0.0, 5.0, 0.0])
    guided = GradientGuided(model.denoiser, lambda p: (p @ preference).sum(1))
    plain_share = (ls.sample(model, n=50, steps=8, rng=generator(8)) == 2).float().mean()
    assert (ls.sample(model, n=50, steps=8, rng=generator(8), denoiser=guided) == 2).float().mean() > plain_share + 0.2
    ar = random_network("ar", language)
    unsteered = GradientGuided(
        ar.denoiser, lambda p: p.sum((1, 2)), strength=0.0
    )  # evaluates all positions at every step
    assert torch.equal(*[ls.sample(ar, 50, rng=generator(1), denoiser=one) for one in (ar.denoiser, unsteered)])
    idle = GradientGuided(model.denoiser, lambda p: (p @ preference).sum(1), strength=0.0)
    one, other = (ls.sample(model, n=9, steps=8, rng=generator(9), denoiser=way) for way in (None, idle))
    assert torch.equal(one, other)


def test_state_gradient_guidance_differentiates_through_the_network() -> None:
    torch.manual_seed(0)
    model = ls.build("diffusion-lm", vocab_size=4, length=6, **SMALL)
    language = independent_tokens(4, 6)
    for _ in ls.fit(
        model, (language.sample(32, generator(i)) for i in range(90)), steps=90, optim=ls.OptimizerConfig(lr=1e-2)
    ):
        pass
    direction = model.process.codec.table()[2].detach()

    def score(clean: Tensor) -> Tensor:
        return 3 * (clean @ direction).sum(1)

    def fraction(strength: float) -> float:
        way = GradientGuidedState(model.denoiser, model.process, score, strength)
        return float((ls.sample(model, n=60, steps=12, rng=generator(10), denoiser=way) == 2).float().mean())

    assert fraction(1.0) > fraction(0.0) + 0.1
    with pytest.raises(UserError, match="use GradientGuided"):
        GradientGuidedState(model.denoiser, random_network("plaid", language).process, score)
    with pytest.raises(UserError, match="differentiable"):
        ls.sample(model, denoiser=GradientGuidedState(model.denoiser, model.process, lambda x: x.detach().sum((1, 2))))


# ---- self-conditioning ------------------------------------------------------------------------------------------

SELF = {
    "bit-diffusion": {},
    "cdcd": {},
    "plaid": {"self_conditioning": 0.25},
    "gaussian-ce": {"self_conditioning": 0.5},
    "bfn": {"self_conditioning": 0.5},
    "fisher-flow": {"self_conditioning": 0.5, "input": "state"},
    "rdlm": {"self_conditioning": 0.5},
}


@pytest.mark.parametrize("name", SELF)
def test_self_conditioning_estimate_is_reused_in_sampling(name: str) -> None:
    """A bound evaluates the network twice, with zeros and with the estimate; a sampler once per step."""
    language = independent_tokens(4, 6)
    model = random_network(name, language, **SELF[name]).eval()
    calls: list[Tensor] = []
    inner = next(module for module in model.denoiser.modules() if type(module).__name__ == "FullTransformer")
    inner.register_forward_pre_hook(lambda module, given: calls.append(given[0]))
    model.nelbo(language.sample(3, generator(1)), generator(2))
    half = calls[0].shape[-1] // 2
    assert len(calls) == 2 and not calls[0][..., half:].any() and calls[1][..., half:].any()
    calls.clear()
    drawn = generate(model, 3, 5, generator(3))
    assert drawn.nfe == len(calls) == 5
    assert not calls[0][..., half:].any() and all(call[..., half:].any() for call in calls[1:])


def test_self_conditioning_draws_do_not_depend_on_the_batch_split() -> None:
    losses = []
    for accumulate in (1, 2):
        torch.manual_seed(0)
        model = ls.build("plaid", vocab_size=4, length=6, self_conditioning=0.5, **SMALL)
        batches = (independent_tokens(4, 6).sample(8, generator(i)) for i in range(4))
        losses.append([step.loss for step in ls.fit(model, batches, steps=4, accumulate=accumulate)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_invalid_self_conditioning_probability_is_refused(probability: float) -> None:
    with pytest.raises(UserError, match="self-conditioning"):
        ls.build("plaid", vocab_size=4, length=6, self_conditioning=probability, **SMALL)
