"""Builders of the discrete systems: which process and which network.

The defaults are what works best here; the settings of the papers are the presets of logosphere/presets/discrete.py.
"""

from collections.abc import Sequence

from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.backbone import LinearHead
from logosphere.networks.config import NetworkConfig
from logosphere.networks.transformer import CausalTransformer
from logosphere.networks.wrappers import CarryOver, LogisticHead, PosteriorHead
from logosphere.processes.base import cosine_grid
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.discretized_gaussian import DiscretizedGaussian
from logosphere.processes.discrete.masked import GenMD4, SingleStep
from logosphere.processes.discrete.mixing import (
    Hybrid,
    Masking,
    Uniform,
    Weighting,
    clipped_weight,
    dynamic_weight,
    gidd_clipped_weight,
    gidd_dynamic_weight,
)
from logosphere.processes.time_sampler import TimeSampler, TrainingTimes, uniform_density
from logosphere.recipes.discrete_parts import (
    as_interval,
    chain_schedule,
    decode_from_network,
    diffusion_model,
    even_loss,
    is_unweighted,
    score_model,
    transformer,
)
from logosphere.schedules.signal import Squeezed, cosine_betas, from_betas
from logosphere.schedules.signal import find_schedule as schedule_by_name

PROTOCOLS = ("bound", "published")
WEIGHTINGS: dict[str, Weighting | None] = {
    "bound": None,
    "clip": clipped_weight,
    "clip-2": gidd_clipped_weight,
    "dynamic": dynamic_weight,
    "dynamic-code": gidd_dynamic_weight,
}


def ar(vocab_size: int, length: int, network: NetworkConfig | None) -> Model:
    """The one-shot process in blocks of one position, read by a causal network."""
    denoiser = None if network is None else CausalTransformer(vocab_size, length, network)
    return Model(SingleStep(vocab_size), denoiser, length=length, block=1)


def mdlm(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str | Sequence[float] = "linear",
    block: int | None = None,
    reads_time: bool = False,
    exact_count: bool = True,
    loss: str = "cross-entropy",
    times: str = "low-variance",
    t_min: float = 0.0,
    all_masked: bool = False,
) -> Model:
    """Masked diffusion in continuous time. A network that reads the time needs masks by chance, not by count.

    Training drops the weight 1/t of the bound, which learns faster; loss="bound" keeps it, as the paper does. `times`
    and `t_min` say how training draws times (`TrainingTimes`). With `all_masked` samples begin with masks alone,
    also where the schedule leaves signal at t = 1.
    """
    mixing = Masking(vocab_size, schedule_by_name(schedule))
    counted = exact_count and not reads_time and mixing.prior_kl() == 0
    sampler = TrainingTimes(times, t_min)
    process = DiscreteDiffusion(
        mixing, exact_count=counted, unweighted=is_unweighted(loss), times=sampler, all_masked=all_masked
    )
    return diffusion_model(process, length, block, network, reads_time=reads_time)


def md4(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str | Sequence[float] = "linear",
    block: int | None = None,
    loss: str = "bound",
    times: str = "low-variance",
    eps: float = 0.0,
    all_masked: bool = False,
) -> Model:
    """Masked diffusion with a network that reads the time, trained on its bound, sampled on a cosine grid.

    The paper squeezes its schedule into [ε, 1 - ε] (`eps`). Its constants (1 - a_0) log V and a_1 log V are then part
    of the bound; by default the schedule begins at 1 and ends at 0, where both are 0.
    """
    curve = schedule_by_name(schedule)
    mixing = Masking(vocab_size, Squeezed(curve, eps) if eps else curve)
    process = DiscreteDiffusion(
        mixing, unweighted=is_unweighted(loss), times=TrainingTimes(times), all_masked=all_masked, grid=cosine_grid
    )
    return diffusion_model(process, length, block, network, reads_time=True)


def genmd4(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    block: int | None = None,
    times: str = "low-variance",
    t_min: float = 0.0,
    eps: float = 0.0,
    informed: bool = True,
    all_masked: bool = False,
) -> Model:
    """Masked diffusion in which every token learns how fast it vanishes. Training shows each sequence twice.

    With `informed` the likelihood t^{w_k} of a mask is added to the logits of token k, which the network otherwise has
    to learn. With `t_min` the path ends there, in training and in bounds, and what is hidden then is read off by the
    powers alone; `eps` is the chance that a token is still seen at t = 1.
    """
    sampler = TrainingTimes(times, t_min if times != "low-variance" else 0.0)
    process = GenMD4(vocab_size, first_time=t_min, eps=eps, times=sampler, all_masked=all_masked)
    model = diffusion_model(process, length, block, network if informed else None, reads_time=True)
    if network is not None and not informed:
        model.denoiser = CarryOver(transformer(process, length, model.block, network, reads_time=True), process.mask)
    return model


