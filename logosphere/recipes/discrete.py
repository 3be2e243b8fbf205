"""Builders of the discrete systems: which process, which network, and the settings of the papers."""

from collections.abc import Sequence

from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.logistic import Logistic
from logosphere.denoisers.network import Network
from logosphere.denoisers.scoring import Scoring
from logosphere.denoisers.transformer import BlockTransformer, CausalTransformer, FullTransformer
from logosphere.denoisers.trunk import Head
from logosphere.denoisers.wrappers import Informed
from logosphere.errors import UserError, nearest
from logosphere.model import Model
from logosphere.processes.base import Process
from logosphere.processes.clock import Clock, even_law
from logosphere.processes.heads import Score
from logosphere.processes.interpolating import Interpolating, Weighting
from logosphere.processes.mixing import Hybrid, Masking, Mixing, Uniform
from logosphere.processes.oneshot import OneShot
from logosphere.processes.ordinal import Ordinal
from logosphere.processes.statewise import Statewise
from logosphere.processes.weighting import clipped, dynamic
from logosphere.sampling.plan import cosine_grid
from logosphere.schedules import Schedule, cosine_betas, information, of_betas
from logosphere.schedules import schedule as schedule_by_name

LOSSES = ("bound", "cross-entropy")
WEIGHTINGS: dict[str, Weighting | None] = {"bound": None, "clip": clipped, "dynamic": dynamic}


def ar(vocab_size: int, length: int, network: Network | None) -> Model:
    """The one-shot process in blocks of one position, read by a causal network."""
    denoiser = None if network is None else CausalTransformer(vocab_size, length, network)
    return Model(OneShot(vocab_size), denoiser, length=length, block=1)


def mdlm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str | Sequence[float] = "linear",
    block: int | None = None,
    reads_time: bool = False,
    exact_count: bool = True,
    loss: str = "cross-entropy",
) -> Model:
    """Masked diffusion in continuous time. A network that reads the time needs masks by chance, not by count.

    Training drops the weight 1/t of the bound, which learns faster; loss="bound" keeps it, as the paper does.
    """
    law = Masking(vocab_size, schedule_by_name(schedule))
    counted = exact_count and not reads_time and law.prior_nats() == 0
    process = Interpolating(law, exact_count=counted, unweighted=_unweighted(loss))
    return _diffusion(process, length, block, network, reads_time=reads_time)


def md4(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str | Sequence[float] = "linear",
    block: int | None = None,
    loss: str = "bound",
) -> Model:
    """Masked diffusion with a network that reads the time, trained on its bound, sampled on a cosine grid.

    The paper squeezes its schedule into [ε, 1 - ε] and adds constants for it. Here it begins at 1 exactly, where the
    first constant is 0; "log-linear:0.0001" ends at ε, and then a_1 log V is counted.
    """
    law = Masking(vocab_size, schedule_by_name(schedule))
    process = Interpolating(law, unweighted=_unweighted(loss), grid=cosine_grid)
    return _diffusion(process, length, block, network, reads_time=True)


def genmd4(vocab_size: int, length: int, network: Network | None, *, block: int | None = None) -> Model:
    """Masked diffusion in which every token learns how fast it vanishes. Training shows each sequence twice."""
    return _diffusion(Statewise(vocab_size), length, block, network, reads_time=True)


def ardm(vocab_size: int, length: int, network: Network | None) -> Model:
    """An autoregressive model of any order: L/l times the cross-entropy of l hidden tokens, l uniform on 1 … L.

    That average over orders (Hoogeboom et al. 2022, eq. 3) is the bound of masked diffusion, masks drawn by count.
    """
    process = Interpolating(Masking(vocab_size, schedule_by_name("linear")), exact_count=True)
    return _diffusion(process, length, None, network, reads_time=False)


