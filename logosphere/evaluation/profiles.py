"""What a model of activity says of designed promoters: the measure of promoter design, for any such model.

A profile is any function from bases, the numbers 0 … 3 of A, C, G, T, to one activity each. The synthetic promoters of
data/examples/promoters.py have an exact one; for real ones the papers ask Sei, whose network and weights are their
authors' and are not part of this package: load them yourself and hand the network to `Sei`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.likelihood import ratio
from logosphere.shapes import Float, Int64

Profile = Callable[[Int64[Tensor, "N L"]], Float[Tensor, "N"]]

ACTIVE = "H3K4me3"
"""The mark of active promoters, whose tracks Sei's answer is averaged over (Avdeyev et al. 2023, DDSM, section 4.3)."""
WINDOW = 4096
"""Bases that Sei reads."""


class Error(NamedTuple):
    """A mean over sequences and its standard error."""

    mean: float
    error: float


def activity_error(profile: Profile, made: Int64[Tensor, "N L"], real: Int64[Tensor, "M K"], batch: int = 64) -> Error:
    """SP-MSE: E (activity(made) - activity(real))², each pair under one signal (DDSM, section 4.3)."""
    if made.shape != real.shape or not len(made):
        raise UserError(
            f"Each designed sequence needs the real one of its signal, of the same length: got {list(made.shape)} and "
            f"{list(real.shape)}."
        )
    if not 0 <= int(torch.minimum(made, real).min()) <= int(torch.maximum(made, real).max()) < 4:
        raise UserError("Bases are the numbers 0 to 3, for A, C, G and T; leave out sequences with N.")
    parts = zip(made.split(batch), real.split(batch), strict=True)
    squares = torch.cat([(profile(a) - profile(b)).double().square() for a, b in parts])
    return Error(*ratio(squares, torch.ones_like(squares)))


class Sei:
    """The activity of promoters by Sei (Chen et al. 2022), from a network that the user has loaded.

    `names` is Sei's own list of its tracks, one a line; those that name the mark of active promoters are averaged.
    Sequences stand in the middle of its window, with nothing known (0.25 each) around them.
    """

    def __init__(self, network: nn.Module, names: Path):
        try:
            lines = names.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"Sei's list of tracks could not be read from {names} ({problem}).") from None
        self.network = network.eval()
        self.tracks = torch.tensor([i for i, line in enumerate(lines) if ACTIVE in line])
        if not len(self.tracks):
            raise UserError(f"{names} names no track of {ACTIVE}; it should be Sei's list, one track a line.")

    @torch.no_grad()
    def __call__(self, bases: Int64[Tensor, "N L"]) -> Float[Tensor, "N"]:
        room = WINDOW - bases.shape[1]
        if room < 0:
            raise UserError(f"Sei reads {WINDOW} bases, not {bases.shape[1]}.")
        clear = F.one_hot(bases, 4).float().transpose(1, 2)
        predicted = self.network(F.pad(clear, (room // 2, room - room // 2), value=0.25))
        if predicted.ndim != 2 or predicted.shape[1] <= int(self.tracks.max()):
            raise UserError(f"The network answered {list(predicted.shape)}, not one row of Sei's tracks a sequence.")
        return predicted[:, self.tracks].mean(1)