def ardm(vocab_size: int, length: int, network: NetworkConfig | None, *, times: str = "low-variance") -> Model:
    """An autoregressive model of any order: L/l times the cross-entropy of l hidden tokens, l uniform on 1 … L.

    That average over orders (Hoogeboom et al. 2022, eq. 3) is the bound of masked diffusion, masks drawn by count.
    """
    mixing = Masking(vocab_size, schedule_by_name("linear"))
    process = DiscreteDiffusion(mixing, exact_count=True, times=TrainingTimes(times))
    return diffusion_model(process, length, None, network, reads_time=False)


def bd3lm(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    block: int | None = None,
    clip: Sequence[float] = (0.0, 1.0),
    loss: str = "bound",
    exact_count: bool = True,
    times: str = "low-variance",
) -> Model:
    """Masked diffusion in blocks, by default of 4 tokens or the next smaller number that divides the length.

    `clip` bounds the share of masks while training, for example [0.3, 0.8]. That reduces the variance of the loss (the
    paper takes [0.45, 0.95] for blocks of 4); bounds are measured on [0, 1]. Without `exact_count` training draws masks
    by chance, again and again until their share lies within `clip`; bounds are measured with counted masks either way.
    """
    block = max(size for size in (1, 2, 3, 4) if length % size == 0) if block is None else block
    mixing = Masking(vocab_size, schedule_by_name("linear"))
    process = DiscreteDiffusion(
        mixing, exact_count=True, random_mask_count=not exact_count, unweighted=is_unweighted(loss),
        clip=as_interval(clip), times=TrainingTimes(times),
    )  # fmt: skip
    return diffusion_model(process, length, block, network, reads_time=False)


def d3pm_absorbing(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    timesteps: int | None = 1000,
    schedule: str | Sequence[float] = "linear",
    hybrid: float = 0.01,
    times: str = "low-variance",
    block: int | None = None,
) -> Model:
    """D3PM, absorbing: β_t = 1/(T - t + 1), that is a linear signal; L_λ with λ = 0.01. timesteps=None: continuous."""
    mixing = Masking(vocab_size, chain_schedule(schedule, timesteps))
    process = DiscreteDiffusion(mixing, timesteps=timesteps, hybrid=hybrid, times=TrainingTimes(times))
    return diffusion_model(process, length, block, network, reads_time=True)


def d3pm_uniform(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    timesteps: int | None = 1000,
    schedule: str | Sequence[float] = "cosine",
    frequencies: Sequence[float] | None = None,
    hybrid: float = 0.0,
    reconstruction: str = "posterior",
    times: str = "low-variance",
    block: int | None = None,
) -> Model:
    """D3PM, uniform: cosine signal, plain bound (λ = 0, which the paper found better for text).

    With the `frequencies` of the tokens the schedule is the one that loses information evenly. schedule="offset-cosine"
    has the paper's β. With reconstruction="network" the last step draws from the network's own softmax, as D3PM's code
    does, and not from its product with q(z_1 | x).
    """
    curve = chain_schedule(schedule, timesteps) if frequencies is None else even_loss(frequencies, vocab_size)
    process = DiscreteDiffusion(
        Uniform(vocab_size, curve), timesteps=timesteps, hybrid=hybrid,
        decode_from_network=decode_from_network(reconstruction), times=TrainingTimes(times),
    )  # fmt: skip
    return diffusion_model(process, length, block, network, reads_time=True)


def d3pm_gaussian(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    timesteps: int = 100,
    hybrid: float = 0.001,
    head: str = "softmax",
    widths: str = "variance",
    reconstruction: str = "posterior",
    times: str = "low-variance",
    block: int | None = None,
) -> Model:
    """D3PM for ordered tokens such as grey values: noise moves to neighbours; L_λ with λ = 0.001, as for images.

    The paper takes 1000 steps; its β are scaled here to as many steps as there are, and with widths="variance" the
    steps of few values are widened to the variance they have where values are many. With head="logistic" the network
    predicts a place and a width, as the paper's does for images, and not a logit for each value. Either way it predicts
    x̂, a distribution from the context, and what the value seen says is added (D3PM, eq. 4, where p̃ is summed against
    q); with reconstruction="network" the last step takes x̂ alone.
    """
    if head not in ("softmax", "logistic"):
        raise UserError(f"There is no head '{head}'.{suggest(head, ('softmax', 'logistic'))}")
    process = DiscretizedGaussian(
        vocab_size, timesteps=timesteps, hybrid=hybrid, widths=widths,
        decode_from_network=decode_from_network(reconstruction), times=TrainingTimes(times),
    )  # fmt: skip
    model = diffusion_model(process, length, block, network if head == "softmax" else None, reads_time=True)
    if network is not None and head == "logistic":
        inner = transformer(process, length, model.block, network, reads_time=True)
        inner.head = LinearHead(network.width, 2)
        model.denoiser = PosteriorHead(LogisticHead(inner, vocab_size), process.add_evidence)
    return model


