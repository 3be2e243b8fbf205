"""Samplers by name: supported systems, known tokens, number of evaluations, and exactness of the exact ones."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import generator, random_joint, skewed_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.codecs.base import HIDDEN
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.networks.base import Denoiser
from logosphere.processes.base import uniform_grid
from logosphere.sampling import registry
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import Frame
from logosphere.sampling.registry import (
    ANY,
    DISCRETE,
    MASKED_TIME_FREE,
    REMASKER,
    SAMPLERS,
    TIME_FREE,
    TOKEN_STATES,
    UNMASKING,
    sampler,
    sampler_info,
)
from logosphere.sampling.steppers import (
    EntropyBudget,
    GreedyLastStep,
    OrderedUnmasking,
    ThresholdCommit,
    ancestral,
    as_stepper,
    entropy_order,
)
from logosphere.sampling.steppers import likelihood_order as by_likelihood

LANGUAGE = skewed_chain(5, 6)
FOR_MASKED = (ANY, registry.MASKED, DISCRETE, MASKED_TIME_FREE, TIME_FREE, TOKEN_STATES, REMASKER, UNMASKING)
MASKED = [name for name, info in SAMPLERS.items() if info.supports in FOR_MASKED]
N = 4000
CASES = {"chain": skewed_chain(3, 4), "table": random_joint()}


def test_the_default_sampler_of_every_system_is_registered() -> None:
    assert [info.name for info in SAMPLERS.values()] == list(SAMPLERS)
    for name in ls.systems():
        assert sampler_info(ls.system(name).sampler)
    for name in ("mdlm", "remdm", "star", "g-star", "p2", "llada"):
        model = random_network(name, LANGUAGE)
        assert sampler(model.sampler, model)


def test_an_unknown_sampler_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'first-hitting'"):
        ls.sampler("first-hiting", random_network("mdlm", LANGUAGE))
    with pytest.raises(UserError, match="not both"):
        ls.sample(random_network("mdlm", LANGUAGE), sampler=ls.Sampler(), stepper=ancestral)


@pytest.mark.parametrize(
    "system, name, message",
    [
        ("d3pm-uniform", "star", "masked diffusion such as mdlm"),
        ("ar", "remdm-cap", "masked diffusion such as mdlm"),
        (
            "d3pm-uniform",
            "first-hitting",
            "such as mdlm; this model is d3pm-uniform. Use ancestral",
        ),
        ("d3pm-uniform", "confidence", "ancestral"),
        ("rdlm", "tau-leaping", "discrete diffusion such as mdlm"),
        ("mdlm", "self-correcting", "uniform diffusion such as udlm or gidd"),
        ("mdlm", "g-star", "build the system g-star"),
    ],
)
def test_an_unsupported_system_is_refused_with_an_alternative(system: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.sampler(name, random_network(system, LANGUAGE))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("steps", [7, 1])
def test_known_tokens_stay_and_no_mask_remains(name: str, steps: int) -> None:
    known = torch.rand(8, 6, generator=generator(5)) < 0.4
    tokens = LANGUAGE.sample(8, generator(6))
    frames: list[Frame] = []
    model = random_network("g-star", LANGUAGE)
    chosen = ls.sampler(name, model)
    generate(model, 8, steps, generator(7), known=known, tokens=tokens, sampler=chosen, watch=frames.append)
    for frame in frames:
        assert torch.equal(frame.tokens[known], tokens[known])
    assert frames[-1].tokens.ne(HIDDEN).all() and frames[-1].tokens.max() < 5


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("name", ["star-loop", "remdm-loop"])
def test_loop_samplers_hold_a_tenth_masked_for_every_schedule(name: str, schedule: str) -> None:
    """Cap remasks at most 0.02 per step, so its fraction is still that of the descent."""
    frames: list[Frame] = []
    model = ls.build("mdlm", vocab_size=5, length=64, width=16, depth=1, heads=1, schedule=schedule)
    generate(model, 100, 40, generator(2), sampler=ls.sampler(name, model), watch=frames.append)
    fractions = torch.stack([frame.tokens.eq(HIDDEN).double().mean() for frame in frames])
    assert (fractions[25:35] - 0.1).abs().max() < 5 * (0.09 / 6400) ** 0.5


def test_sampler_blocks_do_not_cross_model_blocks() -> None:
    model = ls.build("bd3lm", vocab_size=5, length=12, block=4, width=16, depth=1, heads=1)
    assert ls.sampler("llada", model).blocks == 3  # blocks of 3 positions would reach into the next block of the model
    assert ls.sample(model, 2, 6, generator(1), sampler=ls.sampler("llada", model)).shape == (2, 12)
    with pytest.raises(UserError, match="do not divide"):
        ls.sample(model, 2, 6, generator(1), sampler=ls.Sampler(blocks=4))


@pytest.mark.parametrize("name", ["diffusion-lm", "bit-diffusion", "ld4lg"])
@pytest.mark.parametrize("how", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
def test_models_that_predict_states_refuse_token_filters(name: str, how: dict) -> None:
    model = ls.build(name, vocab_size=5, length=8, width=16, depth=1, heads=1)
    with pytest.raises(UserError, match="predicts states, not tokens"):
        ls.sample(model, 2, 2, generator(1), **how)


def count_in_window(steps: int, first: float, last: float, grid=uniform_grid) -> int:
    """The number of steps inside a time window, without the last step."""
    times = grid(steps)
    return int(((times[:-2] <= first + 1e-6) & (times[1:-1] >= last - 1e-6)).sum())


COSTS = {
    "first-hitting": lambda steps: 6,
    "left-to-right": lambda steps: 6,
    "tau-leaping-pc": lambda steps: 2 * steps - 1,
    "g-star": lambda steps: steps + count_in_window(steps, 0.3, 0.0),
    "llada": lambda steps: 3 * max(1, steps // 3),
    "llada-greedy": lambda steps: 3 * max(1, steps // 3),
    # At the time of their last step, 1e-5, no mask remains.
    "euler": lambda steps: max(1, steps - 1),
    "analytic": lambda steps: max(1, steps - 1),
    "md4": lambda steps: max(1, steps - 1),
}
"""Evaluations for one sequence of 6 tokens where they are not the number of steps."""
VARYING = {"cached", "mdlm", "threshold", "entropy-bounded", "sdar", "fast-dllm", "fast-dllm-v2"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MASKED if name not in VARYING])
@pytest.mark.parametrize("steps", [1, 5, 16])
def test_every_sampler_has_the_documented_nfe(name: str, steps: int) -> None:
    """64 sequences, so that some position is masked in every step."""
    model = random_network("g-star", LANGUAGE)
    drawn = generate(model, 64, steps, generator(1), sampler=ls.sampler(name, model))
    assert drawn.nfe == COSTS.get(name, lambda steps: steps)(steps)


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["udlm", "gidd", "sedd-uniform", "genmd4", "d3pm-gaussian"])
@pytest.mark.parametrize("name", ["ancestral", "analytic", "tau-leaping", "tau-leaping-pc", "self-correcting"])
def test_samplers_of_uniform_noise_have_the_documented_nfe(system: str, name: str) -> None:
    model, steps = random_network(system, LANGUAGE), 8
    if system in ("genmd4", "d3pm-gaussian") and name != "ancestral":
        with pytest.raises(UserError, match="Use ancestral"):
            ls.sampler(name, model)
        return
    drawn = generate(model, 16, steps, generator(1), sampler=ls.sampler(name, model))
    assert drawn.nfe == (steps if name == "analytic" else COSTS.get(name, lambda steps: steps)(steps))


def sample_p_value(system: System, language: Language, n: int = N, steps: int = 128, **how) -> float:
    model = system.model(language)
    rng = torch.Generator().manual_seed(32)
    return sequence_p_value(ls.sample(model, n, steps, rng, Oracle(model, language), **how), language)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["remdm-cap", "tau-leaping"])
def test_exact_samplers_sample_the_language(name: str) -> None:
    system, language = System("mdlm"), CASES["chain"]
    assert sample_p_value(system, language, sampler=ls.sampler(name, system.model(language))) > MIN_P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", ["remdm-cap", "remdm-rescale", "forward-backward", "tau-leaping", "tau-leaping-pc"])
def test_exact_samplers_sample_every_language(name: str, language: Language) -> None:
    system = System("mdlm", {"schedule": "cosine"})
    chosen = ls.sampler(name, system.model(language))
    assert sample_p_value(system, language, sampler=chosen) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tau-leaping", pytest.param("tau-leaping-pc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("system", [System("udlm"), System("gidd")], ids=str)
def test_tau_leaping_with_uniform_noise_samples_the_language(system: System, name: str) -> None:
    language = skewed_chain(3, 2)
    assert sample_p_value(system, language, sampler=ls.sampler(name, system.model(language))) > MIN_P_VALUE


ONE_BY_ONE = {
    "random": OrderedUnmasking(lambda out, drawn: torch.zeros(len(out)), temperature=1.0),
    "entropy": OrderedUnmasking(entropy_order),
    "no budget of entropy": OrderedUnmasking(entropy_order, EntropyBudget(0.0)),
}


@pytest.mark.parametrize("stepper", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_one_position_per_step_is_exact_if_the_order_ignores_the_draws(stepper) -> None:
    assert sample_p_value(System("mdlm"), CASES["chain"], steps=4, stepper=stepper) > MIN_P_VALUE


def test_likelihood_order_depends_on_the_draws_and_is_not_exact() -> None:
    assert sample_p_value(System("mdlm"), CASES["chain"], steps=4, stepper=OrderedUnmasking(by_likelihood)) < 1e-6


class FixedDenoiser(Denoiser):
    """Predicts token 0 at position i with probability p[i], and token 1 otherwise."""

    def __init__(self, p: list[float]):
        super().__init__()
        self.block, self.reads_time, self.p = len(p), False, torch.tensor(p)

    def forward(self, z, t, context, where=None):
        out = torch.stack([self.p, 1 - self.p], 1).log().expand(len(z), -1, -1)
        return out if where is None else out[where]


def adaptive_nfe(p: list[float], count, order) -> float:
    model = ls.build("mdlm", vocab_size=2, length=len(p), denoiser=None)
    return generate(model, 3, 1, generator(1), FixedDenoiser(p), stepper=OrderedUnmasking(order, count)).nfe


def test_adaptive_commits_cost_as_many_evaluations_as_there_are_commits() -> None:
    assert adaptive_nfe([0.999] * 4, ThresholdCommit(0.9), by_likelihood) <= 2
    assert adaptive_nfe([0.5] * 4, ThresholdCommit(0.9), by_likelihood) == 4
    assert adaptive_nfe([1.0, 0.5, 1.0, 0.5], ThresholdCommit(0.9), by_likelihood) == 3
    assert adaptive_nfe([0.5] * 4, EntropyBudget(0.0), entropy_order) == 4
    assert adaptive_nfe([0.5] * 4, EntropyBudget(0.70), entropy_order) == 2  # log 2 = 0.693
    assert adaptive_nfe([0.5] * 4, EntropyBudget(3.0), entropy_order) == 1


def test_finished_sequences_are_not_evaluated() -> None:
    """A sequence with one unknown token costs one evaluation, the others four."""
    known = torch.zeros(4, 4).bool()
    known[0, 1:] = True
    model = ls.build("mdlm", vocab_size=2, length=4, denoiser=None)
    stepper = OrderedUnmasking(by_likelihood, ThresholdCommit(0.9))
    drawn = generate(
        model, 4, 1, generator(1), FixedDenoiser([0.5] * 4), known, torch.zeros(4, 4).long(), stepper=stepper
    )
    assert drawn.nfe == (1 + 3 * 4) / 4


@pytest.mark.parametrize("name", ["d3pm-uniform", "gidd"])
def test_self_correction_changes_one_token_at_a_time(name: str) -> None:
    """The denoiser is confident of token 1 everywhere: every other token is replaced, one per step."""
    frames: list[Frame] = []
    model = ls.build(name, vocab_size=2, length=8, denoiser=None)
    chosen = ls.sampler("self-correcting", model)
    generated = generate(model, 400, 20, generator(2), FixedDenoiser([0.001] * 8), sampler=chosen, watch=frames.append)
    wrong = torch.stack([frame.z.ne(1).sum(1) for frame in frames])
    assert torch.equal(wrong[9:-1], (wrong[8] - torch.arange(1, 11)[:, None]).clamp_min(0)) and wrong[8].max() > 0
    assert generated.nfe == 20


def test_path_planning_refuses_filters() -> None:
    with pytest.raises(UserError, match="without filters"):
        ls.sample(random_network("p2", LANGUAGE), temperature=0.5)


def test_a_greedy_last_step_takes_the_likeliest_token() -> None:
    model = ls.build("mdlm", vocab_size=2, length=4, denoiser=None)
    drawn = generate(model, 50, 1, generator(1), FixedDenoiser([0.6, 0.4, 0.7, 0.2]), greedy_end=True)
    assert torch.equal(drawn.tokens, torch.tensor([0, 1, 0, 1]).expand(50, 4))
    assert GreedyLastStep(OrderedUnmasking(by_likelihood, ThresholdCommit())).adaptive


@pytest.mark.parametrize("wrong", [lambda: ThresholdCommit(1.0), lambda: EntropyBudget(-1.0)])
def test_invalid_commit_rules_are_refused(wrong) -> None:
    with pytest.raises(UserError):
        wrong()
    with pytest.raises(UserError):
        ls.sample(random_network("mdlm", LANGUAGE), stepper=OrderedUnmasking(temperature=-1.0))


def test_sampler_blocks_are_generated_left_to_right() -> None:
    frames: list[Frame] = []
    model = random_network("llada", skewed_chain(5, 8))
    generate(model, 10, 8, generator(3), watch=frames.append)
    for frame in frames:
        open_blocks = frame.tokens.eq(HIDDEN).view(10, 4, 2).any(2)
        assert (open_blocks[:, 1:] >= open_blocks[:, :-1]).all()


def test_samplers_and_their_steppers_support_the_same_systems() -> None:
    for system in ("ar", "mdlm", "udlm", "gidd", "rdlm", "rdlm-heat", "plaid", "ld4lg", "fisher-flow", "bfn", "ddsm"):
        model = ls.build(system, vocab_size=5, length=8, width=8, depth=1, heads=1)
        for name, info in SAMPLERS.items():
            if info.supports.is_met(model.process) and name != "g-star":
                assert as_stepper(sampler(name, model).stepper).supports(model.process), (system, name)
