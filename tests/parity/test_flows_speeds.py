"""The factor C(y, α) of Dirichlet flow matching against positive series, mpmath and the paper's definition.

With b = K - 1, m = ψ(α) - ψ(α + b), (x)_n the rising factorial and D_n(x) = ψ(x + n) - ψ(x), the incomplete beta
functions are Σ_n (α + b)_n / (α)_(n+1) y^n and Σ_n (α + b)_n / (b)_(n+1) (1 - y)^n, times y^α (1 - y)^b. So

    C(y, α) / y = Σ_n (α + b)_n / (α)_(n+1) y^n (m - log y + D_(n+1)(α) - D_n(α + b))        for log y < m
                = Σ_n (α + b)_n / (b)_(n+1) (1 - y)^n (log y - m + D_n(α + b))                elsewhere,

and all terms are positive. The table is float64 here and float32 in the model; linear interpolation adds an error.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special

from logosphere.processes.simplex.dirichlet import DirichletPath, default_alpha, gauss_jacobi, speed_table

TERMS = 40_000


def factor(num_classes: int, alpha: float, y: np.ndarray) -> np.ndarray:
    """C(y, α) / y by the series above."""
    b, n = num_classes - 1, np.arange(TERMS)
    mean = special.digamma(alpha) - special.digamma(alpha + b)
    rising = special.gammaln(alpha + b + n) - special.gammaln(alpha + b)
    gained = special.digamma(alpha + b + n) - special.digamma(alpha + b)
    below = rising - special.gammaln(alpha + n + 1) + special.gammaln(alpha)
    above = rising - special.gammaln(b + n + 1) + special.gammaln(b)
    lost = special.digamma(alpha + n + 1) - special.digamma(alpha) - gained
    found = []
    for point in y:
        with np.errstate(under="ignore"):
            if math.log(point) < mean:
                found.append((np.exp(below + n * math.log(point)) * (mean - math.log(point) + lost)).sum())
            else:
                left = n * math.log1p(-point) if point < 1 else np.where(n > 0, -np.inf, 0.0)
                found.append((np.exp(above + left) * (math.log(point) - mean + gained)).sum())
    return np.array(found)


@pytest.mark.parametrize("num_classes", [4, 20, 27, 256])
def test_the_table_has_six_digits_at_every_alpha(num_classes: int) -> None:
    alphas = torch.linspace(1, default_alpha(num_classes), 129, dtype=torch.float64)
    log_y = torch.linspace(-20, 0, 513, dtype=torch.float64)
    rows = speed_table(num_classes, alphas)
    assert rows.shape == (129, 513) and (rows > 0).all()
    some = torch.cat([torch.arange(0, 380, 54), torch.arange(380, 513, 12)])
    for alpha, row in zip(alphas.tolist(), rows, strict=True):
        np.testing.assert_allclose(row[some].numpy(), factor(num_classes, alpha, log_y[some].exp().numpy()), rtol=1e-6)


@pytest.mark.parametrize(
    ("num_classes", "alpha", "index"), [(20, 7.0, 300), (27, 1.5, 60), (256, 13.0, 20), (2048, 5.0, 400)]
)
def test_the_table_agrees_with_mpmath(num_classes: int, alpha: float, index: int) -> None:
    """The definition, -∂_α I · B / ((1 - y)^b y^(α-1)), by numerical differentiation at 50 digits."""
    with mpmath.workdps(50):
        y, b = mpmath.exp(mpmath.mpf(-20) + mpmath.mpf(20) * index / 512), num_classes - 1
        slope = mpmath.diff(lambda a: mpmath.betainc(a, b, 0, y, regularized=True), mpmath.mpf(alpha))
        expected = -slope * mpmath.beta(alpha, b) / ((1 - y) ** b * y**alpha)
    found = speed_table(num_classes, torch.tensor([alpha], dtype=torch.float64))[0, index]
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_factor_keeps_its_precision_at_small_y() -> None:
    path = DirichletPath(20, 8.0, churn=0.0)
    found = float(path.speed(torch.tensor([[1e-3]]), torch.tensor([6 / 7])))
    assert found == pytest.approx(8.148e-4, rel=1e-4)


@pytest.mark.parametrize("num_classes", [230, 256, 2048, 50_257])
def test_factors_of_large_vocabularies_are_finite_and_positive(num_classes: int) -> None:
    rows = speed_table(num_classes, torch.linspace(1, default_alpha(num_classes), 33, dtype=torch.float64))
    assert rows.isfinite().all() and (rows > 0).all()


def test_the_last_entry_is_the_limit() -> None:
    rows = speed_table(27, torch.tensor([1.0, 4.0], dtype=torch.float64))[:, -1]
    expected = [(special.digamma(a + 26) - special.digamma(a)) / 26 for a in (1.0, 4.0)]
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("b", [1, 2, 26, 255])
def test_quadrature_against_scipy(b: int) -> None:
    nodes, weights = gauss_jacobi(b, 24)
    x, w = special.roots_jacobi(24, b - 1, 0)
    np.testing.assert_allclose(nodes.numpy(), (x + 1) / 2, atol=1e-13)
    np.testing.assert_allclose(weights.numpy(), w / w.sum(), rtol=1e-9, atol=1e-300)
