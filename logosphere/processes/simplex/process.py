"""Paths on the simplex, told by what they do at one position, and the process that runs along any of them.

Inside a path the share s of the way runs from 0 (noise) to 1, where the token is read off; outside, t runs from 0
(data) to 1 (noise). The way is cut into N equal cells, and the reading is one more:

    -log p(x)  ≤ or ≈  Σ_cells E[nats of the cell] + E[-log p_θ(x | z at s = 1)] + prior

Which sign it is depends on the path, and its `kind` says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.geometry.assignment import assigned
from logosphere.noise import Noise, categorical, running_sum
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.processes.time_sampler import TimeSampler
from logosphere.shapes import Float, Int64
from logosphere.types import Kind, Logits, Positions, State, Times

Loss = Literal["cross-entropy", "bound", "diffusion", "squared-error"]
"""`diffusion` is the bound without its reconstruction term."""
Share = Float[Tensor, "..."]
"""The share s of the way that lies behind."""


class Path(nn.Module, ABC):
    """How one position goes from noise to its token. States [..., d] begin with one coordinate for each token."""

    kind: Kind
    """What the sum of `nats` is."""
    width: int
    """Coordinates of a state."""
    offset: float | None
    """Where in its cell a position is looked at: a share of the cell, or None for anywhere."""
    tokens: bool = True
    """Does the network answer with logits of tokens?"""
    tail: float = 0.0
    """Training draws s = 1 + tail · Exp(1) where it would draw s = 1: paths that can go on without end."""

    @abstractmethod
    def start(self, batch: int, length: int, noise: Noise) -> State:
        """z at s = 0, which has nothing to do with the token."""

    @abstractmethod
    def at(self, u: State, s: Share, noise: Noise) -> State:
        """z ~ q(z | x, s)."""

    @abstractmethod
    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        """log q(z | x = k, s), up to what is the same for all k."""

    @abstractmethod
    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        """What a cell of this length costs when z, at s, has been drawn in it; `out` are posterior logits."""

    @abstractmethod
    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """z at `then` >= s, by one step of the model."""

    def reading(self, out: Logits, z: State, s: Share) -> Logits:
        """Logits by which the token is drawn at the end: the network's answer, where it answers with tokens."""
        return out

    def from_posterior(self, posterior: Logits, z: State, s: Share) -> Tensor:
        """The answer of a network that knows these logits of tokens."""
        return posterior

    def squared_error(self, out: Logits, u: State, z: State, s: Share) -> Float[Tensor, "..."]:
        """How far the model's move is from the true one, without any weight."""
        return (out.softmax(-1) - u[..., : out.shape[-1]]).square().sum(-1)

    def prior_kl(self) -> float:
        """KL(q(z | x, s = 0) || p(z)) or more, at each position."""
        return 0.0


@runtime_checkable
class DeterministicPath(Protocol):
    """A path whose model moves without noise."""

    deterministic: bool
    """Some paths move with or without noise."""

    def flow(self, out: Logits, z: State, s: Share) -> State:
        """dz/ds of the model."""

    def onto(self, z: State) -> State:
        """The point of the space of states that belongs to z beside it."""


@runtime_checkable
class DensityPath(DeterministicPath, Protocol):
    """One along which densities can be followed (evaluation/ode_likelihood.py)."""

    smooth: bool
    """Are velocities continuous? Where they jump a density changes by more than their divergence tells."""

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        """log p(z at s = 0), up to a constant."""

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """log q(z at s = 1 | x), up to the same constant."""


