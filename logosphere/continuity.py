"""Likelihoods of flows by the ODE: a density is followed along the flow (Chen et al. 2018; Lipman et al. 2023).

A flow dz/ds = v(z, s) carries the density of its starts along (the continuity equation):

    log p(z at 1) = log p(z at 0) - ∫₀¹ div v(z_s, s) ds.

That is a density of states and no probability of tokens. Tokens are read off the end of the path, so that
p(x) = ∫ p(z) p_θ(x | z) dz over the states at s = 1, and with the law q(z | x) there, whose density is known,

    -log p(x) ≤ E_q[log q(z | x) - log p(z at 1)] + E_q[-log p_θ(x | z)]

(Jensen), for every network. With the exact posterior it is the entropy, but for what reading tokens one by one costs.
Solved in finitely many steps the integral has an error of the order 1/steps², of either sign, and nobody proves how
large it is: the figure is therefore a surrogate. Twice the steps tell how far off it is.

The divergence is the trace of ∂v/∂z, which is the intrinsic one because v is tangent wherever z is. It is taken
exactly, by one gradient for each coordinate, or by Hutchinson's estimate εᵀ (∂v/∂z) ε with random signs ε (unbiased).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.noise import Drawn, Noise
from logosphere.processes.flow import Carried, Flow, Transport
from logosphere.shapes import Float
from logosphere.types import Batch, Bound, Positions, Predict, State, Tokens

Slope = Callable[[State, float], tuple[State, Float[Tensor, "B"]]]
"""(z, s) -> v and its divergence."""


def carried(model: Model) -> tuple[Flow, Carried]:
    """The flow of a model along which densities can be followed, or a sentence."""
    process = model.process
    path: object = process.path if isinstance(process, Flow) else None
    if not isinstance(process, Flow) or not isinstance(path, Transport):
        raise UserError(
            "Likelihoods by the ODE are for flows that predict tokens: dirichlet-flow with churn=0, or fisher-flow "
            "with prior=simplex."
        )
    if not path.deterministic:
        raise UserError(
            "This flow is sampled with noise and has a bound of its own; build it with churn=0 for the ODE."
        )
    if not isinstance(path, Carried) or not path.smooth:
        raise UserError(
            "The velocities of this flow jump where tokens become impossible, and no divergence tells what that "
            "does to a density; build fisher-flow with prior=simplex."
        )
    return process, path


def ode_nelbo(
    model: Model,
    tokens: Tokens,
    rng: torch.Generator,
    denoiser: Predict | None = None,
    *,
    steps: int = 64,
    exact: bool = False,
    known: Positions | None = None,
) -> Bound:
    """One draw of the figure above for each sequence, nats: `diffusion` is that of the states, `recon` the reading.

    `exact` divergences cost a gradient for each coordinate of a sequence, L · K, and are for toys.
    """
    if steps < 1:
        raise UserError(f"The ODE needs at least 1 step, not {steps}.")
    process, path = carried(model)
    predict = model.denoiser if denoiser is None else denoiser
    if predict is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    batch, noise = Batch.of(tokens, known), Drawn(rng, len(tokens))
    u, free = process.codec.encode(tokens), batch.free
    training = model.training
    model.eval()
    try:
        z = torch.where(free[..., None], process.path.at(u, torch.ones(free.shape, device=u.device), noise), u)
        last = torch.where(free, process.time(torch.ones(free.shape, device=u.device)), 0.0)
        with torch.no_grad():
            read = F.cross_entropy(predict(z, last, context=u, where=free), tokens[free], reduction="none")
        slope = _slope(process, path, predict, u, free, None if exact else noise)
        start, spread = _backwards(slope, path, z, free, steps)
    finally:
        model.train(training)

    def per_sequence(values: Float[Tensor, "N"]) -> Float[Tensor, "B"]:
        return torch.zeros(free.shape, dtype=torch.float64).to(values).masked_scatter(free, values).sum(1)

    density = path.log_end(u[free].double(), z[free].double()) - path.log_start(start[free].double())
    nothing = torch.zeros(len(tokens), dtype=torch.float64, device=u.device)
    return Bound(
        recon=per_sequence(read.double()),
        diffusion=per_sequence(density) + spread,
        prior=nothing,
        loss=nothing,
        count=batch.counted,
        kind="surrogate",
    )


def _slope(process: Flow, path: Carried, predict: Predict, u: State, free: Positions, noise: Noise | None) -> Slope:
    """v and div v of all free positions together; known ones stand still."""

    def slope(z: State, s: float) -> tuple[State, Float[Tensor, "B"]]:
        share = torch.full(free.shape, s, device=u.device)
        t = torch.where(free, process.time(share), 0.0)
        with torch.enable_grad():
            beside = z.detach().requires_grad_()
            on = torch.where(free[..., None], path.onto(beside), u)
            out = predict(on, t, context=u, where=free)
            v = torch.zeros_like(on).masked_scatter(
                free[..., None].expand_as(on), path.flow(out, on[free], share[free])
            )
            return v.detach(), _divergence(v, beside, noise)

    return slope


def _divergence(v: State, z: State, noise: Noise | None) -> Float[Tensor, "B"]:
    if noise is not None:
        signs = (noise.uniform(*z.shape) < 0.5).to(z.dtype) * 2 - 1
        (pulled,) = torch.autograd.grad((v * signs).sum(), z)
        return (pulled * signs).flatten(1).sum(1).double()
    found = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for i, k in torch.cartesian_prod(torch.arange(z.shape[1]), torch.arange(z.shape[2])).tolist():
        (row,) = torch.autograd.grad(v[:, i, k].sum(), z, retain_graph=True)
        found = found + row[:, i, k].double()
    return found


def _backwards(slope: Slope, path: Carried, z: State, free: Positions, steps: int) -> tuple[State, Float[Tensor, "B"]]:
    """The start that leads to z, and ∫ div v ds, by Heun's method from s = 1 to 0."""
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    h = 1 / steps
    for n in range(steps, 0, -1):
        v, spread = slope(z, n * h)
        ahead = _moved(path, z, v, free, h)
        w, further = slope(ahead, (n - 1) * h)
        z = _moved(path, z, (v + w) / 2, free, h)
        total = total + h * (spread + further) / 2
    return z, total


def _moved(path: Carried, z: State, v: State, free: Positions, h: float) -> State:
    return torch.where(free[..., None], path.onto(z - h * v), z)
