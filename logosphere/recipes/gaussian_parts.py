"""The parts of a Gaussian diffusion by their names, and how they are put together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs import embeddings
from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.vertices import Coordinates
from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
from logosphere.denoisers.selfconditioned import SelfConditioned
from logosphere.denoisers.transformer import FullTransformer
from logosphere.denoisers.trunk import Head
from logosphere.denoisers.wrappers import Believing, Informed
from logosphere.errors import UserError, nearest
from logosphere.logsnr.learned import Learned
from logosphere.logsnr.schedules import LogSNR, schedule
from logosphere.model import Model
from logosphere.processes.clock import Clock
from logosphere.processes.gaussian import Gaussian
from logosphere.processes.predictions import STATES
from logosphere.types import State, Times

INTERVALS = 128
"""The clock measures nats in intervals of so much of the path."""
READING = 1 / 16
"""Share of draws that read the token off, where times are drawn evenly; Plaid takes 1/8 when it measures."""
SHARPNESS = 5.0
"""SSD-LM's K: its softmax reads logits of ±5."""

CODECS: dict[str, Callable[[int], Embeddings]] = {
    "bits": embeddings.bits,
    "one-hot": embeddings.one_hot,
    "logits": embeddings.logits,
}
CHOICES = {
    "codec": ("embeddings", *CODECS),
    "predicts": ("tokens", *STATES),
    "loss": ("bound", "cross-entropy", "error"),
    "clock": ("information", "entropy", "even"),
    "input": ("belief", "state", "simplex"),
    "spacing": ("angle", "logsnr", "information"),
}


@dataclass(frozen=True)
class Settings:
    """What systems of Gaussian diffusion differ in."""

    codec: str = "embeddings"
    embedding: int = 16
    norm: float | None = 1.0
    schedule: str = "linear"
    shift: float = 0.0
    highest: float | None = None
    lowest: float | None = None
    predicts: str = "tokens"
    loss: str = "bound"
    clock: str = "information"
    anchor: float = 0.0
    head: bool = False
    input: str = "state"
    posterior_head: bool = True
    self_conditioning: float = 0.0
    spacing: str = "angle"

    def __post_init__(self) -> None:
        for option, words in CHOICES.items():
            if (word := getattr(self, option)) not in words:
                raise UserError(f"'{word}' is not a choice for {option}.{nearest(str(word), words)}")
        if self.schedule == "learned" and self.loss != "bound":
            raise UserError("A learned schedule follows the bound; train with loss=bound, or choose another schedule.")
        if self.codec == "embeddings" and self.norm is None and self.loss == "cross-entropy" and not self.anchor:
            raise UserError(
                "Cross-entropy alone makes free embeddings grow without end; give them a norm, or train on the bound."
            )
        if not self.anchor >= 0:
            raise UserError(f"The weight of the anchor must not be negative, but is {self.anchor}.")
        if self.input == "simplex" and self.codec not in ("logits", "one-hot"):
            raise UserError("input=simplex reads one coordinate for each token; use the codec logits or one-hot.")


def assembled(vocab_size: int, length: int, network: Network | None, has: Settings) -> Model:
    """The model with these settings."""
    if has.codec in CODECS:
        codec = CODECS[has.codec](vocab_size)
    else:
        codec = embeddings.learned(vocab_size, has.embedding, has.norm)
    process = Gaussian(
        codec,
        _schedule(has),
        _clock(has.clock),
        predicts=STATES.get(has.predicts),
        loss=has.loss,  # type: ignore[arg-type]
        anchor=has.anchor,
        head=has.head,
        spacing=has.spacing,  # type: ignore[arg-type]
    )
    denoiser = None if network is None else _network(process, codec, length, network, has)
    return Model(process, denoiser, length=length, block=length)


def _schedule(has: Settings) -> LogSNR:
    if has.schedule != "learned":
        return schedule(has.schedule, shift=has.shift, highest=has.highest, lowest=has.lowest)
    if has.highest is None or has.lowest is None:
        raise UserError("A learned schedule needs the highest and the lowest log-SNR to begin with.")
    return Learned(has.highest + has.shift, has.lowest + has.shift)


def _clock(name: str) -> Clock:
    even = torch.full((INTERVALS + 1,), (1 - READING) / INTERVALS, dtype=torch.float64)
    even[-1] = READING
    return Clock(even, even if name == "even" else None, warped=name == "entropy")


class SimplexStem(Coordinates):
    """Reads softmax(K z), the point of the simplex that noisy logits stand for (Han et al. 2023, SSD-LM)."""

    def forward(self, z: State) -> State:
        return super().forward(self.in_features**0.5 * (SHARPNESS * z).softmax(-1))


def _network(process: Gaussian, codec: Embeddings, length: int, network: Network, has: Settings) -> Denoiser:
    believes = has.input == "belief"
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time says nothing more.
    inner: Denoiser = FullTransformer(codec, length, network, reads_time=not believes)
    reads = codec.vocab_size if believes else codec.width
    shown = reads if has.self_conditioning else 0
    assert isinstance(inner, FullTransformer)
    if has.input == "simplex":
        if has.self_conditioning:
            raise UserError("input=simplex goes without self-conditioning; use input=state or input=belief with it.")
        inner.stem = SimplexStem(codec.vocab_size, network.width)
    elif believes or shown:
        inner.stem = Coordinates(reads + shown, network.width)
    if has.predicts != "tokens":
        inner.head = Head(network.width, codec.width)
    informs = has.predicts == "tokens" and has.posterior_head
    denoiser: Denoiser = inner
    if has.self_conditioning:
        estimate = _belief_after(informs) if believes else _state_after(process, informs)
        denoiser = SelfConditioned(inner, reads, shown, estimate, has.self_conditioning)
    denoiser = Believing(denoiser, process) if believes else denoiser
    return Informed(denoiser, process) if informs else denoiser


def _state_after(process: Gaussian, informs: bool) -> Callable[[Tensor, State, Times], Tensor]:
    """x̂, as the process understands the network."""

    def estimate(out: Tensor, z: State, t: Times) -> Tensor:
        return process.clean(process.inform(out, z, t) if informs else out, z, t)

    return estimate


def _belief_after(informs: bool) -> Callable[[Tensor, State, Times], Tensor]:
    """p(token), scaled like the belief that the network saw."""

    def estimate(out: Tensor, seen: State, t: Times) -> Tensor:
        scale = out.shape[-1] ** 0.5
        return scale * (out + seen.clamp_min(1e-30).log() if informs else out).softmax(-1)

    return estimate
