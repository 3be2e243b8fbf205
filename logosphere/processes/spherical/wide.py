"""The sphere with many tokens: the formulas of diffusion.py for a few positions at a time.

An array over all positions and tokens does not fit into the cache of a processor, and every operation that makes a new
one costs memory traffic and fresh pages, several times as much as its arithmetic. Here such arrays are computed in
blocks of rows, in place where possible; in a training step only three are complete: states, beliefs and logits.
Clean states are token ids, and the gradient of the cross-entropy is computed together with the rate of the bound, from
the same softmax, in the memory of the logits.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logosphere.geometry.bridges import HeatBridge
from logosphere.geometry.sphere import angle_over_sine
from logosphere.processes.base import MAX_LOGIT, Encoded, ForwardSample
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SphericalStep
from logosphere.rng import Noise
from logosphere.types import Batch, Float, Int64, Logits, Positions, State, Times

BLOCK = 1 << 17
"""Numbers in a block of rows on a CPU: 512 KiB of float32."""
LARGE_BLOCK = 1 << 26
"""The same on other devices, where a block only limits memory."""


def row_blocks(rows: Float[Tensor, "N d"]) -> Iterator[slice]:
    """Divide the rows of an array into blocks."""
    size = max(1, (BLOCK if rows.device.type == "cpu" else LARGE_BLOCK) // rows.shape[1])
    return (slice(first, first + size) for first in range(0, len(rows), size))


class WideSphericalDiffusion(SphericalDiffusion):
    """Bridges to the vertices of many tokens."""

    levels: Tensor
    """The two coordinates of each start: that on every token and that on the mask."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.register_buffer("levels", self.origins[:, [0, -1]].clone(), persistent=False)
        self.starts_at_mask = not bool(self.levels[:, 0].any())

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """Clean states as token ids."""
        zeros = torch.zeros(len(batch), device=batch.tokens.device)
        return Encoded(batch.tokens, zeros, zeros)

    def _token_ids(self, u: State) -> Int64[Tensor, "..."]:
        return u[..., : self.num_classes].argmax(-1) if u.is_floating_point() else u

    def _across(self, rows: Float[Tensor, "n d"], level: Float[Tensor, "#n 2"]) -> Float[Tensor, "n 1"]:
        """<x, u₀> of each row."""
        along = rows[:, -1:] * level[:, 1:]
        if self.starts_at_mask:
            return along
        return along + rows[:, :-1].sum(1, keepdim=True) * level[:, :1]

    # ---- forward ----------------------------------------------------------------------------------------------------

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """X = a e + b (u₀ - φ e)/√(1 - φ²) + c ν, φ = <u₀, e>, in the memory of the normal numbers g of which ν is made:

        X = r g + q u₀ + (a - r g_x - q φ) e with r = c / |g_⊥|, q = (b - r g_u) / √(1 - φ²), g_u = <g, u₀ - φ e>/√(1 - φ²)
        """
        token = self._token_ids(u)
        a, b, which = self._sample_ab(t, noise)
        z = noise.normal(*t.shape, self.num_classes + 1)
        c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
        fields = [field.expand(*t.shape, field.shape[-1]).flatten(0, 1) for field in (a, b, c, self.levels[which])]
        index, moves = token.flatten()[:, None], t.flatten()[:, None] > 0
        flat = z.flatten(0, 1)
        for rows in row_blocks(flat):
            g, x = flat[rows], index[rows]
            a, b, c, level = (field[rows] for field in fields)
            phi = level[:, :1]
            sine = (1 - phi.square()).sqrt()
            g_x = g.gather(1, x)
            g_u = (self._across(g, level) - phi * g_x) / sine
            squared = torch.linalg.vector_norm(g, dim=1, keepdim=True).square() - g_x.square() - g_u.square()
            r = torch.where(moves[rows], c * squared.clamp_min(1e-30).rsqrt(), 0)
            q = torch.where(moves[rows], (b - r * g_u) / sine, 0)
            own = torch.where(moves[rows], a - r * g_x - q * phi, 1)
            g.mul_(r)
            self._add_start(g, q * level)
            g.scatter_add_(1, x, own)
        return z

    def _add_start(self, rows: Float[Tensor, "n d"], coordinates: Float[Tensor, "n 2"]) -> None:
        """Add a multiple of the start, given by its two coordinates."""
        rows[:, -1:] += coordinates[:, 1:]
        if not self.starts_at_mask:
            rows[:, :-1] += coordinates[:, :1]

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        if self.path_name != "any-order" or self.training:
            return super().sample_zt(u, w, free, noise)
        waiting, weight = self.any_order.waiting(w, free, noise)
        z = self._set_vertices(self.prior(*free.shape, noise), self._token_ids(u), ~waiting)
        return ForwardSample(z, waiting.float(), weight)

    @staticmethod
    def _set_vertices(z: State, token: Int64[Tensor, "..."], where: Positions) -> State:
        """Replace states by vertices of tokens, in place."""
        own = torch.where(where[..., None], 1.0, z.gather(-1, token[..., None]))
        return z.mul_(~where[..., None]).scatter_(-1, token[..., None], own)

    # ---- the posterior of a token -----------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        if z.requires_grad:
            return super().log_likelihood(z, t)
        return self._by_rows(z, t, lambda log_p: log_p.sub_(log_p.amax(1, keepdim=True)), -MAX_LOGIT, 0.0)

    def belief(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        if z.requires_grad:
            return super().belief(z, t)
        return self._by_rows(z, t, lambda log_p: log_p.softmax(1), 0.0, 1.0)

    def _by_rows(
        self, z: State, t: Float[Tensor, "..."], normalise: Callable[[Tensor], Tensor], other: float, own: float
    ) -> Float[Tensor, "... K"]:
        """A function of the log-likelihoods of each row; at t = 0 `own` at the vertex and `other` elsewhere."""
        flat, times = z.flatten(0, -2), t.flatten()
        out = z.new_empty(len(flat), self.num_classes)
        log_p = self._heat_likelihood(times) if isinstance(self.bridge, HeatBridge) else self._log_likelihoods(times)
        for rows in row_blocks(flat):
            out[rows] = normalise(log_p(flat[rows], rows))
        clean = times == 0
        if z.device.type != "cpu":
            token = flat[:, : self.num_classes].argmax(1, keepdim=True)
            out.masked_fill_(clean[:, None], other)
            out.scatter_(1, token, torch.where(clean[:, None], own, out.gather(1, token)))
        elif bool(clean.any()):
            rows_at = clean.nonzero().squeeze(1)
            token = flat[rows_at, : self.num_classes].argmax(1)
            out[rows_at] = other
            out[rows_at, token] = own
        return out.view(*z.shape[:-1], self.num_classes)

    def _heat_likelihood(self, times: Float[Tensor, " N"]) -> Callable[[Tensor, slice], Tensor]:
        assert isinstance(self.bridge, HeatBridge)
        bridge, s = self.bridge, self._s(times)
        return lambda x, rows: bridge.log_p(x[:, : self.num_classes], s[rows])

    def _log_likelihoods(self, times: Float[Tensor, " N"]) -> Callable[[Tensor, slice], Tensor]:
        node = self._node(times)
        if len(self.origins) > 1:
            return lambda x, rows: torch.stack(
                [self._normal_likelihood(x, node[rows], which) for which in range(len(self.origins))]
            ).logsumexp(0)
        moments, level, d = self.moments[0][node], self.levels, self.num_classes + 1
        phi = level[0, 0]
        sine = (1 - phi.square()).sqrt()

        def log_p(x: Float[Tensor, "n d"], rows: slice) -> Float[Tensor, "n K"]:
            """`tangent_normal_log_p`, where <X, μ_k> and the component towards e_k are linear in the cosine."""
            mean_a, mean_b, middle, along, across = moments[rows].split(1, 1)
            cosine, b = x[:, :-1], self._across(x, level) / sine
            slope = phi / sine
            inner = (cosine * (mean_a - slope * mean_b)).add_(b * mean_b).clamp_(-1, 1)
            forward = (cosine * (mean_b + slope * mean_a)).sub_(b * mean_a)
            ratio = angle_over_sine(inner)
            squared = inner.square_().neg_().add_(1).mul_(ratio).mul_(ratio)
            forward.mul_(ratio)
            squared.addcmul_(forward, forward, value=-1).mul_(-0.5 * across)
            squared.add_(forward.sub_(middle).square_().mul_(-0.5 * along))
            return squared.add_(ratio.log_(), alpha=d - 2)

        return log_p

    # ---- the bound and the loss ---------------------------------------------------------------------------------------

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return torch.nn.functional.cross_entropy(out, self._token_ids(u), reduction="none")

    def squared_drift_error(self, out: Logits, u: State, z: State, s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        vertices = torch.zeros_like(z).scatter_(-1, u[..., None], 1.0) if not u.is_floating_point() else u
        return super().squared_drift_error(out, vertices, z, s)

    def rate_and_loss(
        self, out: Logits, u: State, z: State, t: Tensor, weight: Tensor
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        if self.loss_type == "drift" and torch.is_grad_enabled():
            return super().rate_and_loss(out, u, z, t, weight)
        s = self._s(t)
        cross_entropy, error = _DriftError.apply(
            out.float(), self._token_ids(u), lambda rows: self._strength(z[rows], s[rows])
        )
        rate = self._rate(error, cross_entropy.detach(), t)
        return rate, self._loss(rate, cross_entropy, t, weight)

    def _strength(self, x: Float[Tensor, "n d"], s: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        cosine = x[:, : self.num_classes]
        return cosine, self.bridge.drift_strength(cosine, s)

    # ---- backward -----------------------------------------------------------------------------------------------------

    def apply_step(self, rule: SphericalStep, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        token, last = self.draw(out, noise), (s == 0) & (t > 0)
        if bool((s == 0).all()):
            return self._set_vertices(z.clone(), token, last)
        now = self._s(t)
        stepped = rule(self.bridge, self.probabilities(out), token, z, now, self._s(s).maximum(now), noise)
        stepped = self._set_vertices(stepped, token, last)
        return torch.where(((s == 0) & (t == 0))[..., None], z, stepped)


class _DriftError(torch.autograd.Function):
    """-log p_x and |η_θ - η_x|² of rows of logits, and the gradient p - e_x of the first, in the memory of the logits.

    `strength` returns the cosines of some rows and the drift strengths there. The drift error has no gradient.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, out: Logits, token: Int64[Tensor, " N"], strength: Callable[[slice], tuple[Tensor, Tensor]]
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        logits, index = out.detach(), token[:, None]
        cross_entropy, error = logits.new_empty(len(logits)), logits.new_empty(len(logits))
        for rows in row_blocks(logits):
            part, own = logits[rows], index[rows]
            p = part.softmax(1)
            # log Σ exp from the largest logit, whose probability cannot be rounded to 0.
            largest, highest = part.amax(1), p.amax(1)
            cross_entropy[rows] = largest - highest.log() - part.gather(1, own).squeeze(1)
            p.scatter_add_(1, own, p.new_full((), -1.0).expand_as(own))
            part.copy_(p)
            cosine, pull = strength(rows)
            excess = p.mul_(pull)
            along = pull.copy_(cosine).mul_(excess).sum(1)
            error[rows] = (torch.linalg.vector_norm(excess, dim=1).square() - along.square()).clamp_min_(0)
        ctx.gradient = logits
        ctx.mark_non_differentiable(error)
        return cross_entropy, error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Float[Tensor, " N"], _: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError("The gradient of this loss can be computed only once: it takes the memory of the logits.")
        return gradient.mul_(scale[:, None]), None, None
