"""The published formulas of the discrete systems, in float64 numpy, from the papers' equations.

It shares no code with the package: matrices are explicit, exponentials of rate matrices are computed by scipy, and
every state is enumerated. Times run from 0 (data) to 1 (noise); the mask is the last state.
"""

import numpy as np
from scipy.linalg import expm
from scipy.special import comb, expit, log_softmax, logsumexp, softmax

Array = np.ndarray


def log_linear(t: float) -> tuple[float, float]:
    """a_t and -a'_t of MDLM, UDLM and SEDD's log-linear schedule: σ = -log(1 - (1 - ε) t), ε = 1e-3."""
    return 1 - (1 - 1e-3) * t, 1 - 1e-3


def md4_schedule(t: float, kind: str = "linear", eps: float = 1e-4) -> tuple[float, float]:
    """a_t and -a'_t of MD4: (1 - 2ε) a + ε, a = 1 - t or 1 - cos(π (1 - t)/2)."""
    a, slope = (
        (1 - t, 1.0) if kind == "linear" else (1 - np.cos(np.pi / 2 * (1 - t)), np.pi / 2 * np.sin(np.pi / 2 * (1 - t)))
    )
    return (1 - 2 * eps) * a + eps, (1 - 2 * eps) * slope


def masked_integrand(logits: Array, x: int, a: float, slope: float) -> float:
    """-a'/(1 - a) · (-log p(x)) at a mask (MDLM eq. 10, MD4 eq. 6)."""
    return slope / (1 - a) * -log_softmax(logits)[x]


def masked_posterior(logits: Array, a_t: float, a_s: float) -> Array:
    """p(z_s | z_t = mask): r p(x) on tokens and 1 - r on the mask, r = (a_s - a_t)/(1 - a_t)."""
    r = (a_s - a_t) / (1 - a_t)
    return np.append(r * softmax(logits), 1 - r)


# ---- D3PM: chains of matrices -----------------------------------------------------------------------------------


def cosine_betas(steps: int) -> Array:
    """D3PM: ᾱ = cos((t/T + 0.008)/1.008 · π/2), β = min(1 - ᾱ_t/ᾱ_{t-1}, 0.999)."""
    level = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2)
    return np.minimum(1 - level[1:] / level[:-1], 0.999)


def multinomial_alphas(steps: int) -> Array:
    """Multinomial Diffusion: ratios of squared cosines, at least 0.001, and their square roots."""
    level = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.sqrt(np.clip(level[1:] / level[:-1], 0.001, 1.0))


def absorbing_chain(vocab_size: int, steps: int) -> list[Array]:
    """Q_1 … Q_T: a token is masked with probability β_t = 1/(T - t + 1)."""
    chain = []
    for step in range(1, steps + 1):
        beta = 1 / (steps - step + 1)
        matrix = (1 - beta) * np.eye(vocab_size + 1)
        matrix[:, -1] += beta
        chain.append(matrix)
    return chain


def uniform_chain(vocab_size: int, betas: Array) -> list[Array]:
    """Q_t = (1 - β) I + β 11ᵀ/V."""
    return [(1 - beta) * np.eye(vocab_size) + beta / vocab_size for beta in betas]


def gaussian_chain(vocab_size: int, steps: int) -> list[Array]:
    """Off the diagonal exp(-4 (i - j)²/((V - 1)² β)) over the sum of that over all differences; rows add up to 1."""
    difference = np.arange(-(vocab_size - 1), vocab_size)
    chain = []
    for beta in np.linspace(1e-4, 0.02, steps) * 1000 / steps:
        weight = softmax(-4 * difference**2 / ((vocab_size - 1) ** 2 * beta))
        matrix = np.array([[weight[j - i + vocab_size - 1] for j in range(vocab_size)] for i in range(vocab_size)])
        np.fill_diagonal(matrix, 0)
        np.fill_diagonal(matrix, 1 - matrix.sum(1))
        chain.append(matrix)
    return chain


def products(chain: list[Array]) -> list[Array]:
    """Q̄_0 … Q̄_T."""
    cumulative = [np.eye(len(chain[0]))]
    for matrix in chain:
        cumulative.append(cumulative[-1] @ matrix)
    return cumulative


def chain_step(chain: list[Array], bars: list[Array], x_hat: Array, z: int, step: int) -> Array:
    """p(z_{t-1} | z_t) ∝ Σ_x q(z_t | z_{t-1}) q(z_{t-1} | x) x̂(x) (D3PM eq. 4)."""
    joint = chain[step - 1][:, z] * (x_hat @ bars[step - 1])
    return joint / joint.sum()


def chain_kl(chain: list[Array], bars: list[Array], x_hat: Array, x: int, z: int, step: int) -> float:
    """KL(q(z_{t-1} | z_t, x) || p(z_{t-1} | z_t))."""
    true, model = (chain_step(chain, bars, x_dist, z, step) for x_dist in (np.eye(len(x_hat))[x], x_hat))
    kept = true > 0
    return float((true[kept] * np.log(true[kept] / model[kept])).sum())


def logistic(loc: float, log_scale: float, level: float, vocab_size: int) -> Array:
    """D3PM's head for images: differences of a logistic distribution function around tanh(loc + level), normalised."""
    center, scale = np.tanh(loc + level), np.exp(log_scale - 2)
    values, half = np.linspace(-1, 1, vocab_size), 1 / (vocab_size - 1)
    mass = expit((values + half - center) / scale) - expit((values - half - center) / scale)
    return mass / mass.sum()


# ---- UDLM, SEDD, GIDD: continuous time --------------------------------------------------------------------------


