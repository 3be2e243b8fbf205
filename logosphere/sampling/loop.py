"""The one sampling loop, and the time grids along which it runs.

z₁ ~ prior;   z_s ~ step(denoiser(z_t, t), t → s) along a time grid;   x = decode(z₀)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.errors import UserError, shorten, suggest
from logosphere.networks.base import check_block
from logosphere.processes.base import Process, check_prediction, cosine_grid, mark_shared_time, uniform_grid
from logosphere.rng import Noise
from logosphere.sampling.steppers import Rule, Stepper, ancestral, as_stepper
from logosphere.types import Batch, Float, Int64, Logits, Positions, Predict, State, Times, Tokens

Grid = Callable[[int], Float[Tensor, " n"]]
"""Number of steps -> times from 1 to 0, both included."""


# ---- time grids ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HoldInMiddle:
    """Decreases to the time `level`, holds it from `on` to `off` of the remaining steps, then decreases to 0.

    Remasking continues while the time is held. ReMDM-loop (Wang et al. 2025) has on = 0.55, off = 0.05, and the time at
    which a tenth is masked.
    """

    level: float
    on: float = 0.55
    off: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.off < self.on < 1 or not 0 < self.level < 1:
            raise UserError(
                f"A held grid needs 1 > on > off > 0 and 1 > level > 0, not on={self.on}, off={self.off}, "
                f"level={self.level}."
            )

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        left = uniform_grid(steps)
        before = self.level + (1 - self.level) * (left - self.on) / (1 - self.on)
        return torch.where(left > self.on, before, self.level * (left / self.off).clamp_max(1.0))


@dataclass(frozen=True)
class HoldAtEnd:
    """Equal steps to `level`, which is held for a fraction of the steps; the very last step goes to 0."""

    level: float
    fraction: float

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        if steps == 1:
            return uniform_grid(1)
        held = min(int(steps * self.fraction), steps - 2)
        decreasing = 1 - (1 - self.level) * (1 - uniform_grid(steps - held - 1))  # from 1 to the level
        return torch.cat([decreasing, torch.full((held,), self.level), torch.zeros(1)])


@dataclass(frozen=True)
class FinalStep:
    """A grid with one step less that ends at `eps`, and a last step from there to 0 that removes remaining noise."""

    eps: float
    inner: Grid = uniform_grid

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        if steps == 1:
            return uniform_grid(1)
        return torch.cat([self.eps + (1 - self.eps) * self.inner(steps - 1), torch.zeros(1)])


GRIDS: dict[str, Grid] = {"uniform": uniform_grid, "cosine": cosine_grid}


def find_grid(grid: Grid | str | None) -> Grid | None:
    """A grid by its name; a function or None is returned as it is."""
    if not isinstance(grid, str):
        if grid is not None and not callable(grid):
            raise UserError(
                f"A grid must be {', '.join(GRIDS)} or a function of the number of steps, not {shorten(grid)}."
            )
        return grid
    if grid not in GRIDS:
        raise UserError(f"There is no grid '{grid}'.{suggest(grid, GRIDS)}")
    return GRIDS[grid]


@dataclass(frozen=True)
class TimeGrid:
    """Times [S + 1, L] of each position: row 0 is noise, the last row is data, and no time increases.

    A time may be held: at 1 before a block begins, at 0 after it, and in between while tokens are remasked.
    """

    times: Float[Tensor, "S L"]

    @staticmethod
    def diffuse(length: int, steps: int, grid: Grid = uniform_grid) -> "TimeGrid":
        """All positions have the same time."""
        return TimeGrid.blocks(length, length, steps, grid)

    @staticmethod
    def blocks(length: int, block: int, steps: int, grid: Grid = uniform_grid) -> "TimeGrid":
        """One block after another, each in `steps` steps."""
        if steps < 1:
            raise UserError(f"Sampling needs at least 1 step, not {steps}.")
        check_block(length, block)
        decreasing = grid(steps)[1:]
        rows = [torch.ones(1, length)]
        for start in range(0, length, block):
            part = torch.ones(steps, length)
            part[:, :start], part[:, start : start + block] = 0.0, decreasing[:, None]
            rows.append(part)
        return TimeGrid(torch.cat(rows))

    @staticmethod
    def left_to_right(length: int) -> "TimeGrid":
        """One position after another, as in autoregressive models."""
        return TimeGrid.blocks(length, 1, 1)


# ---- the loop --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """The state of the loop after a step."""

    step: int
    steps: int
    t: Float[Tensor, "B M"]
    z: State
    codec: Codec
    confidence: Float[Tensor, "B M"] | None = None
    """The largest token probability of the last prediction for each state: 1 where a state is known, 0 where there was
    no prediction yet. None if the loop is not watched, and if the network does not predict tokens."""
    likeliest: Int64[Tensor, "B M"] | None = None
    """That token, HIDDEN where there was no prediction yet; None if `confidence` is None."""

    @cached_property
    def tokens(self) -> Tokens:
        """Tokens decoded so far; codecs.base.HIDDEN where there is none yet."""
        return self.codec.decode_partial(self.z)


def sample_loop(
    process: Process,
    predict: Predict,
    grid: TimeGrid,
    given: Batch,
    noise: Noise,
    stepper: Stepper | Rule = ancestral,
    *,
    renoise_known: bool = False,
    watched: bool = False,
) -> Iterator[Frame]:
    """Yield the states along the time grid; the last frame is clean.

    Known positions have t = 0 throughout. With `renoise_known` the network sees them as noisy as the rest instead, for
    networks that were trained without clean positions among noisy ones. Frames have a confidence if `watched`.
    """
    codec = process.codec
    u = codec.encode(given.tokens)
    free = codec.expand_to_states(given.free)
    shape = (*free.shape, *[1] * (u.dim() - 2))
    z = torch.where(free.view(shape), process.prior(len(free), free.shape[1], noise), u)
    stepper = as_stepper(stepper)
    stepper.check(process)
    rows = stepper.position_times(process, codec.expand_to_states(grid.times.to(free.device)), free, noise)
    shared: list[bool] = (
        (rows == rows[..., :1]).flatten(1).all(1) & free.all()
    ).tolist()  # read once, not in each step
    confidence = (~free).float() if watched else None
    likeliest = torch.full_like(free, HIDDEN, dtype=torch.long) if watched else None
    for step, (t_row, s_row) in enumerate(pairwise(rows), start=1):
        step_noise = noise.for_step(step)

        def evaluate(
            z: State,
            t: Times,
            where: Positions,
            denoiser: Predict | None = None,
            row: Float[Tensor, "#B M"] = t_row,
            step_noise: Noise = step_noise,
        ) -> Logits:
            nonlocal confidence, likeliest
            seen, seen_t = z, t
            if renoise_known:
                seen_t = torch.where(free, t, row)
                seen = torch.where(free.view(shape), z, process.corrupt(u, seen_t, step_noise))
            with torch.no_grad():
                out = (predict if denoiser is None else denoiser)(seen, seen_t, context=z, where=where)
            # The number of positions is counted on a CPU only, since reading it from another device would stop that.
            check_prediction(process, out, int(where.sum()) if where.device.type == "cpu" else len(out))
            if confidence is not None and likeliest is not None and denoiser is None:
                probability, token = out.float().softmax(-1).max(-1)
                has_tokens = out.shape[-1] == codec.num_classes and process.predicts_tokens
                confidence = confidence.masked_scatter(where, probability) if has_tokens else None
                likeliest = likeliest.masked_scatter(where, token) if has_tokens else None
            return out

        t, s = torch.where(free, t_row, 0.0), torch.where(free, s_row, 0.0)
        if shared[step - 1]:
            t = mark_shared_time(t)
        z = stepper(process, evaluate, z, t, s, step_noise)
        if z.is_floating_point() and not bool(z.isfinite().all()):
            raise UserError(
                f"The states are not finite after step {step} of {len(rows) - 1}; use a smaller guidance, more "
                "steps or another sampler."
            )
        yield Frame(step, len(rows) - 1, s, z, codec, confidence, likeliest)
