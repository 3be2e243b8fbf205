"""Paths on the simplex, defined at one position, and the process that applies one of them to all positions.

Inside a path the fraction s runs from 0 (noise) to 1, where the token is decoded; outside, t runs from 0 (data) to 1
(noise). The path is divided into N equal cells, and decoding is one more:

    -log p(x)  ≤ or ≈  Σ_cells E[nats of the cell] + E[-log p_θ(x | z at s = 1)] + prior

The `kind` of a path determines which of the two signs holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.geometry.simplex import linear_assignment
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.time_sampler import TimeSampler
from logosphere.rng import Noise, categorical, running_sum
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times

Loss = Literal["cross-entropy", "bound", "diffusion", "squared-error"]
"""`diffusion` is the bound without its reconstruction term."""
Fraction = Float[Tensor, "..."]
"""The completed fraction s of a path."""


class ConditionalPath(nn.Module, ABC):
    """The path of one position from noise to its token. States [..., d] begin with one coordinate for each token."""

    kind: Kind
    """What the sum of the terms of `elbo_term` is."""
    width: int
    """The number of coordinates of a state."""
    offset: float | None
    """Where in its cell a position is evaluated: a fraction of the cell, or None for a uniform draw from the cell."""
    predicts_tokens: bool = True
    """Whether the network predicts logits of tokens."""
    tail: float = 0.0
    """Training draws s = 1 + tail · Exp(1) in place of s = 1, for paths that can be continued beyond s = 1."""

    @abstractmethod
    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        """z at s = 0, independent of the token."""

    @abstractmethod
    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        """z ~ q(z | x, s)."""

    @abstractmethod
    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        """log q(z | x = k, s), up to a constant for all k."""

    @abstractmethod
    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        """The nats of a cell of this length with the draw z at s; `out` is a prediction."""

    @abstractmethod
    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """z at `then` >= s, by one step of the model."""

    def decode_logits(self, out: Logits, z: State, s: Fraction) -> Logits:
        """Logits from which the token is drawn at s = 1: by default the prediction of the network."""
        return out

    def from_posterior(self, posterior: Logits, z: State, s: Fraction) -> Tensor:
        """The prediction of a network whose posterior has these logits."""
        return posterior

    def squared_error(self, out: Logits, u: State, z: State, s: Fraction) -> Float[Tensor, "..."]:
        """The squared error of the prediction, without a weight."""
        return (out.softmax(-1) - u[..., : out.shape[-1]]).square().sum(-1)

    def prior_kl(self) -> float:
        """KL(q(z | x, s = 0) || p(z)) at each position, or an upper bound of it."""
        return 0.0


class DeterministicPath(ABC):
    """A path along which the model moves without noise."""

    deterministic: bool = True
    """False for an instance that moves with noise."""

    @abstractmethod
    def velocity(self, out: Logits, z: State, s: Fraction) -> State:
        """dz/ds of the model."""

    @abstractmethod
    def project(self, z: State) -> State:
        """The projection of z to the space of states."""


class DensityPath(DeterministicPath):
    """A deterministic path with known densities at both ends (evaluation/ode_likelihood.py)."""

    smooth: bool
    """Whether velocities are continuous. Where they jump, a density changes by more than their divergence."""

    @abstractmethod
    def log_start(self, z: State) -> Float[Tensor, "..."]:
        """log p(z at s = 0), up to a constant."""

    @abstractmethod
    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """log q(z at s = 1 | x), up to the same constant."""


class EulerPath(ABC):
    """A path with the Euler steps of its paper."""

    @abstractmethod
    def euler(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """z at `then`, by Euler's method."""

    def euler_times(self, fraction: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """s after a fraction of the equal steps."""
        return fraction

    def final_token(self, out: Logits, z: State, s: Fraction) -> Int64[Tensor, "..."]:
        """The token of the last step: by default the most likely one of the last prediction."""
        return out.argmax(-1)


def information_gain(
    path: ConditionalPath, out: Logits, u: State, z: State, ahead: State, s: Fraction, length: float
) -> Float[Tensor, "..."]:
    """log p(x | z⁺) - log p(x | z), when one position alone moves on for one cell to z⁺ and the others stay."""
    evidence = path.log_likelihood(ahead, s + length) - path.log_likelihood(z, s)
    evidence = evidence - evidence.gather(-1, u.argmax(-1, keepdim=True))
    return -(out.double().log_softmax(-1) + evidence).logsumexp(-1).to(out.dtype)


def couple_optimally(start: State, u: State, squared: Callable[[State, State], Float[Tensor, "B C"]]) -> State:
    """Starts permuted between sequences so that Σ squared(start, u) is smallest: mini-batch optimal transport."""
    return start[linear_assignment(squared(start, u).T)]


class SimplexProcess(Process, OnlineStatistics):
    """A conditional path for all positions at once, at times from a time sampler."""

    shares_times = True

    def __init__(self, codec: Codec, path: ConditionalPath, time_sampler: TimeSampler, *, loss: Loss = "cross-entropy"):
        super().__init__()
        self.codec, self.path, self.time_sampler, self.loss_type = codec, path, time_sampler, loss
        self.kind: Kind = path.kind
        self.predicts_tokens = path.predicts_tokens
        self.cells = time_sampler.steps - 1
        self.recon_time = (1 + 1e-4 if path.tail else 0.75) / (self.cells + 1)

    # ---- times ------------------------------------------------------------------------------------------------

    def fraction(self, t: Float[Tensor, "..."]) -> Fraction:
        """s at time t: linear, and 1 for all times of the last step, or more for a path with a tail."""
        s = ((1 - t) * ((self.cells + 1) / self.cells)).clamp(0, 1)
        return s - self.path.tail * (t * (self.cells + 1)).clamp(1e-8, 1).log() if self.path.tail else s

    def time(self, s: Fraction) -> Float[Tensor, "..."]:
        """t at the fraction s."""
        return 1 - s * (self.cells / (self.cells + 1))

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """The steps of a chain, or times with equal fractions of the information between them."""
        return super().grid(steps) if self.path.offset == 0 else self.time_sampler.grid(steps)

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.path.sample_prior(batch, length, noise)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return torch.where(t[..., None] > 0, self.path.q_sample(u, self.fraction(t), noise), u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        block = u.shape[1] // w.shape[1]
        cell, weight = self.time_sampler.sample_step(w, group_size=block)
        t = torch.where(free, self._cell_time(cell, w, weight, block).repeat_interleave(block, 1), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight.repeat_interleave(block, 1).float())

    def _cell_time(self, cell: Int64[Tensor, "B J"], w: Tensor, weight: Tensor, block: int) -> Float[Tensor, "B J"]:
        """The time at which a cell is evaluated; that of decoding is half a cell before the data.

        For a path with a tail s = 1 is a whole cell before the data, and training draws from the interval between.
        """
        within = torch.full((), self.path.offset or 0.0, device=w.device)
        if self.path.offset is None:  # w is uniform within the cell, too
            ends = running_sum(self.time_sampler.probabilities(group_size=block), 0)[cell]
            within = (1 - (ends - w) * weight).clamp(0, 1)
        half = torch.full((), 0.5, device=w.device)
        beyond = half if not self.path.tail else within if self.training else torch.zeros_like(half)
        position = torch.where(cell < self.cells, cell + within, self.cells + beyond)
        return (1 - position / (self.cells + 1)).float()

    # ---- the bound --------------------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return with_clean_states(self.path.log_likelihood(z, self.fraction(t)), z, t)

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        s, last = self.fraction(t), t <= self.recon_time
        cross_entropy = self._cross_entropy(self.path.decode_logits(out, z, s), u)
        if self.training and self.loss_type == "squared-error":
            term = self.path.squared_error(out, u, z, s)
        else:
            # With the cross-entropy loss the time sampler observes the nats, which need no gradient then.
            observed = self.training and self.loss_type == "cross-entropy"
            term = self.path.elbo_term(out.detach() if observed else out, u, z, s, 1 / self.cells)
        nats = torch.where(last, cross_entropy, term)
        if self.training:
            cell = torch.where(last, self.cells, (s * self.cells + 1e-4).long().clamp_max(self.cells - 1))
            self.time_sampler.observe(cell, nats, cross_entropy)
        return nats

    def _cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return F.cross_entropy(out, u[..., : out.shape[-1]].argmax(-1), reduction="none")

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        return self.path.from_posterior(posterior, z, self.fraction(t))

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """Cross-entropy without weights, the bound, or squared errors, which `elbo_rate` returns in training then."""
        if self.loss_type == "cross-entropy":
            return self._cross_entropy(out, u)
        if self.loss_type == "diffusion":
            return torch.where(t <= self.recon_time, 0.0, rate * weight)
        return rate * weight if self.loss_type == "bound" else rate

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        return torch.full(u.shape[:2], self.path.prior_kl(), device=u.device)

    def accumulators(self) -> list[Tensor]:
        return [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.time_sampler.update_statistics()

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """A step along the path; at s = 0 the corner of a token drawn from p_θ."""
        now, then = self.fraction(t), self.fraction(s)
        token = categorical(self.path.decode_logits(out, z, now), noise.uniform(*t.shape))
        corner = F.one_hot(token, z.shape[-1]).to(z.dtype)
        moved = torch.where((then > now)[..., None], self.path.step(out, z, now, then, noise), z)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], corner, z), moved)


def with_clean_states(evidence: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
    """Log-likelihoods with maximum 0; at t = 0 the state determines the token."""
    evidence = evidence - evidence.amax(-1, keepdim=True)
    clean = MAX_LOGIT * (F.one_hot(z[..., : evidence.shape[-1]].argmax(-1), evidence.shape[-1]) - 1)
    return torch.where(t[..., None] > 0, evidence, clean.to(evidence.dtype))
