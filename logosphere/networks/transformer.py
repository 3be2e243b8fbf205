"""Networks as denoisers of sequences.

`FullTransformer` reads all noisy states (its backbone may also be convolutional), `DigitTransformer` does so with one
position for all digits of a token, `CausalTransformer` reads the clean tokens before each position, `BlockTransformer`
noisy blocks and the clean blocks before them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import CoordinateStem, DigitCodec, TokenEmbedding
from logosphere.errors import UserError
from logosphere.networks.attention import KVCache, block_causal_mask
from logosphere.networks.backbone import Backbone, ConditionTokens
from logosphere.networks.base import (
    CachePlan,
    ConditionalNetwork,
    Denoiser,
    Evaluations,
    add_signal,
    check_block,
    check_whole,
    pack_output,
)
from logosphere.networks.block_cache import BlockCacheSession
from logosphere.networks.conditioning import build_conditioner
from logosphere.networks.config import NetworkConfig
from logosphere.networks.convolution import ConvolutionBackbone, UNetBackbone
from logosphere.networks.heads import LinearHead, build_head
from logosphere.types import Float, LogitChunks, Logits, State, Times, Where


def check_transformer(network: NetworkConfig) -> None:
    """Raise UserError for convolutional backbones, which see both directions and so cannot generate blocks."""
    if network.body != "transformer":
        raise UserError(f"body={network.body} needs whole sequences; use body=transformer to generate block by block.")


def build_backbone(
    network: NetworkConfig, length: int, *, reads_time: bool, subtract_input: bool
) -> Backbone | ConvolutionBackbone | UNetBackbone:
    """Return the bidirectional backbone that the configuration names."""
    match network.body:
        case "convolution":
            return ConvolutionBackbone(network, reads_time=reads_time, subtract_input=subtract_input)
        case "unet":
            return UNetBackbone(network, length, reads_time=reads_time, subtract_input=subtract_input)
        case "transformer":
            return Backbone(
                network, length, reads_time=reads_time, subtract_input=subtract_input, reach=network.neighbours
            )
        case _:
            raise UserError(
                f"The registered network {network.body} cannot be used here: these options of the system change the "
                "input or output layer of a network of the package."
            )


def squeeze_shared_time(t: Times) -> Float[Tensor, "B M"]:
    """Return a single column if all positions of each sequence share a time, so that it is embedded once.

    Times whose stride is 0 do (`mark_shared_time`). Others are compared on a CPU only, since reading the result from
    another device would stop it.
    """
    shared = t.stride(1) == 0 or (t.device.type == "cpu" and bool((t == t[:, :1]).all()))
    return t[:, :1] if shared else t


class FullTransformer(ConditionalNetwork):
    """Every position sees every noisy state."""

    def __init__(
        self, codec: Codec, length: int, network: NetworkConfig, *, reads_time: bool, subtract_input: bool = False
    ):
        super().__init__()
        check_whole(network.decoder_depth)
        self.block, self.reads_time = length, reads_time
        self.stem = codec.build_stem(network.width)
        self.trunk = build_backbone(network, length, reads_time=reads_time, subtract_input=subtract_input)
        self.head = build_head(network.width, codec.num_classes, tied=bool(network.tied))
        self.conditioner = build_conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        times = squeeze_shared_time(t) if self.reads_time else None
        return self.trunk(add_signal(self.stem(z), memory), times, memory=memory)

    def open_cached_session(self, memory: ConditionTokens | None, plan: CachePlan) -> Denoiser:
        if not isinstance(self.trunk, Backbone):
            return super().open_cached_session(memory, plan)
        return BlockCacheSession(self, memory, plan)

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        """Return empty caches for sequences of this length."""
        assert isinstance(self.trunk, Backbone)
        network, like = self.trunk.network, self.head.bias
        return [KVCache(batch, network.heads, length, network.width // network.heads, like) for _ in self.trunk.blocks]

    def window_features(
        self, z: State, t: Times, start: int, stop: int, caches: list[KVCache], memory: ConditionTokens | None
    ) -> Float[Tensor, "B W D"]:
        """Return features of the positions from `start` to `stop`, which see the others by their keys and values."""
        backbone, memory = self.trunk, self._empty_tokens(len(z)) if memory is None else memory
        assert isinstance(backbone, Backbone)
        local = backbone.neighbours
        margin = 0 if local is None else (z.shape[1] if local.axes else local.reach)
        low, high = max(0, start - margin), min(z.shape[1], stop + margin)
        h, inside = add_signal(self.stem(z[:, low:high]), memory, slice(low, high)), slice(start - low, stop - low)
        mixed = None if local is None else local(h)[:, inside]
        times = squeeze_shared_time(t[:, start:stop]) if self.reads_time else None
        positions = torch.arange(start, stop, device=h.device)
        return backbone(h[:, inside], times, positions=positions, caches=caches, memory=memory, mixed=mixed)


class DigitTransformer(ConditionalNetwork):
    """Every token is one position: it reads the states of the token's m digits and has one head for each digit.

    A sequence of L tokens then costs L positions instead of m·L.
    """

    def __init__(self, codec: DigitCodec, length: int, network: NetworkConfig, *, reads_time: bool):
        super().__init__()
        check_whole(network.decoder_depth)
        self.block, self.reads_time = length * codec.digits, reads_time
        self.digits, self.base = codec.digits, codec.base
        self.stem = CoordinateStem(codec.digits * codec.base, network.width)
        self.trunk = Backbone(network, length, reads_time=reads_time, reach=network.neighbours)
        if network.tied:
            raise UserError("tied=True needs one output for each token; digits=heads has one for each digit.")
        self.head = LinearHead(network.width, codec.digits * codec.base)
        self.conditioner = build_conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B T D"]:
        joined = z[..., : self.base].unflatten(1, (-1, self.digits)).flatten(2)
        times = squeeze_shared_time(t[:, :: self.digits]) if self.reads_time else None
        return self.trunk(add_signal(self.stem(joined), memory), times, memory=memory)

    def predict(self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None) -> Logits:
        out = self.head(self.features(z, t, context, memory)).unflatten(2, (self.digits, self.base)).flatten(1, 2)
        return out if where is None else out[where]

    def predict_parts(
        self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None
    ) -> LogitChunks:
        return LogitChunks(pack_output(self.predict(z, t, context, where, memory), where), lambda out, rows: out)


class CausalTransformer(ConditionalNetwork):
    """Position i sees the clean tokens before i. Its own state has no information in a one-shot process."""

    def __init__(self, vocab_size: int, length: int, network: NetworkConfig):
        super().__init__()
        check_transformer(network)
        check_whole(network.decoder_depth)
        self.block, self.reads_time, self.start = 1, False, vocab_size
        self.stem = TokenEmbedding(vocab_size + 1, network.width)
        self.trunk = Backbone(network, length, reads_time=False, bidirectional=False)
        self.head = build_head(network.width, vocab_size, tied=bool(network.tied))
        self.conditioner = build_conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        return self.trunk(add_signal(self.stem(self.shift_right(context)), memory), causal=True, memory=memory)

    def shift_right(self, context: State) -> State:
        """Return the token before each position, with a start symbol before the first; masks are never attended to."""
        before = F.pad(context, (1, 0), value=self.start)[:, :-1]
        return before.clamp_max(self.start)

    def open_session(self, memory: ConditionTokens | None) -> Denoiser:
        return CausalSession(self, memory)

    def open_cached_session(self, memory: ConditionTokens | None, plan: CachePlan) -> Denoiser:
        return CausalSession(self, memory)  # which is exact


class CausalSession(Denoiser):
    """A causal transformer in one run of a sampler; it caches keys, values and features of past positions."""

    def __init__(self, model: CausalTransformer, memory: ConditionTokens | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.memory = model, 1, False, memory
        self.caches: list[KVCache] = []
        self.features = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        if not self.caches:
            self._allocate(context)
        if not isinstance(where, Tensor):  # includes positions whose past is not generated yet: must not be cached
            return self.model.predict(z, t, context, where, self.memory)
        end = int(where.any(0).nonzero().max()) + 1
        if end > self.caches[0].filled:
            self._extend(context, end)
        return self.model.logits(self.features[where])

    def _allocate(self, context: State) -> None:
        backbone, (B, L), like = self.model.trunk, context.shape, self.model.head.bias
        heads, width = backbone.network.heads, backbone.network.width
        self.caches = [KVCache(B, heads, L, width // heads, like) for _ in backbone.blocks]
        self.features = like.new_empty(B, L, width)
        if self.memory is None and self.model.conditioner is not None:
            self.memory = self.model.conditioner.empty_tokens(B)

    def _extend(self, context: State, end: int) -> None:
        """Cache the positions up to `end`."""
        start = self.caches[0].filled
        h = self.model.stem(self.model.shift_right(context[:, :end])[:, start:])
        h = add_signal(h, self.memory, slice(start, end))
        new = torch.arange(start, end, device=h.device)
        mask = None if len(new) == 1 else new[:, None] >= torch.arange(end, device=h.device)
        self.features[:, start:end] = self.model.trunk(
            h, positions=new, mask=mask, caches=self.caches, memory=self.memory
        )


class BlockTransformer(ConditionalNetwork):
    """Noisy block b sees itself and the clean blocks before it, all blocks in one pass over [z ; context]."""

    mask: Tensor
    positions: Tensor

    def __init__(
        self,
        codec: Codec,
        length: int,
        block: int,
        network: NetworkConfig,
        *,
        reads_time: bool,
        subtract_input: bool = False,
    ):
        super().__init__()
        check_transformer(network)
        check_block(length, block)
        self.block, self.reads_time = block, reads_time
        self.stem = codec.build_stem(network.width)
        self.trunk = Backbone(network, length, reads_time=reads_time, subtract_input=subtract_input)
        self.head = build_head(network.width, codec.num_classes, tied=bool(network.tied))
        self.register_buffer("mask", block_causal_mask(length, block), persistent=False)
        self.register_buffer("positions", torch.arange(length).repeat(2), persistent=False)
        self.conditioner = build_conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        both = torch.cat([add_signal(self.stem(z), memory), add_signal(self.stem(context), memory)], dim=1)
        times = torch.cat([t, torch.zeros_like(t)], dim=1) if self.reads_time else None
        return self.trunk(both, times, positions=self.positions, mask=self.mask, memory=memory)[:, : z.shape[1]]

    def evaluations(self, draws: int = 1) -> Evaluations:
        """Return 2 positions a token, noisy and clean, and 2 · 2 pairs of them, for every noisy copy."""
        return Evaluations(positions=2.0 * draws, pairs=4.0 * draws)

    def open_session(self, memory: ConditionTokens | None) -> Denoiser:
        return BlockSession(self, memory)

    def open_cached_session(self, memory: ConditionTokens | None, plan: CachePlan) -> Denoiser:
        return BlockSession(self, memory)  # which is exact


def find_sampled_block(where: Where, block: int) -> int | None:
    """Return the first position of the block that a step of a sampler evaluates; None for any other evaluation."""
    if not isinstance(where, Tensor):
        return None
    blocks = (where.any(0).nonzero() // block).unique()
    return int(blocks) * block if len(blocks) == 1 else None


class BlockSession(Denoiser):
    """A block transformer in one run of a sampler; it caches keys and values of finished blocks (BD3-LM, section 4).

    A step costs one noisy block instead of two whole sequences, and the result is the same: clean blocks see clean
    blocks only, so that cached values do not change.
    """

    def __init__(self, model: BlockTransformer, memory: ConditionTokens | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.memory = model, model.block, model.reads_time, memory
        self.caches: list[KVCache] = []
        self.clean = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        if self.memory is None and self.model.conditioner is not None:
            self.memory = self.model.conditioner.empty_tokens(len(z))
        start = find_sampled_block(where, self.block)
        if start is None or not isinstance(where, Tensor):
            return self.model.predict(z, t, context, where, self.memory)
        current = slice(start, start + self.block)
        self._cache(context[:, :start])
        h = self._features(z[:, current], t[:, current], start)
        for cache in self.caches:
            cache.filled = start  # drop the noisy block again
        return self.model.logits(h[where[:, current]])

    def _cache(self, clean: State) -> None:
        """Cache the blocks finished since the last step; start again if earlier ones have changed."""
        backbone, like = self.model.trunk, self.model.head.bias
        cached = self.caches[0].filled if self.caches else -1
        if not 0 <= cached <= clean.shape[1] or not torch.equal(self.clean, clean[:, :cached]):
            heads, width = backbone.network.heads, backbone.network.width
            self.caches = [KVCache(len(clean), heads, backbone.length, width // heads, like) for _ in backbone.blocks]
            cached = 0
        if cached < clean.shape[1]:
            t = torch.zeros(len(clean), clean.shape[1] - cached, device=like.device)
            self._features(clean[:, cached:], t, cached)
        self.clean = clean.clone()

    def _features(self, z: State, t: Times, start: int) -> Float[Tensor, "B M D"]:
        """Return features of blocks that see the cached blocks, each other up to themselves, and themselves."""
        end = start + z.shape[1]
        h = add_signal(self.model.stem(z), self.memory, slice(start, end))
        new = torch.arange(start, end, device=h.device)
        mask = new[:, None] // self.block >= torch.arange(end, device=h.device) // self.block
        times = t if self.reads_time else None
        return self.model.trunk(h, times, positions=new, mask=mask, caches=self.caches, memory=self.memory)
