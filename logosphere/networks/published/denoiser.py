"""Published networks as denoisers: ids of the checkpoint for tokens and masks, its shift, and what it reads."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.networks.attention import KVCache, block_causal_mask
from logosphere.networks.backbone import ConditionTokens
from logosphere.networks.base import CachePlan, Denoiser, Evaluations
from logosphere.networks.block_cache import BlockCacheSession
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.sessions import BlockSession, CausalSession
from logosphere.rng import hash64
from logosphere.types import Bool, Float, Int64, LogitChunks, Logits, State, Times, Where, pack

OPENING_KEY, OPENING_BITS = 0x0A77, 40
"""The key and the bits of the times at which pairs of positions open."""


class PublishedDenoiser(Denoiser):
    """Predicts tokens 0 … K - 1 with a network whose table may have other rows as well.

    The mask of the package is K, that of the network `config.mask_input`. Rows of the table that are no tokens get no
    probability.
    """

    mask: Tensor
    positions: Tensor
    opened: Tensor

    def __init__(
        self,
        network: PublishedNetwork,
        vocab_size: int,
        length: int,
        block: int,
        *,
        sigma: Callable[[Times], Float[Tensor, "B M"]] | None = None,
        start: int | None = None,
    ):
        """`sigma` maps times to what the network reads, by default the time itself (σ, or a time that runs backwards);
        `start` is the id before the first token (causal networks)."""
        super().__init__()
        self.network, self.config = network, network.config
        self.vocab_size, self.length, self.block = vocab_size, length, block
        self.sigma, self.start = sigma, start
        self.reads_time = self.config.reads in ("sigma", "time")
        in_blocks = self.config.attention == "blocks" and block < length
        mask = block_causal_mask(length, block) if in_blocks else torch.empty(0, dtype=torch.bool)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("positions", torch.arange(length).repeat(2), persistent=False)
        if self.config.anneal:  # part of the weights: samples and bounds have the attention of the last step
            self.register_buffer("opened", torch.zeros((), dtype=torch.float64))

    @property
    def shifts(self) -> bool:
        """Whether the output at position i - 1 answers position i."""
        return self.config.shift

    @property
    def answers_first(self) -> bool:
        """Whether position 0 is predicted; otherwise it must be known."""
        return self.start is not None if self.config.attention == "causal" else not self.shifts

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        h = self.features(z, t, context)
        return self.logits(h if where is None else h[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        return self.chunks(self.features(z, t, context), where)

    def chunks(self, features: Float[Tensor, "B M D"], where: Where) -> LogitChunks:
        """The logits of some positions, a few at a time; a frozen head has no gradient."""
        h, head = pack(features, where), self.network.head_parameters()
        if torch.is_grad_enabled() and not head and h.requires_grad:
            return LogitChunks(self.logits(h), lambda out, rows: out)
        return LogitChunks(h, lambda h, rows: self.logits(h), tuple(p for p in head if p.requires_grad))

    def features(self, z: State, t: Times, context: State) -> Float[Tensor, "B M D"]:
        """The input of the head at the position that each position is answered by."""
        if self.config.attention == "causal":
            return self.network.features(self.ids_before(context), self.condition(t), causal=True)
        if len(self.mask):
            both = torch.cat([self.ids(z), self.ids(context)], 1)
            condition = self.condition(torch.cat([t, torch.zeros_like(t)], 1))
            mask = self.mask if self.is_open else self.mask & self.annealed_mask(z.shape[1]).repeat(2, 2)
            h, clean = self.network.features(both, condition, positions=self.positions, mask=mask).chunk(2, 1)
            if not self.shifts:
                return h
            # The position before a block belongs to an earlier one, which is answered by its clean states.
            first = (torch.arange(z.shape[1], device=h.device) % self.block == 0)[:, None]
            return torch.where(first, shift_features(clean), shift_features(h))
        causal = not self.is_open and not bool(self.opened > 0)
        opening = None if self.is_open or causal else self.annealed_mask(z.shape[1])
        h = self.network.features(self.ids(z), self.condition(t), mask=opening, causal=causal)
        return shift_features(h) if self.shifts else h

    @property
    def is_open(self) -> bool:
        """Whether every position attends to all that its system shows it."""
        return not self.config.anneal or bool(self.opened >= 1)

    def open_attention(self, done: float) -> None:
        """Open the attention for the next step, after the fraction `done` of the training; it never closes."""
        if self.config.anneal:
            self.opened.clamp_(min=min(1.0, done / self.config.anneal))

    def annealed_mask(self, length: int) -> Bool[Tensor, "L L"]:
        """Keys that queries see while the attention opens: those before, and a growing set of those after.

        Each pair has its own time to open, a fixed pseudo-random number, so that what is open stays open. (DiffuLLaMA
        draws the open pairs anew in each step; Gong et al. 2025, arXiv:2410.17891.)
        """
        index = torch.arange(length, device=self.opened.device)
        pairs = hash64(index[:, None] * length + index, OPENING_KEY) & ((1 << OPENING_BITS) - 1)
        return (index <= index[:, None]) | (pairs.double() / (1 << OPENING_BITS) < self.opened)

    def with_documents(self, documents: Int64[Tensor, "B L"]) -> Denoiser:
        return PackedDenoiser(self, documents)

    def logits(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Logits of the tokens; the id of a mask that lies between them has none."""
        out: Tensor = self.network.head(h).float()
        if self.config.permutation:
            out = out[..., list(self.config.permutation)]
        out = out[..., : self.vocab_size]
        mask = self.config.mask_id
        if mask is None or mask >= self.vocab_size:
            return out
        return out.index_fill(-1, torch.tensor([mask], device=out.device), -torch.inf)

    def ids(self, z: State) -> Tensor:
        """Rows of the table for token ids and masks; states of the sphere stay as they are."""
        if z.is_floating_point():
            return z
        if self.config.mask_input is None:  # causal networks meet masks where nothing attends to them
            return z.clamp_max(self.vocab_size - 1)
        return torch.where(z == self.vocab_size, self.config.mask_input, z)

    def ids_before(self, context: State) -> Tensor:
        """The id before each position, with that of the start before the first."""
        return F.pad(self.ids(context), (1, 0), value=self.start or 0)[:, :-1]

    def condition(self, t: Times) -> Float[Tensor, "B M"] | None:
        """What the network is told about the noise."""
        match self.config.reads:
            case "nothing":
                return None
            case "zero":
                return torch.zeros_like(t)
            case _:
                return t if self.sigma is None else self.sigma(t)

    def begin_sampling(self) -> Denoiser:
        if self.config.attention == "causal":
            return CausalSession(self)
        if not self.is_open:  # positions see some later ones, so nothing that is kept would stay exact
            return self
        return BlockSession(self) if len(self.mask) else self

    def with_cache(self, plan: CachePlan) -> Denoiser:
        exact = self.begin_sampling()
        if not self.is_open:
            return exact
        return BlockCacheSession(self, None, plan, overlap=int(self.shifts)) if exact is self else exact

    def predict(self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None) -> Logits:
        """An exact evaluation; there are no condition tokens (`BlockCacheSession`)."""
        return self(z, t, context, where)

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        """Empty caches for sequences of this length."""
        return self.network.new_caches(batch, length)

    def window_features(
        self, z: State, t: Times, start: int, stop: int, caches: list[KVCache], memory: ConditionTokens | None
    ) -> Float[Tensor, "B W D"]:
        """Features that answer the positions from `start` to `stop`, which see the others by their keys and values.

        With a shift the first of them has no answer, unless it is position 0, which keeps its own.
        """
        positions = torch.arange(start, stop, device=z.device)
        window = slice(start, stop)
        h = self.network.features(
            self.ids(z[:, window]), self.condition(t[:, window]), positions=positions, caches=caches
        )
        return shift_features(h) if self.shifts else h

    def evaluations(self, draws: int = 1) -> Evaluations:
        doubled = 2.0 if len(self.mask) else 1.0
        return Evaluations(positions=doubled * draws, pairs=doubled**2 * draws)


