"""Decoders of latents to tokens, and the parts that encoders share with them: the Perceiver and standardisation."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import TokenEmbedding
from logosphere.networks.attention import KVCache
from logosphere.networks.backbone import Backbone, ConditionTokens
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.types import Bool, Float, State, Tokens

EMA_DECAY = 0.98
"""Decay of running statistics per training step."""


class Standardiser(nn.Module):
    """(x - mean) / deviation for each of `positions` and features; with one position it is shared by all.

    Observations are accumulated until the next `update_statistics`, so that they do not depend on how a batch is cut.
    Without any observation x is not changed.
    """

    mean: Tensor
    square: Tensor
    seen: Tensor
    """The number of updates."""
    pending: Tensor
    """Sums of x, of x² and of the number of observations since the last update."""

    def __init__(self, positions: int, features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(positions, features, dtype=torch.float64))
        self.register_buffer("square", torch.ones(positions, features, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(3, positions, features, dtype=torch.float64), persistent=False)

    def forward(self, x: Float[Tensor, "B N d"]) -> Float[Tensor, "B N d"]:
        deviation = (self.square - self.mean.square()).clamp_min(1e-6).sqrt()
        return (x - self.mean.to(x.dtype)) / deviation.to(x.dtype)

    def set_statistics(self, mean: Float[Tensor, " d"], deviation: Float[Tensor, " d"]) -> None:
        """Set known statistics, the same for every position."""
        self.mean.copy_(mean.double().expand_as(self.mean))
        self.square.copy_(deviation.double().square() + self.mean.square())

    def observe(self, x: Float[Tensor, "B N d"]) -> None:
        """Accumulate a batch."""
        rows = x.detach().double().reshape(-1, *self.mean.shape)
        count = torch.full_like(self.mean, len(rows))
        self.pending += torch.stack([rows.sum(0), rows.square().sum(0), count])

    def update_statistics(self) -> None:
        """Update the running averages; the first update replaces the initial values."""
        count = self.pending[2]
        if not bool(count.any()):
            return
        weight = (1 - EMA_DECAY) / (1 - EMA_DECAY ** (self.seen + 1))
        self.mean += weight * (self.pending[0] / count - self.mean)
        self.square += weight * (self.pending[1] / count - self.square)
        self.seen += 1
        self.pending.zero_()


class LocalQueryInit(nn.Module):
    """Initial queries: a linear map of the part of a memory that belongs to each of `count` queries, in even parts.

    Several vectors of the memory become one query, or one vector becomes several queries, each by its own map.
    """

    def __init__(self, *, memory: int, memory_width: int, count: int, width: int):
        super().__init__()
        self.count, self.vectors_each, self.queries_each = count, -(-memory // count), -(-count // memory)
        self.map = nn.Linear(self.vectors_each * memory_width, self.queries_each * width)

    def forward(self, memory: Float[Tensor, "B S d"]) -> Float[Tensor, "B N D"]:
        missing = -memory.shape[1] % self.vectors_each
        parts = F.pad(memory, (0, 0, 0, missing)).unflatten(1, (-1, self.vectors_each)).flatten(2)
        queries = self.map(parts).unflatten(2, (self.queries_each, -1)).flatten(1, 2)
        return F.pad(queries, (0, 0, 0, max(0, self.count - queries.shape[1])))[:, : self.count]

    def init_orthogonal(self) -> None:
        """Draw an orthogonal map, which keeps as much of what it projects as a linear map can."""
        nn.init.orthogonal_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    @torch.no_grad()
    def init_transposed(self, other: "LocalQueryInit") -> None:
        """The transpose of a map the other way, so that both together are a projection; outputs have its variance."""
        weight = other.map.weight
        if weight.shape == self.map.weight.shape[::-1]:
            self.map.weight.copy_(weight.T * max(1.0, weight.shape[1] / weight.shape[0]) ** 0.5)
            self.map.bias.zero_()


class Perceiver(nn.Module):
    """`count` queries attend to `memory` vectors and to each other in every layer (Jaegle et al. 2021).

    The same module compresses L states into N latents and expands N latents into L states. Queries are initialised by
    their own part of the memory: constant queries must first learn where to attend, and the loss stays at the unigram
    entropy for hundreds of steps. The memory is a sequence of condition tokens of the common backbone.
    """

    def __init__(self, network: NetworkConfig, *, memory: int, memory_width: int, count: int):
        super().__init__()
        width = network.width
        self.enter = nn.Linear(memory_width, width)
        self.begin = LocalQueryInit(memory=memory, memory_width=memory_width, count=count, width=width)
        # Cross-attention ignores the order of the memory; position embeddings let a query attend to positions.
        self.places = nn.Parameter(0.2 * torch.randn(memory, width))
        self.queries = nn.Parameter(0.2 * torch.randn(count, width))
        conditioned = replace(network, labels=0, signal=0, source=memory, source_length=memory)
        self.trunk = Backbone(conditioned, count, reads_time=False)

    def forward(
        self, memory: Float[Tensor, "B S d"], visible: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """The states of the queries; vectors of the memory that are not `visible` are masked."""
        if visible is None:
            visible = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        memory = memory * visible[..., None]
        tokens = ConditionTokens(self.enter(memory) + self.places, visible, None)
        return self.trunk(self.begin(memory) + self.queries, memory=tokens)


class DecoderOutput(NamedTuple):
    """The prediction of a decoder."""

    logits: Float[Tensor, "B L V"]
    states: Float[Tensor, "B L D"] | None
    """The reconstructed states of the encoder, if the decoder computes them."""


class Decoder(nn.Module, ABC):
    """p(x | z)."""

    @abstractmethod
    def forward(self, z: State, tokens: Tokens) -> DecoderOutput:
        """Logits of every token; a causal decoder conditions on earlier `tokens`."""

    @abstractmethod
    def decode(self, z: State) -> Tokens:
        """The most likely token of each position, or greedily from left to right."""

    @abstractmethod
    def init_inverse(self, skip: LocalQueryInit, table: Float[Tensor, "V D"] | None) -> None:
        """Begin as the inverse of an encoder, as far as widths allow: of its linear map `skip`, and of its embedding.

        A token is then read from its own part of a latent before the first step. With random maps the parts of a
        latent must first be separated, and until then the loss stays near the unigram entropy.
        """

    def _init_head(self, head: LinearHead, table: Float[Tensor, "V D"] | None) -> None:
        if table is not None and table.shape == head.weight.shape:
            with torch.no_grad():
                head.weight.copy_(table)


class ParallelDecoder(Decoder):
    """All tokens at once (TEncDM; COSMOS): latents become one state for each token, and a transformer decodes them.

    Where there are as many latents as tokens, the latents are the states.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        network: NetworkConfig,
        *,
        latents: int,
        features: int,
        state_width: int,
        local_skip: bool = False,
    ):
        super().__init__()
        self.decompress, self.skip = None, None
        if latents != length:
            self.decompress = Perceiver(network, memory=latents, memory_width=features, count=length)
            self.leave = nn.Linear(network.width, state_width)
            if local_skip:
                self.skip = LocalQueryInit(memory=latents, memory_width=features, count=length, width=state_width)
                self.skip.init_orthogonal()
        self.enter = nn.Linear(state_width if latents != length else features, network.width)
        self.trunk = Backbone(network, length, reads_time=False)
        self.head = LinearHead(network.width, vocab_size)

    def forward(self, z: State, tokens: Tokens) -> DecoderOutput:
        return self._predict(z)

    def _predict(self, z: State) -> DecoderOutput:
        states = z if self.decompress is None else self.leave(self.decompress(z))
        if self.skip is not None:
            states = states + self.skip(z)
        return DecoderOutput(self.head(self.trunk(self.enter(states))), states)

    def decode(self, z: State) -> Tokens:
        return self._predict(z).logits.argmax(-1)

    def init_inverse(self, skip: LocalQueryInit, table: Float[Tensor, "V D"] | None) -> None:
        if self.skip is not None:
            self.skip.init_transposed(skip)
        if self.enter.in_features == self.enter.out_features:
            nn.init.eye_(self.enter.weight)
            nn.init.zeros_(self.enter.bias)
        self._init_head(self.head, table)


