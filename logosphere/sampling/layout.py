"""Where a sampling run generates: its length, the blocks that are decoded one after another, and their times."""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import CachePlan
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.loop import Grid, TimeGrid
from logosphere.types import Bool


@dataclass(frozen=True)
class Layout:
    """The positions of a sampling run."""

    length: int
    """Positions that are sampled."""
    end: int
    """Positions that are returned; models with blocks sample whole blocks."""
    first: int
    """The position at which the first block begins."""
    block: int
    """Positions of a block."""

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of each block."""
        return tuple(range(self.first, self.length, self.block))

    def time_grid(self, per_block: int, grid: Grid) -> TimeGrid:
        """One block after another, each in `per_block` steps; positions before the first block are known."""
        decreasing = grid(per_block)[1:]
        rows = [torch.ones(1, self.length)]
        rows[0][:, : self.first] = 0.0
        for start in self.starts:
            part = torch.ones(per_block, self.length)
            part[:, :start], part[:, start : start + self.block] = 0.0, decreasing[:, None]
            rows.append(part)
        return TimeGrid(torch.cat(rows))

    def cache_plan(self, config: DecodingConfig) -> CachePlan | None:
        """What is kept while a block is decoded."""
        if config.cache == "none":
            return None
        return CachePlan(self.starts, config.cache == "dual", config.cache_refresh)


def count_prefix(known: Bool[Tensor, "... L"] | None) -> int:
    """Positions at the beginning that are known in every sequence."""
    return 0 if known is None else int(known.reshape(-1, known.shape[-1]).all(0).long().cumprod(0).sum())


def arrange(model: Model, prefix: int, config: DecodingConfig) -> Layout | None:
    """The positions of a run whose length or blocks are set after a prompt of `prefix` tokens; None for the model's."""
    generated, block = config.gen_length, config.block_length
    if generated is None and block is None:
        return None
    if not model.process.codec.is_discrete:
        raise UserError("gen_length and block_length need a model of token states such as mdlm; leave them out.")
    end = model.length if generated is None else prefix + generated
    if end > model.length:
        raise UserError(
            f"The prompt has {prefix} tokens, and {generated} more are {end}, but sequences of this model have at most "
            f"{model.length}; ask for gen_length={max(0, model.length - prefix)} or less."
        )
    if model.block < model.length:
        block = model.block if block is None else block
        if model.block % block:
            raise UserError(
                f"block_length={block} does not divide the blocks of this model, which have {model.block} positions."
            )
        first = prefix // block * block
        return Layout(-(-end // model.block) * model.block, end, first, block)
    block = end - prefix if block is None else block
    if (end - prefix) % block:
        raise UserError(
            f"block_length={block} does not divide the {end - prefix} positions after the prompt; choose another, or "
            "set gen_length to a multiple of it."
        )
    return Layout(end, end, prefix, block)
