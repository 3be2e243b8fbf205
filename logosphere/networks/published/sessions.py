"""Published networks in one run of a sampler: keys and values of finished positions are computed once.

Both sessions are exact: what is kept belongs to positions that see nothing that comes later.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.networks.attention import KVCache
from logosphere.networks.base import Denoiser
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.transformer import find_sampled_block
from logosphere.types import Float, Logits, State, Times, Where


@runtime_checkable
class Published(Protocol):
    """What a session uses of `PublishedDenoiser`."""

    network: PublishedNetwork
    block: int
    reads_time: bool

    @property
    def shifts(self) -> bool: ...

    def __call__(self, z: State, t: Times, context: State, where: Where = None) -> Logits: ...

    def ids(self, z: State) -> Tensor: ...

    def ids_before(self, context: State) -> Tensor: ...

    def condition(self, t: Times) -> Float[Tensor, "B M"] | None: ...

    def logits(self, h: Float[Tensor, "... D"]) -> Logits: ...


class CausalSession(Denoiser):
    """A causal network: keys, values and features of past positions are kept."""

    def __init__(self, denoiser: Published):
        super().__init__()
        self.denoiser, self.block, self.reads_time = denoiser, denoiser.block, denoiser.reads_time
        self.caches: list[KVCache] = []
        self.features = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        if not isinstance(where, Tensor) or not bool(where.any()):  # holds positions whose past is not generated yet
            return self.denoiser(z, t, context, where)
        end = int(where.any(0).nonzero().max()) + 1
        if not self.caches:
            self.caches = self.denoiser.network.new_caches(*context.shape)
        start = self.caches[0].filled
        if end > start:
            ids = self.denoiser.ids_before(context[:, :end])[:, start:]
            h = self.denoiser.network.features(ids, None, causal=True, caches=self.caches)
            if not start:
                self.features = h.new_empty(*context.shape, h.shape[-1])
            self.features[:, start:end] = h
        return self.denoiser.logits(self.features[where])


class BlockSession(Denoiser):
    """A network of blocks: keys and values of finished blocks are kept, so that a step costs one block.

    With a shift the first position of a block is answered by the last clean position before it, whose feature is kept.
    """

    def __init__(self, denoiser: Published):
        super().__init__()
        self.denoiser, self.block, self.reads_time = denoiser, denoiser.block, denoiser.reads_time
        self.caches: list[KVCache] = []
        self.clean = torch.empty(0)
        self.last = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        start = find_sampled_block(where, self.block)
        if start is None or not isinstance(where, Tensor):
            return self.denoiser(z, t, context, where)
        self._keep(context[:, :start], context.shape[1])
        current = slice(start, start + self.block)
        h = self._features(z[:, current], t[:, current], start)
        for cache in self.caches:
            cache.filled = start  # drop the noisy block again
        if self.denoiser.shifts:
            h = torch.cat([self.last if start else h[:, :1], h[:, :-1]], 1)
        return self.denoiser.logits(h[where[:, current]])

    def _keep(self, clean: State, length: int) -> None:
        """Add the blocks finished since the last step; begin again if earlier ones have changed."""
        kept = self.caches[0].filled if self.caches else -1
        if not 0 <= kept <= clean.shape[1] or not torch.equal(self.clean, clean[:, :kept]):
            self.caches, kept = self.denoiser.network.new_caches(len(clean), length), 0
        if kept < clean.shape[1]:
            t = torch.zeros(len(clean), clean.shape[1] - kept, device=clean.device)
            self.last = self._features(clean[:, kept:], t, kept)[:, -1:]
        self.clean = clean.clone()

    def _features(self, z: State, t: Times, start: int) -> Float[Tensor, "B M D"]:
        """Features of blocks that see the kept ones, each other up to themselves, and themselves."""
        new = torch.arange(start, start + z.shape[1], device=z.device)
        seen = torch.arange(start + z.shape[1], device=z.device)
        mask = None if z.shape[1] <= self.block else new[:, None] // self.block >= seen // self.block
        network, condition = self.denoiser.network, self.denoiser.condition(t)
        return network.features(self.denoiser.ids(z), condition, positions=new, mask=mask, caches=self.caches)
