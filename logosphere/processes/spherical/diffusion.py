"""Diffusion on the sphere (Jo and Hwang 2025, RDLM): a bridge leads from a common start to the vertex of each token.

Inside this file the bridge's time s runs from 0 (start) to 1 (vertex); outside, t runs from 0 (data) to 1 (noise).
The path is followed to s* < 1, where the token is decoded, through N tabulated times, of which the last is the
reconstruction. With p_k the posterior and g the strength of the bridge's drift, model and bridge drift by

    η_θ = Σ_k p_k g(<X, e_k>) (e_k - <X, e_k> X)        η_x = g(<X, e_x>) (e_x - <X, e_x> X)

and both have the same noise, so that by Girsanov's theorem

    -log p(x) ≤ ∫₀^{s*} E |η_θ - η_x|² / 2V ds + E[-log p_θ(x | X_{s*})]

is a bound for every network; for the heat bridge it is tight. The integral is a trapezoidal sum over the tabulated
times. With `chain` it is the sum of left ends instead: the exact divergence of the geodesic random walk over those
times, a bound for the sampler that takes exactly these steps.

Along the *joint* path all positions move at the same time, or with rolling offsets. Along the *any-order* path one
position moves at a time, and bounds and samples have a closed form (times.py).
"""

from collections.abc import Sequence
from copy import copy
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.errors import UserError
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge, BridgeTable, HeatBridge, tangent_moments, tangent_normal_log_p
from logosphere.processes import capabilities
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.spherical.steps import SPHERICAL_STEPS, SphericalStep
from logosphere.processes.spherical.times import AnyOrder, RollingOffsets, interval_lengths, noise_left, rdlm_time
from logosphere.processes.time_sampler import TimeSampler, inverse_cdf, sample_step
from logosphere.rng import Noise, categorical, running_sum
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times

Loss = Literal["cross-entropy", "importance-weighted", "bound-weighted", "drift"]
PathName = Literal["joint", "any-order"]
T_MAX = 1 - 1e-6
"""The time of a position that moves but is still at its start. At t = 1 a position waits in the any-order path."""


class Start(NamedTuple):
    """A point with the same distance to every vertex, and the table of the bridges that begin there."""

    origin: Float[Tensor, " d"]
    table: BridgeTable


