"""The registry of samplers. Each is a stepper with a time grid, optional blocks and an optional cache; the sampling
loop is the same for all.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from logosphere.errors import UserError, shorten
from logosphere.model import Model
from logosphere.plugins import check_name, load_plugins, missing, place_of
from logosphere.processes.base import cosine_grid, uniform_grid
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.gaussian.latent import LatentDiffusion
from logosphere.processes.gaussian.updates import ancestral_large, ddim, q_sample
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.sampling.decoding import DecodingConfig, find_owner, resolve_name
from logosphere.sampling.loop import FinalStep, HoldAtEnd, HoldInMiddle
from logosphere.sampling.published import (
    as_configure,
    decode_dream,
    decode_fast_dllm,
    decode_fast_dllm_v2,
    decode_llada,
    decode_sdar,
)
from logosphere.sampling.sampler import Configure, Sampler, SamplerInfo
from logosphere.sampling.steppers.base import (
    ANY,
    GreedyLastStep,
    Requirement,
    Stepper,
    Windowed,
    ancestral,
    require,
)
from logosphere.sampling.steppers.context import GUIDABLE, ContextGuidance
from logosphere.sampling.steppers.decoding import ConfidenceDecoding
from logosphere.sampling.steppers.gaussian import (
    GAUSSIAN,
    LATENT,
    DPMSolverPP2M,
    EulerMaruyama,
    EvenTimes,
    GaussianStepper,
    Heun,
    ScoreTemperature,
    clipped_x0,
    renormalised_x0,
    rounded_x0,
    sampled_x0,
)
from logosphere.sampling.steppers.jumps import DISCRETE, UNIFORM, ScoreStepper, SelfCorrecting, TauLeaping
from logosphere.sampling.steppers.manifold import (
    BAYESIAN_FLOW,
    DETERMINISTIC_FLOW,
    EULER_FLOW,
    SPHERE,
    BayesianFlow,
    EulerFlow,
    GeodesicRandomWalk,
    HeunFlow,
    SphericalStepper,
)
from logosphere.sampling.steppers.remasking import (
    Cap,
    ConfidenceRemasking,
    PlannedRemasking,
    Remasking,
    Rescale,
    forward_backward,
    full_remask,
)
from logosphere.sampling.steppers.unmasking import (
    MASKED,
    MASKED_TIME_FREE,
    UNMASKING,
    EntropyBudget,
    OrderedUnmasking,
    ThresholdCommit,
    entropy_order,
    first_hitting,
    likelihood_order,
    margin_order,
    max_probability_order,
    random_order,
)

TIME_FREE = Requirement("masked diffusion without time conditioning such as mdlm")
"""The time conditioning is a property of the network, which `generate` checks."""
TOKEN_STATES = Requirement("discrete diffusion such as mdlm or udlm", lambda process: process.codec.is_discrete)
REMASKER = Requirement("masked diffusion with a remasker such as g-star", MASKED.is_met)
GAUSSIAN_OR_FLOW = Requirement(
    f"{GAUSSIAN.description}, {DETERMINISTIC_FLOW.description}",
    lambda process: GAUSSIAN.is_met(process) or DETERMINISTIC_FLOW.is_met(process),
)

STAR_ON = 0.3
"""Star+ remasks all positions below this time; 0.2 to 0.3 were found best (Meshchaninov et al. 2025)."""
LOOP_MASKED = 0.1
"""The fraction of masks at which the time is held (Wang et al. 2025)."""
LAST_TIME = 1e-5
"""The time at which MDLM and SEDD end their steps and remove the remaining noise."""
CORRECTION_NOISE = 0.01
"""The noise level at which GIDD corrects tokens."""


SAMPLERS: dict[str, SamplerInfo] = {}
"""All samplers by name, in the order of `logosphere samplers`."""


def register(
    name: str,
    build: Stepper | Sampler | Callable[[Model], Sampler],
    supports: Requirement,
    description: str,
    *,
    samples_model: bool = False,
    configure: Configure | None = None,
) -> None:
    """Add a sampler: a stepper, a stepper with its settings, or a function that makes these for a model."""
    if isinstance(build, Stepper):
        build = Sampler(build)
    builder = _always(build) if isinstance(build, Sampler) else build
    SAMPLERS[name] = SamplerInfo(name, description, supports, samples_model, builder, configure=configure)


Made = TypeVar("Made", bound=type[Stepper] | Stepper | Callable[[Model], Sampler | Stepper])


def register_sampler(
    name: str, description: str, *, supports: Requirement = ANY, samples_model: bool = False
) -> Callable[[Made], Made]:
    """A decorator that registers a sampler from outside of the package.

    It decorates a class of steppers, or a function that makes a stepper or a `Sampler` for a model.
    """

    def add(made: Made) -> Made:
        if not callable(made):
            raise UserError(
                f"A sampler is registered by a stepper or a function that makes one, not by {shorten(made)}."
            )
        place = place_of(made)
        check_name("sampler", name, place, {key: info.place for key, info in SAMPLERS.items()})

        def build(model: Model) -> Sampler:
            found: object = made
            if not isinstance(made, Stepper):
                found = made() if isinstance(made, type) else made(model)
            if not isinstance(found, Stepper | Sampler):
                raise UserError(f"The sampler '{name}' must make a stepper or an ls.Sampler, not {shorten(found)}.")
            return Sampler(found) if isinstance(found, Stepper) else found

        SAMPLERS[name] = SamplerInfo(name, description, supports, samples_model, build, place)
        return made

    return add


def samplers() -> list[str]:
    """The names of all samplers, those of installed plugins among them."""
    load_plugins()
    return list(SAMPLERS)


def _always(sampler: Sampler) -> Callable[[Model], Sampler]:
    return lambda model: sampler


def sampler_info(name: str) -> SamplerInfo:
    """The registry entry of a sampler, also by a name that users of other packages know."""
    if name in SAMPLERS or name in samplers():
        return SAMPLERS[name]
    found, _ = resolve_name(name, DecodingConfig())
    if found not in SAMPLERS:
        raise missing("sampler", name, SAMPLERS)
    return SAMPLERS[found]


def choose_sampler(model: Model, name: str = "auto", config: DecodingConfig | None = None, prefix: int = 0) -> Sampler:
    """A sampler with options of decoding, for `prefix` tokens of a prompt; an error if it does not support the model.

    'auto' is the sampler that the options belong to, or else that of the model's system.
    """
    config = config or DecodingConfig()
    if name != "auto" and name not in SAMPLERS:
        sampler_info(name)
        name, config = resolve_name(name, config)
    name = find_owner(name, config)
    info = sampler_info(model.sampler if name == "auto" else name)
    if not info.supports.is_met(model.process):
        system = type(model.process).__name__ if model.spec is None else model.spec.system
        raise info.supports.error(f"The sampler '{info.name}'", system)
    return info.configure(model, config, prefix) if info.configure and config.given() else info.build(model)


def sampler(name: str, model: Model) -> Sampler:
    """A sampler by its name; an error if it does not support the model."""
    return choose_sampler(model, name)


def default_sampler(model: Model) -> Sampler:
    """The sampler of the model's system."""
    return sampler(model.sampler, model)


