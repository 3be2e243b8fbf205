"""Decoders: latents to tokens, all at once or from left to right."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.autoencoders.perceiver import OwnPart, Perceiver
from logosphere.codecs.tokens import build_embedding
from logosphere.networks.attention import KVCache
from logosphere.networks.backbone import Backbone, LinearHead
from logosphere.networks.config import NetworkConfig
from logosphere.shapes import Float
from logosphere.types import State, Tokens


class Decoded(NamedTuple):
    """What a decoder makes of latents."""

    logits: Float[Tensor, "B L V"]
    rebuilt: Float[Tensor, "B L D"] | None
    """The states of the reader, where the decoder goes through them."""


class Decoder(nn.Module, ABC):
    """p(x | z)."""

    @abstractmethod
    def forward(self, z: State, tokens: Tokens) -> Decoded:
        """Logits of every token; those from left to right look at the `tokens` before."""

    @abstractmethod
    def write(self, z: State) -> Tokens:
        """The likeliest tokens: of each position, or one after another."""


class Parallel(Decoder):
    """All tokens at once (TEncDM; COSMOS): latents become one state for each token, a transformer reads the tokens off.

    Where there are as many latents as tokens they are the states.
    """

    def __init__(
        self, vocab_size: int, length: int, network: NetworkConfig, *, latents: int, features: int, rebuilt: int
    ):
        super().__init__()
        self.decompress = None
        if latents != length:
            self.decompress = Perceiver(network, memory=latents, memory_width=features, count=length)
            self.leave = nn.Linear(network.width, rebuilt)
        self.enter = nn.Linear(rebuilt if latents != length else features, network.width)
        self.trunk = Backbone(network, length, reads_time=False)
        self.head = LinearHead(network.width, vocab_size)

    def forward(self, z: State, tokens: Tokens) -> Decoded:
        return self._decoded(z)

    def _decoded(self, z: State) -> Decoded:
        rebuilt = z if self.decompress is None else self.leave(self.decompress(z))
        return Decoded(self.head(self.trunk(self.enter(rebuilt))), rebuilt)

    def write(self, z: State) -> Tokens:
        return self._decoded(z).logits.argmax(-1)


class Causal(Decoder):
    """From left to right (LD4LG; PLANNER): a token sees all latents, which stand before the text, and earlier tokens.

    Nothing but p(x | z) chooses the words: no beam, no penalty for repetition, which would be a second model.
    """

    mask: Tensor

    def __init__(self, vocab_size: int, length: int, network: NetworkConfig, *, latents: int, features: int):
        super().__init__()
        self.length, self.latents, self.start = length, latents, vocab_size
        self.enter = nn.Linear(features, network.width)
        self.places = nn.Parameter(0.2 * torch.randn(latents, network.width))
        self.begin = OwnPart(memory=latents, memory_width=features, count=length, width=network.width)
        self.stem = build_embedding(vocab_size + 1, network.width)
        self.trunk = Backbone(network, latents + length, reads_time=False, bidirectional=False)
        self.head = LinearHead(network.width, vocab_size)
        place = torch.arange(latents + length)
        self.register_buffer("mask", (place[:, None] >= place) | (place < latents), persistent=False)

    def forward(self, z: State, tokens: Tokens) -> Decoded:
        before = F.pad(tokens, (1, 0), value=self.start)[:, :-1]
        h = self.trunk(torch.cat([self._prefix(z), self.begin(z) + self.stem(before)], 1), mask=self.mask)
        return Decoded(self.head(h[:, self.latents :]), None)

    def _prefix(self, z: State) -> Float[Tensor, "B N D"]:
        return self.enter(z) + self.places

    @torch.no_grad()
    def write(self, z: State) -> Tokens:
        network, everything = self.trunk.network, self.latents + self.length
        heads = network.heads
        caches = [
            KVCache(len(z), heads, everything, network.width // heads, self.enter.weight) for _ in self.trunk.blocks
        ]
        place, own = torch.arange(everything, device=z.device), self.begin(z)
        self.trunk(self._prefix(z), positions=place[: self.latents], caches=caches)
        token = torch.full((len(z),), self.start, device=z.device)
        written = []
        for i in range(self.latents, everything):
            h = own[:, i - self.latents] + self.stem(token)
            h = self.trunk(h[:, None], positions=place[i : i + 1], caches=caches)
            token = self.head(h[:, 0]).argmax(-1)
            written.append(token)
        return torch.stack(written, 1)
