"""The parts of a Gaussian diffusion by their names, and how they are put together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs import embeddings
from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.vertices import CoordinateStem
from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.networks.backbone import LinearHead
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.config import NetworkConfig
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.networks.wrappers import BeliefInput, PosteriorHead
from logosphere.processes.gaussian.parameterization import PARAMETERIZATIONS
from logosphere.processes.gaussian.token import GaussianTokenDiffusion
from logosphere.processes.time_sampler import TimeSampler
from logosphere.schedules.learned import LearnedNetwork, LearnedTanh
from logosphere.schedules.logsnr import LogSNR, find_logsnr, sqrt_steps
from logosphere.types import Logits, Positions, State, Times

INTERVALS = 128
"""The clock measures nats in intervals of so much of the path."""
READING = 1 / 16
"""Share of draws that read the token off, where times are drawn evenly; Plaid takes 1/8 when it measures."""
WARPED = 100
"""Bins of CDCD's time warp."""
SHARPNESS = 5.0
"""SSD-LM's K: its softmax reads logits of ±5."""

CODECS: dict[str, Callable[[int], Embeddings]] = {
    "bits": embeddings.bit_table,
    "one-hot": embeddings.one_hot_table,
    "logits": embeddings.logit_table,
}
CHOICES = {
    "codec": ("embeddings", *CODECS),
    "predicts": ("tokens", *PARAMETERIZATIONS),
    "loss": ("bound", "cross-entropy", "error"),
    "clock": ("information", "entropy", "warp", "even", "split", "uniform"),
    "input": ("belief", "state", "scaled", "simplex"),
    "spacing": ("angle", "logsnr", "information", "time"),
    "self_conditioned": ("batches", "rows"),
}
LEARNED = {"learned": LearnedTanh, "learned-network": LearnedNetwork}


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
    self_conditioned: str = "batches"
    """Which part of a training that is: whole batches by chance, or every n-th sequence of each."""
    spacing: str = "angle"
    steps: int | None = None
    """Steps of the schedule; None: time is continuous."""
    noisy_start: bool = False
    head_warmup: float = 0.0
    holds: bool = False
    clips: bool = False
    """Is the estimate that a network is conditioned on clipped to ±1?"""

    def __post_init__(self) -> None:
        for option, words in CHOICES.items():
            if (word := getattr(self, option)) not in words:
                raise UserError(f"'{word}' is not a choice for {option}.{suggest(str(word), words)}")
        if self.schedule in LEARNED and self.loss != "bound":
            raise UserError("A learned schedule follows the bound; train with loss=bound, or choose another schedule.")
        if self.codec == "embeddings" and self.norm is None and self.loss == "cross-entropy" and not self.anchor:
            raise UserError(
                "Cross-entropy alone makes free embeddings grow without end; give them a norm, or train on the bound."
            )
        if not self.anchor >= 0:
            raise UserError(f"The weight of the anchor must not be negative, but is {self.anchor}.")
        if self.input == "simplex" and self.codec not in ("logits", "one-hot"):
            raise UserError("input=simplex reads one coordinate for each token; use the codec logits or one-hot.")
        if self.input == "scaled" and (self.codec != "embeddings" or self.norm is None):
            raise UserError("input=scaled needs learned embeddings of one length; use input=state, or give a norm.")
        if self.steps is not None and (self.schedule != "sqrt" or self.highest is not None or self.lowest is not None):
            raise UserError("A number of steps needs schedule=sqrt with its own ends: highest=None and lowest=None.")
        if self.self_conditioned == "rows" and self.self_conditioning and self.every < 2:
            raise UserError(
                "self_conditioned=rows conditions every n-th sequence of a batch: the probability must be 1/2, 1/3, "
                f"1/4, …, not {self.self_conditioning}."
            )

    @property
    def every(self) -> int:
        """n, where every n-th sequence of a training batch is conditioned on its own estimate; 0 otherwise."""
        if self.self_conditioned != "rows" or not self.self_conditioning:
            return 0
        every = round(1 / self.self_conditioning)
        return every if abs(every * self.self_conditioning - 1) < 1e-6 else 0


def assembled(vocab_size: int, length: int, network: NetworkConfig | None, has: Settings) -> Model:
    """The model with these settings."""
    if has.codec in CODECS:
        codec = CODECS[has.codec](vocab_size)
    else:
        codec = embeddings.learned_table(vocab_size, has.embedding, has.norm)
    process = GaussianTokenDiffusion(
        codec,
        _schedule(has),
        _clock(has),
        parameterization=PARAMETERIZATIONS.get(has.predicts),
        loss=has.loss,  # type: ignore[arg-type]
        rounding_loss_weight=has.anchor,
        rounding_head=has.head,
        spacing=has.spacing,  # type: ignore[arg-type]
        noisy_start=has.noisy_start,
        discrete=has.steps is not None,
        head_warmup=has.head_warmup,
        hold_self_conditioned=has.holds,
    )
    denoiser = None if network is None else _network(process, codec, length, network, has)
    return Model(process, denoiser, length=length, block=length)