# ---- samplers that depend on the model -------------------------------------------------------------------------------


def _held(inside: Stepper) -> Callable[[Model], Sampler]:
    """Remasking while the time is held at a tenth of masks."""

    def build(model: Model) -> Sampler:
        schedule = require(model.process, DiscreteDiffusion, MASKED).schedule
        level = float(schedule.time(torch.tensor(LOOP_MASKED)))
        return Sampler(Windowed(inside, level, level), grid=HoldInMiddle(level))

    return build


def _with_remasker(model: Model) -> Sampler:
    if model.remasker is None:
        raise UserError(
            "The sampler 'g-star' needs a remasker, which this model does not have; build the system g-star, or train "
            "one with train_remasker(…)."
        )
    return Sampler(Windowed(PlannedRemasking(model.remasker), STAR_ON))


def _in_blocks(stepper: Stepper) -> Callable[[Model], Sampler]:
    """Four blocks, or as many as the length and the blocks of the model allow."""

    def build(model: Model) -> Sampler:
        def fits(blocks: int) -> bool:
            return model.length % blocks == 0 and model.block % min(model.block, model.length // blocks) == 0

        return Sampler(stepper, blocks=next(blocks for blocks in (4, 3, 2, 1) if fits(blocks)))

    return build


def _left_to_right(model: Model) -> Sampler:
    """A block for each position, which is unmasked in its first step; further steps would evaluate it again."""
    return Sampler(OrderedUnmasking(random_order), blocks=model.length, grid=lambda steps: uniform_grid(1))


def _self_correcting(model: Model) -> Sampler:
    """Corrections at the noise level of GIDD, here in half of the steps."""
    late = float(require(model.process, DiscreteDiffusion, UNIFORM).schedule.time(torch.tensor(CORRECTION_NOISE)))
    return Sampler(Windowed(SelfCorrecting(), late, late), grid=HoldAtEnd(late, 0.5))


def _even_times(stepper: Stepper, end: float = 0.0) -> Callable[[Model], Sampler]:
    """A stepper of latents along even times of the schedule down to `end`."""
    return lambda model: Sampler(stepper, grid=EvenTimes(require(model.process, LatentDiffusion, LATENT), end))


def _heun(model: Model) -> Sampler:
    return Sampler(Heun() if GAUSSIAN.is_met(model.process) else HeunFlow())


def _euler_flow(model: Model) -> Sampler:
    """The ancestral step of a tangent flow is an Euler step already."""
    euler = EulerFlow()
    return Sampler(euler) if euler.supports(model.process) else Sampler(ancestral, grid=uniform_grid)


def _published(name: str, decode: Callable[[Model, DecodingConfig, int], ConfidenceDecoding], description: str) -> None:
    """Register a published decoding loop."""
    configure = as_configure(decode)
    register(name, lambda model: configure(model, DecodingConfig(), 0), UNMASKING, description, configure=configure)


# ---- the registry ----------------------------------------------------------------------------------------------------

# fmt: off
register("ancestral", ancestral, ANY, "the process's own reverse step", samples_model=True)
register("cached", Sampler(ancestral, cached=True), TIME_FREE,
         "ancestral; only sequences that have changed are evaluated", samples_model=True)
register("context", ContextGuidance(1.5, temperature=0.8), GUIDABLE,
         "ancestral with a larger weight of what the other positions say: 1.5, and temperature 0.8")
register("euler", Sampler(ScoreStepper(), grid=FinalStep(LAST_TIME)), DISCRETE,
         "Euler steps on the network's raw scores, then noise removal (SEDD)", samples_model=True)
register("analytic", Sampler(ScoreStepper(analytic=True), grid=FinalStep(LAST_TIME)), DISCRETE,
         "Tweedie steps on the network's raw scores, then noise removal (SEDD)", samples_model=True)
register("mdlm", Sampler(GreedyLastStep(ancestral), grid=FinalStep(LAST_TIME), cached=True), TIME_FREE,
         "cached steps to t = 1e-5, then the likeliest tokens (MDLM)", samples_model=True)
register("md4", Sampler(GreedyLastStep(ancestral), grid=FinalStep(LAST_TIME, cosine_grid)), TOKEN_STATES,
         "steps on a cosine grid, then the likeliest tokens (MD4)", samples_model=True)
register("first-hitting", first_hitting, MASKED_TIME_FREE,
         "one random position after another, without time discretisation error", samples_model=True)
register("tau-leaping", TauLeaping(), DISCRETE, "jumps at rates held over each step", samples_model=True)
register("tau-leaping-pc", TauLeaping(corrections=1), DISCRETE,
         "tau-leaping with one corrector after each step", samples_model=True)
register("remdm-cap", Remasking(Cap()), MASKED, "remasking with a probability of at most 0.04", samples_model=True)
register("remdm-rescale", Remasking(Rescale()), MASKED,
         "remasking with 0.05 of the largest probability", samples_model=True)
register("remdm-conf", Remasking(ConfidenceRemasking()), MASKED, "remasking of tokens that were unlikely when drawn")
register("remdm-loop", _held(Remasking(Cap(0.02))), MASKED, "remasking while the fraction of masks is held at 0.1")
register("forward-backward", Remasking(forward_backward), MASKED,
         "a step twice as far, and forward again", samples_model=True)
register("star", Sampler(Windowed(Remasking(full_remask), STAR_ON)), MASKED,
         "ancestral to t = 0.3, then all positions masked anew in each step (Star+)", samples_model=True)
register("star-full", Remasking(full_remask), MASKED, "all positions masked anew in each step", samples_model=True)
register("star-loop", _held(Remasking(full_remask)), MASKED, "star-full while the fraction of masks is held at 0.1")
register("conf-star", PlannedRemasking(), MASKED, "remasking of the least likely tokens")
register("g-star", _with_remasker, REMASKER, "a second network selects the tokens to remask, from t = 0.3")
register("p2", PlannedRemasking(temperature=0.0, review=True), MASKED,
         "every token is scored again in each step, the most confident are kept")
register("confidence", OrderedUnmasking(likelihood_order), UNMASKING, "the likeliest tokens first")
register("margin", OrderedUnmasking(margin_order), UNMASKING, "the largest margins between two tokens first")
register("entropy", OrderedUnmasking(entropy_order), UNMASKING, "the positions of the lowest entropy first")
register("max-confidence", OrderedUnmasking(max_probability_order), UNMASKING,
         "the positions of the largest token probability first, whichever token is drawn")
register("left-to-right", _left_to_right, UNMASKING, "one position after another", samples_model=True)
register("random", OrderedUnmasking(random_order, temperature=1.0), UNMASKING,
         "the number of positions of the schedule, at random", samples_model=True)
register("llada", _in_blocks(OrderedUnmasking(likelihood_order)), UNMASKING,
         "the likeliest tokens first, in four blocks from left to right", configure=as_configure(decode_llada))
register("llada-greedy", _in_blocks(OrderedUnmasking(likelihood_order, greedy=True)), UNMASKING,
         "llada with the likeliest token at each position instead of a draw",
         configure=as_configure(decode_llada, greedy=True))
_published("dream", decode_dream, "the positions of the lowest entropy first, by the equal steps of Dream")
_published("sdar", decode_sdar, "all tokens above 0.9 probability in blocks of 4, at least one (SDAR)")
_published("fast-dllm", decode_fast_dllm, "all tokens from 0.9 probability on in blocks of 32 (Fast-dLLM)")
_published("fast-dllm-v2", decode_fast_dllm_v2, "fast-dllm, and parts of 8 tokens inside a block (Fast-dLLM v2)")
register("threshold", OrderedUnmasking(likelihood_order, ThresholdCommit()), UNMASKING,
         "all tokens of more than 0.9 probability at once")
register("entropy-bounded", OrderedUnmasking(entropy_order, EntropyBudget()), UNMASKING,
         "as many positions at once as a joint entropy of 0.1 nats allows")
register("self-correcting", _self_correcting, UNIFORM, "half of the steps correct single tokens at the end")
register("bridge", SphericalStepper(SPHERICAL_STEPS["bridge"]), SPHERE,
         "joint steps towards a drawn token along its bridge", samples_model=True)
register("geodesic", SphericalStepper(SPHERICAL_STEPS["geodesic"]), SPHERE,
         "joint geodesic random walk in equal steps of information", samples_model=True)
register("matched", SphericalStepper(SPHERICAL_STEPS["matched"]), SPHERE,
         "joint steps of second order", samples_model=True)
register("rdlm", GeodesicRandomWalk(), SPHERE,
         "RDLM's random walk in equal steps of its own time, then the largest coordinate", samples_model=True)
register("ddim", GaussianStepper(ddim), GAUSSIAN, "the probability flow, first order", samples_model=True)
register("dpm++", DPMSolverPP2M(), GAUSSIAN, "the probability flow, second-order multistep (2M)", samples_model=True)
register("heun", _heun, GAUSSIAN_OR_FLOW,
         "the probability flow, or a flow, second order with two evaluations a step", samples_model=True)
register("euler-flow", _euler_flow, EULER_FLOW, "equal Euler steps, the likeliest token at the end")
register("messages", BayesianFlow(), BAYESIAN_FLOW, "messages at equal times, the likeliest token at the end")
register("token-drawn", GaussianStepper(x0_target=sampled_x0), GAUSSIAN,
         "ancestral towards a token drawn anew in each step", samples_model=True)
register("q-sampling", GaussianStepper(q_sample), GAUSSIAN, "fresh noise on the expected state in each step")
register("ssd", GaussianStepper(q_sample, sampled_x0), GAUSSIAN, "fresh noise on a drawn token in each step (SSD-LM)")
register("clamped", GaussianStepper(x0_target=rounded_x0), GAUSSIAN,
         "ancestral to the nearest embedding (Diffusion-LM)")
register("renormalised", GaussianStepper(ddim, renormalised_x0), GAUSSIAN,
         "ddim towards the expected state at the length of embeddings (CDCD)")
register("asymmetric", GaussianStepper(ddim, ahead=0.02), GAUSSIAN,
         "ddim steps that go 0.02 of the time further than the network is evaluated for")
register("euler-tencdm", _even_times(EulerMaruyama(0.01), 0.01), LATENT,
         "Euler steps of the reverse SDE at even times from 1 to 0.01 (TEncDM)", samples_model=True)
register("euler-cosmos", _even_times(EulerMaruyama(0.05), 0.05), LATENT,
         "Euler steps of the reverse SDE at even times from 1 to 0.05 (COSMOS)", samples_model=True)
register("ddpm-ld4lg", _even_times(GaussianStepper(ancestral_large)), LATENT,
         "ancestral with the variance of the forward step, at even times (LD4LG)", samples_model=True)
register("ddim-planner", _even_times(GaussianStepper(ddim)), LATENT, "ddim at even times (PLANNER)", samples_model=True)
register("plaid", GaussianStepper(x0_target=ScoreTemperature(0.9), greedy=True), GAUSSIAN,
         "ancestral with ε̂ divided by 0.9; the likeliest tokens at the end (Plaid)")
register("diffusion-lm", GaussianStepper(ancestral_large, rounded_x0, greedy=True), GAUSSIAN,
         "clamped, with variances β; the likeliest tokens at the end")
register("bit-diffusion", GaussianStepper(ancestral_large, clipped_x0, greedy=True), GAUSSIAN,
         "ancestral with variances β towards x̂ clipped to ±1; the nearest tokens at the end")
# fmt: on