def bd3lm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    block: int | None = None,
    clip: Sequence[float] = (0.0, 1.0),
    loss: str = "bound",
) -> Model:
    """Masked diffusion in blocks, by default of 4 tokens or the next smaller number that divides the length.

    `clip` bounds the share of masks while training, for example [0.3, 0.8].
    Clipping makes the loss calmer (the paper takes [0.45, 0.95] for blocks of 4); bounds are measured on [0, 1].
    """
    block = max(size for size in (1, 2, 3, 4) if length % size == 0) if block is None else block
    law = Masking(vocab_size, schedule_by_name("linear"))
    process = Interpolating(law, exact_count=True, unweighted=_unweighted(loss), clip=_interval(clip))
    return _diffusion(process, length, block, network, reads_time=False)


def d3pm_absorbing(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int | None = 1000,
    schedule: str | Sequence[float] = "linear",
    hybrid: float = 0.01,
    block: int | None = None,
) -> Model:
    """D3PM, absorbing: β_t = 1/(T - t + 1), that is a linear signal; L_λ with λ = 0.01. timesteps=None: continuous."""
    law = Masking(vocab_size, _chain(schedule, timesteps))
    return _diffusion(Interpolating(law, timesteps=timesteps, hybrid=hybrid), length, block, network, reads_time=True)


def d3pm_uniform(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int | None = 1000,
    schedule: str | Sequence[float] = "cosine",
    frequencies: Sequence[float] | None = None,
    hybrid: float = 0.0,
    block: int | None = None,
) -> Model:
    """D3PM, uniform: cosine signal, plain bound (λ = 0, which the paper found better for text).

    With the `frequencies` of the tokens the schedule is the one that loses information evenly.
    """
    curve = _chain(schedule, timesteps) if frequencies is None else _even_loss(frequencies, vocab_size)
    process = Interpolating(Uniform(vocab_size, curve), timesteps=timesteps, hybrid=hybrid)
    return _diffusion(process, length, block, network, reads_time=True)


def d3pm_gaussian(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int = 100,
    hybrid: float = 0.001,
    head: str = "softmax",
    block: int | None = None,
) -> Model:
    """D3PM for ordered tokens such as grey values: noise moves to neighbours; L_λ with λ = 0.001, as for images.

    The paper takes 1000 steps; its β are scaled here to as many steps as there are. With head="logistic" the network
    answers with a place and a width, as the paper's does for images, and not with a logit for each value. Either way it
    says what the others say of a value; what the value seen says is added (D3PM, eq. 4, where p̃ is summed against q).
    """
    if head not in ("softmax", "logistic"):
        raise UserError(f"There is no head '{head}'.{nearest(head, ('softmax', 'logistic'))}")
    process = Ordinal(vocab_size, timesteps=timesteps, hybrid=hybrid)
    model = _diffusion(process, length, block, network if head == "softmax" else None, reads_time=True)
    if network is not None and head == "logistic":
        inner = _transformer(process, length, model.block, network, reads_time=True)
        inner.head = Head(network.width, 2)
        model.denoiser = Informed(Logistic(inner, vocab_size), process)
    return model


def multinomial(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int = 1000,
    hybrid: float = 0.0,
    importance: bool = False,
    block: int | None = None,
) -> Model:
    """Uniform noise in T steps on the paper's table of β, which leaves a trace of signal at the end and counts it.

    With `importance` steps are drawn in proportion to the root mean square of what they cost, as in the paper.
    """
    if timesteps is None or timesteps < 1:
        raise UserError(f"timesteps must be at least 1, not {timesteps}; udlm is the same in continuous time.")
    law = Uniform(vocab_size, of_betas(cosine_betas(timesteps)))
    clock = Clock(even_law(timesteps), calm=True) if importance and timesteps > 1 else None
    process = Interpolating(law, timesteps=timesteps, hybrid=hybrid, clock=clock)
    return _diffusion(process, length, block, network, reads_time=True)


