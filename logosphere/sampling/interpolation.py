"""Interpolation between two texts in the latents of a latent system."""

import torch

from logosphere.codecs.base import Autoencoder
from logosphere.errors import UserError, check_count
from logosphere.inputs import BatchLike
from logosphere.model import Model
from logosphere.types import Tokens


@torch.no_grad()
def interpolate(model: Model, first: BatchLike, second: BatchLike, count: int = 5) -> Tokens:
    """Tokens decoded from (1 - w) f(a) + w f(b) at `count` even weights from 0 to 1, [count, L].

    `first` and `second` are one sequence each: ids [1, L] or a list of one text. Latents that lie on a sphere are
    projected to it by the decoder, as in training.
    """
    codec, count = model.process.codec, check_count("The number of texts", count)
    if not isinstance(codec, Autoencoder):
        raise UserError("Texts are interpolated in the latents of a latent system: ld4lg, planner, tencdm or cosmos.")
    ends = [model.read(given).tokens.to(model.device) for given in (first, second)]
    if any(len(tokens) != 1 for tokens in ends) or count < 2:
        raise UserError(
            f"Interpolation is between two single texts, at 2 or more places; these are {len(ends[0])} and "
            f"{len(ends[1])} texts, and {count} places."
        )
    training = model.training
    model.eval()
    try:
        u, v = (codec.encode(tokens) for tokens in ends)
        weight = torch.linspace(0, 1, count, device=u.device)[:, None, None]
        return codec.decode(torch.lerp(u.expand(count, -1, -1), v.expand(count, -1, -1), weight))
    finally:
        model.train(training)
