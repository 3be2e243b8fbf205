"""Guidance follows Bayes' rule: exact with exact posteriors, and scales are powers of the transition kernel."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from torch import Tensor
from toy_languages import generator, skewed_chain
from toy_models import SMALL, System, random_network

import logosphere as ls
from logosphere import Condition, UserError
from logosphere.data.languages import Oracle
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.processes.capabilities import DiscreteTransitions
from logosphere.sampling.generate import generate
from logosphere.sampling.guidance import CFGTransition, DiscreteClassifierGuidance
from logosphere.sampling.steppers import Ancestral, GreedyLastStep, first_hitting
from logosphere.sampling.steppers.base import TRANSITIONS, require

V, L, N = 3, 2, 1500
TABLE = torch.rand((2, V, V), generator=generator(8), dtype=torch.float64) ** 2 + 0.02
BOTH = ls.languages.joint(TABLE.sum(0))
EACH = [ls.languages.joint(part) for part in TABLE]
UNIFORM = [
    System("udlm"), System("sedd-uniform"), System("d3pm-uniform"), System("multinomial"), System("gidd"),
    System("d3pm-gaussian"),
]  # fmt: skip
MASKED = [System("mdlm"), System("sedd-absorb"), System("genmd4")]


class Labelled(Denoiser):
    """The exact posterior given the label, or of the mixture without one."""

    def __init__(self, model: Model, condition: Condition | None = None):
        super().__init__()
        self.block, self.reads_time, self.model, self.condition = (
            model.block,
            model.process.time_conditional,
            model,
            condition,
        )

    def with_condition(self, condition: Condition) -> Denoiser:
        return Labelled(self.model, condition)

    def forward(self, z, t, context, where=None):
        out = Oracle(self.model, BOTH)(z, t, context)
        if self.condition is not None:
            conditional = torch.stack([Oracle(self.model, language)(z, t, context) for language in EACH])
            of_label = conditional[self.condition.labels, torch.arange(len(z))]
            out = torch.where(self.condition.given[:, None, None], of_label, out)
        return out if where is None else out[where]


def exact_classifier(model: Model):
    """log p(y | z) by enumeration, with a time per position."""
    sequences = torch.cartesian_prod(*[torch.arange(V)] * L)
    log_joint = TABLE.log().flatten(1)  # [2, V^L]

    def classify(rows: Tensor, t: Tensor) -> Tensor:
        log_likelihood = model.process.log_likelihood(rows.argmax(-1), t).double()
        log_q = sum(log_likelihood[:, i, sequences[:, i]] for i in range(L))
        return (log_joint + log_q[:, None]).logsumexp(-1).log_softmax(-1)

    return classify


@pytest.mark.thorough
@pytest.mark.parametrize("system", [*UNIFORM, *MASKED], ids=str)
@pytest.mark.parametrize("scale, distribution", [(1.0, EACH[1]), (0.0, BOTH)], ids=["conditional", "unconditional"])
def test_scale_one_samples_the_conditional_and_zero_the_marginal(system: System, scale: float, distribution) -> None:
    model = system.model(BOTH)
    labels = Condition.of(labels=torch.ones(N).long())
    steps = 100 if system.name == "d3pm-gaussian" else 64
    drawn = ls.sample(model, N, steps, generator(3), Labelled(model), condition=labels, guidance=scale)
    assert sequence_p_value(drawn, distribution) > MIN_P_VALUE


def transition_kernels(model: Model, x: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """Σ_x p(x | z_t) q(z_s | z_t, x), rows by z_t, from matrices q(z_t | x), for a prior x of one token."""
    K = model.process.codec.states
    mixing = model.process.mixing
    at = {time: mixing.marginal(torch.eye(K)[:V].double(), time.expand(V)) for time in (s, t)}  # [V, K]
    kept = mixing.signal(t) / mixing.signal(s)
    zeros = torch.zeros(1, V).double()
    noise = mixing.marginal(zeros, t[None]) - kept * mixing.marginal(zeros, s[None])
    jump = kept * torch.eye(K).double() + noise  # rows by z_s
    joint = x[:, None, None] * at[s][:, None, :] * jump.T[None]  # [x, z_t, z_s]
    return joint.sum(0) / joint.sum((0, 2))[:, None]


@pytest.mark.parametrize("system", [System("udlm"), System("d3pm-uniform"), System("gidd"), System("mdlm")], ids=str)
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.0, 3.5])
def test_guided_step_is_the_product_of_powers_of_both_kernels(system: System, scale: float) -> None:
    model = system.model(BOTH)
    conditional, unconditional = torch.rand(2, V, generator=generator(4), dtype=torch.float64).softmax(1)
    t, s = torch.tensor(0.62).double(), torch.tensor(0.31).double()
    K = model.process.codec.states
    z = torch.arange(K)[:, None] if model.process.guides_transitions else torch.tensor([[V]])
    wide = [field.expand(z.shape) for field in (t, s)]

    def logits_of(x: Tensor) -> Tensor:
        return model.process.add_evidence(x.log().expand(len(z), -1).clone(), z[:, 0], wide[0][:, 0])

    def evaluate(z, t, where, denoiser=None):
        return logits_of(conditional) if denoiser is None else denoiser(z, t, context=z, where=where)

    guide = CFGTransition(lambda z, t, context, where=None: logits_of(unconditional), scale)
    log_kernel = model.process.log_transition(logits_of(conditional), z[:, 0], wide[0][:, 0], wide[1][:, 0])
    guided = guide(model.process, evaluate, log_kernel, z, *wide, torch.ones_like(z).bool()).softmax(-1)
    powers = transition_kernels(model, conditional, t, s) ** scale * transition_kernels(model, unconditional, t, s) ** (
        1 - scale
    )
    closed = (powers / powers.sum(1, keepdim=True))[z[:, 0]]
    torch.testing.assert_close(guided, closed.nan_to_num(0.0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["udlm", "mdlm"])
def test_single_step_guidance_matches_the_closed_form(name: str) -> None:
    """From noise to tokens in one step, positions are independent: p(x_i | y)² / p(x_i)."""
    model = System(name).model(BOTH)
    labels = Condition.of(labels=torch.zeros(N).long())
    drawn = ls.sample(model, N, 1, generator(5), Labelled(model), condition=labels, guidance=2.0)
    one = [EACH[0].p.view(V, V).sum(1 - i) ** 2 / BOTH.p.view(V, V).sum(1 - i) for i in range(L)]
    closed = torch.outer(*[p / p.sum() for p in one]).flatten()
    assert sequence_p_value(drawn, BOTH, closed) > MIN_P_VALUE


def no_evaluation(z, t, where, denoiser=None):
    raise AssertionError("a classifier must not evaluate the denoiser")


@pytest.mark.parametrize("system", [System("udlm"), System("gidd"), System("mdlm"), System("genmd4")], ids=str)
def test_exact_classifier_guidance_gives_the_conditional_kernel(system: System) -> None:
    """p(z_s^i | z_t, y) by enumeration of all texts, against the unconditional step times p(y | edit)."""
    model = system.model(BOTH)
    z = torch.cartesian_prod(*[torch.arange(model.process.codec.states)] * L)
    t, s = torch.full(z.shape, 0.7), torch.full(z.shape, 0.4)
    where = model.process.needs_prediction(z, t > s)
    labels = torch.arange(len(z)) % 2
    conditional = Labelled(model, Condition.of(labels=labels))(z, t, z, where)
    closed = model.process.log_transition(conditional, z[where], t[where], s[where]).softmax(-1)
    log_kernel = model.process.log_transition(Oracle(model, BOTH)(z, t, z, where), z[where], t[where], s[where])
    edits = DiscreteClassifierGuidance(exact_classifier(model), labels, exact=True)
    guided = edits(model.process, no_evaluation, log_kernel, z, t, s, where).softmax(-1)
    torch.testing.assert_close(guided, closed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, how", [
    ("udlm", {}), ("gidd", {}), ("mdlm", {}), ("genmd4", {}), ("mdlm", {"stepper": first_hitting}),
], ids=["udlm", "gidd", "mdlm", "genmd4", "first-hitting"])  # fmt: skip
def test_exact_classifier_guidance_samples_the_conditional(name: str, how: dict) -> None:
    model, n = System(name).model(BOTH), 1000
    edits = DiscreteClassifierGuidance(exact_classifier(model), torch.ones(n).long(), exact=True)
    drawn = ls.sample(model, n, 32, generator(6), Oracle(model, BOTH), guide=edits, **how)
    assert sequence_p_value(drawn, EACH[1]) > MIN_P_VALUE
    assert sequence_p_value(drawn, BOTH) < 1e-6


def test_ancestral_masked_steps_can_be_guided() -> None:
    model, n = System("mdlm").model(BOTH), 1000
    ancestral = Ancestral((DiscreteClassifierGuidance(exact_classifier(model), torch.zeros(n).long(), exact=True),))
    assert (
        sequence_p_value(ls.sample(model, n, 32, generator(7), Oracle(model, BOTH), stepper=ancestral), EACH[0])
        > MIN_P_VALUE
    )


def linear_classifier(states: int, seed: int = 9):
    """log c_y linear in the rows; it need not be normalised over labels."""
    weight = torch.randn(2, L, states, generator=generator(seed))
    return lambda rows, t: torch.einsum("blk,clk->bc", rows, weight)


@pytest.mark.parametrize("name", ["udlm", "gidd", "mdlm"])
@pytest.mark.parametrize("strength", [0.5, 1.0, 2.5])
def test_first_order_guidance_is_exact_for_linear_classifiers(name: str, strength: float) -> None:
    model = System(name).model(BOTH)
    K = model.process.codec.states
    z = torch.cartesian_prod(*[torch.arange(K)] * L)
    t, where = torch.full(z.shape, 0.7), torch.ones_like(z).bool()
    first = DiscreteClassifierGuidance(linear_classifier(K), torch.arange(len(z)) % 2, strength)
    pulls = [edits.log_weights(K, z, t, t / 2, where) for edits in (first, replace(first, exact=True))]
    torch.testing.assert_close(pulls[0].log_softmax(-1), pulls[1].log_softmax(-1))


@pytest.mark.parametrize("name", ["udlm", "mdlm"])
def test_first_order_guidance_is_exact_for_independent_tokens(name: str) -> None:
    """Independent tokens and a classifier that is a product over positions: p(x | y) ∝ Π p(x_i) c(x_i)."""
    language, n = ls.languages.independent([0.5, 0.3, 0.2], L), N
    model = System(name).model(language)
    preference = torch.tensor([0.0, 1.0, 2.0, 0.0])[: model.process.codec.states]
    if name == "udlm":  # p(c | z_t) of a random token is a mean over tokens and depends on the time
        p = language.initial.float()

        def classify(rows: Tensor, t: Tensor) -> Tensor:
            kept = model.process.mixing.marginal(torch.eye(V), torch.full((V,), 0.0) + t[0, 0]) * p[:, None]
            expected = ((kept * preference.exp()[:, None]).sum(0) / kept.sum(0)).log()
            return (rows @ expected).sum(1, keepdim=True)
    else:

        def classify(rows: Tensor, t: Tensor) -> Tensor:
            return (rows @ preference).sum(1, keepdim=True)

    guide = DiscreteClassifierGuidance(classify, torch.zeros(n).long())
    drawn = ls.sample(model, n, 64, generator(7), Oracle(model, language), guide=guide)
    sequences = torch.cartesian_prod(*[torch.arange(V)] * L)
    tilted = (language.log_prob(sequences) + preference[sequences].sum(1)).softmax(0)
    assert sequence_p_value(drawn, language, tilted) > MIN_P_VALUE


def test_guidance_evaluations_are_counted() -> None:
    language, n, steps = skewed_chain(V, L), 8, 5
    for name, edits in [("udlm", V * L), ("gidd", (V + 1) * L)]:
        model = random_network(name, language)
        guide = DiscreteClassifierGuidance(linear_classifier(model.process.codec.states), torch.zeros(n).long())
        assert generate(model, n, steps, generator(1), guide=guide).nfe == 2 * steps
        assert generate(model, n, steps, generator(1), guide=replace(guide, exact=True)).nfe == (1 + edits) * steps
    model = random_network("mdlm", language)
    guide = DiscreteClassifierGuidance(linear_classifier(V + 1), torch.zeros(n).long())
    assert generate(model, n, steps, generator(1), guide=guide, stepper=first_hitting).nfe == 2 * L
    each = generate(model, n, steps, generator(1), guide=replace(guide, exact=True), stepper=first_hitting)
    assert each.nfe == L + (V + 1) * (L + 1) * L / 2


@pytest.mark.parametrize("name", ["ar", "mdlm", "udlm", "gidd", "genmd4", "d3pm-gaussian"])
def test_guidance_keeps_known_tokens(name: str) -> None:
    torch.manual_seed(2)
    model = ls.build(name, vocab_size=V, length=4, labels=2, **SMALL)
    seen = ls.Batch.of(torch.zeros(4, 4).long(), condition=Condition.of(torch.arange(4) % 2))
    list(ls.fit(model, [seen], steps=1, cond_dropout=1.0))
    known = torch.arange(4).expand(6, -1) < 2
    tokens = torch.randint(V, (6, 4), generator=generator(2))
    guide = DiscreteClassifierGuidance(lambda rows, t: rows.square().sum((1, 2))[:, None], torch.zeros(6).long())
    drawn = ls.sample(
        model, 6, 5, generator(3), known=known, tokens=tokens, condition=Condition.of(torch.arange(6) % 2),
        guidance=2.0, temperature=0.8, top_k=2, guide=guide,
    )  # fmt: skip
    assert torch.equal(drawn[known], tokens[known]) and drawn.max() < V


def test_invalid_guides_are_refused() -> None:
    model, sphere = random_network("udlm", BOTH), random_network("rdlm-heat", BOTH)
    guide = DiscreteClassifierGuidance(linear_classifier(V), torch.zeros(2).long())
    with pytest.raises(UserError, match="one label for each of 3"):
        ls.sample(model, 3, 2, guide=guide)
    with pytest.raises(UserError, match="discrete diffusion"):
        ls.sample(sphere, 2, 2, guide=guide)
    with pytest.raises(UserError, match="differentiable"):
        ls.sample(
            model,
            2,
            2,
            guide=DiscreteClassifierGuidance(lambda rows, t: rows.detach().sum((1, 2))[:, None], torch.zeros(2).long()),
        )
    with pytest.raises(UserError, match="use ancestral"):
        ls.sample(model, 2, 2, guide=guide, sampler=ls.sampler("tau-leaping", model))
    with pytest.raises(UserError, match="greedy_end"):
        labelled = Labelled(System("udlm").model(BOTH))
        labels = Condition.of(labels=torch.zeros(2).long())
        generate(labelled.model, 2, 2, None, labelled, condition=labels, guidance=2.0, greedy_end=True)
    with pytest.raises(UserError, match="needs discrete diffusion"):
        require(sphere.process, DiscreteTransitions, TRANSITIONS)
    with pytest.raises(UserError, match="no transitions"):
        GreedyLastStep(Ancestral()).with_guide(guide)


@pytest.mark.parametrize("name", ["mdlm", "udlm"])
def test_noisy_state_classifier_trains_and_guides(name: str) -> None:
    """The label selects the frequent token; samples of the mixture follow it only when guided."""
    language, n = ls.languages.independent([0.25, 0.25, 0.25, 0.25], 4), 300
    model = System(name).model(language)
    torch.manual_seed(1)
    classifier = ls.NoisyClassifier(model.process, 4, 2, NetworkConfig(width=32, depth=1, heads=2))

    def batches():
        for seed in count():
            labels = torch.randint(2, (64,), generator=generator(seed))
            own = torch.rand(64, 4, generator=generator(seed + 10**6)) < 0.5
            anything = torch.randint(4, (64, 4), generator=generator(seed + 2 * 10**6))
            yield ls.Batch.of(torch.where(own, labels[:, None], anything), condition=Condition.of(labels=labels))

    progress = list(
        ls.train_classifier(classifier, model, batches(), steps=80, optim=ls.OptimizerConfig(lr=5e-3, warmup=5))
    )
    assert progress[0].loss > 0.65 and sum(one.loss for one in progress[-20:]) / 20 < 0.58
    gaps = []
    for strength in (0.0, 3.0):
        guide = DiscreteClassifierGuidance(classifier, torch.ones(n).long(), strength)
        drawn = ls.sample(model, n, 16, generator(5), Oracle(model, language), guide=guide)
        gaps.append(float((drawn == 1).float().mean() - (drawn == 0).float().mean()))
    assert abs(gaps[0]) < 0.06 and gaps[1] > 0.12


def test_invalid_classifiers_are_refused() -> None:
    model = System("mdlm").model(BOTH)
    with pytest.raises(UserError, match="at least 2 classes"):
        ls.NoisyClassifier(model.process, L, 1)
    with pytest.raises(UserError, match="with labels"):
        classifier = ls.NoisyClassifier(model.process, L, 2, NetworkConfig(width=8, depth=1, heads=1))
        list(ls.train_classifier(classifier, model, [ls.Batch.of(torch.zeros(2, L).long())], steps=1))
