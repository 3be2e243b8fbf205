"""Bayesian flow networks (Graves et al. 2023): beliefs about a token, updated by noisy messages about it.

A message of accuracy α about token x is y ~ N(α (K e_x - 1), α K I) (equation 157), and Bayes' rule updates a belief θ
to softmax(log θ + y). All messages up to s have the accuracy β = β₁ s² together, hence (equation 182)

    θ_s = softmax(y),   y ~ N(β (K e_x - 1), β K I)          and          log q(θ_s | x = k) = log θ_s,k + const.

In the limit of infinitely many messages, and for n messages of accuracies α_i, the nats are (equations 205 and 195)

    ∫₀¹ K β₁ s E|e_x - p|² ds     and     Σ_i E[log N(y | x, α_i) - log Σ_k p_k N(y | k, α_i)]

(the latter is y_x - log Σ_k p_k exp y_k), each a bound with the reconstruction of the token added. This is equivalent
to Gaussian diffusion of the corner e_x with the signal-to-noise ratio β K, whose bound is ½ ∫ E|e_x - p|² dSNR.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.processes.simplex.process import ConditionalPath, Fraction
from logosphere.rng import Noise, categorical, normal_rows
from logosphere.types import Float, Kind, Logits, State

MIN_BELIEF = 1e-37
"""Lower limit of beliefs in logarithms, near the smallest float32."""


class BFNPath(ConditionalPath):
    """Beliefs over K tokens. With `chain` a cell is one message, else infinitely many.

    In a chain states have one more coordinate, the seed of the next message: the nats of a message are then a function
    of the state, as for every other path.
    """

    kind: Kind = "bound"

    def __init__(self, num_classes: int, accuracy: float, *, chain: bool = False):
        super().__init__()
        self.num_classes, self.accuracy, self.chain = num_classes, accuracy, chain
        self.width = num_classes + 1 if chain else num_classes
        self.offset = 0.0 if chain else None

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        uniform = torch.full((batch, length, self.num_classes), 1 / self.num_classes, device=noise.device)
        return self._with_seed(uniform, noise)

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        normal = noise.normal(*u.shape[:-1], self.num_classes)
        return self._with_seed(
            self._message(u[..., : self.num_classes], self._total_accuracy(s), normal).softmax(-1), noise
        )

    def _total_accuracy(self, s: Fraction) -> Float[Tensor, "... 1"]:
        """β = β₁ s² of all messages up to s."""
        return self.accuracy * s.square()[..., None]

    def _message(self, u: Tensor, accuracy: Tensor, normal: Tensor) -> Float[Tensor, "... K"]:
        return accuracy * (self.num_classes * u - 1) + (accuracy * self.num_classes).sqrt() * normal.to(u.dtype)

    def _with_seed(self, theta: Tensor, noise: Noise) -> State:
        if not self.chain:
            return theta
        return torch.cat([theta, noise.uniform(*theta.shape[:-1], 1).to(theta)], -1)

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        return z[..., : self.num_classes].clamp_min(MIN_BELIEF).log()

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        u = u[..., : self.num_classes]
        if not self.chain:
            return length * self.num_classes * self.accuracy * s * (out.softmax(-1) - u).square().sum(-1)
        alpha = self._total_accuracy(s + length) - self._total_accuracy(s)
        seed = (z[..., -1].double() * 2.0**52).long()
        y = self._message(u, alpha, normal_rows(seed.flatten(), self.num_classes).view_as(u))
        return (y * u).sum(-1) - (out.log_softmax(-1) + y).logsumexp(-1)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """A message about a token drawn from p_θ."""
        token = categorical(out, noise.uniform(*s.shape))
        one_hot = F.one_hot(token, self.num_classes).to(z.dtype)
        alpha = (self._total_accuracy(then) - self._total_accuracy(s)).clamp_min(0)
        y = self._message(one_hot, alpha, noise.normal(*one_hot.shape))
        return self._with_seed((self.log_likelihood(z, s) + y).softmax(-1), noise)


def default_accuracy(num_classes: int) -> float:
    """β₁ at which states determine tokens: K β₁ = 4 (log K + 3), the criterion of the sphere's bridges.

    For 27 letters it is 0.93; the paper's 0.75² would be log K + 1/2, where one letter in ten is decoded wrongly.
    """
    return 4 * (math.log(num_classes) + 3) / num_classes
