"""The simplex of distributions: Dirichlet draws, its Fisher metric, and steps of Wright-Fisher diffusion inside it.

Wright-Fisher diffusion of variance h,  dz = ½ h (1 - K z) dτ + √h G^½ dW,  G = diag(z) - z zᵀ,  keeps
Dirichlet(1, …, 1). It is Brownian motion on the sphere of C^K, seen through z_k = |w_k|²: so it needs no care at edges.
"""

import torch
from torch import Tensor

from logosphere.geometry import sphere
from logosphere.rng import Noise, running_sum
from logosphere.types import Float

Shares = Float[Tensor, "... K"]
TINY = 1e-12
"""Shares below this count as this where they are divided by."""
ROUNDS = 6
"""Proposals for a gamma variable: each is accepted with a chance of 95% or more."""


def gamma(shape: Float[Tensor, "..."], noise: Noise) -> Float[Tensor, "..."]:
    """Gamma(shape) for shapes of at least 1, by so many proposals of Marsaglia and Tsang (2000).

    In one case of 10⁸ none is accepted, and the last is taken.
    """
    d = shape.double() - 1 / 3
    drawn = d
    open_still = torch.ones_like(d, dtype=torch.bool)
    for _ in range(ROUNDS):
        normal, u = noise.normal(*shape.shape).double(), noise.uniform(*shape.shape)
        v = (1 + normal / (9 * d).sqrt()).clamp_min(1e-9) ** 3
        accepted = u.log() < 0.5 * normal.square() + d * (1 - v + v.log())
        drawn = torch.where(open_still, d * v, drawn)
        open_still = open_still & ~accepted
    return drawn


def favoured(u: Shares, weight: Float[Tensor, "..."], noise: Noise) -> Shares:
    """z ~ Dirichlet(1, …, 1) but for the corner u, whose gamma variable is `weight`."""
    plain = -noise.uniform(*u.shape).log()
    z = torch.where(u > 0, weight[..., None], plain)
    return (z / z.sum(-1, keepdim=True)).to(u.dtype)


def even(batch: int, length: int, choices: int, noise: Noise) -> Shares:
    """z ~ Dirichlet(1, …, 1)."""
    z = -noise.uniform(batch, length, choices).log()
    return (z / z.sum(-1, keepdim=True)).float()


def onto(z: Shares) -> Shares:
    """Shares that are not negative and add up to 1, from numbers that nearly do."""
    z = z.clamp_min(0)
    return z / z.sum(-1, keepdim=True)


def projected(z: Shares) -> Shares:
    """The point of the simplex nearest to z: (z - λ)₊ with λ such that the sum is 1 (Duchi et al. 2008)."""
    falling = z.sort(-1, descending=True).values
    excess = (running_sum(falling) - 1) / torch.arange(1, z.shape[-1] + 1, device=z.device)
    last = (falling > excess).sum(-1, keepdim=True) - 1
    return (z - excess.gather(-1, last)).clamp_min(0)


def squared_norm(weights: Shares, z: Shares) -> Float[Tensor, "..."]:
    """|Σ_k a_k (e_k - z)|² in the metric G⁻¹ of Fisher: Σ_k a_k² / z_k - (Σ_k a_k)²."""
    return ((weights.square() / z.clamp_min(TINY)).sum(-1) - weights.sum(-1).square()).clamp_min(0)


def drifted(z: Shares, weights: Shares) -> Shares:
    """dz = Σ_k a_k (e_k - z) for one unit of time, with a ≥ 0 held fixed: exact, and never outside."""
    total = weights.sum(-1, keepdim=True)
    return torch.lerp(z, weights / total.clamp_min(1e-30), -torch.expm1(-total))


def diffused(z: Shares, variance: Float[Tensor, "... 1"], noise: Noise) -> Shares:
    """Wright-Fisher diffusion of this variance, by one geodesic step on the sphere of C^K."""
    root = torch.cat([z.sqrt(), torch.zeros_like(z)], -1)
    normal = noise.normal(*root.shape).to(z.dtype)
    moved = sphere.exp(root, 0.5 * variance.sqrt() * sphere.project(root, normal)).square()
    return moved[..., : z.shape[-1]] + moved[..., z.shape[-1] :]


def sticks(z: Shares) -> tuple[Float[Tensor, "... J"], Float[Tensor, "... J"]]:
    """v_j = z_j / Σ_(i ≥ j) z_i, what each token takes of what is left, and 1 - v_j; J = K - 1, float64."""
    left = running_sum(z.double().flip(-1)).flip(-1).clamp_min(1e-30)
    return z.double()[..., :-1] / left[..., :-1], left[..., 1:] / left[..., :-1]


def shares(v: Float[Tensor, "... J"], rest: Float[Tensor, "... J"]) -> Shares:
    """z_j = v_j Π_(i < j) (1 - v_i), and the last takes all that is left; `rest` is 1 - v."""
    left = torch.cat([torch.ones_like(v[..., :1]), rest.cumprod(-1)], -1)
    return left * torch.cat([v, torch.ones_like(v[..., :1])], -1)


def jacobi(
    v: Float[Tensor, "... J"],
    rest: Float[Tensor, "... J"],
    others: Float[Tensor, " J"],
    variance: Float[Tensor, "... J"],
    noise: Noise,
) -> tuple[Float[Tensor, "... J"], Float[Tensor, "... J"]]:
    """Wright-Fisher diffusion of one share against b `others` together, which keeps Beta(1, b), and what it leaves.

    Of the step of `diffused` in C^(1+b) three things matter: its part along the circle through both, its part in the
    phase of the share, and the length of all others, whose square is chi-square with 2b - 1 degrees of freedom.
    """
    along, phase, other = (noise.normal(*v.shape).to(v) for _ in range(3))
    many = 2 * gamma((others - 1).clamp_min(1).expand_as(v), noise) * (others > 1)
    across = other.square() + many
    length = (along.square() + phase.square() + across).sqrt()
    angle = 0.5 * variance.sqrt() * length
    cosine, sine = angle.cos(), angle.sin() / length
    moved = (cosine * v.sqrt() + sine * along * rest.sqrt()).square() + (sine * phase).square()
    left = (cosine * rest.sqrt() - sine * along * v.sqrt()).square() + sine.square() * across
    return moved, left
