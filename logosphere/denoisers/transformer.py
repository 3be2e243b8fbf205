"""Transformers as denoisers: `FullTransformer` reads the noisy states, `CausalTransformer` the clean tokens before a
position, `BlockTransformer` both, block by block. All of them put the one trunk to use.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import embedding
from logosphere.denoisers.attention import KeyValues, block_causal_mask
from logosphere.denoisers.base import Denoiser, check_block
from logosphere.denoisers.conditioner import Conditional, Conditioner
from logosphere.denoisers.convolution import ConvolutionTrunk
from logosphere.denoisers.network import Network
from logosphere.denoisers.trunk import Head, Memory, Trunk
from logosphere.denoisers.unet import UNetTrunk
from logosphere.errors import UserError
from logosphere.shapes import Float
from logosphere.types import Logits, Positions, State, Times


def conditioner(network: Network) -> Conditioner | None:
    """The reader of the conditions a network is built for, if any."""
    return Conditioner(network) if network.conditional else None


def check_attends(network: Network) -> None:
    """Convolutions look both ways, so that what writes block by block cannot use them."""
    if network.body != "transformer":
        raise UserError("A body of convolutions reads whole sequences; use a transformer to write block by block.")


def trunk(network: Network, length: int, *, reads_time: bool, own: bool) -> Trunk | ConvolutionTrunk | UNetTrunk:
    """What reads whole sequences: attention, dilated convolutions or a U-Net."""
    match network.body:
        case "convolution":
            return ConvolutionTrunk(network, reads_time=reads_time, own=own)
        case "unet":
            return UNetTrunk(network, length, reads_time=reads_time, own=own)
        case _:
            return Trunk(network, length, reads_time=reads_time, own=own, reach=network.neighbours)


def along(h: Float[Tensor, "B M D"], memory: Memory | None) -> Float[Tensor, "B M D"]:
    """The first layer, with what a condition says along the sequence."""
    return h if memory is None or memory.along is None else h + memory.along


def shared_time(t: Times) -> Float[Tensor, "B M"]:
    """One column when all positions of each sequence share a time, so that it is embedded once and not L times."""
    return t[:, :1] if bool((t == t[:, :1]).all()) else t


class FullTransformer(Conditional):
    """Every position sees every noisy state."""

    def __init__(self, codec: Codec, length: int, network: Network, *, reads_time: bool, own: bool = True):
        super().__init__()
        self.block, self.reads_time = length, reads_time
        self.stem = codec.stem(network.width)
        self.trunk = trunk(network, length, reads_time=reads_time, own=own)
        self.head = Head(network.width, codec.choices)
        self.conditioner = conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: Memory | None) -> Float[Tensor, "B M D"]:
        times = shared_time(t) if self.reads_time else None
        return self.trunk(along(self.stem(z), memory), times, memory=memory)


class CausalTransformer(Conditional):
    """Position i sees the clean tokens before i. Its own state tells nothing in a one-shot process and is not read."""

    def __init__(self, vocab_size: int, length: int, network: Network):
        super().__init__()
        check_attends(network)
        self.block, self.reads_time, self.start = 1, False, vocab_size
        self.stem = embedding(vocab_size + 1, network.width)
        self.trunk = Trunk(network, length, reads_time=False, looks_ahead=False)
        self.head = Head(network.width, vocab_size)
        self.conditioner = conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: Memory | None) -> Float[Tensor, "B M D"]:
        return self.trunk(along(self.stem(self.shifted(context)), memory), causal=True, memory=memory)

    def shifted(self, context: State) -> State:
        """The token before each position; a start symbol before the first. Hidden ones are never looked at."""
        before = F.pad(context, (1, 0), value=self.start)[:, :-1]
        return before.clamp_max(self.start)

    def cached(self, memory: Memory | None) -> Denoiser:
        return CausalSession(self, memory)


class CausalSession(Denoiser):
    """A causal transformer that reads each position once: keys, values and features of the past are kept."""

    def __init__(self, model: CausalTransformer, memory: Memory | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.memory = model, 1, False, memory
        self.caches: list[KeyValues] = []
        self.features = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        if not self.caches:
            self._allocate(context)
        if where is None:  # of all positions, also those before which nothing is written yet: not to be cached
            return self.model.read(z, t, context, None, self.memory)
        upto = int(where.any(0).nonzero().max()) + 1
        if upto > self.caches[0].filled:
            self._extend(context, upto)
        return self.model.head(self.features[where])

    def _allocate(self, context: State) -> None:
        trunk, (B, L), like = self.model.trunk, context.shape, self.model.stem.weight
        heads, width = trunk.network.heads, trunk.network.width
        self.caches = [KeyValues(B, heads, L, width // heads, like) for _ in trunk.blocks]
        self.features = like.new_empty(B, L, width)
        if self.memory is None and self.model.conditioner is not None:
            self.memory = self.model.conditioner.blank(B)

    def _extend(self, context: State, upto: int) -> None:
        first = self.caches[0].filled
        h = self.model.stem(self.model.shifted(context[:, :upto])[:, first:])
        if self.memory is not None and self.memory.along is not None:
            h = h + self.memory.along[:, first:upto]
        new = torch.arange(first, upto, device=h.device)
        mask = None if len(new) == 1 else new[:, None] >= torch.arange(upto, device=h.device)
        self.features[:, first:upto] = self.model.trunk(
            h, positions=new, mask=mask, caches=self.caches, memory=self.memory
        )


class BlockTransformer(Conditional):
    """Noisy block b sees itself and the clean blocks before it, all blocks in one pass over [z ; context]."""

    mask: Tensor
    positions: Tensor

    def __init__(self, codec: Codec, length: int, block: int, network: Network, *, reads_time: bool, own: bool = True):
        super().__init__()
        check_attends(network)
        check_block(length, block)
        self.block, self.reads_time = block, reads_time
        self.stem = codec.stem(network.width)
        self.trunk = Trunk(network, length, reads_time=reads_time, own=own)
        self.head = Head(network.width, codec.choices)
        self.register_buffer("mask", block_causal_mask(length, block), persistent=False)
        self.register_buffer("positions", torch.arange(length).repeat(2), persistent=False)
        self.conditioner = conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: Memory | None) -> Float[Tensor, "B M D"]:
        both = torch.cat([along(self.stem(z), memory), along(self.stem(context), memory)], dim=1)
        times = torch.cat([t, torch.zeros_like(t)], dim=1) if self.reads_time else None
        return self.trunk(both, times, positions=self.positions, mask=self.mask, memory=memory)[:, : z.shape[1]]

    def cached(self, memory: Memory | None) -> Denoiser:
        return BlockSession(self, memory)


class BlockSession(Denoiser):
    """A block transformer that reads each finished block once and keeps its keys and values (BD3-LM, section 4).

    A step then costs one noisy block instead of two whole sequences, with the same result: clean blocks look at clean
    blocks only, so nothing that is kept could change.
    """

    def __init__(self, model: BlockTransformer, memory: Memory | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.memory = model, model.block, model.reads_time, memory
        self.caches: list[KeyValues] = []
        self.clean = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        if self.memory is None and self.model.conditioner is not None:
            self.memory = self.model.conditioner.blank(len(z))
        blocks = None if where is None else (where.any(0).nonzero() // self.block).unique()
        if where is None or blocks is None or len(blocks) != 1:  # not a step of the sampler
            return self.model.read(z, t, context, where, self.memory)
        start = int(blocks) * self.block
        here = slice(start, start + self.block)
        self._keep(context[:, :start])
        h = self._read(z[:, here], t[:, here], start)
        for cache in self.caches:
            cache.filled = start  # noisy states are looked at and forgotten
        return self.model.head(h[where[:, here]])

    def _keep(self, clean: State) -> None:
        """Read what has been finished since; everything again should it have changed."""
        trunk, like = self.model.trunk, self.model.head.weight
        kept = self.caches[0].filled if self.caches else -1
        if not 0 <= kept <= clean.shape[1] or not torch.equal(self.clean, clean[:, :kept]):
            heads, width = trunk.network.heads, trunk.network.width
            self.caches = [KeyValues(len(clean), heads, trunk.length, width // heads, like) for _ in trunk.blocks]
            kept = 0
        if kept < clean.shape[1]:
            self._read(clean[:, kept:], torch.zeros(len(clean), clean.shape[1] - kept, device=like.device), kept)
        self.clean = clean.clone()

    def _read(self, z: State, t: Times, start: int) -> Float[Tensor, "B M D"]:
        """Features of some blocks, each of which sees what is kept, the blocks before it and itself."""
        end = start + z.shape[1]
        h = self.model.stem(z)
        if self.memory is not None and self.memory.along is not None:
            h = h + self.memory.along[:, start:end]
        new = torch.arange(start, end, device=h.device)
        sees = new[:, None] // self.block >= torch.arange(end, device=h.device) // self.block
        times = t if self.reads_time else None
        return self.model.trunk(h, times, positions=new, mask=sees, caches=self.caches, memory=self.memory)
