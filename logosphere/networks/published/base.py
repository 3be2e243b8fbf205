"""The interface of networks in published layouts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logosphere.networks.attention import KVCache
from logosphere.networks.published.config import PublishedConfig
from logosphere.types import Bool, Float, Int64


class PublishedNetwork(nn.Module, ABC):
    """A transformer over the ids of a checkpoint. Parameters have names of their own; families map published ones.

    It has no buffers: tables such as rotary angles are computed when they are used, in float32, so that a network that
    was built on the device `meta` is complete when its parameters are.
    """

    config: PublishedConfig
    recompute: bool = False
    """Whether blocks compute their activations again in the backward pass (activation checkpointing)."""

    @abstractmethod
    def features(
        self,
        inputs: Tensor,
        condition: Float[Tensor, "B M"] | None,
        *,
        positions: Int64[Tensor, "... M"] | None = None,
        mask: Bool[Tensor, "... M N"] | None = None,
        causal: bool = False,
        caches: Sequence[KVCache] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """The input of the head, for ids [B, M] (or states [B, M, d], RDLM).

        `condition` holds σ or t of every position, None where nothing is read; `positions` follow those in the caches
        unless given, without caches 0 … M - 1, and may be those of each sequence [B, M]; `mask` says which keys each
        query sees (None: all, or with `causal` those up to itself); `caches` hold keys and values of earlier positions,
        to which those of these positions are appended.
        """

    @abstractmethod
    def head(self, features: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Logits of all rows of the table; DDiT's modulation of the last norm belongs to `features`."""

    @abstractmethod
    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        """Empty caches for this many sequences and positions, one for each block of the network."""

    def head_parameters(self) -> tuple[Tensor, ...]:
        """The parameters that `head` reads. Empty: not known, so that gradients need all logits at once."""
        return ()

    def run_block(self, block: nn.Module, *inputs: Any) -> Tensor:
        """The output of a block; with `recompute` only its input is kept for the backward pass."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        out: Tensor = block(*inputs)
        return out


def next_positions(inputs: Tensor, caches: Sequence[KVCache] | None) -> Int64[Tensor, " M"]:
    """The positions of inputs [B, M, …] that follow those in the caches, if there are any."""
    first = caches[0].filled if caches else 0
    return torch.arange(first, first + inputs.shape[1], device=inputs.device)
