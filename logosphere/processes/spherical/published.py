"""The sphere under the published protocol of RDLM (Jo and Hwang 2025): continuous time of its own noise schedule.

With τ = 1 - t the paper's time, β its schedule (times.py), γ = β / ∫_τ^1 β and η_k = γ log_X(e_k),

    training    τ ~ w / Z,  w = 1 for left < τ < right and 10⁻⁴ elsewhere,  Z = ∫ w;  independent between sequences
                X_τ from `transitions`, in the paper exp_μ(ρ z) with μ and ρ interpolated in a table
                loss = Z / w(τ) · Σ_positions -log p_θ(x | X_τ)
    value       τ ~ (1 - 10⁻⁴) U(0, 1),  X_τ of the simulated bridge,  Σ_positions |η_θ - η_x|² / 2β

The value is a surrogate: it has no reconstruction term, and mixture paths have no process with their marginals.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge
from logosphere.processes.base import Process
from logosphere.processes.spherical.diffusion import Loss, SphericalDiffusion, Start
from logosphere.processes.spherical.digit_posterior import DigitSphericalDiffusion
from logosphere.processes.spherical.times import RDLM_FLOOR, noise_left, noise_rate
from logosphere.processes.time_sampler import TimeSampler, uniform_density
from logosphere.rng import Noise
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times

EARLIEST, LAST_DRAWN = 1e-4, 1e-6
"""The least t = 1 - τ in values, and in training with a window."""
ROWS = 384
"""Rows of the tables; between them α and ρ are interpolated."""

UniformProbability = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
"""The probability of the uniform start at τ."""


def table_times() -> Float[Tensor, " N"]:
    """t = 1 - τ of the rows, falling: half of them equally spaced in t, half in log t."""
    even = torch.linspace(1, EARLIEST, ROWS // 2, dtype=torch.float64)
    fine = torch.logspace(0, math.log10(EARLIEST), ROWS // 2 + 2, dtype=torch.float64)[1:-1]
    return torch.cat([even, fine]).sort(descending=True).values


class PublishedSphericalDiffusion(SphericalDiffusion):
    """Log bridges in the time of a schedule.

    `normals` [C, 2, N + 1] are α and ρ of the transitions of training, with a last row at τ = 1. Without them training
    draws from the simulated bridge too.
    """

    path_names = ("joint",)

    between: Tensor
    rows: Tensor
    normals: Tensor | None
    quantiles: Tensor

    def __init__(
        self,
        codec: Codec,
        bridge: Bridge,
        starts: Sequence[Start],
        *,
        schedule: str,
        length: int,
        uniform: UniformProbability | None = None,
        normals: Float[Tensor, "C 2 n"] | None = None,
        window: tuple[float, float] | None = None,
        loss: Loss = "cross-entropy",
        switch: float | None = None,
    ):
        t = table_times()
        law = uniform_density(len(t))
        super().__init__(
            codec,
            bridge,
            starts,
            TimeSampler(law, law),
            start_probabilities=None if uniform is None else _both(uniform(1 - t)),
            loss=loss,
            switch=switch,
        )
        self.recon_time = 0.0  # no reconstruction
        self.schedule, self.length, self.uniform, self.window = schedule, length, uniform, window
        self.register_buffer("between", (1 - t[1:] + 1 - t[:-1]) / 2, persistent=False)
        self.register_buffer("rows", torch.cat([1 - t, torch.ones(1, dtype=t.dtype)]), persistent=False)
        self.register_buffer("normals", None if normals is None else normals.float(), persistent=False)
        self.register_buffer("quantiles", _quantiles(window), persistent=False)

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return "surrogate"

    # ---- time -------------------------------------------------------------------------------------------------

    def _node(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        return torch.searchsorted(self.between, (1 - t.double()).contiguous())

    def _s(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return (1 - noise_left(self.schedule, t.double())).to(t.dtype)

    def joint_grid(self, steps: int) -> Float[Tensor, " n"]:
        return Process.grid(self, steps)  # equal steps of τ

    def schedule_time(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return 1 - t.double()

    def time_of(self, tau: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return (1 - tau).float()

    def start_probabilities_at(self, t: Times) -> Float[Tensor, "B L C"]:
        return super().start_probabilities_at(t) if self.uniform is None else _both(self.uniform(1 - t.double()))

    def _sample_times(
        self, w: Float[Tensor, "B J"], free: Positions, noise: Noise
    ) -> tuple[Times, Float[Tensor, "B M"]]:
        """Times and their weights: Z / w(τ) in training, 1 in values (without the factor 1 - 10⁻⁴, as published)."""
        block = free.shape[1] // w.shape[1]
        if self.training:
            w = noise.uniform(*w.shape)
        if self.training and self.window is not None:
            t, weight = self.importance_time(w)
        else:
            t, weight = 1 - (1 - EARLIEST) * w, torch.ones_like(w)
        t, weight = t.repeat_interleave(block, 1).float(), weight.repeat_interleave(block, 1).float()
        return torch.where(free, t, 0.0), torch.where(free, weight, 0.0)

    def importance_time(self, w: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """1 - τ at the quantiles w of the density w(τ) / Z, and Z / w(τ)."""
        edge, total, weight = self.quantiles
        part = torch.searchsorted(total[1:-1].contiguous(), w.contiguous())
        tau = edge[part] + (w - total[part]) / (total[part + 1] - total[part]) * (edge[part + 1] - edge[part])
        return (1 - tau).clamp_min(LAST_DRAWN), weight[part]

    # ---- states and rates -------------------------------------------------------------------------------------

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """In training exp_μ(ρ z) with μ = α (e - cos φ₀ x₀)/sin φ₀ + √(1 - α²) x₀, as published; else the bridge."""
        if self.normals is None or not self.training:
            return super().corrupt(u, t, noise)
        which = self._sample_start(t, noise)
        alpha, rho = self.interpolate_normals(t, which)
        origin = self.origins[which]
        cosine = origin[..., :1]
        mean = alpha * (u - cosine * origin) / (1 - cosine.square()).sqrt()
        mean = sphere.normalise(mean + (1 - alpha.square()).clamp_min(0).sqrt() * origin)
        state = sphere.exp(mean, sphere.project(mean, rho * noise.normal(*u.shape).to(u.dtype)))
        return torch.where(t[..., None] > 0, state, u)

    def interpolate_normals(self, t: Times, which: Int64[Tensor, "#B #L"]) -> Float[Tensor, "2 B L 1"]:
        """α and ρ at time t of the bridges from these starts."""
        if self.normals is None:
            raise ValueError("This process has no Riemannian normal transitions.")
        tau = 1 - t.double()
        low = (torch.searchsorted(self.rows, tau.contiguous(), right=True) - 1).clamp(0, len(self.rows) - 2)
        part = ((tau - self.rows[low]) / (self.rows[low + 1] - self.rows[low])).float()
        table = self.normals.transpose(0, 1)  # [2, C, N + 1]
        return torch.lerp(table[:, which, low], table[:, which, low + 1], part)[..., None]

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|η_θ - η_x|² / 2β per unit of τ."""
        t = t.double()
        error = self.squared_drift_error(out, u, z, 1 - noise_left(self.schedule, t))
        return error * (noise_rate(self.schedule, t) / (2 * self.bridge.total_noise)).to(error.dtype)

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """The sum over the positions of a sequence, as published, where other systems take the mean."""
        if self.loss_type == "importance-weighted" and (self.switch is None or self.progress < self.switch):
            return self.length * self.cross_entropy(out, u) * weight
        return self.length * super().loss(rate, out, u, z, t, weight)


class PublishedDigitDiffusion(PublishedSphericalDiffusion, DigitSphericalDiffusion):
    """The same for digits, without the codes of no token."""


def _both(uniform: Float[Tensor, "..."]) -> Float[Tensor, "... 2"]:
    return torch.stack([1 - uniform, uniform], -1)


def _quantiles(window: tuple[float, float] | None) -> Float[Tensor, "3 n"]:
    """The edges of the window's three parts, the probability before each edge, and Z / w of the part after it."""
    left, right = window or (0.0, 1.0)
    edges = torch.tensor([0.0, left, right, 1.0], dtype=torch.float64)
    density = torch.tensor([RDLM_FLOOR, 1.0, RDLM_FLOOR, RDLM_FLOOR], dtype=torch.float64)
    mass = torch.cat([torch.zeros(1, dtype=torch.float64), (density[:3] * edges.diff()).cumsum(0)])
    return torch.stack([edges, mass / mass[-1], mass[-1] / density])
