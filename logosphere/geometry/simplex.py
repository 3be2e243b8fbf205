"""The simplex of distributions: Dirichlet samples, Fisher metric, Wright-Fisher diffusion, and linear assignment.

Wright-Fisher diffusion of variance h,  dz = ½ h (1 - K z) dτ + √h G^½ dW,  G = diag(z) - z zᵀ,  has the stationary
distribution Dirichlet(1, …, 1). It is Brownian motion on the sphere of C^K, mapped by z_k = |w_k|²; in these
coordinates the edges of the simplex need no special treatment.
"""

import numpy as np
import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.geometry import sphere
from logosphere.rng import Noise, running_sum
from logosphere.types import Float, Int64

Probabilities = Float[Tensor, "... K"]
TINY = 1e-12
"""Lower limit of probabilities in denominators."""
ROUNDS = 6
"""Proposals for a gamma variable; each is accepted with a probability of at least 95%."""


def sample_gamma(shape: Float[Tensor, "..."], noise: Noise) -> Float[Tensor, "..."]:
    """Sample Gamma(shape) for shapes of at least 1, by ROUNDS proposals of Marsaglia and Tsang (2000).

    In one case of 10⁸ none is accepted, and the last one is returned.
    """
    d = shape.double() - 1 / 3
    drawn = d
    pending = torch.ones_like(d, dtype=torch.bool)
    for _ in range(ROUNDS):
        normal, u = noise.normal(*shape.shape).double(), noise.uniform(*shape.shape)
        v = (1 + normal / (9 * d).sqrt()).clamp_min(1e-9) ** 3
        accepted = u.log() < 0.5 * normal.square() + d * (1 - v + v.log())
        drawn = torch.where(pending, d * v, drawn)
        pending = pending & ~accepted
    return drawn


def sample_dirichlet_corner(u: Probabilities, weight: Float[Tensor, "..."], noise: Noise) -> Probabilities:
    """Sample z ~ Dirichlet(1, …, 1) except for the corner u, whose gamma variable is `weight`."""
    plain = -noise.uniform(*u.shape).log()
    z = torch.where(u > 0, weight[..., None], plain)
    return (z / z.sum(-1, keepdim=True)).to(u.dtype)


def sample_dirichlet(batch: int, length: int, num_classes: int, noise: Noise) -> Probabilities:
    """Sample z ~ Dirichlet(1, …, 1)."""
    z = -noise.uniform(batch, length, num_classes).log()
    return (z / z.sum(-1, keepdim=True)).float()


def project(z: Probabilities) -> Probabilities:
    """Clamp z at 0 and normalise it, which corrects rounding errors."""
    z = z.clamp_min(0)
    return z / z.sum(-1, keepdim=True)


def project_euclidean(z: Probabilities) -> Probabilities:
    """Return the point of the simplex nearest to z: (z - λ)₊ with λ such that the sum is 1 (Duchi et al. 2008)."""
    falling = z.sort(-1, descending=True).values
    excess = (running_sum(falling) - 1) / torch.arange(1, z.shape[-1] + 1, device=z.device)
    last = (falling > excess).sum(-1, keepdim=True) - 1
    return (z - excess.gather(-1, last)).clamp_min(0)


def squared_norm(weights: Probabilities, z: Probabilities) -> Float[Tensor, "..."]:
    """|Σ_k a_k (e_k - z)|² in the Fisher metric G⁻¹: Σ_k a_k² / z_k - (Σ_k a_k)²."""
    return ((weights.square() / z.clamp_min(TINY)).sum(-1) - weights.sum(-1).square()).clamp_min(0)


def drift_step(z: Probabilities, weights: Probabilities) -> Probabilities:
    """dz = Σ_k a_k (e_k - z) for one unit of time, with a ≥ 0 constant: exact, and always inside the simplex."""
    total = weights.sum(-1, keepdim=True)
    return torch.lerp(z, weights / total.clamp_min(1e-30), -torch.expm1(-total))


def diffusion_step(z: Probabilities, variance: Float[Tensor, "... 1"], noise: Noise) -> Probabilities:
    """Take a step of Wright-Fisher diffusion of this variance, by one geodesic step on the sphere of C^K."""
    root = torch.cat([z.sqrt(), torch.zeros_like(z)], -1)
    normal = noise.normal(*root.shape).to(z.dtype)
    moved = sphere.exp(root, 0.5 * variance.sqrt() * sphere.project(root, normal)).square()
    return moved[..., : z.shape[-1]] + moved[..., z.shape[-1] :]