def udlm_integrand(logits: Array, x: int, z: int, a: float, slope: float) -> float:
    """UDLM eq. 17 with x̄ = V a x + 1 - a and a' = -slope."""
    V = len(logits)
    bar, model = (V * a * x_dist + 1 - a for x_dist in (np.eye(V)[x], softmax(logits)))
    total = (bar / bar[z] * np.log(model[z] * bar / (model * bar[z]))).sum()
    return float(-slope / (V * a) * (V / bar[z] - V / model[z] - total))


def rate_matrix(vocab_size: int, masked: bool) -> Array:
    """Q of SEDD, rows from and columns to: every token jumps to the mask, or to every other token."""
    if masked:
        matrix = -np.eye(vocab_size + 1)
        matrix[:, -1] += 1
        return matrix
    return np.full((vocab_size, vocab_size), 1 / vocab_size) - np.eye(vocab_size)


def score_entropy(log_score: Array, x: int, z: int, sigma: float, rate: float, masked: bool) -> float:
    """σ' Σ_{y≠z} Q(y → z) [s_y - R_y log s_y + R_y (log R_y - 1)], R the true ratios (SEDD eq. 12)."""
    V = len(log_score)
    matrix = rate_matrix(V, masked)
    marginal = expm(sigma * matrix)[x]
    total = 0.0
    for y in range(V):
        if y != z:
            ratio = marginal[y] / marginal[z]
            known = ratio * (np.log(ratio) - 1) if ratio > 0 else 0.0
            total += matrix[y, z] * (np.exp(log_score[y]) - ratio * log_score[y] + known)
    return rate * total


def _full(log_score: Array, z: int, masked: bool) -> Array:
    score = np.append(np.exp(log_score), 1.0) if masked else np.exp(log_score)
    score[z] = 1.0
    return score


def sedd_euler(log_score: Array, z: int, rate: float, duration: float, masked: bool) -> Array:
    """[y = z] + τ σ' (backward rates), negative entries cut off."""
    score, matrix = _full(log_score, z, masked), rate_matrix(len(log_score), masked)
    backward = matrix[:, z] * score
    backward[z] = 0
    backward[z] = -backward.sum()
    p = np.maximum(np.eye(len(score))[z] + duration * rate * backward, 0)
    return p / p.sum()


def sedd_analytic(log_score: Array, z: int, sigma_t: float, sigma_s: float, masked: bool) -> Array:
    """(e^{-dQ} s)_y e^{dQ}(y → z) with d = σ_t - σ_s, negative entries cut off; without the mask where s = 0."""
    score, matrix = _full(log_score, z, masked), rate_matrix(len(log_score), masked)
    d = sigma_t - sigma_s
    p = np.maximum(score @ expm(-d * matrix) * expm(d * matrix)[:, z], 0)
    if masked and sigma_s == 0:
        p[-1] = 0
    return p / p.sum()


def gidd_marginal(x_dist: Array, t: float, p_u: float) -> Array:
    """q(z_t | x) of GIDD: ((1 - t) x + t m + c u)/C over V tokens and the mask, c = B √(t (1 - t)), C = 1 + c."""
    c = 2 * p_u / (1 - p_u) * np.sqrt(t * (1 - t))
    return np.append((1 - t) * x_dist + c / len(x_dist), t) / (1 + c)


def gidd_weight(x: int, z: int, t: float, p_u: float, vocab_size: int) -> float:
    """The ELBO's weight at a mask, a random token and a clean one."""
    c = 2 * p_u / (1 - p_u) * np.sqrt(t * (1 - t))
    slope = c * (1 - 2 * t) / (2 * t * (1 - t))
    if z == vocab_size:
        return 1 / (t * (1 - t))
    if z != x:
        return (c + (1 - t) * slope) / ((1 - t) * c)
    return (c + (1 - t) * slope) / (vocab_size * (1 - t) * (1 - t + c / vocab_size))


def gidd_divergence(logits: Array, x: int, z: int, t: float, p_u: float) -> float:
    """KL(q(·|x) || q(·|x̂)) + R - log R - 1."""
    true, model = gidd_marginal(np.eye(len(logits))[x], t, p_u), gidd_marginal(softmax(logits), t, p_u)
    ratio = true[z] / model[z]
    return float((true * np.log(true / model)).sum() + ratio - np.log(ratio) - 1)


def gidd_code_weight(x: int, z: int, t: float, p_u: float, vocab_size: int) -> float:
    """The dynamic weight of GIDD's code, with K = V + 1 states."""
    if z == vocab_size:
        return 2.0
    return 1.0 if z != x else min(2.0, 2 * p_u / (1 - p_u) / (vocab_size + 1) * np.exp(expit(-t) / 2))


# ---- GenMD4, BD3-LM -----------------------------------------------------------------------------------------------


def genmd4_integrand(logits: Array, x: int, powers: Array, t: float) -> float:
    """Σ_v (-w_v/t) ((log p_x + 1) [v = x] - p_v) (GenMD4, section 6)."""
    log_p = log_softmax(logits)
    inner = (log_p[x] + 1) * np.eye(len(logits))[x] - np.exp(log_p)
    return float((-powers / t * inner).sum())


def genmd4_reconstruction(x: int, powers: Array, t: float, eps: float) -> float:
    """-(1 - ε) t^{w_x} (w_x log t - log Σ_v t^{w_v})."""
    each = powers * np.log(t)
    return float(-(1 - eps) * np.exp(each[x]) * (each[x] - logsumexp(each)))


def clipped_counts(rate: float, size: int, low: float, high: float) -> Array:
    """Independent masks, resampled until their fraction lies in [low, high]: a truncated binomial distribution."""
    count = np.arange(size + 1)
    p = (
        comb(size, count)
        * rate**count
        * (1 - rate) ** (size - count)
        * ((low <= count / size) & (count / size <= high))
    )
    return p / p.sum()
