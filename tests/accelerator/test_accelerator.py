"""Every system and preset gives on an accelerator the results of the CPU; the accelerator is the pretend device.

The jobs are in pretend_jobs.py. Those of the default presets are fast; published presets and other options are slow.
"""

import json
from typing import Any

import pytest
from pretend_client import Device

import logosphere as ls

CASES = [
    pytest.param(system, preset, marks=[] if preset == "default" else pytest.mark.slow, id=f"{system}-{preset}")
    for system in ls.systems()
    for preset in ls.presets(system)
]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("rdlm", {"base": 3}),
    ("rdlm", {"base": 3, "digits": "heads"}),
    ("rdlm", {"projected": True, "vocab_size": 40}),
    ("rdlm", {"start": "mask+uniform", "self_conditioning": True}),
    (
        "rdlm",
        {"start": "uniform", "input": "state", "time_sampler": "geometric", "transitions": "normal", "loss": "drift"},
    ),
    ("rdlm", {"timesteps": 20, "time_sampler": "cosine", "loss": "importance-weighted"}),
    ("rdlm", {"switch": 0.35, "window": [0.3, 0.6], "time_sampler": "linear", "transitions": "published"}),
    ("rdlm", {"stagger": 0.5, "order": "left-to-right"}),
    ("rdlm", {"path": "any-order"}),
    ("rdlm-heat", {"path": "joint", "posterior_head": False, "loss": "bound-weighted"}),
    ("rdlm-heat", {"base": 3}),
    ("mdlm", {"block": 4, "schedule": "cosine", "exact_count": False, "time_conditional": True}),
    ("mdlm", {"schedule": "quadratic", "loss": "bound"}),
    ("mdlm", {"body": "convolution"}),
    ("mdlm", {"shape": "2x4"}),
    ("mdlm", {"body": "unet", "shape": "8x8", "length": 64}),
    ("bd3lm", {"block": 2, "clip": (0.3, 0.8)}),
    ("d3pm-absorbing", {"timesteps": None}),
    ("d3pm-gaussian", {"timesteps": 20, "head": "logistic"}),
    ("d3pm-uniform", {"timesteps": None, "schedule": "linear"}),
    ("d3pm-uniform", {"timesteps": 20, "hybrid": 0.1, "block": 4}),
    ("multinomial", {"timesteps": 20, "importance_sampling": True}),
    ("gidd", {"loss": "clip", "block": 4}),
    ("genmd4", {"block": 4}),
    ("bfn", {"timesteps": 20, "posterior_head": False, "loss": "bound", "time_sampler": "even", "input": "state"}),
    ("bfn", {"self_conditioning": 0.5}),
    ("ddsm", {"construction": "sticks"}),
    ("dirichlet-flow", {"churn": 0.0, "input": "state"}),
    ("fisher-flow", {"geometry": "flat", "coupling": "optimal", "posterior_head": False, "input": "state"}),
    ("fisher-flow", {"prior": "simplex", "loss": "velocity"}),
    ("gaussian-ce", {"codec": "one-hot", "input": "simplex", "time_sampler": "entropy", "loss": "bound"}),
    ("gaussian-ce", {"codec": "bits", "posterior_head": True, "spacing": "information"}),
    ("bit-diffusion", {"predicts": "eps", "schedule": "sigmoid", "time_sampler": "information"}),
    ("diffusion-lm", {"predicts": "v", "self_conditioning": 0.5}),
    ("plaid", {"input": "belief", "self_conditioning": 0.5, "spacing": "logsnr"}),
    ("cosmos", {"latents": 4, "joint": True}),
    ("tencdm", {"encoder": "minilm", "layer": 2}),
    ("ld4lg", {"latents": 2, "predicts": "x0", "min_decode_logsnr": -1.5}),
]
COMMANDS = ["mdlm", "rdlm", "plaid", "ld4lg"]
FEW = ["ar", "cdcd", "dirichlet-flow", "ld4lg", "mdlm", "rdlm", "udlm"]
"""A system of each kind, for jobs that depend little on the system."""


def few() -> list[Any]:
    """All cases, of which only those of a few systems are fast."""
    return [
        case if case.values[0] in FEW or case.marks else pytest.param(*case.values, marks=pytest.mark.slow, id=case.id)
        for case in CASES
    ]


@pytest.mark.parametrize("system, preset", CASES)
def test_training_evaluation_saving_and_resuming(system: str, preset: str, device: Device) -> None:
    print(json.dumps({system: device.run("train", system=system, preset=preset)}))


MAX_WAITS = 2
"""How often a training step may read the device: the number of masked positions, and the loss with its gradient."""


