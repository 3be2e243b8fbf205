"""Steppers of masked diffusion that mask tokens again, by chance or by a plan, so that errors can be corrected.

Remasking by chance (Wang et al. 2025, ReMDM): for any 0 <= σ <= min(1, (1 - a_s)/a_t) the step

    z_t = x:     z_s = mask with probability σ
    z_t = mask:  z_s = x̂ with probability (a_s - (1 - σ) a_t) / (1 - a_t)

keeps the marginals q(z_s | x) of masked diffusion (eq. 7), so a model trained as MDLM may be sampled with any σ.
σ = 0 is the ancestral step; σ = 1 - a_s masks every position anew, independently of z_t, which is Star. Positions that
are masked together are drawn independently, again in every step: with cap, rescale and Star the error decreases with
the number of steps n only like 1/√n, that of the ancestral step like 1/n.

Planned remasking unmasks the whole sequence, then masks the n = ceil((1 - a_s) L) positions of the highest error score:

    logits of a second network that a token is wrong      G-Star (Meshchaninov et al. 2025)
    - log p when the token was drawn                      conf-star
    - log p under the current prediction                  P2 (Peng et al. 2025), with the denoiser as planner

With scores/τ + Gumbel noise, τ → ∞ is Star with exact counts, and τ = 0 is strict, which reduces diversity. Planned
remasking does not sample from the model distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import Evaluate, PredictionUse, Stepper, draw_tokens, is_active, require
from logosphere.sampling.steppers.unmasking import MASKED, count_masked, gumbel_scores, log_probability, select_best
from logosphere.types import Float, State, Times, Tokens

Level = Float[Tensor, "..."]
Sigma = Callable[[Level, Level, Level], Level]
"""(1 - a_t, 1 - a_s, log-probability of each token when it was drawn, inf at masks) -> σ."""


def max_sigma(noise_t: Level, noise_s: Level) -> Level:
    """min(1, (1 - a_s)/a_t); where nothing is left of the data (a_t = 0) there is nothing to mask, and 1 is allowed."""
    return torch.where(noise_s < 1 - noise_t, noise_s / (1 - noise_t), 1.0)


def remask_probabilities(sigma: Level, noise_t: Level, noise_s: Level) -> tuple[Level, Level]:
    """The probabilities that a token is masked and that a mask is replaced by a token."""
    unmask = (noise_t - noise_s + sigma * (1 - noise_t)) / noise_t
    return sigma, torch.where(noise_t > 0, unmask, 0.0)


@dataclass(frozen=True)
class Cap:
    """σ = min(η, σ_max)."""

    eta: float = 0.04

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    def __call__(self, noise_t: Level, noise_s: Level, confidence: Level) -> Level:
        return max_sigma(noise_t, noise_s).clamp_max(self.eta)


@dataclass(frozen=True)
class Rescale:
    """σ = η σ_max; η = 1 remasks as much as the marginals allow."""

    eta: float = 0.05

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    def __call__(self, noise_t: Level, noise_s: Level, confidence: Level) -> Level:
        return self.eta * max_sigma(noise_t, noise_s)


@dataclass(frozen=True)
class ConfidenceRemasking:
    """σ_l = σ_max softmax_l(-p_l), p_l the probability of token l when it was drawn (ReMDM-conf).

    Masks are not replaced more often, so until the end a few more positions are masked than by the schedule.
    """

    def __call__(self, noise_t: Level, noise_s: Level, confidence: Level) -> Level:
        weights = (-confidence.exp()).softmax(1).nan_to_num(0.0)  # not a number where all positions are masked
        return max_sigma(noise_t, noise_s) * weights


def full_remask(noise_t: Level, noise_s: Level, confidence: Level) -> Level:
    """σ = 1 - a_s: Star."""
    return noise_s


def forward_backward(noise_t: Level, noise_s: Level, confidence: Level) -> Level:
    """σ = (a_s - a_t)/a_t: a reverse step twice as far, and forward again (the corrector of Campbell et al. 2022)."""
    most = max_sigma(noise_t, noise_s)
    return torch.where(noise_t < 1, torch.minimum((noise_t - noise_s) / (1 - noise_t), most), most)


def _check_eta(eta: float) -> None:
    if not 0 <= eta <= 1:
        raise UserError(f"The strength of remasking must be from 0 to 1, not {eta}.")


class Remasking(Stepper):
    """The ReMDM step with a rule for σ; known positions are kept."""

    needs = MASKED

    def __init__(self, sigma: Sigma | None = None):
        self.sigma: Sigma = Cap() if sigma is None else sigma
        self.confidence: Tensor | None = None

    def begin_sampling(self) -> Stepper:
        return Remasking(self.sigma)

    @property
    def prediction_use(self) -> PredictionUse:
        return "order"

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = require(process, DiscreteDiffusion, self.needs)
        mask = path.vocab_size
        active, masked = is_active(t, s), z == mask
        confidence = _zeros(z) if self.confidence is None else self.confidence
        noise_t, noise_s = path.masked_fraction(t.double()), path.masked_fraction(s.double())
        sigma = self.sigma(noise_t, noise_s, torch.where(active & ~masked, confidence, torch.inf))
        remask, unmask = remask_probabilities(sigma, noise_t, noise_s)
        u = noise.uniform(*z.shape)
        where, remasked = active & masked, active & ~masked & (u < remask)
        moved = torch.where(remasked, mask, z)
        if where.any():
            unmasked = where & (u < unmask)
            out = evaluate(z, t, where)[unmasked[where]]
            drawn = draw_tokens(evaluate, out, unmasked, noise)
            moved[unmasked] = drawn
            self.confidence = confidence.masked_scatter(unmasked, log_probability(out, drawn).double())
        return moved


Critic = Callable[[Tokens], Float[Tensor, "B L"]]
"""Tokens -> logits that they are wrong."""


class PlannedRemasking(Stepper):
    """Unmasks all positions and masks those of the highest error scores.

    With `review` all tokens are scored in every step by the current prediction, not only when they are drawn.
    """

    needs = MASKED

    def __init__(self, critic: Critic | None = None, *, temperature: float = 1.0, review: bool = False):
        if temperature < 0:
            raise UserError(f"The temperature of remasking must not be negative, not {temperature}.")
        self.critic, self.temperature, self.review = critic, temperature, review
        self.unfiltered = review  # filters would leave only the token itself of the prediction at an unmasked position
        self.confidence: Tensor | None = None
        self._extra_nfe = 0

    def begin_sampling(self) -> Stepper:
        return PlannedRemasking(self.critic, temperature=self.temperature, review=self.review)

    @property
    def prediction_use(self) -> PredictionUse:
        return "order"

    @property
    def extra_nfe(self) -> int:
        return self._extra_nfe

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = require(process, DiscreteDiffusion, self.needs)
        mask = path.vocab_size
        active = is_active(t, s)
        where = active if self.review else active & (z == mask)
        confidence = _zeros(z) if self.confidence is None else self.confidence
        if where.any():
            out = evaluate(z, t, where)
            if self.review:  # the evidence of a token for itself does not count
                out = out - process.add_evidence(torch.zeros_like(out), z[where], t[where])
            drawn = draw_tokens(evaluate, out, where, noise)
            z = torch.where(z == mask, z.masked_scatter(where, drawn), z)
            confidence = confidence.masked_scatter(where, log_probability(out, z[where]).double())
        self.confidence = confidence
        count = count_masked(path, s, active)
        if not count.any():
            return z
        scores = torch.where(active, self._error_scores(z, confidence), -torch.inf)
        return torch.where(active & select_best(gumbel_scores(scores, self.temperature, noise), count), mask, z)

    def _error_scores(self, tokens: Tokens, confidence: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        if self.critic is None:
            return -confidence
        self._extra_nfe += len(tokens)
        with torch.no_grad():
            return self.critic(tokens).double()


def _zeros(z: State) -> Float[Tensor, "B L"]:
    return torch.zeros(z.shape, dtype=torch.float64, device=z.device)
