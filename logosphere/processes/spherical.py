"""Diffusion on the sphere (Jo and Hwang 2025, RDLM): a bridge leads from a common start to the vertex of each token.

Inside this file the bridge's own clock s runs from 0 (start) to 1 (vertex); outside, t runs from 0 (data) to 1 (noise).
The path is followed to s* < 1, where the token is read off, through N + 1 tabulated times, of which the last is the
reconstruction. With p_k the posterior and g the bridge's pull, model and bridge move by

    η_θ = Σ_k p_k g(<X, e_k>) (e_k - <X, e_k> X)        η_x = g(<X, e_x>) (e_x - <X, e_x> X)

and both share their noise, so that by Girsanov's theorem

    -log p(x) ≤ ∫₀^{s*} E |η_θ - η_x|² / 2V ds + E[-log p_θ(x | X_{s*})]

is a bound for every network; for the heat bridge it is tight. The integral is a trapezoidal sum over the tabulated
times. With `chain` it is the sum of left ends instead: the exact divergence of the geodesic random walk over those
times, a bound for the sampler that takes just these steps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.vertices import VertexCodec
from logosphere.errors import UserError
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge, HeatBridge, Law
from logosphere.noise import Noise, categorical
from logosphere.processes.base import CERTAIN, Noised, Process
from logosphere.processes.clock import InformationClock
from logosphere.shapes import Float, Int64
from logosphere.types import Kind, Logits, Positions, State, Times


class Spherical(Process):
    """Bridges from `start` (a share of the orthant's centre; 0 is the mask) to vertices, along a tabulated law."""

    kind: Kind = "bound"
    needs_time = True
    most_steps = None
    times: Tensor
    a: Tensor
    b: Tensor
    origin: Tensor
    lengths: Tensor
    moments: Tensor

    def __init__(
        self,
        vocab_size: int,
        bridge: Bridge,
        origin: Tensor,
        law: Law,
        *,
        by_drift: bool = False,
        learns_clock: bool = True,
        chain: bool = False,
    ):
        super().__init__()
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        self.codec: VertexCodec = VertexCodec(vocab_size)
        self.bridge, self.vocab_size, self.by_drift = bridge, vocab_size, by_drift
        self.timesteps = len(law.times)
        self.first = 1.5 / self.timesteps
        self.clock = InformationClock(self.timesteps, learns=learns_clock)
        self.register_buffer("origin", origin.float(), persistent=False)
        self.register_buffer("times", law.times.float(), persistent=False)
        self.register_buffer("lengths", _lengths(law.times, chain=chain).float(), persistent=False)
        self.register_buffer("a", law.a, persistent=False)
        self.register_buffer("b", law.b, persistent=False)
        self.register_buffer("moments", _moments(law, vocab_size + 1), persistent=False)

    # ---- clocks -----------------------------------------------------------------------------------------------

    def _node(self, t: Float[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The row of the table nearest to time t > 0."""
        return ((1 - t) * self.timesteps).round().long().clamp(0, self.timesteps - 1)

    def _s(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The bridge's time at t, linear between the rows of the table; s* for all t below the last row."""
        place = ((1 - t) * self.timesteps).clamp(0, self.timesteps - 1)
        low = place.floor().long().clamp_max(self.timesteps - 2)
        return torch.lerp(self.times[low], self.times[low + 1], place - low)

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.origin.expand(batch, length, -1).clone()

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """X = a e + b u₀ + c ν with (a, b) from the table and ν uniform across both: exact, and no simulation."""
        node = self._node(t)
        particle = (noise.uniform(*t.shape) * self.a.shape[1]).long()
        a, b = self.a[node, particle][..., None], self.b[node, particle][..., None]
        cosine = self.origin[0]  # of the start with every vertex alike
        across = (self.origin - cosine * u) / (1 - cosine.square()).sqrt()
        nu = noise.normal(*u.shape)
        nu = nu - sphere.dot(nu, u) * u - sphere.dot(nu, across) * across
        c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
        return torch.where(t[..., None] > 0, a * u + b * across + c * sphere.normalised(nu), u)

    def noised(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> Noised:
        node, weight = self.clock.locate(w)
        block = u.shape[1] // w.shape[1]
        t = torch.where(free, 1 - (node / self.timesteps).repeat_interleave(block, 1).float(), 0.0)
        return Noised(self.corrupt(u, t, noise), t, weight.repeat_interleave(block, 1).float())

    def wanted(self, z: State, moving: Positions) -> Positions:
        return moving

    # ---- what a state says ------------------------------------------------------------------------------------

    def inform(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        return logits + self.bridge_likelihood(z, t)

    def bridge_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... V"]:
        """log p(X | token k), up to a constant: exact for the heat bridge, log p_{V(1-s)}(X, e_k).

        For the log bridge X is taken for normal in the tangent space at its mean direction μ_k, with one variance along
        the geodesic to e_k and another across it, both read off the table; log(θ / sin θ) is the change of volume.
        """
        cosine = z[..., : self.vocab_size]
        if isinstance(self.bridge, HeatBridge):
            said = self.bridge.log_p(cosine, self._s(t))
        else:
            start = self.origin[0]
            b = (sphere.dot(z, self.origin) - start * cosine) / (1 - start.square()).sqrt()
            mean_a, mean_b, middle, along, across = self.moments[self._node(t)][..., None].unbind(-2)
            forward, squared, ratio = _tangent(cosine, b, mean_a, mean_b)
            bend = (z.shape[-1] - 2) * ratio.log()
            said = bend - 0.5 * (along * (forward - middle).square() + across * (squared - forward.square()))
        said = said - said.amax(-1, keepdim=True)
        clean = CERTAIN * (F.one_hot(cosine.argmax(-1), self.vocab_size) - 1)
        return torch.where(t[..., None] > 0, said, clean.to(said.dtype))

    # ---- the bound --------------------------------------------------------------------------------------------

    def nats(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The divergence of the walk around this time; at the last one also that of reading the token off."""
        node = self._node(t)
        target, cosine = u[..., : self.vocab_size], z[..., : self.vocab_size]
        excess = (out.softmax(-1) - target) * self.bridge.pull(cosine, self._s(t))
        apart = excess.square().sum(-1) - (excess * cosine).sum(-1).square()
        nats = apart.clamp_min(0) * self.lengths[node] / (2 * self.bridge.total_noise)
        nats = nats + torch.where(node == self.timesteps - 1, self._cross_entropy(out, u), 0.0)
        if self.training:
            self.clock.observe(node, nats)
        return nats

    def _cross_entropy(self, out: Logits, u: State) -> Float[Tensor, "..."]:
        return F.cross_entropy(out, u[..., : self.vocab_size].argmax(-1), reduction="none")

    def loss(self, nats: Tensor, out: Logits, u: State, weight: Tensor) -> Float[Tensor, "..."]:
        """Cross-entropy at the times the clock draws, or the bound itself (drift)."""
        return nats * weight if self.by_drift else self._cross_entropy(out, u)

    def prior_nats(self, u: State) -> Float[Tensor, "B M"]:
        """0: every path begins at the same point."""
        return torch.zeros(u.shape[:2], device=u.device)

    def settle(self) -> None:
        self.clock.settle()

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """The geodesic random walk; at the end the token is drawn from p_θ and its vertex taken."""
        token = categorical(out, noise.uniform(len(out)))
        vertex = F.one_hot(token, z.shape[-1]).to(z.dtype)
        now = self._s(t)
        ds = (self._s(s) - now)[..., None].clamp_min(0)
        cosine = z[..., : self.vocab_size]
        pulled = F.pad(out.softmax(-1) * self.bridge.pull(cosine, now), (0, 1))
        moved = pulled * ds + (self.bridge.total_noise * ds).sqrt() * noise.normal(*z.shape).to(z.dtype)
        walked = sphere.exp(z, sphere.project(z, moved))
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], vertex, z), walked)


def _lengths(times: Tensor, *, chain: bool) -> Float[Tensor, "N"]:
    """How much time each tabulated time stands for: up to the next one, or half of the way to both neighbours."""
    steps = times.diff()
    after = F.pad(steps, (0, 1))
    return after if chain else (after + F.pad(steps, (1, 0))) / 2


def _tangent(a: Tensor, b: Tensor, mean_a: Tensor, mean_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log_μ(X) for μ = (mean_a, mean_b): its part towards e, its squared length θ², and θ / sin θ."""
    cosine = (a * mean_a + b * mean_b).clamp(-1, 1)
    ratio = sphere.angle_over_sine(cosine)
    return ratio * (a * mean_b - b * mean_a), ratio.square() * (1 - cosine.square()), ratio


def _moments(law: Law, d: int) -> Float[Tensor, "N 5"]:
    """At each time: the mean direction, how far X is beyond it on average, and one over the variances along and across.

    Where the law is a point the variances are 0, and what a state says there is nothing.
    """
    a, b = law.a.double(), law.b.double()
    mean = torch.stack([a.mean(1), b.mean(1)])
    mean_a, mean_b = mean / mean.norm(dim=0)
    forward, squared, _ = _tangent(a, b, mean_a[:, None], mean_b[:, None])
    along, across = forward.var(1), (squared - forward.square()).clamp_min(0).mean(1) / (d - 2)
    weights = [torch.where(variance > 1e-12, 1 / variance.clamp_min(1e-12), 0.0) for variance in (along, across)]
    return torch.stack([mean_a, mean_b, forward.mean(1), *weights], dim=1).float()
