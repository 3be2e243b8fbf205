"""Builders of the systems on the sphere: RDLM with the paper's bridge, and with the Brownian one."""

import math

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
from logosphere.denoisers.transformer import FullTransformer
from logosphere.denoisers.wrappers import Believing, Informed
from logosphere.errors import UserError, nearest
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge
from logosphere.geometry.laws import bridge_law
from logosphere.model import Model
from logosphere.processes.spherical import Spherical


def rdlm(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    start: str | float = "mask",
    total_noise: float | None = None,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
) -> Model:
    """The log bridge of the paper. posterior_head=False with input="state" is the published network."""
    noise = _noise(vocab_size + 1) if total_noise is None else total_noise
    return _sphere(vocab_size, length, network, LogBridge(noise), start, posterior_head, input, loss, clock)


def rdlm_heat(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    start: str | float = "mask",
    total_noise: float | None = None,
    posterior_head: bool = True,
    input: str = "belief",
    loss: str = "cross-entropy",
    clock: str = "information",
) -> Model:
    """The true Brownian bridge: its mixture is Markov and the bound is tight for every amount of noise."""
    noise = _noise(vocab_size + 1) if total_noise is None else total_noise
    bridge = HeatBridge.on(vocab_size + 1, noise)
    return _sphere(vocab_size, length, network, bridge, start, posterior_head, input, loss, clock)


def _sphere(
    vocab_size: int,
    length: int,
    network: Network | None,
    bridge: Bridge,
    start: str | float,
    posterior_head: bool,
    input: str,
    loss: str,
    clock: str,
) -> Model:
    for word, known in (
        (input, ("belief", "state")),
        (loss, ("cross-entropy", "drift")),
        (clock, ("information", "even")),
    ):
        if word not in known:
            raise UserError(f"'{word}' is not a choice here.{nearest(word, known)}")
    origin = start_point(start, vocab_size)
    law = bridge_law(bridge, vocab_size + 1, float(origin[0]))
    process = Spherical(vocab_size, bridge, origin, law, by_drift=loss == "drift", learns_clock=clock == "information")
    denoiser: Denoiser | None = None
    if network is not None:
        denoiser = FullTransformer(process.codec, length, network, reads_time=True)
        if input == "belief":
            denoiser = Believing(denoiser, process)
        if posterior_head:
            denoiser = Informed(denoiser, process)
    return Model(process, denoiser, length=length, block=length)


def start_point(start: str | float, vocab_size: int) -> Tensor:
    """Where all bridges begin: 'mask', 'uniform' (the centre of the orthant, mask included), or a share λ of 'tokens'.

    λ puts √(λ/V) on every token and √(1 - λ) on the mask.
    """
    if isinstance(start, str):
        named = {"mask": 0.0, "uniform": vocab_size / (vocab_size + 1)}
        if start not in named:
            raise UserError(f"There is no start '{start}'.{nearest(start, named)}")
        start = named[start]
    if not 0 <= start <= 1:
        raise UserError(
            f"A start between the mask (0) and the tokens' centre (1) is a number from 0 to 1, not {start}."
        )
    point = torch.full((vocab_size + 1,), math.sqrt(start / vocab_size))
    point[-1] = math.sqrt(1 - start)
    return point


def _noise(d: int) -> float:
    """Total noise V such that noise has a squared norm of about 0.4 where tokens become clear.

    Tokens among d become clear at s ≈ 1.6 V (log d + 3), where the noise V s d has that norm; for d = 28 this is the
    0.0376 of the paper's schedule.
    """
    return math.sqrt(0.4 / (1.62 * d * (math.log(d) + 3)))