def udlm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str | Sequence[float] = "linear",
    block: int | None = None,
) -> Model:
    """Uniform noise in continuous time, trained on its bound."""
    process = Interpolating(Uniform(vocab_size, schedule_by_name(schedule)))
    return _diffusion(process, length, block, network, reads_time=True)


def sedd_absorb(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str | Sequence[float] = "log-linear",
    block: int | None = None,
) -> Model:
    """Score entropy with masks: the network answers with ratios of probabilities."""
    return _scored(Masking(vocab_size, schedule_by_name(schedule)), length, block, network)


def sedd_uniform(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str | Sequence[float] = "geometric",
    block: int | None = None,
) -> Model:
    """Score entropy with random tokens."""
    return _scored(Uniform(vocab_size, schedule_by_name(schedule)), length, block, network)


def gidd(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    p_u: float = 0.1,
    schedule: str | Sequence[float] = "linear",
    loss: str = "dynamic",
    block: int | None = None,
) -> Model:
    """Masks and random tokens in continuous time; `p_u` of the tokens are random half way.

    The weights of the bound explode at both ends of time, so training bounds them: loss "dynamic" or "clip". One head
    answers for masks, which say nothing, and for tokens, which say nearly all; so that what is learnt at masks is not
    spoilt by the embeddings of tokens, these do not run straight into it (Trunk, `own`).
    """
    if loss not in WEIGHTINGS:
        raise UserError(f"There is no loss '{loss}'.{nearest(loss, WEIGHTINGS)}")
    law = Hybrid(vocab_size, p_u, schedule_by_name(schedule))
    process = Interpolating(law, weighting=WEIGHTINGS[loss])
    return _diffusion(process, length, block, network, reads_time=True, own=not law.spreads)


def _unweighted(loss: str) -> bool:
    if loss not in LOSSES:
        raise UserError(f"There is no loss '{loss}'.{nearest(loss, LOSSES)}")
    return loss == "cross-entropy"


def _interval(clip: Sequence[float]) -> tuple[float, float]:
    if len(clip) != 2:
        raise UserError(f"clip must be an interval within [0, 1], such as [0.3, 0.8], not {list(clip)}.")
    return clip[0], clip[1]


def _chain(schedule: str | Sequence[float], timesteps: int | None) -> Schedule:
    """A schedule for so many steps; a table of β must have as many."""
    if not isinstance(schedule, str) and timesteps not in (None, len(schedule)):
        raise UserError(f"The table of β has {len(schedule)} entries; set timesteps={len(schedule)}.")
    return schedule_by_name(schedule)


def _even_loss(frequencies: Sequence[float], vocab_size: int) -> Schedule:
    if len(frequencies) != vocab_size:
        raise UserError(f"There must be {vocab_size} frequencies, one for each token, not {len(frequencies)}.")
    return information(frequencies)


def _scored(law: Mixing, length: int, block: int | None, network: Network | None) -> Model:
    head = Score()
    process = Interpolating(law, head=head)
    model = _diffusion(process, length, block, None, reads_time=True)
    if network is not None:
        model.denoiser = Scoring(_transformer(process, length, model.block, network, reads_time=True), law, head)
    return model


def _diffusion(
    process: Process, length: int, block: int | None, network: Network | None, *, reads_time: bool, own: bool = True
) -> Model:
    block = length if block is None else block
    denoiser: Denoiser | None = None
    if network is not None:
        denoiser = Informed(_transformer(process, length, block, network, reads_time=reads_time, own=own), process)
    return Model(process, denoiser, length=length, block=block)


def _transformer(
    process: Process, length: int, block: int, network: Network, *, reads_time: bool, own: bool = True
) -> FullTransformer | BlockTransformer:
    if block == length:
        return FullTransformer(process.codec, length, network, reads_time=reads_time, own=own)
    return BlockTransformer(process.codec, length, block, network, reads_time=reads_time, own=own)