def to_sticks(z: Probabilities) -> tuple[Float[Tensor, "... J"], Float[Tensor, "... J"]]:
    """Return the stick-breaking fractions v_j = z_j / Σ_(i ≥ j) z_i and 1 - v_j; J = K - 1, float64."""
    left = running_sum(z.double().flip(-1)).flip(-1).clamp_min(1e-30)
    return z.double()[..., :-1] / left[..., :-1], left[..., 1:] / left[..., :-1]


def from_sticks(v: Float[Tensor, "... J"], rest: Float[Tensor, "... J"]) -> Probabilities:
    """Return z_j = v_j Π_(i < j) (1 - v_i), where the last token has the remainder; `rest` is 1 - v."""
    left = torch.cat([torch.ones_like(v[..., :1]), rest.cumprod(-1)], -1)
    return left * torch.cat([v, torch.ones_like(v[..., :1])], -1)


def jacobi_step(
    v: Float[Tensor, "... J"],
    rest: Float[Tensor, "... J"],
    others: Float[Tensor, " J"],
    variance: Float[Tensor, "... J"],
    noise: Noise,
) -> tuple[Float[Tensor, "... J"], Float[Tensor, "... J"]]:
    """Take a step of the Wright-Fisher diffusion of one fraction v against b `others`, stationary at Beta(1, b).

    Return v and 1 - v. Of the step of `diffusion_step` in C^(1+b) three components matter: that along the circle
    through both, that in the phase of v, and the norm of all others, whose square is chi-square with 2b - 1
    degrees of freedom.
    """
    along, phase, other = (noise.normal(*v.shape).to(v) for _ in range(3))
    many = 2 * sample_gamma((others - 1).clamp_min(1).expand_as(v), noise) * (others > 1)
    across = other.square() + many
    length = (along.square() + phase.square() + across).sqrt()
    angle = 0.5 * variance.sqrt() * length
    cosine, sine = angle.cos(), angle.sin() / length
    moved = (cosine * v.sqrt() + sine * along * rest.sqrt()).square() + (sine * phase).square()
    left = (cosine * rest.sqrt() - sine * along * v.sqrt()).square() + sine.square() * across
    return moved, left


def linear_assignment(cost: Float[Tensor, "n m"]) -> Int64[Tensor, " n"]:
    """Return the columns of rows 0 … n-1 that minimise Σ cost[row, column]: optimal transport between n points each.

    Shortest augmenting paths (Jonker and Volgenant 1987): rows are added one by one, each by the cheapest chain of
    exchanges, with column prices that keep all reduced costs non-negative. O(n³), of which n² is vectorised.
    """
    if cost.dim() != 2 or cost.shape[0] != cost.shape[1] or not bool(cost.isfinite().all()):
        raise UserError(f"An assignment needs a square matrix of finite costs, not one of shape {list(cost.shape)}.")
    table, n = cost.detach().double().cpu().numpy(), len(cost)
    owner = np.full(n, -1)  # the row that has each column
    row_price, column_price = np.zeros(n), np.zeros(n)
    for start in range(n):
        shortest, before = np.full(n, np.inf), np.full(n, start)
        reached, row, distance = np.zeros(n, bool), start, 0.0
        while True:
            reduced = distance + table[row] - row_price[row] - column_price
            better = ~reached & (reduced < shortest)
            shortest[better], before[better] = reduced[better], row
            column = int(np.where(reached, np.inf, shortest).argmin())
            distance, reached[column] = shortest[column], True
            if owner[column] < 0:
                break
            row = int(owner[column])
        done = reached.copy()
        done[column] = False
        row_price[start] += distance
        row_price[owner[done]] += distance - shortest[done]
        column_price[done] -= distance - shortest[done]
        _exchange(owner, before, column, start)
    columns = np.empty(n, dtype=np.int64)
    columns[owner] = np.arange(n)
    return torch.from_numpy(columns).to(cost.device)


def _exchange(owner: np.ndarray, before: np.ndarray, column: int, start: int) -> None:
    """Give every row of the chain that ends at a free column the next column."""
    column_of = {int(row): column for column, row in enumerate(owner) if row >= 0}
    while True:
        row = int(before[column])
        owner[column] = row
        if row == start:
            return
        column = column_of[row]
