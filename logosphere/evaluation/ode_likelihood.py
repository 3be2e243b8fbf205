"""Likelihoods of flows by the ODE: the change of density along the flow (Chen et al. 2018; Lipman et al. 2023).

A flow dz/ds = v(z, s) transports the density of its starting points (the continuity equation):

    log p(z at 1) = log p(z at 0) - ∫₀¹ div v(z_s, s) ds.

This is a density of states, not a probability of tokens. Tokens are decoded from the end of the path, so
p(x) = ∫ p(z) p_θ(x | z) dz over the states at s = 1, and with the distribution q(z | x) there, whose density is known,

    -log p(x) ≤ E_q[log q(z | x) - log p(z at 1)] + E_q[-log p_θ(x | z)]

(Jensen), for every network. With the exact posterior it is the entropy plus the cost of decoding tokens independently.
Solved in finitely many steps the integral has an error of order 1/steps², of either sign and without a proven limit, so
the result is a surrogate. Doubling the steps shows the size of the error.

The divergence is the trace of ∂v/∂z, which is the intrinsic one because v is tangent wherever z is. It is taken
exactly, by one gradient per coordinate, or by Hutchinson's estimate εᵀ (∂v/∂z) ε with random signs ε (unbiased).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError, check_count
from logosphere.inputs import BatchLike, IdsLike
from logosphere.model import Model
from logosphere.processes.simplex.process import DensityPath, DeterministicPath, SimplexProcess
from logosphere.rng import GeneratorNoise, Noise, as_generator
from logosphere.types import Bound, Float, Positions, Predict, State

Velocity = Callable[[State, float], tuple[State, Float[Tensor, " B"]]]
"""(z, s) -> v and its divergence."""


def density_path(model: Model) -> tuple[SimplexProcess, DensityPath]:
    """The process of a model and its path, if densities can be computed along it; raises UserError otherwise."""
    process = model.process
    path: object = process.path if isinstance(process, SimplexProcess) else None
    if not isinstance(process, SimplexProcess) or not isinstance(path, DeterministicPath):
        raise UserError(
            "Likelihoods by the ODE are for flows that predict tokens: dirichlet-flow with churn=0, or fisher-flow "
            "with prior=simplex."
        )
    if not path.deterministic:
        raise UserError(
            "This flow is sampled with noise and has a bound of its own; build it with churn=0 for the ODE."
        )
    if not isinstance(path, DensityPath) or not path.smooth:
        raise UserError(
            "The velocities of this flow are discontinuous where tokens become impossible, so their divergence does "
            "not give the density; build fisher-flow with prior=simplex."
        )
    return process, path


def ode_nelbo(
    model: Model,
    tokens: BatchLike,
    rng: torch.Generator | int,
    denoiser: Predict | None = None,
    *,
    steps: int = 64,
    exact: bool = False,
    known: IdsLike | None = None,
) -> Bound:
    """One draw of the estimate above per sequence, in nats; `diffusion` is the term of states, `recon` that of tokens.

    `exact` divergences cost one gradient per coordinate of a sequence, L · K, and are for small examples.
    """
    check_count("The number of steps", steps)
    process, path = density_path(model)
    predict = model.denoiser if denoiser is None else denoiser
    if predict is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    batch = model.read(tokens, known)
    tokens, noise = batch.tokens, GeneratorNoise(as_generator(rng, batch.tokens.device), len(batch))
    u, free = process.codec.encode(tokens), batch.free
    training = model.training
    model.eval()
    try:
        z = torch.where(free[..., None], process.path.q_sample(u, torch.ones(free.shape, device=u.device), noise), u)
        last = torch.where(free, process.time(torch.ones(free.shape, device=u.device)), 0.0)
        with torch.no_grad():
            recon = F.cross_entropy(predict(z, last, context=u, where=free), tokens[free], reduction="none")
        velocity = _make_velocity(process, path, predict, u, free, None if exact else noise)
        start, divergence = _integrate_backward(velocity, path, z, free, steps)
    finally:
        model.train(training)

    def per_sequence(values: Float[Tensor, " N"]) -> Float[Tensor, " B"]:
        return torch.zeros(free.shape, dtype=torch.float64).to(values).masked_scatter(free, values).sum(1)

    density = path.log_end(u[free].double(), z[free].double()) - path.log_start(start[free].double())
    zeros = torch.zeros(len(tokens), dtype=torch.float64, device=u.device)
    return Bound(
        recon=per_sequence(recon.double()),
        diffusion=per_sequence(density) + divergence,
        prior=zeros,
        loss=zeros,
        count=batch.scored_tokens,
        kind="surrogate",
    )


def _make_velocity(
    process: SimplexProcess, path: DensityPath, predict: Predict, u: State, free: Positions, noise: Noise | None
) -> Velocity:
    """v and div v over all free positions; known positions have v = 0."""

    def velocity(z: State, s: float) -> tuple[State, Float[Tensor, " B"]]:
        progress = torch.full(free.shape, s, device=u.device)
        t = torch.where(free, process.time(progress), 0.0)
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            on = torch.where(free[..., None], path.project(leaf), u)
            out = predict(on, t, context=u, where=free)
            v = torch.zeros_like(on).masked_scatter(
                free[..., None].expand_as(on), path.velocity(out, on[free], progress[free])
            )
            return v.detach(), _divergence(v, leaf, noise)

    return velocity


def _divergence(v: State, z: State, noise: Noise | None) -> Float[Tensor, " B"]:
    if noise is not None:
        signs = (noise.uniform(*z.shape) < 0.5).to(z.dtype) * 2 - 1
        (product,) = torch.autograd.grad((v * signs).sum(), z)
        return (product * signs).flatten(1).sum(1).double()
    trace = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for i, k in torch.cartesian_prod(torch.arange(z.shape[1]), torch.arange(z.shape[2])).tolist():
        (row,) = torch.autograd.grad(v[:, i, k].sum(), z, retain_graph=True)
        trace = trace + row[:, i, k].double()
    return trace


def _integrate_backward(
    velocity: Velocity, path: DensityPath, z: State, free: Positions, steps: int
) -> tuple[State, Float[Tensor, " B"]]:
    """The starting point of the path to z, and ∫ div v ds, by Heun's method from s = 1 to 0."""
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    h = 1 / steps
    for n in range(steps, 0, -1):
        v, div_v = velocity(z, n * h)
        w, div_w = velocity(_euler_step(path, z, v, free, h), (n - 1) * h)
        z = _euler_step(path, z, (v + w) / 2, free, h)
        total = total + h * (div_v + div_w) / 2
    return z, total


def _euler_step(path: DensityPath, z: State, v: State, free: Positions, h: float) -> State:
    return torch.where(free[..., None], path.project(z - h * v), z)
