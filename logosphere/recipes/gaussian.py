"""Builders of Gaussian diffusion: which codec, schedule, prediction, loss and network make which system."""

from dataclasses import dataclass
from typing import Any

import torch

from logosphere.codecs import embeddings
from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.vertices import Coordinates
from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
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

INTERVALS = 128
"""The clock measures nats in intervals of so much of the path."""
READING = 1 / 16
"""Share of draws that read the token off, where times are drawn evenly; Plaid takes 1/8 when it measures."""

CHOICES = {
    "codec": ("embeddings", "bits", "one-hot", "logits"),
    "predicts": ("tokens", *STATES),
    "loss": ("bound", "cross-entropy", "error"),
    "clock": ("information", "entropy", "even"),
    "input": ("belief", "state"),
    "spacing": ("angle", "logsnr"),
}


@dataclass(frozen=True)
class Settings:
    """What the systems of this file differ in."""

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
    spacing: str = "angle"

    def __post_init__(self) -> None:
        for option, words in CHOICES.items():
            if (word := getattr(self, option)) not in words:
                raise UserError(f"'{word}' is not a choice for {option}.{nearest(str(word), words)}")
        if self.schedule == "learned" and self.loss != "bound":
            raise UserError(
                "A learned schedule follows the bound; train on it (loss=bound) or choose another schedule."
            )
        if self.codec == "embeddings" and self.norm is None and self.loss == "cross-entropy" and not self.anchor:
            raise UserError(
                "Cross-entropy alone makes free embeddings grow without end; give them a norm, or train on the bound."
            )


def plaid(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    embedding: int = 16,
    norm: float | None = 1.0,
    schedule: str = "learned",
    highest: float | None = 3.0,
    lowest: float | None = -6.0,
    posterior_head: bool = True,
    input: str = "state",
    spacing: str = "angle",
) -> Model:
    """Plaid: the whole bound is trained, with the embeddings, both ends of the schedule and its shape.

    embedding        width of the embeddings; norm: their length (None: free)
    schedule         learned, or cosine, sqrt, linear-beta, sigmoid, linear; highest, lowest: its log-SNR at both ends
    posterior_head   adds what a state says of its own token to the network's logits (the output prior)
    input            state, or belief: what each state says of its token, in place of it
    """
    return _model(
        vocab_size,
        length,
        network,
        Settings(
            embedding=embedding, norm=norm, schedule=schedule, highest=highest, lowest=lowest,
            clock="even" if schedule == "learned" else "information",
            posterior_head=posterior_head, input=input, spacing=spacing,
        ),
    )  # fmt: skip


def gaussian_ce(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    codec: str = "embeddings",
    embedding: int = 16,
    norm: float | None = 1.0,
    schedule: str = "cosine",
    shift: float = 0.0,
    highest: float | None = 4.0,
    lowest: float | None = None,
    clock: str = "information",
    loss: str = "cross-entropy",
    posterior_head: bool = True,
    input: str = "belief",
    spacing: str = "angle",
) -> Model:
    """Gaussian diffusion of any codec, trained on plain cross-entropy and measured by its bound."""
    return _model(
        vocab_size,
        length,
        network,
        Settings(
            codec=codec, embedding=embedding, norm=norm, schedule=schedule, shift=shift, highest=highest, lowest=lowest,
            clock=clock, loss=loss, posterior_head=posterior_head, input=input, spacing=spacing,
        ),
    )  # fmt: skip


def _model(vocab_size: int, length: int, network: Network | None, has: Settings) -> Model:
    codec = _codec(vocab_size, has)
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


def _codec(vocab_size: int, has: Settings) -> Embeddings:
    made: dict[str, Any] = {"bits": embeddings.bits, "one-hot": embeddings.one_hot, "logits": embeddings.logits}
    if has.codec in made:
        return made[has.codec](vocab_size)
    return embeddings.learned(vocab_size, has.embedding, has.norm)


def _schedule(has: Settings) -> LogSNR:
    if has.schedule != "learned":
        return schedule(has.schedule, shift=has.shift, highest=has.highest, lowest=has.lowest)
    if has.highest is None or has.lowest is None:
        raise UserError("A learned schedule needs the highest and the lowest log-SNR to begin with.")
    return Learned(has.highest + has.shift, has.lowest + has.shift)


def _clock(name: str) -> Clock:
    even = torch.full((INTERVALS + 1,), (1 - READING) / INTERVALS, dtype=torch.float64)
    even[-1] = READING
    return Clock(even, even if name == "even" else None)


def _network(process: Gaussian, codec: Embeddings, length: int, network: Network, has: Settings) -> Denoiser:
    believes = has.input == "belief"
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time says nothing more.
    inner = FullTransformer(codec, length, network, reads_time=not believes)
    if believes:
        inner.stem = Coordinates(codec.vocab_size, network.width)
    if has.predicts != "tokens":
        inner.head = Head(network.width, codec.width)
    denoiser: Denoiser = Believing(inner, process) if believes else inner
    if has.predicts == "tokens" and has.posterior_head:
        denoiser = Informed(denoiser, process)
    return denoiser
