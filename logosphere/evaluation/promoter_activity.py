"""The activity of designed promoters, predicted by any model of activity: the measure of promoter design.

A model of activity is a function from bases, the integers 0 … 3 of A, C, G, T, to one activity per sequence. The
synthetic promoters of data/promoters.py have an exact one. Papers use Sei for real promoters; its
network and weights are not part of this package: load them yourself and pass the network to `Sei`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.evaluation.likelihood import ratio_with_error
from logosphere.types import Float, Int64

ActivityModel = Callable[[Int64[Tensor, "N L"]], Float[Tensor, " N"]]

ACTIVE_MARK = "H3K4me3"
"""The mark of active promoters; Sei's tracks of it are averaged (Avdeyev et al. 2023, DDSM, section 4.3)."""
WINDOW = 4096
"""Bases in the input of Sei."""


class MeanWithError(NamedTuple):
    """A mean over sequences and its standard error."""

    mean: float
    error: float


def activity_error(
    activity: ActivityModel, generated: Int64[Tensor, "N L"], real: Int64[Tensor, "M K"], batch: int = 64
) -> MeanWithError:
    """SP-MSE: E (activity(generated) - activity(real))², each pair under one signal (DDSM, section 4.3)."""
    if generated.shape != real.shape or not len(generated):
        raise UserError(
            f"Each designed sequence needs the real one of its signal, of the same length: got "
            f"{list(generated.shape)} and {list(real.shape)}."
        )
    if not 0 <= int(torch.minimum(generated, real).min()) <= int(torch.maximum(generated, real).max()) < 4:
        raise UserError("Bases are the numbers 0 to 3, for A, C, G and T; leave out sequences with N.")
    parts = zip(generated.split(batch), real.split(batch), strict=True)
    squares = torch.cat([(activity(a) - activity(b)).double().square() for a, b in parts])
    return MeanWithError(*ratio_with_error(squares, torch.ones_like(squares)))


class Sei:
    """The activity of promoters by Sei (Chen et al. 2022), from a network that the user has loaded.

    `names` is Sei's own list of its tracks, one a line; those that name the mark of active promoters are averaged.
    Sequences are centred in its window, padded with the uniform distribution (0.25 each).
    """

    def __init__(self, network: nn.Module, names: Path):
        try:
            lines = names.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"Sei's list of tracks could not be read from {names} ({problem}).") from None
        self.network = network.eval()
        self.tracks = torch.tensor([i for i, line in enumerate(lines) if ACTIVE_MARK in line])
        if not len(self.tracks):
            raise UserError(f"{names} names no track of {ACTIVE_MARK}; it should be Sei's list, one track a line.")

    @torch.no_grad()
    def __call__(self, bases: Int64[Tensor, "N L"]) -> Float[Tensor, " N"]:
        padding = WINDOW - bases.shape[1]
        if padding < 0:
            raise UserError(f"Sei reads {WINDOW} bases, not {bases.shape[1]}.")
        one_hot = F.one_hot(bases, 4).float().transpose(1, 2)
        predicted = self.network(F.pad(one_hot, (padding // 2, padding - padding // 2), value=0.25))
        if predicted.ndim != 2 or predicted.shape[1] <= int(self.tracks.max()):
            raise UserError(f"The network returned {list(predicted.shape)}, not one row of Sei's tracks a sequence.")
        return predicted[:, self.tracks].mean(1)
