"""A cache of keys and values for networks that see both directions (Wu et al. 2025, Fast-dLLM).

In such a network the keys and values of every position depend on all others, so no cache is exact. While a block is
decoded, those of the positions outside of it change little. The first evaluation of a block computes all of them. The
following ones compute the block and what comes after it (prefix cache), or the block alone (dual cache), and use what
is kept of the others.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.networks.attention import KVCache
from logosphere.networks.backbone import ConditionTokens
from logosphere.networks.base import CachePlan, Denoiser
from logosphere.types import Float, Int64, Logits, Rows, State, Times, Where


@runtime_checkable
class WindowedNetwork(Protocol):
    """A network that can be evaluated at some positions, given keys and values of the others."""

    block: int
    reads_time: bool

    def predict(self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None) -> Logits: ...

    def new_caches(self, batch: int, length: int) -> list[KVCache]: ...

    def window_features(
        self, z: State, t: Times, start: int, stop: int, caches: list[KVCache], memory: ConditionTokens | None
    ) -> Float[Tensor, "B W D"]: ...

    def logits(self, h: Float[Tensor, "... D"]) -> Logits: ...


class BlockCacheSession(Denoiser):
    """A bidirectional network in one run of a sampler that decodes one block after another.

    Evaluations at other positions than those of one block are exact, and leave what is kept unchanged.
    """

    def __init__(self, network: WindowedNetwork, memory: ConditionTokens | None, plan: CachePlan, overlap: int = 0):
        """With `overlap` 1 a window begins one position earlier, which answers its first position (shift)."""
        super().__init__()
        self.network, self.memory, self.plan, self.overlap = network, memory, plan, overlap
        self.block, self.reads_time = network.block, network.reads_time
        self.caches: list[KVCache] = []
        self.rows = torch.empty(0, dtype=torch.long)
        """The sequences whose keys and values are kept."""
        self.current, self.age = -1, 0
        """The block that is decoded, and the evaluations since all keys and values were computed."""

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.evaluate(z, t, context, where, torch.arange(len(z), device=z.device))

    def select_rows(self, kept: Rows) -> Denoiser:
        return _SelectedRows(self, kept.nonzero()[:, 0] if kept.dtype == torch.bool else kept)

    def evaluate(self, z: State, t: Times, context: State, where: Where, rows: Int64[Tensor, " n"]) -> Logits:
        """Return logits of these sequences of the batch."""
        memory = None if self.memory is None else self.memory.select_rows(rows)
        found = self._find_block(where)
        if found is None or not isinstance(where, Tensor):
            return self.network.predict(z, t, context, where, memory)
        block, start, end = found
        stop = end if self.plan.dual else z.shape[1]
        if block != self.current or self.age == self.plan.refresh > 0 or not self._keep_rows(rows):
            self.caches = self.network.new_caches(len(z), z.shape[1])
            self.current, self.age, self.rows, start, stop = block, 0, rows, 0, z.shape[1]
        start, self.age = max(0, start - self.overlap), self.age + 1
        for cache in self.caches:
            cache.filled, cache.kept = start, z.shape[1]
        h = self.network.window_features(z, t, start, stop, self.caches, memory)
        return self.network.logits(h[where[:, start:stop]])

    def _find_block(self, where: Where) -> tuple[int, int, int] | None:
        """The block that holds all selected positions, and its ends; None if there is none."""
        if not isinstance(where, Tensor) or not where.any():
            return None
        selected = where.any(0).nonzero()[:, 0]
        starts = torch.tensor(self.plan.starts, device=selected.device)
        blocks = torch.searchsorted(starts, selected, right=True).unique()
        if len(blocks) != 1 or int(blocks) == 0:
            return None
        index = int(blocks)
        end = self.plan.starts[index] if index < len(self.plan.starts) else where.shape[1]
        return index, self.plan.starts[index - 1], end

    def _keep_rows(self, rows: Int64[Tensor, " n"]) -> bool:
        """Drop the sequences that are finished; False if others are evaluated than those that are kept."""
        if torch.equal(rows, self.rows):
            return True
        if not bool(torch.isin(rows, self.rows).all()):
            return False
        places = torch.searchsorted(self.rows, rows)
        self.caches, self.rows = [cache.select_rows(places) for cache in self.caches], rows
        return True


class _SelectedRows(Denoiser):
    """Some sequences of a session."""

    def __init__(self, session: BlockCacheSession, rows: Int64[Tensor, " n"]):
        super().__init__()
        self.session, self.rows = session, rows
        self.block, self.reads_time = session.block, session.reads_time

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.session.evaluate(z, t, context, where, self.rows)

    def select_rows(self, kept: Rows) -> Denoiser:
        return _SelectedRows(self.session, self.rows[kept])
