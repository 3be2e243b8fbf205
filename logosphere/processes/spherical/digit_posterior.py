"""Digits of tokens: of the b^m codes only V are valid, and the others have probability 0.

A network predicts each digit by itself, p(code) = Π_i p_i(digit i). Given that the code is valid, that is a number
below V, the digits are dependent, and their distribution is a chain with two states: the digits so far equal those of
V - 1 (the next must not exceed the next of V - 1), or they are already smaller (the next is free). Recursion over this
chain gives the exact marginals of digits, the exact probability of a token, and exact draws, in O(m b) operations.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import DigitCodec
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.rng import Noise, running_sum
from logosphere.types import Float, Int64, Logits, State

LOG_ZERO = -1e30
"""The logarithm of 0. It is finite, so that inf - inf cannot occur."""


class ValidCodes:
    """The codes of the numbers 0 … V - 1 under independent digits, conditioned on being one of them."""

    def __init__(self, codec: DigitCodec):
        self.digits, self.base = codec.digits, codec.base
        # Python integers, which need no device.
        self.last = [(codec.vocab_size - 1) // codec.base**i % codec.base for i in reversed(range(codec.digits))]
        self.all_valid = codec.base**codec.digits == codec.vocab_size

    def remaining(self, log_p: Float[Tensor, "T m b"]) -> Float[Tensor, "T n"]:
        """log probability that digits i … m - 1 do not exceed those of V - 1, for i = 0 … m."""
        rest = [torch.zeros_like(log_p[:, 0, 0])]
        for i in reversed(range(self.digits)):
            own = self.last[i]
            smaller = log_p[:, i, :own].logsumexp(-1) if own else torch.full_like(rest[0], LOG_ZERO)
            rest.insert(0, torch.logaddexp(smaller, log_p[:, i, own] + rest[0]))
        return torch.stack(rest, 1)

    def marginals(self, log_p: Float[Tensor, "T m b"]) -> Float[Tensor, "T m b"]:
        """p(digit i | the code is valid)."""
        rest = self.remaining(log_p)
        equal = torch.zeros_like(rest[:, 0])  # log probability that the digits before i equal those of V - 1 …
        smaller = torch.full_like(equal, LOG_ZERO)  # … or make a smaller number
        rows = []
        for i, own in enumerate(self.last):
            value = torch.arange(self.base, device=log_p.device)
            after = torch.where(value < own, 0.0, torch.where(value == own, rest[:, i + 1, None], LOG_ZERO))
            rows.append(log_p[:, i] + torch.logaddexp(smaller[:, None].expand_as(after), equal[:, None] + after))
            below = log_p[:, i, :own].logsumexp(-1) if own else torch.full_like(equal, LOG_ZERO)
            smaller = torch.logaddexp(smaller, equal + below)
            equal = equal + log_p[:, i, own]
        return (torch.stack(rows, 1) - rest[:, :1, None]).exp()

    def draw(self, log_p: Float[Tensor, "T m b"], noise: Noise) -> Int64[Tensor, "T m"]:
        """Digits of a valid code, from the largest place on."""
        rest = self.remaining(log_p)
        equal = torch.ones(len(log_p), dtype=torch.bool, device=log_p.device)
        drawn = []
        for i, own in enumerate(self.last):
            value = torch.arange(self.base, device=log_p.device)
            bound = torch.where(value < own, 0.0, torch.where(value == own, rest[:, i + 1, None], LOG_ZERO))
            weights = running_sum((log_p[:, i] + torch.where(equal[:, None], bound, 0.0)).double().softmax(-1))
            u = noise.uniform(len(log_p)).to(log_p.device)[:, None] * weights[:, -1:]
            digit = torch.searchsorted(weights, u, right=True).squeeze(-1).clamp_max(self.base - 1)
            digit = torch.where(equal, digit.clamp_max(own), digit)
            drawn.append(digit)
            equal = equal & (digit == own)
        return torch.stack(drawn, 1)


class DigitSphericalDiffusion(SphericalDiffusion):
    """Bridges to digits; codes of no token are excluded from drift, likelihood and samples."""

    codec: DigitCodec

    @cached_property
    def valid(self) -> ValidCodes:
        return ValidCodes(self.codec)

    def _by_token(self, out: Logits) -> Float[Tensor, "T m b"]:
        return out.unflatten(0, (-1, self.codec.digits)).log_softmax(-1)

    def probabilities(self, out: Logits) -> Float[Tensor, "N b"]:
        if self.valid.all_valid:
            return super().probabilities(out)
        return self.valid.marginals(self._by_token(out)).flatten(0, 1)

    def cross_entropy(self, out: Logits, u: State) -> Float[Tensor, " N"]:
        """-log p(token), as a sum over its digits with equal parts of log Z."""
        plain = F.cross_entropy(out, u[..., : self.num_classes].argmax(-1), reduction="none")
        if self.valid.all_valid:
            return plain
        log_z = self.valid.remaining(self._by_token(out))[:, 0] / self.codec.digits
        return plain + log_z.repeat_interleave(self.codec.digits)

    def draw(self, out: Logits, noise: Noise) -> Int64[Tensor, " N"]:
        first = torch.arange(len(out), device=out.device) % self.codec.digits == 0
        return self.valid.draw(self._by_token(out), noise.for_positions(first)).flatten()