class SphericalDiffusion(
    Process,
    capabilities.OnlineStatistics,
    capabilities.TrainingPhases,
    capabilities.MixtureOfPaths,
    capabilities.SeveralPaths,
    capabilities.PositionTimes,
    capabilities.Unmasking,
):
    """Bridges from one of `starts` to vertices, along tabulated distributions that have the same times.

    `start_probabilities` [N, C] are those of the starts at each time. Where they are constant the start is drawn once
    per sequence, and the value is a bound. Where they change, no process has these marginals: the value is then a
    surrogate, as for the paper's mixture paths. It is also one along the joint path with transitions that are not
    `exact`.

    `path` is the path of bounds and samples. Along the joint path positions may have `rolling` offsets. Training draws
    states of the joint path, and for the fraction `any_order_fraction` of the sequences states of the any-order path.
    """

    times_follow_masks = True
    schedule = "geometric"
    """RDLM's noise schedule, in whose time its sampler takes equal steps (times.py)."""
    times: Tensor
    lengths: Tensor
    origins: Tensor
    a: Tensor
    b: Tensor
    moments: Tensor
    start_probabilities: Tensor

    def __init__(
        self,
        codec: Codec,
        bridge: Bridge,
        starts: Sequence[Start],
        time_sampler: TimeSampler,
        *,
        start_probabilities: Float[Tensor, "N C"] | None = None,
        loss: Loss = "cross-entropy",
        switch: float | None = None,
        exact: bool = True,
        chain: bool = False,
        rolling: RollingOffsets | None = None,
        path: PathName = "joint",
        any_order: AnyOrder | None = None,
        any_order_fraction: float | str = 0.0,
    ):
        super().__init__()
        self.codec, self.bridge, self.time_sampler, self.num_classes = codec, bridge, time_sampler, codec.num_classes
        times = starts[0].table.times
        self.timesteps = len(times)
        self.recon_time = 1.5 / self.timesteps
        self.loss_type, self.switch, self.progress = loss, switch, 0.0
        self.exact, self.chain, self.rolling = exact, chain, rolling
        self.path_name, self.any_order, self.any_order_fraction = path, any_order or AnyOrder(), any_order_fraction
        equal = torch.full((self.timesteps, len(starts)), 1 / len(starts))
        p = equal if start_probabilities is None else start_probabilities
        self.constant_start = bool((p == p[0]).all())
        self.num_components = len(starts) if self.constant_start else 1
        self.component: int | None = None
        moments = [tangent_moments(start.table.a, start.table.b, self.num_classes + 1) for start in starts]
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("lengths", interval_lengths(times, chain=chain).float(), persistent=False)
        self.register_buffer("origins", torch.stack([start.origin for start in starts]).float(), persistent=False)
        self.register_buffer("a", torch.stack([start.table.a for start in starts]), persistent=False)
        self.register_buffer("b", torch.stack([start.table.b for start in starts]), persistent=False)
        self.register_buffer("moments", torch.stack(moments), persistent=False)
        self.register_buffer("start_probabilities", p.float(), persistent=False)

    # ---- paths and mixtures -------------------------------------------------------------------------------------

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """Girsanov's integral is a bound under the distribution of the bridge; any order needs no transitions."""
        exact = self.exact or self.path_name == "any-order"
        return "bound" if self.constant_start and exact else "surrogate"

    @property
    def time_conditional(self) -> bool:  # type: ignore[override]
        """In any order a state is a start or a vertex, which shows the time."""
        return self.path_name == "joint"

    @property
    def shares_times(self) -> bool:  # type: ignore[override]
        """Not where positions have offsets of their own, nor in any order."""
        in_any_order = self.any_order_fraction != 0 if self.training else self.path_name == "any-order"
        return self.rolling is None and not in_any_order

    @property
    def path_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """A chain and a start that changes with time have the joint path only."""
        return ("joint", "any-order") if self.constant_start and not self.chain else ("joint",)

    @property
    def trained_paths(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.path_names if self.any_order_fraction else ("joint",)

    def with_path(self, name: str) -> "SphericalDiffusion":
        if name not in self.path_names:
            raise UserError(f"There is no path '{name}' here; there is {' and '.join(self.path_names)}.")
        selected = copy(self)  # shares parameters and buffers
        selected.path_name = name
        return selected

    def select_component(self, component: int) -> "SphericalDiffusion":
        selected = copy(self)  # shares parameters and buffers
        selected.component = component
        return selected

    # ---- times --------------------------------------------------------------------------------------------------

    def _node(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The row of the table nearest to time t > 0."""
        return ((1 - t) * self.timesteps).round().long().clamp(0, self.timesteps - 1)

    def _s(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The bridge's time at t, linear between the rows of the table; s* for all t below the last row."""
        place = ((1 - t) * self.timesteps).clamp(0, self.timesteps - 1)
        low = place.floor().long().clamp_max(self.timesteps - 2)
        return torch.lerp(self.times[low], self.times[low + 1], place - low)

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times of the sampler: equal steps in any order, so that every step moves as many positions."""
        return super().grid(steps) if self.path_name == "any-order" else self.joint_grid(steps)

    def joint_grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times 1 … 0 between which equal fractions of the information appear, as the time sampler has measured it.

        The bound of a chain is that of a sampler with its steps. With rolling offsets steps are equal.
        """
        if self.chain or self.rolling is not None:
            return super().grid(steps)
        return self.time_sampler.grid(steps)

    def schedule_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """RDLM's own time τ (times.py) at t; times below that of the last row stand for s* … 1."""
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
        if self.path_name == "any-order":
            return self.any_order.position_times(rows, free, noise)
        return self.joint_position_times(rows, free, noise)

    def joint_position_times(
        self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """Times of the positions along the joint path, also where bounds and samples take the any-order path."""
        if self.rolling is None:
            return rows[:, None]
        q = self.rolling.covered(1 - rows[:, None].double(), self.rolling.offsets(free, noise))
        t = 1 - inverse_cdf(self.time_sampler.step_allocation(), q.clamp(0, 1)) / self.timesteps
        return torch.where(q < 1, t, 0.0).float()

    @property
    def unmasks_tokens(self) -> bool:
        """Along the any-order path a position is at the start or at a vertex. Digits of one token move at once."""
        return self.path_name == "any-order" and self.any_order.states_per_token == 1

    def masked_fraction(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return t

    def unmasking_times(self, t: Times, masked: Positions) -> Times:
        return masked.float()

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        t = torch.ones(batch, length, device=self.times.device)
        return self.origins[self._sample_start(t, noise)].expand(batch, length, -1).clone()

    def _sample_start(self, t: Times, noise: Noise) -> Int64[Tensor, "#B #L"]:
        """The index of the start, drawn once for each sequence, or that of the selected component."""
        if len(self.origins) == 1 or self.component is not None:
            return torch.full((1, 1), self.component or 0, device=t.device)
        u = noise.uniform(len(t))[:, None, None]
        return (u > running_sum(self.start_probabilities_at(t).double())).sum(-1).clamp_max(len(self.origins) - 1)

    def start_probabilities_at(self, t: Times) -> Float[Tensor, "B L C"]:
        return self.start_probabilities[self._node(t)]

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """X = a e + b u₀ + c ν with (a, b) from the table and ν uniform orthogonal to both, without simulation."""
        a, b, which = self._sample_ab(t, noise)
        cosine = (origin := self.origins[which])[..., :1]  # the same with every vertex
        across = (origin - cosine * u) / (1 - cosine.square()).sqrt()
        nu = noise.normal(*u.shape)
        nu = nu - sphere.dot(nu, u) * u - sphere.dot(nu, across) * across
        c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
        return torch.where(t[..., None] > 0, a * u + b * across + c * sphere.normalise(nu), u)

    def _sample_ab(self, t: Times, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs (a, b) [B, L, 1] from the table, and the index of the start they belong to."""
        which = self._sample_start(t, noise)
        at = (which, self._node(t), (noise.uniform(*t.shape) * self.a.shape[-1]).long())
        return self.a[at][..., None], self.b[at][..., None], which

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        if self.path_name == "any-order" and not self.training:
            waiting, weight = self.any_order.waiting(w, free, noise)
            z = torch.where(waiting[..., None], self.prior(len(free), free.shape[1], noise), u)
            return ForwardSample(z, waiting.float(), weight)
        t, weight = self._sample_times(w, free, noise)
        return ForwardSample(self.corrupt(u, t, noise), t, weight)

    def _sample_times(self, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> tuple[Times, Tensor]:
        """Times at the quantiles w, and their weights: 0 where a position waits at t = 1 or is clean at t = 0.

        Sequences with states of the any-order path have the weights of its bound, so that the mean of all is a bound.
        """
        block = free.shape[1] // w.shape[1]
        if self.rolling is None:
            node, weight = sample_step(self.time_sampler.probabilities(group_size=block), w.repeat_interleave(block, 1))
        else:
            q = self.rolling.covered(w.repeat_interleave(block, 1), self.rolling.offsets(free, noise))
            node, weight = sample_step(self.time_sampler.step_allocation(), q.clamp(0, 1))
            weight = torch.where((q > 0) & (q < 1), weight / (1 - self.rolling.spread), 0.0)
            node = torch.where(q < 1, node, self.timesteps)
        t = torch.where(free, 1 - (node / self.timesteps).float(), 0.0)
        t = torch.where(weight > 0, t.clamp_max(T_MAX), t)
        if self.training and self.any_order_fraction:
            chosen = noise.uniform(len(free))[:, None] < self.any_order.share(self.any_order_fraction, self.progress)
            waiting, weights = self.any_order.waiting(w, free, noise)
            t = torch.where(chosen, waiting.float(), t)
            weight = torch.where(chosen, weights.double(), weight)
        return t, weight.float()

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        if self.path_name == "joint" or self.training:
            return moving
        return moving & (z[..., : self.num_classes].amax(-1) < 1)

    # ---- the posterior of a token -------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """log p(X | token k), up to a constant: exact for the heat bridge, log p_{V(1-s)}(X, e_k), for every start.

        For the log bridge X is approximated as normal in the tangent space at its mean direction (geometry/bridges.py).
        """
        cosine = z[..., : self.num_classes]
        if isinstance(self.bridge, HeatBridge):
            log_p = self.bridge.log_p(cosine, self._s(t))
        else:
            node = self._node(t)
            per_start = [self._normal_likelihood(z, node, which) for which in range(len(self.origins))]
            log_p = per_start[0] if len(per_start) == 1 else torch.stack(per_start).logsumexp(0)
        log_p = log_p - log_p.amax(-1, keepdim=True)
        clean = MAX_LOGIT * (F.one_hot(cosine.argmax(-1), self.num_classes) - 1)
        return torch.where(t[..., None] > 0, log_p, clean.to(log_p.dtype))

    def _normal_likelihood(self, z: State, node: Tensor, which: int) -> Float[Tensor, "... K"]:
        origin, cosine = self.origins[which], z[..., : self.num_classes]
        start, d = origin[0], z.shape[-1]
        b = (sphere.dot(z, origin) - start * cosine) / (1 - start.square()).sqrt()
        moments = self.moments[which][node]
        log_p = tangent_normal_log_p(cosine, b, moments, d)
        if len(self.origins) > 1:
            log_prior = self.start_probabilities[node, which][..., None].clamp_min(1e-30).log()
            along, across = moments[..., 3:, None].clamp_min(1e-6).log().unbind(-2)
            log_p = log_p + log_prior + 0.5 * (along + (d - 2) * across)
        return log_p

    def probabilities(self, out: Logits) -> Float[Tensor, "... K"]:
        """p_k of each state."""
        return out.softmax(-1)

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return F.cross_entropy(out, u[..., : self.num_classes].argmax(-1), reduction="none")

    def draw(self, out: Logits, noise: Noise) -> Int64[Tensor, " N"]:
        return categorical(out, noise.uniform(len(out)))

    # ---- the bound ------------------------------------------------------------------------------------------------

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The divergence of the drifts around this time; at the last one also the reconstruction term.

        A waiting position, t = 1, covers its whole path at once when it moves, and the evidence cancels (times.py).
        """
        return self._rate(self.squared_drift_error(out, u, z, self._s(t)), self.cross_entropy(out, u), t)

    def _rate(self, error: Tensor, cross_entropy: Tensor, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        node = self._node(t)
        rate = error * self.lengths[node] / (2 * self.bridge.total_noise)
        rate = rate + torch.where(node == self.timesteps - 1, cross_entropy, 0.0)
        return torch.where(t == 1, cross_entropy, rate)

    def squared_drift_error(self, out: Logits, u: State, z: State, s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|η_θ - η_x|² at the bridge's time s."""
        target, cosine = u[..., : self.num_classes], z[..., : self.num_classes]
        excess = (self.probabilities(out) - target) * self.bridge.drift_strength(cosine, s)
        return (excess.square().sum(-1) - (excess * cosine).sum(-1).square()).clamp_min(0)

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """Cross-entropy at the times of the time sampler, plain or weighted, or the bound itself (drift).

        Plain cross-entropy includes waiting positions, as masked diffusion includes masks.
        """
        cross_entropy = self.cross_entropy(out, u)
        if self.training:
            self.time_sampler.observe(self._node(t), rate, cross_entropy, (weight > 0) & (t < 1))
        return self._weighted_loss(rate, cross_entropy, t, weight)

    def _weighted_loss(self, rate: Tensor, cross_entropy: Tensor, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        node = self._node(t)
        if self.loss_type == "drift":
            return rate * weight
        if self.loss_type == "bound-weighted" or (self.switch is not None and self.progress >= self.switch):
            return cross_entropy * (self.time_sampler.nats_per_ce(node) * weight).to(cross_entropy.dtype)
        if self.loss_type == "importance-weighted":
            return cross_entropy * (self.time_sampler.base[node] * weight).to(cross_entropy.dtype)
        return torch.where(t > 0, cross_entropy, 0.0)

    def on_step_start(self, progress: float) -> None:
        self.progress = progress

    def accumulators(self) -> list[Tensor]:
        return [self.time_sampler.accumulated]

    def update_statistics(self, progress: float = 0.0) -> None:
        self.time_sampler.update_statistics()

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """A step of the bridge to a token drawn from p_θ, or one of the geodesic random walk of a chain."""
        return self.apply_step(SPHERICAL_STEPS["geodesic" if self.chain else "bridge"], out, z, t, s, noise)

    def apply_step(self, rule: SphericalStep, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """A step by any of the rules. The last one, to s = 0, ends in the vertex of a token drawn from p_θ."""
        token = self.draw(out, noise)
        vertex = F.one_hot(token, z.shape[-1]).to(z.dtype)
        if bool((s == 0).all()):
            return torch.where((t > 0)[..., None], vertex, z)
        now = self._s(t)
        stepped = rule(self.bridge, self.probabilities(out), token, z, now, self._s(s).maximum(now), noise)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], vertex, z), stepped)
