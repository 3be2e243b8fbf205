"""What a process owes the rest, and the one bound that all of them share.

A process is a path between data (t = 0) and noise (t = 1). Its backward generator is linear in the law of the clean
token, so a model of p(token | z_t) is a model of the whole path, and the bound is a divergence between two generators.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logosphere.codecs.base import Codec
from logosphere.errors import UserError
from logosphere.rng import Noise
from logosphere.types import Batch, Bound, ChunkedPredict, Float, Kind, Logits, Positions, Predict, State, Times, Tokens

CERTAIN = 1e4
"""A log-likelihood ratio that leaves no doubt, yet is finite, so that no inf - inf can arise."""


def uniform_grid(steps: int) -> Float[Tensor, " n"]:
    """Equal steps from 1 to 0, both included."""
    return torch.arange(steps, -1, -1) / steps


class Noised(NamedTuple):
    """One draw of the path: states, times, and dt/dw, by which nats per unit time count in an average over w."""

    z: State
    t: Times
    weight: Float[Tensor, "B M"]


class Encoded(NamedTuple):
    """Clean states of a batch, and what reading tokens off them costs and adds to the loss, where the codec does it."""

    u: State
    nats: Float[Tensor, " B"]
    loss: Float[Tensor, " B"]


class Process(nn.Module, ABC):
    """A path. Formulas act position by position, on [B, M] fields or on the N positions picked out of them."""

    codec: Codec
    kind: Kind
    first: float
    """Times up to this one are the last step of the chain: their nats are the reconstruction term."""

    needs_time: bool
    """Does the best prediction depend on t? Not for masked states, which show what is noise."""
    most_steps: int | None
    """More steps than this bring nothing; None where there is no such number."""
    branches: int = 1
    """Processes this one is a mixture of, one drawn for each sequence; `branch` tells which, if not by chance."""
    branch: int | None = None
    by_rows: bool = False
    """Are `nats` and `loss` functions of single rows of logits and nothing else? Then they may be taken in parts."""
    guides_steps: bool = False
    """Is guidance a matter of the law of a step, not of the prediction? It is where tokens turn into other tokens."""
    predicts_tokens: bool = True
    """Are the network's answers logits of tokens? Else they are a velocity, a score or a clean state."""
    learns_noise: bool = False
    """Does the path itself learn? Then training shows each sequence twice, and `credit` tells which was better."""

    def encode(self, batch: Batch, noise: Noise) -> Encoded:
        """The clean states of a batch. Where tokens are read off states one by one, `nats` counts it at `first`."""
        nothing = torch.zeros(len(batch), device=batch.tokens.device)
        return Encoded(self.codec.encode(batch.tokens), nothing, nothing)

    @abstractmethod
    def prior(self, batch: int, length: int, noise: Noise) -> State:
        """z_1 ~ p(z_1)."""

    @abstractmethod
    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        """z_t ~ q(z_t | u); where t = 0 this is u itself."""

    @abstractmethod
    def noised(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> Noised:
        """z at the quantiles w of the law of time, one for each block of positions; t = 0 where not free."""

    @abstractmethod
    def wanted(self, z: State, moving: Positions) -> Positions:
        """Of the moving positions, those whose clean token is not yet determined by z."""

    @abstractmethod
    def inform(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Bayes' rule at one position: add log q(z_t | x = k), so that a belief from context becomes the posterior."""

    @abstractmethod
    def nats(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """How far the model's step is from the true one, in nats per unit time; `out` are posterior logits."""

    @abstractmethod
    def loss(self, nats: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        """What training minimises at a position whose bound costs `nats`, drawn with this weight dt/dw."""

    @abstractmethod
    def prior_nats(self, u: State) -> Float[Tensor, "B M"]:
        """KL(q(z_1 | u) || p(z_1)) at each position."""

    @abstractmethod
    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """z_s ~ p(z_s | z_t) for s <= t: z itself where s = t, a clean state where s = 0."""

    def log_step(
        self, out: Logits, z: State, t: Float[Tensor, "..."], s: Float[Tensor, "..."]
    ) -> Float[Tensor, "... K"]:
        """log p(z_s = k | z_t) of the positions of `out`, for every state k, where states can be counted."""
        raise UserError("A step can be guided state by state in discrete diffusion only, such as mdlm or udlm.")

    def credit(self, u: State, z: State, t: Times, free: Positions) -> Float[Tensor, " B"] | None:
        """log q(z_t | u) of each sequence, where the path learns."""
        return None

    def besides(self, batch: Batch, u: State, t: Times, nats: Float[Tensor, " B"], noise: Noise) -> Float[Tensor, " B"]:
        """What training minimises besides `loss`, for sequences whose diffusion term came to `nats`: nothing here.

        Terms that anchor a codec or shape a schedule belong here.
        """
        return torch.zeros_like(nats)

    @property
    def diffusing(self) -> bool:
        """Is the network asked at all? All processes of a team must agree, for it may be shared out among them."""
        return True

    def figures(self) -> dict[str, float]:
        """What to log of the parts a process learns by itself."""
        return {}

    def prepare(self, rows: Callable[[], Tokens], corpus: str) -> None:  # noqa: B027 (most processes look at rows as they come)
        """Called before a training on rows that come again and again: what is costly may be done for them once."""

    def advance(self, done: float) -> None:  # noqa: B027 (most processes learn the same way from beginning to end)
        """Called before every step of training, of which the share `done` lies behind."""

    def settle(self, done: float = 0.0) -> None:  # noqa: B027 (most processes learn nothing by themselves)
        """Called after every step of training, of which a share is done: take into account what was observed."""

    def held_parameters(self) -> list[nn.Parameter]:
        """Parameters that sequences conditioned on an estimate of themselves do not train: none, by default."""
        return []

    def schedule_parameters(self) -> list[nn.Parameter]:
        """Parameters of a learned noise schedule, which an optimiser may give a step size of their own."""
        return []

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times from 1 to 0, both included, at which a sampler of so many steps does well: equal steps by default."""
        return uniform_grid(steps)

    def clocks(self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise) -> Float[Tensor, " S #B M"]:
        """What the clock of each position shows at the rows of a sampler's plan: the same, unless clocks differ."""
        return rows[:, None]

    def phrased(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        """Normalised log p(x | z) in the words in which this process wants to be answered: as it is, by default.

        Scores and predicted states are other words.
        """
        return posterior

    def log_posterior(self, out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """Normalised log p(x | z) out of a prediction: the inverse of `phrased`."""
        return out.log_softmax(-1)

    def evidence(self, z: State, t: Times) -> Float[Tensor, "B M V"]:
        """log q(z_t | x = k) up to a constant: what z says of each token before any context is read."""
        return self.inform(torch.zeros(*t.shape, self.codec.choices, device=t.device), z, t)


def bound(process: Process, predict: Predict, batch: Batch, w: Float[Tensor, "B J"], noise: Noise) -> Bound:
    """An unbiased draw of the bound (Sohl-Dickstein et al. 2015; continuous time: Kingma et al. 2021, VDM):

        -log p(x) <= E[-log p(x | z_first)] + ∫ E[nats(t)] dt + KL(q(z_1 | x) || p(z_1))

    The time integral and the reconstruction are both averages over the quantile w, so one evaluation serves them.
    """
    u, read_nats, read_loss = process.encode(batch, noise)
    free = process.codec.spread(batch.free)
    z, t, weight = process.noised(u, w, free, noise)
    where = process.wanted(z, free)
    nats, charged = _costs(process, predict, u, Noised(z, t, weight), where)
    last = t[where] <= process.first

    def per_sequence(values: Float[Tensor, " N"]) -> Float[Tensor, " B"]:
        field = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
        return field.masked_scatter(where, values).sum(1)

    recon = read_nats + per_sequence(torch.where(last, nats, 0) * weight[where])
    diffusion = per_sequence(torch.where(last, 0, nats) * weight[where])
    loss = read_loss + per_sequence(charged)
    if process.training:
        loss = loss + process.besides(batch, u, t, diffusion.detach(), noise)
    return Bound(
        recon=recon,
        diffusion=diffusion,
        prior=(process.prior_nats(u) * free).sum(1),
        loss=loss,
        count=batch.scored_tokens,
        kind=process.kind,
        log_q=process.credit(u, z, t, free),
    )


LARGEST = 9 << 20
"""Logits made at a time, where they can be made in parts: 36 MiB of float32.

A few arrays of this size are alive at once, so small is good; but blocks of up to 32 MiB may be kept by glibc's malloc
when they are freed (its largest mmap threshold), while larger ones are always given back.
"""


def _costs(
    process: Process, predict: Predict, u: State, noised: Noised, where: Positions
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """`nats` and `loss` at the wanted positions.

    Where there are many tokens the logits are made a few rows at a time, and once more when the gradient is wanted, so
    that neither they nor their softmax are ever in memory as a whole.
    """
    z, t, weight = noised
    x, picked, times, weights = u[where], z[where], t[where], weight[where]

    def costs(out: Logits, rows: slice) -> tuple[Tensor, Tensor]:
        with torch.autocast(z.device.type, enabled=False):  # half precision is for networks, not for divergences
            nats = process.nats(out, x[rows], picked[rows], times[rows])
            return nats, process.loss(nats, out, x[rows], picked[rows], times[rows], weights[rows])

    count, size = len(times), max(1, LARGEST // process.codec.choices)
    if not process.diffusing:  # while a codec is being taught, nothing is wanted
        return costs(torch.zeros(0, process.codec.choices, device=z.device), slice(None))
    if count <= size or not process.by_rows or not isinstance(predict, ChunkedPredict):
        return costs(predict(z, t, context=u, where=where), slice(None))
    answer = predict.logit_chunks(z, t, context=u, where=where)
    found = []
    for start in range(0, count, size):
        rows = slice(start, start + size)
        found.append(checkpoint(lambda rows: costs(answer(rows), rows), rows, use_reentrant=False))
    nats, charged = zip(*found, strict=True)
    return torch.cat(nats), torch.cat(charged)
