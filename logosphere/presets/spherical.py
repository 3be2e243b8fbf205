"""Published configurations of RDLM (Jo and Hwang 2025): that of text8 and that of LM1B."""

import math
from typing import Any

from logosphere.presets.preset import Aspect, Preset

TOTAL_NOISE = (0.2 - 1e-3) / math.log(0.2 / 1e-3)
"""∫β of the geometric schedule from β₀ = 10⁻³ to β₁ = 0.2: 0.0376."""

PARAMETERISATION = Aspect(
    "parameterisation",
    paper="the network reads the token coordinates of the state X and the time; softmax over tokens, no posterior head",
    default="the network reads the belief softmax log p(X | token) without the time",
    reason="learns faster: 0.1 to 0.3 bit a character at equal steps in trials on text8",
    options={"input": "state", "posterior_head": False},
)

SELF_CONDITIONING = Aspect("self-conditioning", paper="none")

SAMPLER = Aspect(
    "sampler",
    paper="geodesic random walk in equal steps of the schedule's time to 1 - 10⁻⁵, noise in the last step too, then "
    "the largest token coordinate of X; it begins at the uniform point (threshold above 0) and never changes path",
    default="steps along bridges to drawn tokens in equal steps of information; the token is drawn from the prediction",
    reason="fewer steps for the same quality; the published walk is biased at few steps",
)

OPTIMISER = Aspect(
    "optimiser",
    paper="AdamW 3e-4, betas .9 and .999, no weight decay, warm-up of 2,500 steps, then constant; gradients clipped "
    "at 1; weight average .9999; the loss is summed over positions before clipping",
    default="AdamW with a cosine decay; the loss is a mean over tokens",
    reason="short trainings on a CPU need a larger step size that decays",
)

NETWORK = Aspect(
    "network",
    paper="a transformer (DiT) without dropout in which positions meet in attention only",
    default="also reads the neighbours of a position directly",
    reason="learns faster at equal CPU time",
    options={"neighbours": 0},
)


def _weighting(left: float, right: float) -> Aspect:
    return Aspect(
        "weighting",
        paper="cross-entropy weighted by Z / w(t) for times drawn from w / Z, that is uniform in t; the reported "
        "number is the drift term on simulated bridges up to 1 - 10⁻⁴, without a reconstruction term: a surrogate",
        default="unweighted cross-entropy at learned times; the bound has a reconstruction term",
        reason="a bound, with less variance",
        options={"loss": "importance-weighted", "protocol": "published", "window": [left, right]},
    )


def _schedule(threshold: float, mixture: str, transitions: dict[str, Any], normal: str) -> Aspect:
    return Aspect(
        "schedule",
        paper="geometric β from 10⁻³ to 0.2, ∫β = 0.0376 whatever the vocabulary; " + mixture + "; training on the "
        "Riemannian normal whose ρ solves exp(-ρ²/2) ₁F₁(n/2; 1/2; -ρ²/2) = |E X|" + normal,
        default="total noise by size of the vocabulary, mask start, states of the exact bridge",
        reason="the step mixture has no bound: its number falls below the entropy; exp(-ρ²/2) is an error of the paper",
        options={"total_noise": TOTAL_NOISE, "start": f"step:{threshold}", **transitions},
    )


def _time(left: float, right: float) -> Aspect:
    return Aspect(
        "time",
        paper=f"continuous and independent for each sequence, in the schedule's time; density 1 on ({left}, {right})"
        " and 10⁻⁴ elsewhere, up to a constant",
        default="tabulated times drawn where there is something to learn, stratified over a batch",
        reason="learns faster and adapts to the corpus",
        options={"clock": "geometric"},
    )


MISSING = (
    "The backbone is the transformer of this package, not the authors' DiT of 12 blocks and 768 features. Moments of "
    "the transitions come from an exact simulation in the plane of vertex and start at 384 times, where the authors "
    "simulate two projections with independent noise at 10,001."
)

PRESETS: list[Preset] = [
    Preset(
        "rdlm",
        "paper",
        source="arXiv:2502.11564 v2 and the authors' code, configuration for text8; sampled in 256 steps",
        aspects=(
            PARAMETERISATION,
            _weighting(0.3, 0.6),
            _schedule(0.35, "uniform start before t = .35, mask after", {"transitions": "published"}, ""),
            _time(0.3, 0.6),
            SELF_CONDITIONING,
            SAMPLER,
            OPTIMISER,
            NETWORK,
        ),
        checked="tests/parity/test_spherical_parity.py",
        optim={
            "lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "warmup": 2500, "min_lr_ratio": 1.0,
            "clip": 1.0,
        },
        ema=0.9999,
        sampler="rdlm",
        missing=MISSING,
    ),
]  # fmt: skip

PRESETS.append(
    Preset(
        "rdlm",
        "paper-lm1b",
        source="arXiv:2502.11564 v2 and the authors' code, configuration for LM1B; sampled in 1,000 steps",
        aspects=(
            Aspect(
                "parameterisation",
                paper=PARAMETERISATION.paper + "; tokens are split into independent base-3 digits, each a position, "
                "the smallest place first, and codes of no token are not excluded",
                default=PARAMETERISATION.default + "; tokens are not split",
                reason=PARAMETERISATION.reason,
                options={**PARAMETERISATION.options, "base": 3, "codes": "published"},
            ),
            _weighting(0.3, 0.75),
            _schedule(
                0.38,
                "uniform start before t = .38, mask after",
                {"transitions": "published", "rho_scale": 1.14},
                ", times 1.14",
            ),
            _time(0.3, 0.75),
            SELF_CONDITIONING,
            SAMPLER,
            OPTIMISER,
            NETWORK,
        ),
        checked="tests/parity/test_spherical_parity.py",
        optim=PRESETS[0].optim,
        ema=0.9999,
        sampler="rdlm",
        missing="A code of no token is decoded as the nearest token, where the authors' code returns a number outside "
        "of the vocabulary. " + MISSING.replace("12 blocks", "14 blocks"),
    )
)
