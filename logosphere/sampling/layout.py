"""Where a sampling run generates: its length, the blocks that are decoded one after another, and their times."""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import CachePlan
from logosphere.processes.capabilities import Unmasking
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.loop import Grid, TimeGrid
from logosphere.sampling.sampler import Sampler
from logosphere.types import Batch, Bool

MAX_STEPS = 100_000
"""Steps of a sampler for a block; more come from typing errors, and the times of all positions fill the memory."""


@dataclass(frozen=True)
class Layout:
    """The positions of a sampling run."""

    length: int
    """Positions that the network sees."""
    stop: int
    """Where the last block that is decoded ends; models with blocks decode whole blocks."""
    end: int
    """Positions that are returned."""
    first: int
    """The position at which the first block begins."""
    block: int
    """Positions of a block."""

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of each block."""
        return tuple(range(self.first, self.stop, self.block))

    def time_grid(self, steps: int, grid: Grid, most: int | None = None) -> TimeGrid:
        """`steps` divided among the blocks, one after another; positions before the first block are known.

        The process can use at most `most` steps.
        """
        per_block = max(1, steps // max(1, len(self.starts)))
        per_block = per_block if most is None else min(per_block, most)
        check_steps(per_block, steps, self.length)
        decreasing = grid(per_block)[1:]
        rows = [torch.ones(1, self.length)]
        rows[0][:, : self.first] = 0.0
        for start in self.starts:
            part = torch.ones(len(decreasing), self.length)
            part[:, :start], part[:, start : start + self.block] = 0.0, decreasing[:, None]
            rows.append(part)
        return TimeGrid(torch.cat(rows))

    def cut(self, batch: Batch) -> Batch:
        """The batch at the positions that are sampled."""
        if bool(batch.known[:, self.end :].any()):
            raise UserError(
                f"There are known tokens after position {self.end}, where generation ends; raise gen_length."
            )
        return Batch.of(batch.tokens[:, : self.length], batch.known[:, : self.length])

    def cache_plan(self, config: DecodingConfig) -> CachePlan | None:
        """What is kept while a block is decoded."""
        if config.cache == "none":
            return None
        return CachePlan(self.starts, config.cache == "dual", config.cache_refresh)


def count_prefix(known: Bool[Tensor, "... L"] | None) -> int:
    """Positions at the beginning that are known in every sequence."""
    return 0 if known is None else int(known.reshape(-1, known.shape[-1]).all(0).long().cumprod(0).sum())


def check_steps(per_block: int, steps: int, length: int) -> None:
    """Raise UserError for more steps than memory can hold the times of."""
    if per_block > MAX_STEPS:
        size = 4 * steps * length / 1e9
        raise UserError(
            f"Sampling takes at most {MAX_STEPS:,} steps, not {steps:,}: so many evaluations of the network, whose "
            f"times alone would take {size:,.1f} GB; 64 to 1,024 steps are usual."
        )


def generates_parts(model: Model) -> bool:
    """Whether a part of the positions can be generated alone: states are tokens, or become tokens one by one."""
    codec, unmasks = model.process.codec, isinstance(model.process, Unmasking) and model.process.unmasks_tokens
    return (codec.is_discrete or unmasks) and codec.num_classes == model.vocab_size


def arrange(model: Model, prefix: int, config: DecodingConfig, sampler: Sampler) -> Layout | None:
    """The positions of a run whose length, blocks or cache are set, after a prompt of `prefix` tokens; None for those
    of the model."""
    block = config.block_length or sampler.block_length
    if config.gen_length is None and block is None and config.cache == "none":
        return None
    if not generates_parts(model):
        raise UserError(
            "gen_length, block_length and cache need a model whose states are tokens, such as mdlm; leave them out."
        )
    end = model.length if config.gen_length is None else prefix + config.gen_length
    if end > model.length:
        raise UserError(
            f"The prompt has {prefix} tokens, and {config.gen_length} more are {end}, but sequences of this model have "
            f"at most {model.length}; ask for gen_length={max(0, model.length - prefix)} or less."
        )
    if sampler.blocks > 1:
        if config.block_length is not None:
            raise UserError(f"This sampler has {sampler.blocks} blocks of its own; leave out block_length.")
        block = model.length // sampler.blocks
    if model.block < model.length:
        block = block or model.block
        if model.block % block:
            raise UserError(
                f"block_length={block} does not divide the blocks of this model, which have {model.block} positions."
            )
        stop = -(-end // model.block) * model.block
        return Layout(model.length, stop, end, prefix // block * block, block)
    block = block or max(1, end - prefix)
    if (end - prefix) % block:
        raise UserError(
            f"block_length={block} does not divide the {end - prefix} positions after the prompt; choose another, or "
            "set gen_length to a multiple of it."
        )
    return Layout(end, end, end, prefix, block)