def _schedule(has: Settings) -> LogSNR:
    if has.steps is not None:
        return sqrt_steps(has.steps)
    if has.schedule not in LEARNED:
        return find_logsnr(has.schedule, shift=has.shift, highest=has.highest, lowest=has.lowest)
    if has.highest is None or has.lowest is None:
        raise UserError("A learned schedule needs the highest and the lowest log-SNR to begin with.")
    return LEARNED[has.schedule](has.highest + has.shift, has.lowest + has.shift)


def _clock(has: Settings) -> TimeSampler:
    """Intervals of the path and the reading; where the schedule has steps, the reading is the first of them."""
    intervals, reading = INTERVALS, READING
    if has.steps is not None:
        intervals, reading = has.steps - 1, 1 / has.steps
    elif has.clock == "uniform":
        reading = 0.0
    elif has.clock == "warp":
        intervals = WARPED
    even = torch.full((intervals + 1,), (1 - reading) / intervals, dtype=torch.float64)
    even[-1] = reading
    drawn = even if has.clock in ("even", "uniform") else None
    if has.clock == "warp":
        return TimeSampler(even, entropy_warp=True, pure_warp=True, bins=WARPED)
    return TimeSampler(even, drawn, entropy_warp=has.clock == "entropy", separate_last=has.clock == "split")


class SimplexStem(CoordinateStem):
    """Reads softmax(K z), the point of the simplex that noisy logits stand for (Han et al. 2023, SSD-LM)."""

    def forward(self, z: State) -> State:
        return super().forward(self.in_features**0.5 * (SHARPNESS * z).softmax(-1))


class Standardised(Wrapper):
    """Scales states to variance 1, z/√(α²|e|²/d + σ²), and the estimates behind them likewise, √d x̂/|e| (Plaid)."""

    def __init__(self, inner: Denoiser, process: GaussianTokenDiffusion):
        super().__init__(inner)
        self._process = [process]  # in a list, so that its parameters are not registered twice

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        codec = self._process[0].codec
        assert isinstance(codec, Embeddings) and codec.norm is not None
        clean = codec.norm**2 / codec.width
        alpha, sigma = self._process[0].alpha_sigma(t)
        seen = z[..., : codec.width] / (clean * alpha.square() + sigma.square()).sqrt()
        return self.inner(torch.cat([seen, z[..., codec.width :] / clean**0.5], -1), t, context, where)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Standardised(inner, self._process[0])


def _network(
    process: GaussianTokenDiffusion, codec: Embeddings, length: int, network: NetworkConfig, has: Settings
) -> Denoiser:
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
        inner.stem = CoordinateStem(reads + shown, network.width)
    if has.predicts != "tokens":
        inner.head = LinearHead(network.width, codec.width)
    informs = has.predicts == "tokens" and has.posterior_head
    denoiser: Denoiser = Standardised(inner, process) if has.input == "scaled" else inner
    if has.self_conditioning:
        estimate = _belief_after(process, informs) if believes else _state_after(process, informs, has.clips)
        denoiser = SelfConditioning(denoiser, reads, shown, estimate, has.self_conditioning, has.every)
    denoiser = BeliefInput(denoiser, process.log_likelihood) if believes else denoiser
    return PosteriorHead(denoiser, process.add_evidence) if informs else denoiser


def _state_after(
    process: GaussianTokenDiffusion, informs: bool, clips: bool
) -> Callable[[Tensor, State, Times], Tensor]:
    """x̂, as the process understands the network."""

    def estimate(out: Tensor, z: State, t: Times) -> Tensor:
        clean = process.predict_x0(process.add_evidence(out, z, t) if informs else out, z, t)
        return clean.clamp(-1, 1) if clips else clean

    return estimate


def _belief_after(process: GaussianTokenDiffusion, informs: bool) -> Callable[[Tensor, State, Times], Tensor]:
    """p(token), scaled like the belief that the network saw."""

    def estimate(out: Tensor, seen: State, t: Times) -> Tensor:
        scale = out.shape[-1] ** 0.5
        return scale * (out + process.evidence_scale() * seen.clamp_min(1e-30).log() if informs else out).softmax(-1)

    return estimate
