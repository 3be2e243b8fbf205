"""Wrappers: each is a denoiser around a denoiser, so that samplers and bounds need not know of them."""

import math

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.errors import UserError
from logosphere.noise import running_sum
from logosphere.processes.base import CERTAIN, Process
from logosphere.types import Logits, Parts, Positions, State, Times


class Informed(Wrapper):
    """Adds what a state says of its own token, so that the network need learn only what the context says.

    For masked diffusion this copies revealed tokens (MDLM's carry-over), for uniform diffusion it is one Bayes step.
    """

    def __init__(self, inner: Denoiser, process: Process):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self._process = [process]  # in a list, so that its parameters are not registered twice

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where)
        return self._process[0].inform(out, z, t) if where is None else self._process[0].inform(out, z[where], t[where])

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        inner, process = self.inner.parts(z, t, context, where), self._process[0]
        z, t = z[where], t[where]
        return lambda rows: process.inform(inner(rows), z[rows], t[rows])

    def around(self, inner: Denoiser) -> Denoiser:
        return Informed(inner, self._process[0])


class Copying(Wrapper):
    """Copies tokens that are seen, and leaves the network's prediction at masks as it is."""

    def __init__(self, inner: Denoiser, mask: int):
        super().__init__()
        self.inner, self.block, self.reads_time, self.mask = inner, inner.block, inner.reads_time, mask

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self._copied(self.inner(z, t, context, where), z if where is None else z[where])

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        inner, z = self.inner.parts(z, t, context, where), z[where]
        return lambda rows: self._copied(inner(rows), z[rows])

    def _copied(self, out: Logits, z: State) -> Logits:
        own = z.clamp_max(self.mask - 1)[..., None]
        return out.scatter_add(-1, own, torch.where(z == self.mask, 0.0, CERTAIN).to(out.dtype)[..., None])

    def around(self, inner: Denoiser) -> Denoiser:
        return Copying(inner, self.mask)


class Believing(Wrapper):
    """Shows the network the belief softmax_k log q(z | x = k) in place of the state: well scaled at every time."""

    def __init__(self, inner: Denoiser, process: Process):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self._process = [process]  # in a list, so that its parameters are not registered twice

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        scale = self._process[0].codec.choices ** 0.5
        seen = scale * self._process[0].evidence(z, t).softmax(-1)
        clean = seen if self.block == z.shape[1] else scale * context[..., : seen.shape[-1]]
        return self.inner(seen, t, clean, where)

    def around(self, inner: Denoiser) -> Denoiser:
        return Believing(inner, self._process[0])


class Sharpened(Wrapper):
    """Divides logits by a temperature, then keeps likely tokens only.

    `top_k`: the k likeliest. `min_p`: those with at least this share of the likeliest one's probability (Nguyen et al.
    2024). `top_p`: the smallest set with this probability or more (Holtzman et al. 2020). Sums are taken in float64.
    """

    def __init__(
        self,
        inner: Denoiser,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
    ):
        super().__init__()
        if temperature <= 0:
            raise UserError(f"The temperature must be above 0, not {temperature}.")
        if not 0 < top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {top_p}.")
        if top_k is not None and top_k < 1:
            raise UserError(f"top_k must be at least 1, not {top_k}.")
        if not 0 <= min_p <= 1:
            raise UserError(f"min_p must be at least 0 and at most 1, not {min_p}.")
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.temperature, self.top_p, self.top_k, self.min_p = temperature, top_p, top_k, min_p

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where) / self.temperature
        if self.top_k is not None and self.top_k < out.shape[-1]:
            out = _only(out, out >= out.topk(self.top_k, -1).values[..., -1:])
        if self.min_p > 0:
            out = _only(out, out - out.amax(-1, keepdim=True) >= math.log(self.min_p))
        return out if self.top_p == 1 else _nucleus(out, self.top_p)

    def around(self, inner: Denoiser) -> Denoiser:
        return Sharpened(inner, self.temperature, self.top_p, self.top_k, self.min_p)


def _only(out: Logits, kept: Tensor) -> Logits:
    return out.masked_fill(~kept, -torch.inf)


def _nucleus(out: Logits, top_p: float) -> Logits:
    """The likeliest tokens until `top_p` is reached, the one that reaches it included."""
    p, order = out.double().softmax(-1).sort(-1, descending=True)
    dropped = running_sum(p) - p >= top_p
    return _only(out, ~torch.zeros_like(dropped).scatter(-1, order, dropped))


class Selective(Wrapper):
    """Asks only about sequences of which something is wanted."""

    def __init__(self, inner: Denoiser):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        if where is None or bool((rows := where.any(1)).all()):
            return self.inner(z, t, context, where)
        return self.inner.rows(rows)(z[rows], t[rows], context[rows], where[rows])

    def around(self, inner: Denoiser) -> Denoiser:
        return Selective(inner)


class Remembering(Denoiser):
    """Asks again only for sequences that have changed (MDLM's cached sampler); for denoisers that do not read time."""

    def __init__(self, inner: Denoiser):
        super().__init__()
        if inner.reads_time:
            raise UserError("The cached sampler needs a model that does not read the time; use the ancestral sampler.")
        self.inner, self.block, self.reads_time = inner, inner.block, False
        self.z: Tensor | None = None
        self.out: Tensor | None = None

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        if self.z is None or self.out is None:
            self.out = self.inner(z, t, context)
        else:
            changed = (self.z != z).flatten(1).any(1)
            if changed.any():
                self.out[changed] = self.inner.rows(changed)(z[changed], t[changed], context[changed])
        self.z = z
        return self.out if where is None else self.out[where]


class Tally:
    """How many sequences a network has been asked about."""

    def __init__(self) -> None:
        self.sequences = 0


class Counting(Wrapper):
    """Counts how often the network is asked, which is what sampling costs."""

    def __init__(self, inner: Denoiser, tally: Tally):
        super().__init__()
        self.inner, self.block, self.reads_time, self.tally = inner, inner.block, inner.reads_time, tally

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        self.tally.sequences += len(z)
        return self.inner(z, t, context, where)

    def around(self, inner: Denoiser) -> Denoiser:
        return Counting(inner, self.tally)


class Guided(Denoiser):
    """Classifier-free guidance (Ho and Salimans 2022; Schiff et al. 2024, D-CFG): out = u + w (c - u).

    c is the prediction with the condition, u the one without; w = 1 is the model itself. Log-probabilities are combined
    as they are, and what they lack to a distribution is made up where tokens are drawn; predicted states likewise.
    """

    def __init__(self, conditional: Denoiser, unconditional: Denoiser, scale: float):
        super().__init__()
        self.conditional, self.unconditional, self.scale = conditional, unconditional, scale
        self.block, self.reads_time = conditional.block, conditional.reads_time

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        without = self.unconditional(z, t, context, where)
        return without + self.scale * (self.conditional(z, t, context, where) - without)

    def rows(self, kept: Tensor) -> Denoiser:
        return Guided(self.conditional.rows(kept), self.unconditional.rows(kept), self.scale)
