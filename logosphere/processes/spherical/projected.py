"""Large vocabularies: in training, states exist only as the network reads them, W X in its width, and never as X.

From the mask, X = a e + b e_mask + c ν with ν uniform orthogonal to both, that is ν = g_⊥ / |g_⊥| for a normal vector g
over the K tokens without its coordinate g_x at the token. With the Cholesky factor L Lᵀ = W Wᵀ and y = L⁻¹ W g, which
is standard normal, everything that W X depends on has a distribution in D dimensions:

    W g = L y        g_x = r·y + √(1 - |r|²) ζ,  r = L⁻¹ w_x        |g|² = |y|² + ζ² + χ²_{K-D-1}

    W X = a w_x + c (L y - g_x w_x) / √(|g|² - g_x²)

so W X has the same distribution as if computed from X, and its gradient with respect to W is that of the distribution.
The log-likelihood of each token (the posterior head) needs all K coordinates at the positions that are scored. They are
drawn there a few rows at a time, given y, ζ and χ²: with Q = Wᵀ L⁻ᵀ and e' the unit vector of e_x - Q r,

    g = Q y + ζ e' + χ g'' / |g''|,        g'' a fresh normal vector without its components along Q and e'

So a state of training is W X together with these variables: a `ProjectedState` packed along the last axis. The network
reads its first D columns.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import VertexCodec
from logosphere.geometry.bridges import chi_square_quantiles
from logosphere.processes.base import MAX_LOGIT
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.rng import Noise, normal_rows
from logosphere.types import Float, Int64, Kind, Logits, Positions, State, Times, Tokens

ROWS = 64
"""Positions whose coordinates are in memory at the same time."""
KEY_BITS = 22
"""Bits of a key in one column: float32 holds integers up to 2²⁴ exactly."""


class ProjectedState(NamedTuple):
    """W X at each position and the variables it was computed from, which determine the distribution of X."""

    projection: Float[Tensor, "... D"]
    """W X."""
    y: Float[Tensor, "... D"]
    zeta: Float[Tensor, "... 1"]
    chi2: Float[Tensor, "... 1"]
    token: Int64[Tensor, "..."]
    a: Float[Tensor, "... 1"]
    scale: Float[Tensor, "... 1"]
    """c / |g_⊥|"""
    keys: Int64[Tensor, "..."]
    """Keys of the noise g''."""
    scored: Float[Tensor, "... 1"]
    """1 where the loss counts the position, else 0."""

    def pack(self) -> State:
        """All fields along the last axis, float32."""
        token, keys = self.token[..., None].float(), self.keys[..., None]
        parts = [(keys >> shift & (1 << KEY_BITS) - 1).float() for shift in range(0, 64, KEY_BITS)]
        return torch.cat([*self[:4], token, self.a, self.scale, *parts, self.scored], -1)

    @staticmethod
    def unpack(z: State, width: int) -> "ProjectedState":
        """The fields of a packed state."""
        projection, y, rest = z.split([width, width, z.shape[-1] - 2 * width], -1)
        zeta, chi2, token, a, scale, *parts, scored = rest.split(1, -1)
        keys = torch.cat([part.long() << KEY_BITS * i for i, part in enumerate(parts)], -1).sum(-1)
        return ProjectedState(projection, y, zeta, chi2, token.long()[..., 0], a, scale, keys, scored)


class ProjectedCodec(VertexCodec):
    """Vertices and their projection W into the width of a network. In training, clean states are token ids."""

    def __init__(self, vocab_size: int, projection_width: int):
        super().__init__(vocab_size)
        self.projection_width = projection_width
        self.weight = nn.Parameter(torch.empty(projection_width, vocab_size))
        nn.init.normal_(self.weight)

    def encode(self, tokens: Tokens) -> State:
        return tokens if self.training else super().encode(tokens)

    def project(self, z: State) -> Float[Tensor, "... D"]:
        """W X, of a packed state in training and of X otherwise."""
        if self.training:
            return z[..., : self.projection_width]
        return F.linear(z[..., : self.vocab_size].to(self.weight.device), self.weight).to(z.device)

    def cholesky(self) -> Float[Tensor, "D D"]:
        """L with L Lᵀ = W Wᵀ."""
        gram = self.weight @ self.weight.T
        jitter = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
        return torch.linalg.cholesky(gram + jitter)

    def build_stem(self, width: int) -> nn.Module:
        return ProjectedInput(self)


class ProjectedInput(nn.Module):
    """The first layer of a network: W X at a norm that is the same at all times, since it has no information.

    W belongs to the process, which may be on another device than the network.
    """

    def __init__(self, codec: ProjectedCodec):
        super().__init__()
        self.project = codec.project  # a function: the codec is no submodule of the network

    def forward(self, z: State) -> State:
        h = self.project(z)
        return F.rms_norm(h, (h.shape[-1],)) * 0.5


class ProjectedSphericalDiffusion(SphericalDiffusion):
    """Bridges from the mask among many tokens; in training their value is a surrogate, since X does not exist.

    Half of the positions are scored in each step of training, as many as in masked diffusion on average.
    """

    codec: ProjectedCodec

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return "surrogate" if self.training else "bound"

    # ---- projected states -------------------------------------------------------------------------------------------

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        if not self.training:
            return super().corrupt(u, t, noise)
        with torch.autocast(t.device.type, enabled=False):  # L is computed again from W, and must be the same
            return self.sample_projected(u, t, noise).pack()

    def sample_projected(self, tokens: Tokens, t: Times, noise: Noise) -> ProjectedState:
        """W X at times t, and what it was computed from."""
        width, K = self.codec.weight.shape
        L = self.codec.cholesky()
        a, b, _ = self._sample_ab(t, noise)
        own = F.embedding(tokens, self.codec.weight.T)
        y, zeta = noise.normal(*t.shape, width), noise.normal(*t.shape, 1)
        r = torch.linalg.solve_triangular(L.detach(), own.detach().flatten(0, 1).T, upper=False).T.view_as(own)
        g_x = (r * y).sum(-1, keepdim=True) + (1 - r.square().sum(-1, keepdim=True)).clamp_min(0).sqrt() * zeta
        chi2 = chi_square_quantiles(K - width - 1)(noise.uniform(*t.shape))[..., None].to(y)
        length = y.square().sum(-1, keepdim=True) + zeta.square() + chi2
        scale = ((1 - a.square() - b.square()).clamp_min(0) / (length - g_x.square()).clamp_min(1e-12)).sqrt()
        keys = noise.row_keys(*t.shape)
        projection = torch.where(t[..., None] > 0, a * own + scale * (y @ L.T - g_x * own), own)
        # The global generator is set by seed and step in training, so that all processes score the same positions.
        parity = int(torch.rand(()) < 0.5)
        scored = (torch.arange(t.shape[1], device=t.device) + parity) % 2 == 0
        return ProjectedState(
            projection, y, zeta, chi2, tokens, a, scale, keys, scored.to(y)[:, None].expand(*t.shape, 1)
        )

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        if not self.training:
            return super().needs_prediction(z, moving)
        return moving & (z[..., -1] > 0)  # ProjectedState.scored

    def sample_coordinates(self, state: ProjectedState, L: Float[Tensor, "D D"]) -> Float[Tensor, "N K"]:
        """Coordinates of X at the tokens, for N positions, given what W X was computed from."""
        W = self.codec.weight.detach()
        fresh, at = normal_rows(state.keys, W.shape[1]), state.token[:, None]

        def whiten(columns: Tensor) -> Float[Tensor, "N D"]:
            return torch.linalg.solve_triangular(L, columns, upper=False).T

        q, r = whiten(W @ fresh.T), whiten(W[:, state.token])
        eta = (1 - r.square().sum(-1, keepdim=True)).clamp_min(1e-6).sqrt()
        along = (fresh.gather(1, at) - (q * r).sum(-1, keepdim=True)) / eta
        norm2 = fresh.square().sum(-1, keepdim=True) - q.square().sum(-1, keepdim=True) - along.square()
        factor = (state.chi2 / norm2.clamp_min(1e-6)).sqrt()
        kappa = (state.zeta - factor * along) / eta
        back = torch.linalg.solve_triangular(L.T, (state.y - factor * q - kappa * r).T, upper=True)
        fresh.mul_(factor).addmm_(back.T, W).mul_(state.scale)
        return fresh.scatter_(1, at, state.a)

    # ---- the posterior and the bound -----------------------------------------------------------------------------

    def _slope(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... 1"]:
        """d log p(X | k) / d<X, e_k> at a right angle, that is g(0) / V."""
        s = self._s(t)
        return self.bridge.drift_strength(torch.zeros_like(s)[..., None], s).to(torch.float32) / self.bridge.total_noise

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """Linear in X: from the mask among many tokens every <X, e_k> is small while the token is uncertain."""
        cosine = z[..., : self.num_classes]
        clean = MAX_LOGIT * (F.one_hot(cosine.argmax(-1), self.num_classes) - 1)
        return torch.where(t[..., None] > 0, self._slope(t) * cosine, clean.to(cosine.dtype))

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        if not self.training:
            return super().add_evidence(logits, z, t)
        slope = self._slope(t)
        total = logits.detach()  # the same memory; the gradient of the logits does not need their values
        with torch.no_grad(), torch.autocast(total.device.type, enabled=False):
            state, L = ProjectedState.unpack(z, self.codec.projection_width), self.codec.cholesky()
            for first in range(0, len(total), ROWS):
                rows = slice(first, first + ROWS)
                part = ProjectedState(*(field[rows] for field in state))
                total[rows] += slope[rows] * self.sample_coordinates(part, L)
        return logits

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """In training estimated as if all vertices but the token's own were at a right angle."""
        if not self.training:
            return super().elbo_rate(out, u, z, t)
        node, s = self._node(t), self._s(t)
        with torch.no_grad():
            own, squares = _token_probability(out, u)
            a = self.moments[0, node, 0][:, None]
            strengths = (self.bridge.drift_strength(cosine, s) for cosine in (a, torch.zeros_like(a)))
            near, far = (strength.squeeze(-1).square() for strength in strengths)
            error = far * (squares - own.square()) + near * (1 - own).square() * (1 - a.squeeze(-1) ** 2)
            cross_entropy = -own.clamp_min(1e-30).log()
            rate = error * self.lengths[node] / (2 * self.bridge.total_noise)
            rate = rate + torch.where(node == self.timesteps - 1, cross_entropy, 0.0)
            rate = torch.where(t == 1, cross_entropy, rate)
        return 2 * rate  # for the half of the positions that is not scored

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        return 2 * F.cross_entropy(out, u, reduction="none") if self.training else super().cross_entropy(out, u)


def _token_probability(out: Logits, u: Int64[Tensor, " N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """p_x and Σ_k p_k², without all p in memory."""
    own, squares = torch.empty_like(out[:, 0]), torch.empty_like(out[:, 0])
    for first in range(0, len(out), ROWS):
        part = slice(first, first + ROWS)
        p = out[part].softmax(-1)
        own[part], squares[part] = p.gather(1, u[part, None]).squeeze(1), p.square_().sum(-1)
    return own, squares
