"""Which tokens of a running sampling loop are final, so that they can be shown or sent before the loop ends."""

from torch import Tensor

from logosphere.codecs.base import HIDDEN
from logosphere.model import Model
from logosphere.processes.capabilities import Unmasking
from logosphere.sampling.loop import Frame
from logosphere.sampling.sampler import Sampler
from logosphere.sampling.steppers import as_stepper
from logosphere.types import Int64


def keeps_tokens(model: Model, sampler: Sampler) -> bool:
    """Whether a token that is determined stays: masked diffusion with a sampler that never masks it again."""
    unmasks = isinstance(model.process, Unmasking) and model.process.unmasks_tokens
    return unmasks and as_stepper(sampler.stepper).keeps_tokens


def count_finished(frame: Frame, model: Model, *, keeps: bool) -> Int64[Tensor, " B"]:
    """How many tokens at the beginning of each sequence are final.

    A token is final when its time is 0, which known tokens have from the start and blocks have once they are done, and
    with `keeps` as soon as it is determined. States of whole sequences are final at the end only.
    """
    done = frame.t == 0
    if not model.process.codec.local:
        return done.all(1).long() * model.length
    states = max(1, done.shape[1] // model.length)  # of each token: its digits
    done = done.view(len(done), -1, states).all(-1)
    if keeps:
        done = done | (frame.tokens != HIDDEN)
    return done.long().cumprod(1).sum(1)