class CausalDecoder(Decoder):
    """From left to right (LD4LG; PLANNER): a token sees all latents, which precede the text, and earlier tokens.

    Decoding is greedy, without beam search or a repetition penalty, so that nothing but p(x | z) chooses the tokens.
    """

    mask: Tensor

    def __init__(self, vocab_size: int, length: int, network: NetworkConfig, *, latents: int, features: int):
        super().__init__()
        self.length, self.latents, self.start = length, latents, vocab_size
        self.enter = nn.Linear(features, network.width)
        self.places = nn.Parameter(0.2 * torch.randn(latents, network.width))
        self.begin = LocalQueryInit(memory=latents, memory_width=features, count=length, width=network.width)
        self.stem = TokenEmbedding(vocab_size + 1, network.width)
        self.trunk = Backbone(network, latents + length, reads_time=False, bidirectional=False)
        self.head = LinearHead(network.width, vocab_size)
        position = torch.arange(latents + length)
        self.register_buffer("mask", (position[:, None] >= position) | (position < latents), persistent=False)

    def forward(self, z: State, tokens: Tokens) -> DecoderOutput:
        before = F.pad(tokens, (1, 0), value=self.start)[:, :-1]
        h = self.trunk(torch.cat([self._prefix(z), self.begin(z) + self.stem(before)], 1), mask=self.mask)
        return DecoderOutput(self.head(h[:, self.latents :]), None)

    def _prefix(self, z: State) -> Float[Tensor, "B N D"]:
        return self.enter(z) + self.places

    def init_inverse(self, skip: LocalQueryInit, table: Float[Tensor, "V D"] | None) -> None:
        self.begin.init_transposed(skip)
        self._init_head(self.head, table)

    @torch.no_grad()
    def decode(self, z: State) -> Tokens:
        network, total = self.trunk.network, self.latents + self.length
        heads = network.heads
        caches = [KVCache(len(z), heads, total, network.width // heads, self.enter.weight) for _ in self.trunk.blocks]
        positions, local = torch.arange(total, device=z.device), self.begin(z)
        self.trunk(self._prefix(z), positions=positions[: self.latents], caches=caches)
        token = torch.full((len(z),), self.start, device=z.device)
        decoded = []
        for i in range(self.latents, total):
            h = local[:, i - self.latents] + self.stem(token)
            h = self.trunk(h[:, None], positions=positions[i : i + 1], caches=caches)
            token = self.head(h[:, 0]).argmax(-1)
            decoded.append(token)
        return torch.stack(decoded, 1)
