"""Builders of the discrete systems: which process, which network, and the settings of the papers."""

from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
from logosphere.denoisers.transformer import BlockTransformer, CausalTransformer, FullTransformer
from logosphere.denoisers.wrappers import Informed
from logosphere.errors import UserError, nearest
from logosphere.model import Model
from logosphere.processes.base import Process
from logosphere.processes.interpolating import Interpolating
from logosphere.processes.oneshot import OneShot
from logosphere.schedules import schedule as schedule_by_name

LOSSES = ("bound", "cross-entropy")


def ar(vocab_size: int, length: int, network: Network | None) -> Model:
    """The one-shot process in blocks of one position, read by a causal network."""
    denoiser = None if network is None else CausalTransformer(vocab_size, length, network)
    return Model(OneShot(vocab_size), denoiser, length=length, block=1)


def mdlm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str = "linear",
    block: int | None = None,
    reads_time: bool = False,
    exact_count: bool = True,
    loss: str = "cross-entropy",
) -> Model:
    """Masked diffusion in continuous time. A network that reads the time needs masks by chance, not by count.

    Training drops the weight 1/t of the bound, which learns faster; loss="bound" keeps it, as the paper does.
    """
    if loss not in LOSSES:
        raise UserError(f"There is no loss '{loss}'.{nearest(loss, LOSSES)}")
    process = Interpolating(
        vocab_size,
        schedule_by_name(schedule),
        mask=True,
        exact_count=exact_count and not reads_time,
        unweighted=loss == "cross-entropy",
    )
    return _diffusion(process, length, block, network, reads_time=reads_time)


def d3pm_absorbing(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int | None = 1000,
    schedule: str = "linear",
    hybrid: float = 0.01,
    block: int | None = None,
) -> Model:
    """D3PM, absorbing: β_t = 1/(T - t + 1), that is a linear signal; L_λ with λ = 0.01. timesteps=None: continuous."""
    process = Interpolating(vocab_size, schedule_by_name(schedule), mask=True, timesteps=timesteps, hybrid=hybrid)
    return _diffusion(process, length, block, network, reads_time=True)


def d3pm_uniform(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    timesteps: int | None = 1000,
    schedule: str = "cosine",
    hybrid: float = 0.0,
    block: int | None = None,
) -> Model:
    """D3PM, uniform: cosine signal, plain bound (λ = 0, which the paper found better for text)."""
    process = Interpolating(vocab_size, schedule_by_name(schedule), mask=False, timesteps=timesteps, hybrid=hybrid)
    return _diffusion(process, length, block, network, reads_time=True)


def _diffusion(process: Process, length: int, block: int | None, network: Network | None, *, reads_time: bool) -> Model:
    block = length if block is None else block
    denoiser: Denoiser | None = None
    if network is not None:
        if block == length:
            inner: Denoiser = FullTransformer(process.codec, length, network, reads_time=reads_time)
        else:
            inner = BlockTransformer(process.codec, length, block, network, reads_time=reads_time)
        denoiser = Informed(inner, process)
    return Model(process, denoiser, length=length, block=block)
