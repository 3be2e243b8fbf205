"""Jump rates are limits of transition kernels, and the analytic sampler equals the ancestral one."""

import pytest
import torch
from torch import Tensor
from toy_languages import generator, independent_tokens
from toy_models import System

from logosphere.sampling.steppers.jumps import backward_rates, forward_rates

V = 4
LANGUAGE = independent_tokens(V, 1)
X = torch.rand(V, generator=generator(1), dtype=torch.float64).softmax(0)
T, S = torch.tensor(0.6).double(), torch.tensor(0.35).double()
SYSTEMS = [
    System("mdlm"),
    System("d3pm-uniform", {"timesteps": None}),
    System("mdlm", {"schedule": "cosine"}),
    System("gidd"),
]


def noise_of(model, t: Tensor) -> Tensor:
    """b_t over all states."""
    mixing = model.process.mixing
    return torch.cat([mixing.uniform_mass(t).expand(V), *[mixing.mask_mass(t)[None]] * mixing.has_mask]).double()


def marginal(model, x: Tensor, t: Tensor) -> Tensor:
    """q(z_t | x) = a_t x + b_t over all states, for a distribution x."""
    b = noise_of(model, t)
    return model.process.mixing.signal(t) * torch.nn.functional.pad(x, (0, len(b) - V)) + b


def forward_matrix(model, s: Tensor, t: Tensor) -> Tensor:
    """q(z_t | z_s) = (a_t/a_s) [z_t = z_s] + b_t - (a_t/a_s) b_s, rows by z_s."""
    kept = model.process.mixing.signal(t) / model.process.mixing.signal(s)
    b_t, b_s = noise_of(model, t), noise_of(model, s)
    return kept * torch.eye(len(b_t)).double() + b_t - kept * b_s


def posterior(model, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """q(z_s | z_t, x), rows by z_t."""
    joint = forward_matrix(model, s, t).T * marginal(model, x, s)
    return joint / joint.sum(1, keepdim=True)


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_analytic_sampler_matches_the_ancestral_sampler(system: System) -> None:
    """(e^{-dQ} s)_y (e^{dQ})(y → z) with the score s_y = q_t(y)/q_t(z): SEDD's Tweedie step by matrices."""
    model = system.model(LANGUAGE)
    forward, q = forward_matrix(model, S, T), marginal(model, X, T)
    for z in range(len(q)):
        if q[z] == 0:
            continue
        staggered = torch.linalg.solve(forward.T, q / q[z])
        torch.testing.assert_close(staggered * forward[:, z], posterior(model, X, S, T)[z], rtol=0, atol=1e-12)


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_rates_are_limits_of_transition_kernels(system: System) -> None:
    model, short = system.model(LANGUAGE), 1e-6
    K = V if model.process.mask is None else V + 1
    z = torch.arange(K)
    others = ~torch.eye(K).bool()
    away = forward_matrix(model, T, T + short) / short
    torch.testing.assert_close(forward_rates(model.process, z, T.expand(K))[others], away[others], rtol=1e-4, atol=1e-6)
    out = model.process.add_evidence(X.log().expand(K, -1).clone(), z, T.expand(K).float())
    back = posterior(model, X, T - short, T) / short
    masked = others if model.process.mixing.has_uniform else others & (z == V)[:, None]
    rates = backward_rates(model.process, out, z, T.expand(K))
    torch.testing.assert_close(rates[masked].double(), back[masked], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_corrector_preserves_the_marginal(system: System) -> None:
    model = system.model(LANGUAGE)
    q = marginal(model, X, T)
    z = torch.arange(len(q))
    out = model.process.add_evidence(X.log().expand(len(q), -1).clone(), z, T.expand(len(q)).float())
    t = T.expand(len(q))
    rates = forward_rates(model.process, z, t) + backward_rates(model.process, out, z, t)
    torch.testing.assert_close(q @ rates, q * rates.sum(1), rtol=0, atol=1e-7)