def multinomial(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    timesteps: int = 1000,
    hybrid: float = 0.0,
    importance: bool = False,
    largest_beta: float = 0.999,
    times: str = "low-variance",
    block: int | None = None,
) -> Model:
    """Uniform noise in T steps with the β of a cosine, which leaves a trace of signal at the end and counts it.

    With `importance` steps are drawn in proportion to the root mean square of what they cost. The paper does so, and
    cuts its β at 0.968 (`largest_beta`).
    """
    if timesteps is None or timesteps < 1:
        raise UserError(f"timesteps must be at least 1, not {timesteps}; udlm is the same in continuous time.")
    if not 0 < largest_beta <= 1:
        raise UserError(f"largest_beta must be above 0 and at most 1, not {largest_beta}.")
    mixing = Uniform(vocab_size, from_betas(cosine_betas(timesteps, largest_beta)))
    time_sampler = TimeSampler(uniform_density(timesteps), min_variance=True) if importance and timesteps > 1 else None
    process = DiscreteDiffusion(
        mixing, timesteps=timesteps, hybrid=hybrid, time_sampler=time_sampler, times=TrainingTimes(times)
    )
    return diffusion_model(process, length, block, network, reads_time=True)


def udlm(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str | Sequence[float] = "linear",
    times: str = "low-variance",
    t_min: float = 0.0,
    block: int | None = None,
) -> Model:
    """Uniform noise in continuous time, trained on its bound."""
    process = DiscreteDiffusion(Uniform(vocab_size, schedule_by_name(schedule)), times=TrainingTimes(times, t_min))
    return diffusion_model(process, length, block, network, reads_time=True)


def sedd_absorb(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str | Sequence[float] = "log-linear",
    times: str = "low-variance",
    t_min: float = 0.0,
    all_masked: bool = False,
    block: int | None = None,
) -> Model:
    """Score entropy with masks: the network answers with ratios of probabilities."""
    mixing = Masking(vocab_size, schedule_by_name(schedule))
    return score_model(mixing, TrainingTimes(times, t_min), length, block, network, all_masked=all_masked)


def sedd_uniform(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str | Sequence[float] = "geometric",
    times: str = "low-variance",
    t_min: float = 0.0,
    block: int | None = None,
) -> Model:
    """Score entropy with random tokens."""
    mixing = Uniform(vocab_size, schedule_by_name(schedule))
    return score_model(mixing, TrainingTimes(times, t_min), length, block, network)


def gidd(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    p_u: float = 0.1,
    schedule: str | Sequence[float] = "linear",
    loss: str = "dynamic",
    times: str = "low-variance",
    t_min: float = 0.0,
    protocol: str = "bound",
    own_embedding: bool = False,
    block: int | None = None,
) -> Model:
    """Masks and random tokens in continuous time; `p_u` of the tokens are random half way.

    The weights of the bound explode at both ends of time, so training bounds them: loss "dynamic" has the weights of
    the paper's equation, "dynamic-code" those of its code, "clip" and "clip-2" cut the bound's at 1 and 2. Training
    draws times from [t_min, 1 - t_min]. With protocol=published likelihoods leave out the same ends, as in the authors'
    evaluation: 0.17 to 1.2 nats of a sequence less, a surrogate.

    One head predicts at masks, which say nothing, and at tokens, which say nearly all. Unless own_embedding=True, the
    embedding of a position's own token is taken out before that head (Backbone, `subtract_input`), because it would
    spoil what is learnt at masks.
    """
    if loss not in WEIGHTINGS:
        raise UserError(f"There is no loss '{loss}'.{suggest(loss, WEIGHTINGS)}")
    if protocol not in PROTOCOLS:
        raise UserError(f"There is no protocol '{protocol}'.{suggest(protocol, PROTOCOLS)}")
    mixing = Hybrid(vocab_size, p_u, schedule_by_name(schedule))
    sampler = TrainingTimes(times, t_min, 1 - t_min)
    process = DiscreteDiffusion(
        mixing, weighting=WEIGHTINGS[loss], times=sampler, truncate_ends=protocol == "published"
    )
    return diffusion_model(
        process, length, block, network, reads_time=True, subtract_input=mixing.has_uniform and not own_embedding
    )
