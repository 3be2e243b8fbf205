"""Large vocabularies: while training, states exist only as the network reads them, W X in its width, never as X itself.

From the mask, X = a e + b e_mask + c ν with ν uniform across both, that is ν = g_⊥ / |g_⊥| for a normal vector g over
the K tokens less its coordinate g_x at the token. With the Cholesky factor L Lᵀ = W Wᵀ and y = L⁻¹ W g, which is
standard normal, everything that W X depends on has a law in D dimensions:

    W g = L y        g_x = r·y + √(1 - |r|²) ζ,  r = L⁻¹ w_x        |g|² = |y|² + ζ² + χ²_{K-D-1}

    W X = a w_x + c (L y - g_x w_x) / √(|g|² - g_x²)

so W X is drawn with the same law as by way of X, and its gradient with respect to W is that of the law. What the state
says of each token (the posterior head) needs all K coordinates at the positions that are scored. They are drawn there a
few rows at a time, given y, ζ and χ²: with Q = Wᵀ L⁻ᵀ and e' the unit vector of e_x - Q r,

    g = Q y + ζ e' + χ g'' / |g''|,        g'' a fresh normal vector less its parts along Q and e'
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.vertices import VertexCodec
from logosphere.geometry.bridges import chi_square_quantiles
from logosphere.processes.base import MAX_LOGIT, ForwardSample
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.rng import Noise, normal_rows
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times, Tokens

ROWS = 64
"""Positions whose coordinates exist at the same time."""


class Projection(nn.Linear):
    """The first layer W: reads unit vectors X over tokens and mask, or W X where it has been drawn as such.

    Its output has unit size at every time, for what a state says is not in its length.
    """

    def __init__(self, tokens: int, width: int):
        super().__init__(tokens, width, bias=False)
        nn.init.normal_(self.weight, std=1.0)

    def forward(self, z: State) -> State:
        h = z if z.shape[-1] == self.out_features else F.linear(z[..., : self.in_features], self.weight)
        return F.rms_norm(h, (self.out_features,)) * 0.5


class Read(NamedTuple):
    """What was drawn for W X at each position, to draw the coordinates of X that belong to it."""

    y: Float[Tensor, "B L D"]
    zeta: Float[Tensor, "B L 1"]
    rest: Float[Tensor, "B L 1"]
    """χ²"""
    token: Int64[Tensor, "B L"]
    a: Float[Tensor, "B L 1"]
    scale: Float[Tensor, "B L 1"]
    """c / |g_⊥|"""
    keys: Int64[Tensor, "B L"]
    """Of the noise of the coordinates."""


class ProjectedCodec(VertexCodec):
    """In training, clean states stay token numbers."""

    def encode(self, tokens: Tokens) -> State:
        return tokens if self.training else super().encode(tokens)


class ProjectedSphericalDiffusion(SphericalDiffusion):
    """Bridges from the mask among many tokens; in training their figure is a surrogate, for X itself is never made.

    Half of the positions are scored in each step of training, as many as masked diffusion scores on average.
    """

    def attach(self, stem: Projection) -> None:
        """Tell the process the W by which states will be read."""
        self._stem = [stem]  # in a list, so that its parameters are not registered twice

    @property
    def kind(self) -> Kind:
        return "surrogate" if self.training else "bound"

    @kind.setter
    def kind(self, value: Kind) -> None:
        """Which kind it is follows from what is being done."""

    # ---- reading states that are never made ---------------------------------------------------------------------

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        if not self.training:
            return super().sample_zt(u, w, free, noise)
        t, weight = self._times(w, free, noise)
        with torch.autocast(u.device.type, enabled=False):  # what is read must be what is cached of it
            return ForwardSample(self.read(u, t, noise), t, weight)

    def read(self, tokens: Tokens, t: Times, noise: Noise) -> Float[Tensor, "B L D"]:
        """W X at times t."""
        W = self._stem[0].weight
        width, K = W.shape
        L = _factor(W)
        self._root = L.detach()
        a, b, _ = self._drawn(t, noise)
        own = F.embedding(tokens, W.T)
        y, zeta = noise.normal(*t.shape, width), noise.normal(*t.shape, 1)
        r = torch.linalg.solve_triangular(self._root, own.detach().flatten(0, 1).T, upper=False).T.view_as(own)
        g_x = (r * y).sum(-1, keepdim=True) + (1 - r.square().sum(-1, keepdim=True)).clamp_min(0).sqrt() * zeta
        rest = chi_square_quantiles(K - width - 1)(noise.uniform(*t.shape))[..., None].to(y)
        length = y.square().sum(-1, keepdim=True) + zeta.square() + rest
        scale = ((1 - a.square() - b.square()).clamp_min(0) / (length - g_x.square()).clamp_min(1e-12)).sqrt()
        self._last = Read(y, zeta, rest, tokens, a, scale, noise.row_keys(*t.shape))
        return torch.where(t[..., None] > 0, a * own + scale * (y @ L.T - g_x * own), own)

    def coordinates(self, rows: Read) -> Float[Tensor, "N K"]:
        """Coordinates of X at the tokens, at N positions, given what was drawn for W X there."""
        W, L = self._stem[0].weight.detach(), self._root
        fresh, at = normal_rows(rows.keys, W.shape[1]), rows.token[:, None]

        def whitened(columns: Tensor) -> Float[Tensor, "N D"]:
            return torch.linalg.solve_triangular(L, columns, upper=False).T

        q, r = whitened(W @ fresh.T), whitened(W[:, rows.token])
        eta = (1 - r.square().sum(-1, keepdim=True)).clamp_min(1e-6).sqrt()
        along = (fresh.gather(1, at) - (q * r).sum(-1, keepdim=True)) / eta
        left = (fresh.square().sum(-1, keepdim=True) - q.square().sum(-1, keepdim=True) - along.square()).clamp_min(
            1e-6
        )
        factor = (rows.rest / left).sqrt()
        kappa = (rows.zeta - factor * along) / eta
        back = torch.linalg.solve_triangular(L.T, (rows.y - factor * q - kappa * r).T, upper=True)
        fresh.mul_(factor).addmm_(back.T, W).mul_(rows.scale)
        return fresh.scatter_(1, at, rows.a)

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        if not self.training:
            return super().needs_prediction(z, moving)
        # The global generator is set by seed and step in training, so that all processes score the same positions.
        parity = int(torch.rand(()) < 0.5)
        self._scored = moving & ((torch.arange(moving.shape[1], device=moving.device) + parity) % 2 == 0)
        return self._scored

    # ---- what a state says, and what it costs -------------------------------------------------------------------

    def _slope(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... 1"]:
        """d log p(X | k) / d<X, e_k> where vertices are far, that is g(0) / V."""
        s = self._s(t)
        return self.bridge.drift_strength(torch.zeros_like(s)[..., None], s).to(torch.float32) / self.bridge.total_noise

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """Linear in X: from the mask among many tokens every <X, e_k> is small while anything is uncertain."""
        cosine = z[..., : self.num_classes]
        clean = MAX_LOGIT * (F.one_hot(cosine.argmax(-1), self.num_classes) - 1)
        return torch.where(t[..., None] > 0, self._slope(t) * cosine, clean.to(cosine.dtype))

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        if not self.training:
            return super().add_evidence(logits, z, t)
        rows = Read(*(field[self._scored] for field in self._last))
        slope = self._slope(t)
        said = logits.detach()  # the same memory; what made the logits does not need them for its gradient
        with torch.no_grad(), torch.autocast(said.device.type, enabled=False):
            for first in range(0, len(said), ROWS):
                part = slice(first, first + ROWS)
                said[part] += slope[part] * self.coordinates(Read(*(field[part] for field in rows)))
        return logits

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """In training estimated as if all vertices but the token's own were at a right angle."""
        if not self.training:
            return super().elbo_rate(out, u, z, t)
        node, s = self._node(t), self._s(t)
        with torch.no_grad():
            own, squares = _shares(out, u)
            a = self.moments[0, node, 0][:, None]
            strengths = (self.bridge.drift_strength(cosine, s) for cosine in (a, torch.zeros_like(a)))
            near, far = (strength.squeeze(-1).square() for strength in strengths)
            apart = far * (squares - own.square()) + near * (1 - own).square() * (1 - a.squeeze(-1) ** 2)
            cross_entropy = -own.clamp_min(1e-30).log()
            nats = apart * self.lengths[node] / (2 * self.bridge.total_noise)
            nats = nats + torch.where(node == self.timesteps - 1, cross_entropy, 0.0)
            nats = torch.where(t == 1, cross_entropy, nats)
        return 2 * nats  # for the half that is not scored

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return 2 * F.cross_entropy(out, u, reduction="none") if self.training else super().cross_entropy(out, u)


def _shares(out: Logits, u: Int64[Tensor, " N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """p_x and Σ_k p_k², without ever holding all p."""
    own, squares = torch.empty_like(out[:, 0]), torch.empty_like(out[:, 0])
    for first in range(0, len(out), ROWS):
        part = slice(first, first + ROWS)
        p = out[part].softmax(-1)
        own[part], squares[part] = p.gather(1, u[part, None]).squeeze(1), p.square_().sum(-1)
    return own, squares


def _factor(W: Float[Tensor, "D K"]) -> Float[Tensor, "D D"]:
    """L with L Lᵀ = W Wᵀ."""
    gram = W @ W.T
    return torch.linalg.cholesky(gram + 1e-6 * gram.diagonal().mean() * torch.eye(len(W), device=W.device))
