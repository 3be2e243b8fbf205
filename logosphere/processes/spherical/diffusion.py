"""Diffusion on the sphere (Jo and Hwang 2025, RDLM): a bridge leads from a common start to the vertex of each token.

Inside this file the bridge's own clock s runs from 0 (start) to 1 (vertex); outside, t runs from 0 (data) to 1 (noise).
The path is followed to s* < 1, where the token is read off, through N tabulated times, of which the last is the
reconstruction. With p_k the posterior and g the bridge's pull, model and bridge move by

    η_θ = Σ_k p_k g(<X, e_k>) (e_k - <X, e_k> X)        η_x = g(<X, e_x>) (e_x - <X, e_x> X)

and both share their noise, so that by Girsanov's theorem

    -log p(x) ≤ ∫₀^{s*} E |η_θ - η_x|² / 2V ds + E[-log p_θ(x | X_{s*})]

is a bound for every network; for the heat bridge it is tight. The integral is a trapezoidal sum over the tabulated
times. With `chain` it is the sum of left ends instead: the exact divergence of the geodesic random walk over those
times, a bound for the sampler that takes just these steps.
"""

from collections.abc import Sequence
from copy import copy
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge, HeatBridge, Law
from logosphere.noise import Noise, categorical, running_sum
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.capabilities import MixtureOfPaths, OnlineStatistics, PositionTimes, TrainingPhases
from logosphere.processes.spherical.any_order import AnyOrder
from logosphere.processes.spherical.noise_rates import noise_left
from logosphere.processes.spherical.rolling import RollingOffsets
from logosphere.processes.spherical.steps import MOVES, Move
from logosphere.processes.spherical.tangent_normal import normal_log_p, tangent_moments
from logosphere.processes.time_sampler import TimeSampler, locate, place, rdlm_time
from logosphere.shapes import Float, Int64
from logosphere.types import Logits, Positions, State, Times

Loss = Literal["cross-entropy", "importance-weighted", "bound-weighted", "drift"]
T_MAX = 1 - 1e-6
"""The time of a position that is on its way but still at its start; at 1 it waits for its turn."""


class Start(NamedTuple):
    """A point that is as far from every vertex as from any other, and the law of the bridges that begin there."""

    origin: Float[Tensor, " d"]
    law: Law


