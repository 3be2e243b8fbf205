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

from logosphere.geometry.bridges import HeatBridge, tangent_normal_log_p
from logosphere.geometry.row_functions import RowFunction, RowPolynomials
from logosphere.processes.base import MAX_LOGIT, Encoded, ForwardSample
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SphericalStep
from logosphere.rng import Noise, hash64, row_blocks
from logosphere.types import Batch, Bool, Float, Int64, Logits, Positions, State, Times

MANY = 1024
"""From this number of tokens on, log-likelihoods are polynomials of the cosine (geometry/row_functions.py)."""
MEASURED_ONE_IN = 8
"""In training the drift error is computed at one in this many positions."""


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

    # ---- forward ------------------------------------------------------------------------------------------------

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """X = a e + b (u₀ - φ e)/√(1 - φ²) + c ν, φ = <u₀, e>, in the memory of the normal vector g with ν = g_⊥/|g_⊥|:

            X = r g + q u₀ + (a - r g_x - q φ) e

        with r = c / |g_⊥|, q = (b - r g_u) / √(1 - φ²) and g_u = <g, u₀ - φ e> / √(1 - φ²).
        """
        token = self._token_ids(u)
        a, b, which = self._sample_ab(t, noise)
        z, blocks = noise.normal_blocks(*t.shape, self.num_classes + 1)
        c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
        fields = [field.expand(*t.shape, field.shape[-1]).flatten(0, 1) for field in (a, b, c, self.levels[which])]
        index, moves = token.flatten()[:, None], t.flatten()[:, None] > 0
        flat = z.flatten(0, 1)
        for rows in blocks:
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
        z = self._set_vertices(self.prior(len(free), free.shape[1], noise), self._token_ids(u), ~waiting)
        return ForwardSample(z, waiting.float(), weight)

    @staticmethod
    def _set_vertices(z: State, token: Int64[Tensor, "..."], where: Bool[Tensor, "..."]) -> State:
        """Replace states by vertices of tokens, in place."""
        own = torch.where(where[..., None], 1.0, z.gather(-1, token[..., None]))
        return z.mul_(~where[..., None]).scatter_(-1, token[..., None], own)

    # ---- the posterior of a token -------------------------------------------------------------------------------

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        if z.requires_grad:
            return super().log_likelihood(z, t)
        return self._by_rows(z, t, lambda log_p: log_p.sub_(log_p.amax(1, keepdim=True)), -MAX_LOGIT, 0.0)

    def belief(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        if z.requires_grad:
            return super().belief(z, t)
        scale = self.num_classes**0.5
        return self._by_rows(z, t, lambda log_p: log_p.softmax(1).mul_(scale), 0.0, scale)

    def _by_rows(
        self, z: State, t: Float[Tensor, "..."], normalise: Callable[[Tensor], Tensor], other: float, own: float
    ) -> Float[Tensor, "... K"]:
        """A function of the log-likelihoods of each row; at t = 0 `own` at the vertex and `other` elsewhere."""
        flat, times = z.flatten(0, -2), t.flatten()
        out = z.new_empty(len(flat), self.num_classes)
        for rows, log_p in self._log_likelihoods(flat, times):
            out[rows] = normalise(log_p)
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

    def _log_likelihoods(
        self, x: Float[Tensor, "N d"], times: Float[Tensor, " N"]
    ) -> Iterator[tuple[slice, Float[Tensor, "n K"]]]:
        """Log-likelihoods of blocks of rows, up to a constant of each row."""
        if x.device.type != "cpu" or self.num_classes < MANY or len(self.origins) > 1:
            return self._formula_blocks(x, times)
        cosines, squared_norm = x[:, : self.num_classes], 1 - x[:, -1].square()
        return RowPolynomials(self._row_likelihood(x, times), cosines, squared_norm).blocks(row_blocks(cosines))

    def _formula_blocks(self, x: Tensor, times: Tensor) -> Iterator[tuple[slice, Tensor]]:
        node, s = self._node(times), self._s(times)
        for rows in row_blocks(x):
            if isinstance(self.bridge, HeatBridge):
                yield rows, self.bridge.log_p(x[rows, : self.num_classes], s[rows])
            else:
                starts = range(len(self.origins))
                parts = [self._normal_likelihood(x[rows], node[rows], which) for which in starts]
                yield rows, parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)

    def _row_likelihood(self, x: Float[Tensor, "N d"], times: Float[Tensor, " N"]) -> RowFunction:
        """The log-likelihood of a token as a function of its cosine."""
        if isinstance(self.bridge, HeatBridge):
            bridge, s = self.bridge, self._s(times).double()
            return lambda cosine, row: bridge.log_p(cosine, s[row])
        moments = self.moments[0].double()[self._node(times)]
        phi, d = self.levels[0, 0].double(), self.num_classes + 1
        across, sine = self._across(x, self.levels).double(), (1 - phi.square()).sqrt()
        return lambda cosine, row: tangent_normal_log_p(cosine, (across[row] - phi * cosine) / sine, moments[row], d)

    # ---- the bound and the loss ---------------------------------------------------------------------------------

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return torch.nn.functional.cross_entropy(out, self._token_ids(u), reduction="none")

    def squared_drift_error(self, out: Logits, u: State, z: State, s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        vertices = torch.zeros_like(z).scatter_(-1, u[..., None], 1.0) if not u.is_floating_point() else u
        return super().squared_drift_error(out, vertices, z, s)

    def rate_and_loss(
        self, out: Logits, u: State, z: State, t: Tensor, weight: Tensor
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """In training the drift error, which the loss does not need, is computed at a random part of the positions.

        They estimate the bound without bias, and the time sampler observes them alone.
        """
        if self.loss_type == "drift" and torch.is_grad_enabled():
            return super().rate_and_loss(out, u, z, t, weight)
        token, s = self._token_ids(u), self._s(t)
        measured = self._choose_rows(z, token) if self.training else torch.ones_like(token, dtype=torch.bool)

        def strength(rows: slice) -> tuple[Tensor | slice, Tensor, Tensor]:
            some = measured[rows].nonzero().squeeze(1) if z.device.type == "cpu" else slice(None)
            cosine = z[rows, : self.num_classes][some]
            return some, cosine, self.bridge.drift_strength(cosine, s[rows][some])

        cross_entropy, error = _DriftError.apply(out.float(), token, strength)
        ce = cross_entropy.detach()
        if self.training:
            observed = (weight > 0) & (t < 1) & measured
            self.time_sampler.observe(self._node(t), self._rate(error, ce, t), ce, observed)
            error = error * measured * MEASURED_ONE_IN
        rate = self._rate(error, ce, t)
        return rate, self._weighted_loss(rate, cross_entropy, t, weight)

    @staticmethod
    def _choose_rows(z: Float[Tensor, "N d"], token: Int64[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """Choose positions by a hash of state and token, whatever else is in the batch."""
        # The global generator is set by seed and step in training, so that all processes have the same key.
        key = int(torch.randint(1 << 31, ()))
        bits = z[:, :2].contiguous().view(torch.int64).squeeze(1)
        return (hash64(hash64(bits, key) + token, key) >> 32) % MEASURED_ONE_IN == 0

    # ---- backward -----------------------------------------------------------------------------------------------

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

    `strength` chooses some rows of a block, and returns their cosines and the drift strengths there. The drift error is
    0 in all other rows, and has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        out: Logits,
        token: Int64[Tensor, " N"],
        strength: Callable[[slice], tuple[Tensor | slice, Tensor, Tensor]],
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        logits, index = out.detach(), token[:, None]
        cross_entropy, error = logits.new_empty(len(logits)), logits.new_zeros(len(logits))
        for rows in row_blocks(logits):
            part, own = logits[rows], index[rows]
            p = part.softmax(1)
            # log Σ exp from the largest logit, whose probability cannot be rounded to 0.
            largest, highest = part.amax(1), p.amax(1)
            cross_entropy[rows] = largest - highest.log() - part.gather(1, own).squeeze(1)
            p.scatter_add_(1, own, p.new_full((), -1.0).expand_as(own))
            if ctx.needs_input_grad[0]:  # otherwise the logits may be read again
                part.copy_(p)
            some, cosine, pull = strength(rows)
            excess = pull.mul_(p[some])
            along = (excess * cosine).sum(1)
            error[rows][some] = (torch.linalg.vector_norm(excess, dim=1).square() - along.square()).clamp_min_(0)
        ctx.gradient = logits
        ctx.mark_non_differentiable(error)
        return cross_entropy, error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Float[Tensor, " N"], _: Tensor) -> tuple[Tensor, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError(
                "The gradient of this loss can be computed only once: it takes the memory of the logits."
            )
        return gradient.mul_(scale[:, None]), None, None