def open_attention(module: nn.Module, done: float) -> None:
    """Open the attention of adapted networks for the next step, after the fraction `done` of the training."""
    for one in module.modules():
        if isinstance(one, PublishedDenoiser):
            one.open_attention(done)


class PackedDenoiser(Denoiser):
    """A denoiser of rows that hold several documents: attention does not cross them, and positions count within each.

    The first position of a document has no answer where outputs are shifted, so it must be known.
    """

    def __init__(self, inner: PublishedDenoiser, documents: Int64[Tensor, "B L"]):
        super().__init__()
        if inner.config.attention != "full" or not inner.is_open:
            raise UserError("Packed documents need a network with full attention: system mdlm, without --anneal.")
        self.inner, self.documents = inner, documents
        self.block, self.reads_time = inner.block, inner.reads_time

    @property
    def answers_first(self) -> bool:
        return self.inner.answers_first

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        h = self.features(z, t)
        return self.inner.logits(h if where is None else h[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        return self.inner.chunks(self.features(z, t), where)

    def features(self, z: State, t: Times) -> Float[Tensor, "B M D"]:
        """The input of the head at the position that each position is answered by."""
        inner, documents = self.inner, self.documents
        index = torch.arange(z.shape[1], device=z.device).expand_as(documents)
        begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
        positions = index - torch.where(begins, index, 0).cummax(1).values
        same = documents[:, None, :, None] == documents[:, None, None, :]
        h = inner.network.features(inner.ids(z), inner.condition(t), positions=positions, mask=same)
        return shift_features(h) if inner.shifts else h


def shift_features(h: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
    """The features before each position; the first has none, and keeps its own."""
    return torch.cat([h[:, :1], h[:, :-1]], 1)