@pytest.mark.parametrize("system", ls.systems())
def test_a_training_step_waits_for_the_device_at_most_twice(system: str, device: Device) -> None:
    for settings in ({"done": 0.1}, {"done": 0.6, "accumulate": 1}, {"done": 0.6, "static_shapes": True}):
        report = device.run("synchronise", system=system, preset="default", **settings)
        assert 1 <= sum(report["waits"].values()) <= MAX_WAITS, report["places"]
        assert report["uploads"].get("blocking", 0) == 0, report["places"]


def test_accumulation_adds_no_reading_of_losses(device: Device) -> None:
    for parts in (1, 2, 4):
        report = device.run("synchronise", system="gidd", preset="default", accumulate=parts)
        assert sum(report["waits"].values()) == 1, report["places"]


@pytest.mark.parametrize("system", ["mdlm", "md4", "genmd4", "ardm", "sedd-absorb", "d3pm-absorbing"])
def test_static_shapes_leave_one_reading(system: str, device: Device) -> None:
    report = device.run("synchronise", system=system, preset="default", static_shapes=True)
    assert sum(report["waits"].values()) == 1, report["places"]


@pytest.mark.parametrize("system, preset", few())
def test_every_supported_sampler(system: str, preset: str, device: Device) -> None:
    assert device.run("sample", system=system, preset=preset)["samplers"]


@pytest.mark.parametrize("system, preset", few())
def test_infilling(system: str, preset: str, device: Device) -> None:
    report = device.run("infill", system=system, preset=preset)
    if "skipped" in report:
        pytest.skip(report["skipped"])
    assert report["samplers"]


@pytest.mark.parametrize("system, preset", few())
def test_guidance(system: str, preset: str, device: Device) -> None:
    assert "condition" in device.run("guide", system=system, preset=preset)["guided by"]


@pytest.mark.parametrize("system, preset", few())
def test_bfloat16_ema_accumulation_and_checkpointing(system: str, preset: str, device: Device) -> None:
    device.run("settings", system=system, preset=preset)


@pytest.mark.parametrize("system, preset", few())
def test_deterministic_algorithms_suffice(system: str, preset: str, device: Device) -> None:
    device.run("deterministic", system=system, preset=preset)


def test_stick_breaking_is_deterministic(device: Device) -> None:
    device.run("deterministic", system="ddsm", preset="default", options={"construction": "sticks"})


def variant(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=variant(case), marks=() if case == ("rdlm", {"base": 3}) else pytest.mark.slow)
        for case in VARIANTS
    ],
)
def test_other_options(case: tuple[str, dict[str, Any]], device: Device) -> None:
    for job in ("train", "sample"):
        device.run(job, system=case[0], preset="default", options=case[1])


@pytest.mark.thorough
@pytest.mark.parametrize("system", COMMANDS)
def test_the_command_line(system: str, device: Device) -> None:
    device.run("command_line", system=system, preset="default")


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["mdlm", "udlm", "cdcd", "rdlm", "ar"])
def test_sources_and_signals(system: str, device: Device) -> None:
    device.run("conditions", system=system, preset="default")


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["mdlm", "udlm", "cdcd", "rdlm"])
def test_shorter_and_longer_texts_than_the_model(system: str, device: Device) -> None:
    device.run("lengths", system=system, preset="default")


def test_a_remasker(device: Device) -> None:
    device.run("remasker", system="g-star", preset="default")


@pytest.mark.thorough
@pytest.mark.parametrize("case", [("dirichlet-flow", {"churn": 0.0}), ("fisher-flow", {"prior": "simplex"})], ids=str)
def test_ode_likelihoods(case: tuple[str, dict[str, Any]], device: Device) -> None:
    device.run("ode", system=case[0], preset="default", options=case[1])


TEXT = ["ar", "mdlm", "md4", "udlm", "gidd", "bd3lm", "rdlm", "rdlm-heat", "gaussian-ce", "bfn"]
"""Systems whose default preset is tested without float64 among the fast tests."""


@pytest.mark.parametrize(
    "system, preset",
    [
        case if case.values == (case.values[0], "default") and case.values[0] in TEXT
        else pytest.param(*case.values, marks=pytest.mark.slow, id=case.id)
        for case in CASES
    ],
)  # fmt: skip
def test_the_network_alone_on_a_device_without_float64(system: str, preset: str, device: Device) -> None:
    assert device.run("without_float64", system=system, preset=preset)["parameters on the device"] > 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=variant(case), marks=() if "projected" in case[1] else pytest.mark.slow)
        for case in VARIANTS
    ],
)
def test_other_options_without_float64(case: tuple[str, dict[str, Any]], device: Device) -> None:
    device.run("without_float64", system=case[0], preset="default", options=case[1])


def test_what_needs_more_than_a_network_without_float64(device: Device) -> None:
    for job in ("conditions_without_float64", "remasker_without_float64", "refused_without_float64"):
        device.run(job)


@pytest.mark.slow
@pytest.mark.parametrize("system", COMMANDS)
def test_the_command_line_without_float64(system: str, device: Device) -> None:
    device.run("command_line_without_float64", system=system, preset="default")