@runtime_checkable
class EulerPath(Protocol):
    """A path with the Euler steps of its paper."""

    def paced(self, share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """s after a share of the equal steps."""

    def euler(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """z at `then`, by Euler's method."""

    def decided(self, out: Logits, z: State, s: Share) -> Int64[Tensor, "..."]:
        """The token in which the last step ends."""


def information_gain(
    path: Path, out: Logits, u: State, z: State, ahead: State, s: Share, length: float
) -> Float[Tensor, "..."]:
    """log p(x | z⁺) - log p(x | z), when a position alone goes on for one cell to z⁺ and the others wait."""
    told = path.log_likelihood(ahead, s + length) - path.log_likelihood(z, s)
    told = told - told.gather(-1, u.argmax(-1, keepdim=True))
    return -(out.double().log_softmax(-1) + told).logsumexp(-1).to(out.dtype)


def couple_optimally(start: State, u: State, squared: Callable[[State, State], Float[Tensor, "B C"]]) -> State:
    """Starts exchanged between sequences so that Σ squared(start, u) is smallest: mini-batch optimal transport."""
    return start[assigned(squared(start, u).T)]


class SimplexProcess(Process, OnlineStatistics):
    """A path for all positions at once, looked at when a clock says."""

    def __init__(self, codec: Codec, path: Path, time_sampler: TimeSampler, *, loss: Loss = "cross-entropy"):
        super().__init__()
        self.codec, self.path, self.time_sampler, self.loss_type = codec, path, time_sampler, loss
        self.kind: Kind = path.kind
        self.predicts_tokens = path.tokens
        self.cells = time_sampler.steps - 1
        self.recon_time = (1 + 1e-4 if path.tail else 0.75) / (self.cells + 1)

    # ---- clocks -----------------------------------------------------------------------------------------------

    def share(self, t: Float[Tensor, "..."]) -> Share:
        """s at time t: linear, and 1 for all times of the last step, or more where the path has a tail."""
        s = ((1 - t) * ((self.cells + 1) / self.cells)).clamp(0, 1)
        return s - self.path.tail * (t * (self.cells + 1)).clamp(1e-8, 1).log() if self.path.tail else s

    def time(self, s: Share) -> Float[Tensor, "..."]:
        """t at the share s."""
        return 1 - s * (self.cells / (self.cells + 1))

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """A chain has its own steps; else equal shares of the information lie between the times."""
        return super().grid(steps) if self.path.offset == 0 else self.time_sampler.grid(steps)

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.path.start(batch, length, noise)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return torch.where(t[..., None] > 0, self.path.at(u, self.share(t), noise), u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        block = u.shape[1] // w.shape[1]
        cell, weight = self.time_sampler.sample_step(w, group_size=block)
        t = torch.where(free, self._time(cell, w, weight, block).repeat_interleave(block, 1), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight.repeat_interleave(block, 1).float())

    def _time(self, cell: Int64[Tensor, "B J"], w: Tensor, weight: Tensor, block: int) -> Float[Tensor, "B J"]:
        """The time at which a cell is looked at; that of the reading lies half a cell before the data.

        Where the path has a tail, s = 1 lies a whole cell before the data, and training looks anywhere in between.
        """
        within = torch.as_tensor(self.path.offset or 0.0, device=w.device)
        if self.path.offset is None:  # w is spread evenly over the cell, too
            ends = running_sum(self.time_sampler.probabilities(group_size=block), 0)[cell]
            within = (1 - (ends - w) * weight).clamp(0, 1)
        half = torch.as_tensor(0.5, device=w.device)
        beyond = half if not self.path.tail else within if self.training else torch.zeros_like(half)
        place = torch.where(cell < self.cells, cell + within, self.cells + beyond)
        return (1 - place / (self.cells + 1)).float()

    # ---- the bound --------------------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        said = self.path.log_likelihood(z, self.share(t))
        said = said - said.amax(-1, keepdim=True)
        clean = MAX_LOGIT * (F.one_hot(z[..., : said.shape[-1]].argmax(-1), said.shape[-1]) - 1)
        return torch.where(t[..., None] > 0, said, clean.to(said.dtype))

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        s, last = self.share(t), t <= self.recon_time
        cross_entropy = self._cross_entropy(self.path.reading(out, z, s), u)
        if self.training and self.loss_type == "squared-error":
            along = self.path.squared_error(out, u, z, s)
        else:
            # Cross-entropy learns nothing from nats: they are only noted then, and need no gradient.
            noted = self.training and self.loss_type == "cross-entropy"
            along = self.path.elbo_term(out.detach() if noted else out, u, z, s, 1 / self.cells)
        nats = torch.where(last, cross_entropy, along)
        if self.training:
            cell = torch.where(last, self.cells, (s * self.cells + 1e-4).long().clamp_max(self.cells - 1))
            self.time_sampler.observe(cell, nats, cross_entropy)
        return nats

    def _cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return F.cross_entropy(out, u[..., : out.shape[-1]].argmax(-1), reduction="none")

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        return self.path.from_posterior(posterior, z, self.share(t))

    def loss(self, nats: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """Cross-entropy where the clock draws, the bound, or squared errors, which are the figure of training then."""
        if self.loss_type == "cross-entropy":
            return self._cross_entropy(out, u)
        if self.loss_type == "diffusion":
            return torch.where(t <= self.recon_time, 0.0, nats * weight)
        return nats * weight if self.loss_type == "bound" else nats

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        return torch.full(u.shape[:2], self.path.prior_kl(), device=u.device)

    def accumulators(self) -> list[Tensor]:
        return [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.time_sampler.update_statistics()

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """Along the path; at the end to the corner of a token drawn from p_θ."""
        now, then = self.share(t), self.share(s)
        token = categorical(self.path.reading(out, z, now), noise.uniform(*t.shape))
        corner = F.one_hot(token, z.shape[-1]).to(z.dtype)
        moved = torch.where((then > now)[..., None], self.path.moved(out, z, now, then, noise), z)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], corner, z), moved)
