"""Parts of Gaussian diffusion by name: codec, log-SNR schedule, time sampler and network."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from logosphere.codecs import embeddings
from logosphere.codecs.embeddings import Embeddings
from logosphere.codecs.tokens import CoordinateStem
from logosphere.errors import UserError
from logosphere.networks.base import BeliefInput, Denoiser, PosteriorHead, Wrapper
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.networks.own import registered_denoiser
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import FullTransformer
from logosphere.processes.gaussian.token import GaussianTokenDiffusion
from logosphere.processes.time_sampler import TimeSampler
from logosphere.schedules.learned import LearnedNetwork, LearnedTanh
from logosphere.schedules.logsnr import LogSNR, find_logsnr, sqrt_steps
from logosphere.types import Logits, State, Times, Where

if TYPE_CHECKING:
    from logosphere.systems.gaussian import GaussianSettings

INTERVALS = 128
"""The time sampler measures nats in this number of intervals of the path."""
RECONSTRUCTION = 1 / 16
"""Fraction of draws at the end of the path, where times are drawn evenly; Plaid takes 1/8 when it measures."""
WARP_BINS = 100
"""Bins of CDCD's time warp."""
SHARPNESS = 5.0
"""SSD-LM's K: its softmax reads logits of ±5."""

CODECS: dict[str, Callable[[int], Embeddings]] = {
    "bits": embeddings.bit_table,
    "one-hot": embeddings.one_hot_table,
    "logits": embeddings.logit_table,
}
LEARNED = {"learned": LearnedTanh, "learned-network": LearnedNetwork}


def gaussian_codec(vocab_size: int, settings: "GaussianSettings") -> Embeddings:
    """The codec by name."""
    if settings.codec in CODECS:
        return CODECS[settings.codec](vocab_size)
    return embeddings.learned_table(vocab_size, settings.embedding, settings.norm)


def gaussian_schedule(settings: "GaussianSettings") -> LogSNR:
    """The log-SNR over time."""
    highest, lowest = settings.max_logsnr, settings.min_logsnr
    if settings.timesteps is not None:
        return sqrt_steps(settings.timesteps)
    if settings.schedule not in LEARNED:
        return find_logsnr(settings.schedule, shift=settings.shift, highest=highest, lowest=lowest)
    if highest is None or lowest is None:
        raise UserError(f"schedule={settings.schedule} needs initial values of max_logsnr and min_logsnr, not None.")
    return LEARNED[settings.schedule](highest + settings.shift, lowest + settings.shift)


def gaussian_time_sampler(settings: "GaussianSettings") -> TimeSampler:
    """Intervals of the path and the reconstruction; in discrete time the reconstruction is the first step."""
    name = settings.time_sampler or ("even" if settings.schedule in LEARNED else "information")
    intervals, reconstruction = INTERVALS, RECONSTRUCTION
    if settings.timesteps is not None:
        intervals, reconstruction = settings.timesteps - 1, 1 / settings.timesteps
    elif name == "uniform":
        reconstruction = 0.0
    elif name == "warp":
        intervals = WARP_BINS
    even = torch.full((intervals + 1,), (1 - reconstruction) / intervals, dtype=torch.float64)
    even[-1] = reconstruction
    if name == "warp":
        return TimeSampler(even, entropy_warp=True, pure_warp=True, bins=WARP_BINS)
    drawn = even if name in ("even", "uniform") else None
    return TimeSampler(even, drawn, entropy_warp=name == "entropy", separate_last=name == "split")


class SimplexStem(CoordinateStem):
    """Reads softmax(K z), the point of the simplex that noisy logits stand for (Han et al. 2023, SSD-LM)."""

    def forward(self, z: State) -> State:
        return super().forward(self.in_features**0.5 * (SHARPNESS * z).softmax(-1))


AlphaSigma = Callable[[Times], tuple[Tensor, Tensor]]
"""`GaussianDiffusion.alpha_sigma`: times -> α and σ."""