class SphericalDiffusion(Process, OnlineStatistics, TrainingPhases, MixtureOfPaths, PositionTimes):
    """Bridges from one of `starts` to vertices, along tabulated laws that have the same times.

    `shares` [N, C] say how likely each start is, at each time. Where they are constant the start is drawn once per
    sequence, and the bound is one. Where they change, no process has these marginals by itself: what is computed then,
    as in the paper's mixture paths, is a surrogate.

    All positions move together, or staggered. With `turns` bounds are measured and samples drawn along another path, on
    which one position moves at a time (turns.py). Training shows states of the first path, and in the share
    `any_order_fraction` of the sequences states of the second.
    """

    schedule = "geometric"
    """RDLM's schedule, in whose time its sampler walks (rates.py)."""
    times: Tensor
    lengths: Tensor
    origins: Tensor
    a: Tensor
    b: Tensor
    moments: Tensor
    shares: Tensor

    def __init__(
        self,
        codec: Codec,
        bridge: Bridge,
        starts: Sequence[Start],
        clock: TimeSampler,
        *,
        shares: Float[Tensor, "N C"] | None = None,
        loss: Loss = "cross-entropy",
        switch: float | None = None,
        exact: bool = True,
        chain: bool = False,
        stagger: RollingOffsets | None = None,
        turns: AnyOrder | None = None,
        training_turns: AnyOrder | None = None,
        any_order_fraction: float = 0.0,
    ):
        super().__init__()
        self.codec, self.bridge, self.clock, self.choices = codec, bridge, clock, codec.choices
        times = starts[0].law.times
        self.timesteps = len(times)
        self.recon_time = 1.5 / self.timesteps
        self.loss_type, self.switch, self.done = loss, switch, 0.0
        self.chain, self.stagger = chain, stagger
        self.turns, self.any_order_fraction = turns, any_order_fraction
        self.training_turns = training_turns or turns or AnyOrder()
        self.time_conditional = turns is None  # in turn a state is a start or a vertex, and shows which
        shares = torch.full((self.timesteps, len(starts)), 1 / len(starts)) if shares is None else shares
        alike = bool((shares == shares[0]).all())
        # Girsanov's integral is a bound under the law of the bridge alone; in turn no table is read.
        self.kind = "bound" if alike and (exact or turns is not None) else "surrogate"
        self.num_components = len(starts) if alike else 1
        self.component: int | None = None
        d = self.choices + 1
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("lengths", _lengths(times, chain=chain).float(), persistent=False)
        self.register_buffer("origins", torch.stack([s.origin for s in starts]).float(), persistent=False)
        self.register_buffer("a", torch.stack([s.law.a for s in starts]), persistent=False)
        self.register_buffer("b", torch.stack([s.law.b for s in starts]), persistent=False)
        self.register_buffer("moments", torch.stack([tangent_moments(s.law, d) for s in starts]), persistent=False)
        self.register_buffer("shares", shares.float(), persistent=False)

    # ---- clocks -----------------------------------------------------------------------------------------------

    def _node(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The row of the table nearest to time t > 0."""
        return ((1 - t) * self.timesteps).round().long().clamp(0, self.timesteps - 1)

    def _s(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The bridge's time at t, linear between the rows of the table; s* for all t below the last row."""
        place = ((1 - t) * self.timesteps).clamp(0, self.timesteps - 1)
        low = place.floor().long().clamp_max(self.timesteps - 2)
        return torch.lerp(self.times[low], self.times[low + 1], place - low)

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times of the common clock. In turn it runs evenly, and every step lets as many positions move."""
        return super().grid(steps) if self.turns is not None else self.joint_grid(steps)

    def joint_grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times 1 … 0 between which equal shares of the information appear, as the clock has measured it.

        A chain has its own steps, and its bound is that of a sampler which takes just these. Staggered positions have
        their own clocks, and the common one runs evenly.
        """
        if self.chain or self.stagger is not None:
            return super().grid(steps)
        return self.clock.grid(steps)

    def schedule_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """RDLM's own time τ (rates.py) at t; times below that of the last row stand for s* … 1."""
        last = 1 - float(self.times[-1])
        s = torch.where(t * self.timesteps < 1, 1 - t.double() * self.timesteps * last, self._s(t).double())
        return rdlm_time(self.schedule, s)

    def time_of(self, tau: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The inverse of `schedule_time`, for a grid of times."""
        s, times = 1 - noise_left(self.schedule, 1 - tau.double()), self.times.double().to(tau.device)
        low = (torch.searchsorted(times, s, right=True) - 1).clamp(0, self.timesteps - 2)
        place = low + ((s - times[low]) / (times[low + 1] - times[low])).clamp(0, 1)
        beyond = (1 - s) / (1 - times[-1]) / self.timesteps
        return torch.where(s < times[-1], 1 - place / self.timesteps, beyond).float()

    def position_times(self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise) -> Float[Tensor, " S #B M"]:
        if self.turns is not None:
            return self.turns.position_times(rows, free, noise)
        return self.joint_position_times(rows, free, noise)

    def joint_position_times(
        self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """Clocks of the path on which positions move together, whatever path bounds and samples take by default."""
        if self.stagger is None:
            return rows[:, None]
        q = self.stagger.covered(1 - rows[:, None].double(), self.stagger.offsets(free, noise))
        t = 1 - place(self.clock.pace(), q.clamp(0, 1)) / self.timesteps
        return torch.where(q < 1, t, 0.0).float()

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        which = self._which(torch.ones(batch, length, device=self.times.device), noise)
        return self.origins[which].expand(batch, length, -1).clone()

    def _which(self, t: Times, noise: Noise) -> Int64[Tensor, "#B #L"]:
        """Which start: drawn once for each sequence, or as told."""
        if len(self.origins) == 1 or self.component is not None:
            return torch.full((1, 1), self.component or 0, device=t.device)
        u = noise.uniform(len(t))[:, None, None]
        return (u > running_sum(self.shares_at(t).double())).sum(-1).clamp_max(len(self.origins) - 1)

    def select_component(self, component: int) -> "SphericalDiffusion":
        selected = copy(self)  # shares parameters and buffers
        selected.component = component
        return selected

    def shares_at(self, t: Times) -> Float[Tensor, "B L C"]:
        """How likely each start is at time t."""
        return self.shares[self._node(t)]

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """X = a e + b u₀ + c ν with (a, b) from the table and ν uniform across both: exact, and no simulation."""
        a, b, origin = self._drawn(t, noise)
        cosine = origin[..., :1]  # of the start with every vertex alike
        across = (origin - cosine * u) / (1 - cosine.square()).sqrt()
        nu = noise.normal(*u.shape)
        nu = nu - sphere.dot(nu, u) * u - sphere.dot(nu, across) * across
        c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
        return torch.where(t[..., None] > 0, a * u + b * across + c * sphere.normalised(nu), u)

    def _drawn(self, t: Times, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs (a, b) [B, L, 1] from the table, and the start they belong to."""
        node, which = self._node(t), self._which(t, noise)
        particle = (noise.uniform(*t.shape) * self.a.shape[-1]).long()
        at = (which, node, particle)
        return self.a[at][..., None], self.b[at][..., None], self.origins[which]

    @property
    def in_turn(self) -> bool:
        """Is a bound being measured along the path on which one position moves at a time?"""
        return self.turns is not None and not self.training

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        if self.turns is not None and self.in_turn:
            waiting, weight = self.turns.waiting(w, free, noise)
            return ForwardSample(
                torch.where(waiting[..., None], self.prior(len(free), free.shape[1], noise), u), waiting.float(), weight
            )
        t, weight = self._times(w, free, noise)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    def _times(self, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> tuple[Times, Float[Tensor, "B M"]]:
        """Times at the quantiles w, and their weights: 0 where a position waits at t = 1 or is done at t = 0.

        Sequences that are taught in turn count as in their own bound, so that the mean of all is one too.
        """
        block = free.shape[1] // w.shape[1]
        if self.stagger is None:
            node, weight = locate(self.clock.probabilities(together=block), w.repeat_interleave(block, 1))
        else:
            q = self.stagger.covered(w.repeat_interleave(block, 1), self.stagger.offsets(free, noise))
            node, weight = locate(self.clock.pace(), q.clamp(0, 1))
            weight = torch.where((q > 0) & (q < 1), weight / (1 - self.stagger.spread), 0.0)
            node = torch.where(q < 1, node, self.timesteps)
        t = torch.where(free, 1 - (node / self.timesteps).float(), 0.0)
        t = torch.where(weight > 0, t.clamp_max(T_MAX), t)
        if self.training and self.any_order_fraction:
            turned = noise.uniform(len(free))[:, None] < self.any_order_fraction
            waiting, counts = self.training_turns.waiting(w, free, noise)
            t = torch.where(turned, waiting.float(), t)
            weight = torch.where(turned, counts.double(), weight)
        return t, weight.float()

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving & (z[..., : self.choices].amax(-1) < 1) if self.in_turn else moving

    # ---- what a state says ------------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """log p(X | token k), up to a constant: exact for the heat bridge, log p_{V(1-s)}(X, e_k), whatever its start.

        For the log bridge X is taken for normal in the tangent space at its mean direction (tangents.py).
        """
        cosine = z[..., : self.choices]
        if isinstance(self.bridge, HeatBridge):
            said = self.bridge.log_p(cosine, self._s(t))
        else:
            node = self._node(t)
            every = [self._normal_likelihood(z, node, which) for which in range(len(self.origins))]
            said = every[0] if len(every) == 1 else torch.stack(every).logsumexp(0)
        said = said - said.amax(-1, keepdim=True)
        clean = MAX_LOGIT * (F.one_hot(cosine.argmax(-1), self.choices) - 1)
        return torch.where(t[..., None] > 0, said, clean.to(said.dtype))

    def _normal_likelihood(self, z: State, node: Tensor, which: int) -> Float[Tensor, "... K"]:
        origin, cosine = self.origins[which], z[..., : self.choices]
        start, d = origin[0], z.shape[-1]
        b = (sphere.dot(z, origin) - start * cosine) / (1 - start.square()).sqrt()
        moments = self.moments[which][node]
        said = normal_log_p(cosine, b, moments, d)
        if len(self.origins) > 1:
            share = self.shares[node, which][..., None].clamp_min(1e-30).log()
            along, across = moments[..., 3:, None].clamp_min(1e-6).log().unbind(-2)
            said = said + share + 0.5 * (along + (d - 2) * across)
        return said

    # ---- the law of the token, by which splitting differs -------------------------------------------------------

    def probabilities(self, out: Logits) -> Float[Tensor, "... K"]:
        """p_k of each state."""
        return out.softmax(-1)

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return F.cross_entropy(out, u[..., : self.choices].argmax(-1), reduction="none")

    def draw(self, out: Logits, noise: Noise) -> Int64[Tensor, " N"]:
        return categorical(out, noise.uniform(len(out)))

    # ---- the bound --------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The divergence of the walk around this time; at the last one also that of reading the token off.

        A position that waits goes all its way at once when its turn comes, and the evidence cancels (turns.py).
        """
        node = self._node(t)
        nats = self.apart(out, u, z, self._s(t)) * self.lengths[node] / (2 * self.bridge.total_noise)
        cross_entropy = self.cross_entropy(out, u)
        nats = nats + torch.where(node == self.timesteps - 1, cross_entropy, 0.0)
        return torch.where(t == 1, cross_entropy, nats)

    def apart(self, out: Logits, u: State, z: State, s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|η_θ - η_x|² at the bridge's time s."""
        target, cosine = u[..., : self.choices], z[..., : self.choices]
        excess = (self.probabilities(out) - target) * self.bridge.pull(cosine, s)
        return (excess.square().sum(-1) - (excess * cosine).sum(-1).square()).clamp_min(0)

    def loss(self, nats: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """Cross-entropy at the times the clock draws, plain or weighted, or the bound itself (drift).

        Plain cross-entropy is also learned from positions that wait, as from masks.
        """
        cross_entropy, node = self.cross_entropy(out, u), self._node(t)
        if self.training:
            moving = (weight > 0) & (t < 1)
            self.clock.observe(node[moving], nats[moving], cross_entropy[moving])
        if self.loss_type == "drift":
            return nats * weight
        late = self.switch is not None and self.done >= self.switch
        if self.loss_type == "bound-weighted" or late:
            return cross_entropy * (self.clock.worth(node) * weight).to(cross_entropy.dtype)
        if self.loss_type == "importance-weighted":
            return cross_entropy * (self.clock.base[node] * weight).to(cross_entropy.dtype)
        return torch.where(t > 0, cross_entropy, 0.0)

    def on_step_start(self, progress: float) -> None:
        self.done = progress

    def accumulators(self) -> list[Tensor]:
        return [self.clock.pending]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.clock.update_statistics()

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """Towards a token drawn from p_θ by a step of its bridge, or the walk of a chain; at the end to a vertex."""
        return self.moved(MOVES["geodesic" if self.chain else "bridge"], out, z, t, s, noise)

    def moved(self, move: Move, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """A step by any of the moves; the last one, to s = 0, has no noise but that of the token drawn from p_θ."""
        token = self.draw(out, noise)
        vertex = F.one_hot(token, z.shape[-1]).to(z.dtype)
        if bool((s == 0).all()):
            return torch.where((t > 0)[..., None], vertex, z)
        now = self._s(t)
        walked = move(self.bridge, self.probabilities(out), token, z, now, self._s(s).maximum(now), noise)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], vertex, z), walked)


def _lengths(times: Tensor, *, chain: bool) -> Float[Tensor, " N"]:
    """How much time each tabulated time stands for: up to the next one, or half of the way to both neighbours."""
    steps = times.diff()
    after = F.pad(steps, (0, 1))
    return after if chain else (after + F.pad(steps, (1, 0))) / 2
