"""Published networks as the denoisers of systems: what stands between their logits and each process."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, PosteriorHead
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.denoiser import PublishedDenoiser
from logosphere.networks.wrappers import ScoreHead
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.parameterization import Score
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.types import Float, Logits, State, Times

LARGEST_NOISE = 1 - 1e-7
"""σ = -log a_t is infinite where a schedule leaves no signal; networks are told the largest number of float32 there."""


def published_denoiser(
    system: str, process: Process, network: PublishedNetwork, length: int, block: int, start: int | None
) -> Denoiser:
    """The denoiser of a system whose network has a published layout; `start` is the id before the first token."""
    if system not in _HEADS:
        raise UserError(
            f"A published network cannot be the denoiser of '{system}'; the systems of published checkpoints are "
            f"{', '.join(_HEADS)}."
        )
    reads = network.config.reads
    condition = _sigma(process) if reads == "sigma" else None
    if isinstance(process, SphericalDiffusion):  # RDLM's networks read the time of its schedule, from noise to data
        condition = process.schedule_time
    inner = PublishedDenoiser(network, process.codec.num_classes, length, block, sigma=condition, start=start)
    return _HEADS[system](process, inner)


def _sigma(process: Process) -> Callable[[Times], Float[Tensor, "B M"]]:
    """σ = -log a_t of the schedule of a process."""
    if not isinstance(process, DiscreteDiffusion):
        raise UserError("A network that reads σ needs a discrete diffusion, whose schedule says what σ is.")
    schedule = process.schedule
    return lambda t: -(-schedule.noise(t).clamp_max(LARGEST_NOISE)).log1p()


def _add_evidence(process: Process, inner: PublishedDenoiser) -> Denoiser:
    """x̂ times the likelihood of the own state: masked diffusion copies tokens, others use Bayes' rule."""
    mask = inner.config.mask_id
    if mask is None or mask >= inner.vocab_size:
        return PosteriorHead(inner, process.add_evidence)

    def add_evidence(out: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        """The mask of the checkpoint, which is never predicted, is copied too where a text holds it as a token."""
        held = z == mask
        if bool(held.any()):
            column = torch.where(held, 0.0, out[..., mask])
            out = out.index_copy(-1, torch.tensor([mask], device=out.device), column[..., None])
        return process.add_evidence(out, z, t)

    return PosteriorHead(inner, add_evidence)


def _scale_scores(process: Process, inner: PublishedDenoiser) -> Denoiser:
    """Scores divided by V (e^σ - 1) (SEDD, scale_by_sigma)."""
    assert isinstance(process, DiscreteDiffusion)
    return ScoreHead(inner, partial(Score().scale_scores, process.mixing))


def _plain(process: Process, inner: PublishedDenoiser) -> Denoiser:
    return inner


_HEADS: dict[str, Callable[[Process, PublishedDenoiser], Denoiser]] = {
    "mdlm": _add_evidence,
    "bd3lm": _add_evidence,
    "udlm": _add_evidence,
    "sedd-absorb": _scale_scores,
    "gidd": _add_evidence,
    "ar": _plain,
    "rdlm": _plain,
}
