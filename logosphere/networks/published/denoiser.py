"""Published networks as denoisers: ids of the checkpoint for tokens and masks, its shift, and what it reads."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.networks.attention import KVCache, block_causal_mask
from logosphere.networks.backbone import ConditionTokens
from logosphere.networks.base import CachePlan, Denoiser, Evaluations
from logosphere.networks.block_cache import BlockCacheSession
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.sessions import BlockSession, CausalSession
from logosphere.types import Float, LogitChunks, Logits, State, Times, Where, pack


class PublishedDenoiser(Denoiser):
    """Predicts tokens 0 … K - 1 with a network whose table may have other rows as well.

    The mask of the package is K, that of the network `config.mask_id`. Rows of the table that are no tokens get no
    probability.
    """

    mask: Tensor
    positions: Tensor

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
        h, head = pack(self.features(z, t, context), where), self.network.head_parameters()
        if torch.is_grad_enabled() and not head and h.requires_grad:
            return LogitChunks(self.logits(h), lambda out, rows: out)
        return LogitChunks(h, lambda h, rows: self.logits(h), head)

    def features(self, z: State, t: Times, context: State) -> Float[Tensor, "B M D"]:
        """The input of the head at the position that each position is answered by."""
        if self.config.attention == "causal":
            return self.network.features(self.ids_before(context), self.condition(t), causal=True)
        if len(self.mask):
            both = torch.cat([self.ids(z), self.ids(context)], 1)
            condition = self.condition(torch.cat([t, torch.zeros_like(t)], 1))
            h, clean = self.network.features(both, condition, positions=self.positions, mask=self.mask).chunk(2, 1)
            if not self.shifts:
                return h
            # The position before a block belongs to an earlier one, which is answered by its clean states.
            first = (torch.arange(z.shape[1], device=h.device) % self.block == 0)[:, None]
            return torch.where(first, _shift(clean), _shift(h))
        h = self.network.features(self.ids(z), self.condition(t))
        return _shift(h) if self.shifts else h

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
        if self.config.mask_id is None:  # causal networks meet masks where nothing attends to them
            return z.clamp_max(self.vocab_size - 1)
        return torch.where(z == self.vocab_size, self.config.mask_id, z)

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
        return BlockSession(self) if len(self.mask) else self

    def with_cache(self, plan: CachePlan) -> Denoiser:
        exact = self.begin_sampling()
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
        return _shift(h) if self.shifts else h

    def evaluations(self, draws: int = 1) -> Evaluations:
        doubled = 2.0 if len(self.mask) else 1.0
        return Evaluations(positions=doubled * draws, pairs=doubled**2 * draws)


def _shift(h: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
    """The features before each position; the first has none, and keeps its own."""
    return torch.cat([h[:, :1], h[:, :-1]], 1)
