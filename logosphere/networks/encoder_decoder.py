"""Block diffusion with an encoder of the clean text and a light decoder of noisy blocks (Arriola et al. 2025, E2D2).

`BlockTransformer` reads noisy and clean states with all of its blocks, which doubles the cost of a training step. Here
the first blocks of the network read the clean text once, and the others read noisy states and attend to its features:

    f = encoder(x)                                  clean block b sees clean blocks up to b
    h = decoder(z_b; f of the blocks before b)      noisy block b sees itself and the clean blocks before b

A step costs about as much as that of a network of whole sequences with as many blocks.

With `hollow` the prediction at a position does not depend on its own state (Sun et al. 2023, hollow transformer). The
posterior has this form, because states are independent given the tokens:

    p(x_i | z) ∝ p(x_i | z_j, j ≠ i) q(z_i | x_i)

The first factor is learned and the second is known (PosteriorHead). A decoder of one block needs no second stream for
it: queries come from local mixing, which excludes the position itself, and keys from the embeddings of single states.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.networks.attention import CleanContext, KVCache, block_causal_mask
from logosphere.networks.backbone import Backbone, Block, ConditionTokens
from logosphere.networks.base import CachePlan, ConditionalNetwork, Denoiser, Evaluations, add_signal, check_block
from logosphere.networks.conditioning import build_conditioner
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import build_head
from logosphere.networks.transformer import check_transformer, find_sampled_block
from logosphere.types import Bool, Float, LogitChunks, Logits, State, Times, Where


class BlockMixing(nn.Module):
    """Local mixing for noisy blocks: neighbours in the block, features of the clean text before it.

        h_i ← h_i + Σ_{0 < |δ| ≤ r} A_δ e_{i+δ} + B f_{s-1}

    with e_j the embedding of a noisy state in the block that begins at s, the feature f_j of the clean text before it,
    and zero after the block. f_{s-1} is what a left-to-right model predicts the next token from.
    """

    def __init__(self, width: int, block: int, reach: int):
        super().__init__()
        self.block, self.reach = block, reach
        self.mix = nn.Linear((2 * reach + 1) * width, width, bias=False)
        nn.init.normal_(self.mix.weight, std=width**-0.5 / 2)

    def forward(self, noisy: Float[Tensor, "B M D"], before: Float[Tensor, "B J r D"]) -> Float[Tensor, "B M D"]:
        """`before` holds the features of the positions before each block, at least one and `reach` of them."""
        e = noisy.unflatten(1, (-1, self.block))
        window = torch.cat([before[:, :, before.shape[2] - self.reach :], e], 2)
        window = F.pad(window, (0, 0, 0, self.reach))
        offsets = [by for by in range(2 * self.reach + 1) if by != self.reach]
        sides = [window[:, :, by : by + self.block] for by in offsets]
        last = before[:, :, -1:].expand(-1, -1, self.block, -1)
        mixed: Tensor = self.mix(torch.cat([*sides, last], -1))
        return mixed.flatten(1, 2)


class BlockEncoderDecoder(ConditionalNetwork):
    """An encoder of the clean text, and a decoder whose noisy blocks attend to themselves and to its features."""

    encoder_mask: Tensor
    decoder_mask: Tensor

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
        assert network.decoder_depth is not None
        self.block, self.reads_time = block, reads_time
        self.decoder_fraction = network.decoder_depth / network.depth
        self.stem = codec.build_stem(network.width)
        encoder = replace(network, depth=network.depth - network.decoder_depth, decoder_depth=None, hollow=False)
        decoder = replace(network, depth=network.decoder_depth, decoder_depth=None, hollow=False)
        self.encoder = Backbone(encoder, length, reads_time=False, bidirectional=False)
        self.hollow = network.hollow
        self.trunk = Backbone(decoder, length, reads_time=reads_time, subtract_input=subtract_input and not self.hollow)
        self.mixing = BlockMixing(network.width, block, network.neighbours)
        self.head = build_head(network.width, codec.num_classes, tied=bool(network.tied))
        self.conditioner = build_conditioner(network)
        mask = block_causal_mask(length, block)
        self.register_buffer("encoder_mask", mask[length:, length:].clone(), persistent=False)
        self.register_buffer("decoder_mask", self._decoder_mask(mask[:length]), persistent=False)

    def _decoder_mask(self, mask: Bool[Tensor, "M N"]) -> Bool[Tensor, "M K"]:
        """Return which keys a noisy position sees, given those of its own block and those that follow them.

        Without its own state these are its query, the states of other positions of its block, and the others.
        """
        if not self.hollow:
            return mask.clone()
        own = torch.eye(len(mask), dtype=torch.bool)
        block, others = mask[:, : len(mask)], mask[:, len(mask) :]
        return torch.cat([own, block & ~own, others], 1)

    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        return self.decode(z, t, self.encode(context, memory), memory)

    def encode(self, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        """Return the features of the clean text."""
        return self.encoder(add_signal(self.stem(context), memory), mask=self.encoder_mask, memory=memory)

    def decode(
        self, z: State, t: Times, clean: Float[Tensor, "B M D"], memory: ConditionTokens | None
    ) -> Float[Tensor, "B M D"]:
        """Return the input of the head, given the features of the clean text."""
        noisy = add_signal(self.stem(z), memory)
        reach = max(1, self.mixing.reach)
        shifted = F.pad(clean, (0, 0, reach, 0))[:, : clean.shape[1] - self.block + reach]
        before = shifted.unfold(1, reach, self.block).transpose(2, 3)
        times = t if self.reads_time else None
        mixed, context = self.mixing(noisy, before), CleanContext(clean, self.encoder.table)
        if self.hollow:
            states = self.read_states(noisy, self.trunk.table)
            context = CleanContext(torch.cat([states.features, clean], 1), torch.cat([states.table, context.table], 1))
            noisy, mixed = add_signal(mixed, memory), None
        return self.trunk(noisy, times, mask=self.decoder_mask, memory=memory, clean=context, mixed=mixed)

    def read_states(self, noisy: Float[Tensor, "B M D"], table: Float[Tensor, "2 M h"]) -> CleanContext:
        """Return embedded noisy states as positions that others attend to."""
        block = self.trunk.blocks[0]
        assert isinstance(block, Block)
        return CleanContext(block.attention_norm(noisy), table)

    def with_context(self, context: State) -> Denoiser:
        memory = self._empty_tokens(len(context))
        return WithCleanText(self, self.encode(context, memory), memory)

    def evaluations(self, draws: int = 1) -> Evaluations:
        """Return one position a token in the encoder, and one in the decoder for every noisy copy.

        The decoder also computes keys and values of the clean text, 2 of the 12 width² weights of a block, and pairs of
        noisy positions with clean ones.
        """
        decoder = self.decoder_fraction
        return Evaluations(
            positions=1 - decoder + draws * decoder * (1 + 1 / 6), pairs=1 - decoder + draws * 2 * decoder
        )

    def open_session(self, memory: ConditionTokens | None) -> Denoiser:
        return EncoderDecoderSession(self, memory)

    def open_cached_session(self, memory: ConditionTokens | None, plan: CachePlan) -> Denoiser:
        return EncoderDecoderSession(self, memory)  # which is exact


class WithCleanText(Denoiser):
    """The network with the features of one clean text, for several noisy copies of it."""

    def __init__(self, model: BlockEncoderDecoder, clean: Float[Tensor, "B M D"], memory: ConditionTokens | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.clean, self.memory = (
            model, model.block, model.reads_time, clean, memory,
        )  # fmt: skip

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        h = self.model.decode(z, t, self.clean, self.memory)
        return self.model.logits(h if where is None else h[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        return self.model.head_parts(self.model.decode(z, t, self.clean, self.memory), where)


class EncoderDecoderSession(Denoiser):
    """The network in one run of a sampler; it caches features of finished blocks, and their keys and values.

    A step costs the decoder on one noisy block. The encoder reads every block once, when it is finished.
    """

    def __init__(self, model: BlockEncoderDecoder, memory: ConditionTokens | None):
        super().__init__()
        self.model, self.block, self.reads_time, self.memory = model, model.block, model.reads_time, memory
        self.read: list[KVCache] = []
        """Of the encoder's blocks."""
        self.seen: list[KVCache] = []
        """Of the decoder's blocks: keys and values of clean features."""
        self.features = torch.empty(0)
        self.clean = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        model = self.model
        if self.memory is None and model.conditioner is not None:
            self.memory = model.conditioner.empty_tokens(len(z))
        start = find_sampled_block(where, self.block)
        if start is None or not isinstance(where, Tensor):
            return model.predict(z, t, context, where, self.memory)
        current = slice(start, start + self.block)
        self._cache(context[:, :start])
        reach = max(1, model.mixing.reach)
        before = F.pad(self.features, (0, 0, reach, 0))[:, -reach:][:, None]
        noisy = add_signal(model.stem(z[:, current]), self.memory, current)
        positions = torch.arange(start, start + self.block, device=z.device)
        mixed, states, mask = model.mixing(noisy, before), None, None
        if model.hollow:
            states = model.read_states(noisy, model.trunk.table[:, positions])
            own = torch.eye(self.block, dtype=torch.bool, device=z.device)
            mask = torch.cat([own.new_ones(self.block, start), own, ~own], 1)
            noisy, mixed = add_signal(mixed, self.memory, current), None
        h = model.trunk(
            noisy,
            t[:, current] if self.reads_time else None,
            positions=positions,
            mask=mask,
            caches=self.seen,
            memory=self.memory,
            clean=states,
            mixed=mixed,
        )
        for cache in self.seen:
            cache.filled = start  # drop the noisy block again
        return model.logits(h[where[:, current]])

    def _cache(self, clean: State) -> None:
        """Encode the blocks finished since the last step; start again if earlier ones have changed."""
        model, like = self.model, self.model.head.bias
        done = self.read[0].filled if self.read else -1
        if not 0 <= done <= clean.shape[1] or not torch.equal(self.clean, clean[:, :done]):
            network, length = model.encoder.network, model.encoder.length
            heads, width = network.heads, network.width // network.heads
            extra = self.block if model.hollow else 0  # keys of the queries and of the states of a noisy block
            self.read = [KVCache(len(clean), heads, length, width, like) for _ in model.encoder.blocks]
            self.seen = [KVCache(len(clean), heads, length + extra, width, like) for _ in model.trunk.blocks]
            self.features, done = like.new_empty(len(clean), 0, network.width), 0
        if done < clean.shape[1]:
            self._encode(clean, done)
        self.clean = clean.clone()

    def _encode(self, clean: State, done: int) -> None:
        """Encode the positions from `done` on."""
        model, end = self.model, clean.shape[1]
        h = add_signal(model.stem(clean[:, done:]), self.memory, slice(done, end))
        new = torch.arange(done, end, device=h.device)
        mask = new[:, None] // self.block >= torch.arange(end, device=h.device) // self.block
        features = model.encoder(h, positions=new, mask=mask, caches=self.read, memory=self.memory)
        self.features = torch.cat([self.features, features], 1)
        read = CleanContext(features, model.encoder.table[:, new])
        for block, cache in zip(model.trunk.blocks, self.seen, strict=True):
            assert isinstance(block, Block)
            cache.extend(*block.attention.keys_and_values(read))