class Standardised(Wrapper):
    """Scales states to variance 1, z/√(α²|e|²/d + σ²), and appended estimates likewise, √d x̂/|e| (Plaid)."""

    def __init__(self, inner: Denoiser, alpha_sigma: AlphaSigma, width: int, norm: float):
        super().__init__(inner)
        self.alpha_sigma, self.width, self.norm = alpha_sigma, width, norm

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        clean = self.norm**2 / self.width
        alpha, sigma = self.alpha_sigma(t)
        state = z[..., : self.width] / (clean * alpha.square() + sigma.square()).sqrt()
        return self.inner(torch.cat([state, z[..., self.width :] / clean**0.5], -1), t, context, where)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Standardised(inner, self.alpha_sigma, self.width, self.norm)


def _network(
    codec: Embeddings, length: int, network: NetworkConfig, settings: "GaussianSettings", *, inputs: int
) -> Denoiser:
    """The network without its wrappers; its input has this number of features."""
    has_beliefs = settings.input == "belief"
    if settings.input == "simplex" and settings.self_conditioning:
        raise UserError("input=simplex needs self_conditioning=0; use input=state or input=belief with it.")
    outputs = codec.vocab_size if settings.predicts == "tokens" else codec.width
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time adds no information.
    own = registered_denoiser(codec, length, network, reads_time=not has_beliefs, inputs=inputs, outputs=outputs)
    if own is not None:
        return own
    inner = FullTransformer(
        codec, length, network, reads_time=not has_beliefs, subtract_input=settings.subtract_input_embedding
    )
    if settings.input == "simplex":
        inner.stem = SimplexStem(codec.vocab_size, network.width)
    elif has_beliefs or settings.self_conditioning:
        inner.stem = CoordinateStem(inputs, network.width)
    if settings.predicts != "tokens":
        inner.head = LinearHead(network.width, codec.width)
    return inner


def gaussian_network(
    process: GaussianTokenDiffusion,
    codec: Embeddings,
    length: int,
    network: NetworkConfig,
    settings: "GaussianSettings",
) -> Denoiser:
    """The network of a Gaussian diffusion."""
    has_beliefs = settings.input == "belief"
    width = codec.vocab_size if has_beliefs else codec.width
    estimate_width = width if settings.self_conditioning else 0
    inner = _network(codec, length, network, settings, inputs=width + estimate_width)
    add_evidence = settings.predicts == "tokens" and settings.posterior_head
    denoiser: Denoiser = inner
    if settings.input == "scaled":
        assert codec.norm is not None
        denoiser = Standardised(inner, process.alpha_sigma, codec.width, codec.norm)
    if settings.self_conditioning:
        estimate = (
            _belief_estimate(process, add_evidence)
            if has_beliefs
            else _state_estimate(process, add_evidence, settings.clip)
        )
        denoiser = SelfConditioning(
            denoiser, width, estimate_width, estimate, settings.self_conditioning, settings.self_conditioning_period
        )
    denoiser = BeliefInput(denoiser, process.belief) if has_beliefs else denoiser
    return PosteriorHead(denoiser, process.add_evidence) if add_evidence else denoiser


def _state_estimate(
    process: GaussianTokenDiffusion, add_evidence: bool, clip: bool
) -> Callable[[Tensor, State, Times], Tensor]:
    """x̂, from the output of the network."""

    def estimate(out: Tensor, z: State, t: Times) -> Tensor:
        clean = process.predict_x0(process.add_evidence(out, z, t) if add_evidence else out, z, t)
        return clean.clamp(-1, 1) if clip else clean

    return estimate


def _belief_estimate(process: GaussianTokenDiffusion, add_evidence: bool) -> Callable[[Tensor, State, Times], Tensor]:
    """p(token), scaled like the belief that is the input of the network."""

    def estimate(out: Tensor, seen: State, t: Times) -> Tensor:
        scale = out.shape[-1] ** 0.5
        return scale * (out + process.evidence_scale() * seen.clamp_min(1e-30).log() if add_evidence else out).softmax(
            -1
        )

    return estimate
