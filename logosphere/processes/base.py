"""The interface of a process, and the bound.

A process is a path between data (t = 0) and noise (t = 1). Its backward generator (a drift, a jump rate or a kernel)
is linear in the distribution of the clean token, so a model of p(token | z_t) is a model of the whole path, and the
bound is a divergence between two generators. The function `bound` is the one bound that all processes share.

A new process implements five methods: `prior`, `corrupt`, `log_likelihood`, `elbo_rate` and `step`. The other methods
have defaults. What only some processes can do is declared by the classes of capabilities.py.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logosphere.codecs.base import Codec
from logosphere.processes.capabilities import AutoencoderStage, LearnedCodec, LearnedForward
from logosphere.rng import Noise
from logosphere.types import (
    Batch,
    Bound,
    ChunkedPredict,
    Float,
    Kind,
    Logits,
    Positions,
    Predict,
    State,
    Times,
)

MAX_LOGIT = 1e4
"""A log-likelihood ratio that stands for certainty. It is finite, so that inf - inf cannot occur."""


def uniform_grid(steps: int) -> Float[Tensor, " n"]:
    """Equal steps from 1 to 0, both included."""
    return torch.arange(steps, -1, -1) / steps


def cosine_grid(steps: int) -> Float[Tensor, " n"]:
    """t_i = cos(π/2 · i/n) (Shi et al. 2024, MD4): few tokens are revealed while little is known, more later."""
    return torch.sin(math.pi / 2 * uniform_grid(steps))


class ForwardSample(NamedTuple):
    """One draw of the path: states, times, and the weight dt/dw of a rate in an average over the quantile w."""

    z: State
    t: Times
    weight: Float[Tensor, "B M"]


class Encoded(NamedTuple):
    """Clean states of a batch, and the reconstruction term and loss of codecs that decode by a network."""

    u: State
    recon: Float[Tensor, " B"]
    loss: Float[Tensor, " B"]


@runtime_checkable
class StatePath(Protocol):
    """A Gaussian path z = α x + σ ε whose network predicts clean states x, the noise, or a combination of both."""

    def alpha_sigma(self, t: Float[Tensor, "..."]) -> tuple[Float[Tensor, "... 1"], Float[Tensor, "... 1"]]:
        """α and σ."""
        ...

    def predict_x0(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> State:
        """The clean state x̂ that a prediction implies."""
        ...

    def from_x0(self, x0: State, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """The prediction that implies the clean state x̂."""
        ...


class Process(nn.Module, ABC):
    """A path. Formulas act position by position, on [B, M] fields or on N positions selected from them."""

    codec: Codec
    kind: Kind
    """What the sum of the terms of the bound is: an exact value, a proven bound or a surrogate."""
    path_name: str = ""
    """The path of the bound and of samples ("joint" or "any-order") where a process has several."""
    recon_time: float = 0.0
    """Times up to this one belong to the last step of a chain. Their rate counts as reconstruction term."""
    time_conditional: bool = True
    """Whether the optimal prediction depends on t. It does not for masked states, which show what is noise."""
    max_steps: int | None = None
    """The number of steps of a chain, above which a sampler gains nothing; None in continuous time."""
    chunkable: bool = False
    """Whether `elbo_rate` and `loss` treat rows of logits separately, so that rows may be computed in chunks."""
    predicts_tokens: bool = True
    """Whether the network predicts logits of tokens. Otherwise it predicts a velocity, a score or a clean state."""
    predicts_states: bool = False
    """Whether the network predicts clean states, directly or through the noise or the velocity."""
    predicts_ratios: bool = False
    """Whether the network predicts log ratios p_t(y)/p_t(z) to the current state (SEDD), not a distribution."""
    guides_transitions: bool = False
    """Whether guidance acts on the distribution of a step instead of the prediction. It must where tokens change."""

    # ---- abstract: what defines a process ----------------------------------------------------------------------

    @abstractmethod
    def prior(self, batch: int, length: int, noise: Noise) -> State:
        """z_1 ~ p(z_1)."""

    @abstractmethod
    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """z_t ~ q(z_t | u); where t = 0 this is u itself."""

    @abstractmethod
    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        """log q(z_t | x = k) for every token k, up to a constant: the information of a state about its own token."""

    @abstractmethod
    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Divergence between the true reverse step and the model's, in nats per unit time; `out` is a prediction."""

    @abstractmethod
    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """z_s ~ p(z_s | z_t) for s <= t: z itself where s = t, a clean state where s = 0."""

    # ---- defaults: the forward process -------------------------------------------------------------------------

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """The clean states of a batch. Codecs that decode single tokens have their reconstruction in `elbo_rate`."""
        zeros = torch.zeros(len(batch), device=batch.tokens.device)
        return Encoded(self.codec.encode(batch.tokens), zeros, zeros)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """Times at the quantiles w, one for each block of positions, and states; t = 0 where a position is not free.

        By default times are uniform on (0, 1].
        """
        t = torch.where(free, w.repeat_interleave(u.shape[1] // w.shape[1], 1).float(), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, torch.ones_like(t))

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        """Of the moving positions, those whose clean token is not determined by z: all by default."""
        return moving

    def prior_kl(self, u: State) -> Float[Tensor, "B M"]:
        """KL(q(z_1 | u) || p(z_1)) at each position: 0 by default."""
        return torch.zeros(u.shape[:2], device=u.device)

    @property
    def state_path(self) -> StatePath | None:
        """The Gaussian path whose network predicts clean states; None if the network predicts anything else."""
        return None

    # ---- defaults: the prediction and the loss ------------------------------------------------------------------

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Bayes' rule at one position: add log q(z_t | x = k) to the logits of a prediction from the context."""
        return logits + self.log_likelihood(z, t)

    def belief(self, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """√K p(x = k | z_t) for K equally likely tokens, p being the softmax of `log_likelihood`."""
        p = self.log_likelihood(z, t).softmax(-1)
        return p * p.shape[-1] ** 0.5

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """Normalised log p(x | z) in the parameterisation of the network: unchanged by default."""
        return posterior

    def log_posterior(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Normalised log p(x | z) of a prediction: the inverse of `from_posterior`."""
        return out.log_softmax(-1)

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """What training minimises at a position with this rate of the bound: by default the bound itself."""
        return rate * weight

    def rate_and_loss(
        self, out: Logits, u: State, z: State, t: Tensor, weight: Tensor
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """`elbo_rate` and `loss`. The memory of `out` may be used for its gradient: `out` is not read afterwards."""
        rate = self.elbo_rate(out, u, z, t)
        return rate, self.loss(rate, out, u, z, t, weight)

    # ---- defaults: sampling --------------------------------------------------------------------------------------

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times of a sampler with this number of steps, from 1 to 0, both included: equal steps by default."""
        return uniform_grid(steps)


CHUNK = 9 << 20
"""Logits computed at a time where rows can be computed in chunks: 36 MiB of float32.

A few arrays of this size are alive at once, so it should be small; but blocks of up to 32 MiB may be kept by glibc's
malloc when they are freed (its largest mmap threshold), while larger ones are returned to the system.
"""


def bound(process: Process, predict: Predict, batch: Batch, w: Float[Tensor, "B J"], noise: Noise) -> Bound:
    """An unbiased draw of the bound (Sohl-Dickstein et al. 2015; continuous time: Kingma et al. 2021, VDM):

        -log p(x) <= E[-log p(x | z_recon)] + ∫ E[elbo_rate(t)] dt + KL(q(z_1 | x) || p(z_1))

    The time integral and the reconstruction are both averages over the quantile w, so one evaluation serves them.
    """
    u, recon, recon_loss = process.encode(batch, noise)
    free = process.codec.expand_to_states(batch.free)
    z, t, weight = process.sample_zt(u, w, free, noise)
    where = process.needs_prediction(z, free)
    rate, loss = _evaluate(process, predict, u, ForwardSample(z, t, weight), where)
    last = t[where] <= process.recon_time

    def per_sequence(values: Float[Tensor, " N"]) -> Float[Tensor, " B"]:
        field = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
        return field.masked_scatter(where, values).sum(1)

    diffusion = per_sequence(torch.where(last, 0, rate) * weight[where])
    total_loss = recon_loss + per_sequence(loss)
    if process.training and isinstance(process, LearnedCodec):
        total_loss = total_loss + process.auxiliary_loss(batch, u, t, diffusion.detach(), noise)
    return Bound(
        recon=recon + per_sequence(torch.where(last, rate, 0) * weight[where]),
        diffusion=diffusion,
        prior=(process.prior_kl(u) * free).sum(1),
        loss=total_loss,
        count=batch.scored_tokens,
        kind=process.kind,
        log_q=process.log_q(u, z, t, free) if isinstance(process, LearnedForward) else None,
    )


def _evaluate(
    process: Process, predict: Predict, u: State, sample: ForwardSample, where: Positions
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The rate of the bound and the loss at the positions that need a prediction.

    For large vocabularies logits are computed a few rows at a time, and again for the gradient, so that neither they
    nor their softmax are in memory as a whole.
    """
    z, t, weight = sample
    # On a CPU all positions are selected without a copy; elsewhere the host would wait for the answer.
    whole = where.device.type == "cpu" and bool(where.all())
    x, picked, times, weights = (f.flatten(0, 1) if whole else f[where] for f in (u, z, t, weight))

    def evaluate(out: Logits, rows: slice) -> tuple[Tensor, Tensor]:
        with torch.autocast(z.device.type, enabled=False):  # half precision is for networks, not for divergences
            return process.rate_and_loss(out, x[rows], picked[rows], times[rows], weights[rows])

    if isinstance(process, AutoencoderStage) and not process.denoiser_active:
        return evaluate(torch.zeros(0, process.codec.num_classes, device=z.device), slice(None))
    if not process.chunkable or not isinstance(predict, ChunkedPredict):
        return evaluate(predict(z, t, context=u, where=where), slice(None))
    count, size = len(times), max(1, CHUNK // process.codec.num_classes)
    if count <= size:
        return evaluate(predict(z, t, context=u, where=where), slice(None))
    chunk = predict.logit_chunks(z, t, context=u, where=where)
    found = []
    for start in range(0, count, size):
        rows = slice(start, start + size)
        found.append(checkpoint(lambda rows: evaluate(chunk(rows), rows), rows, use_reentrant=False))
    rates, losses = zip(*found, strict=True)
    return torch.cat(rates), torch.cat(losses)
