"""Wrappers of denoisers: transformed inputs and outputs, output distributions, filters, caches and counters."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.finite import check_usable
from logosphere.processes.base import MAX_LOGIT
from logosphere.rng import running_sum
from logosphere.types import Float, LogitChunks, Logits, State, Times, Where, pack


class CarryOver(Wrapper):
    """Copies unmasked tokens into the prediction, and leaves the logits at masks unchanged."""

    def __init__(self, inner: Denoiser, mask: int):
        super().__init__(inner)
        self.mask = mask

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self._carry_over(self.inner(z, t, context, where), z if where is None else z[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        inner, z = self.inner.logit_chunks(z, t, context, where), pack(z, where)
        return inner.map(lambda out, rows: self._carry_over(out, z[rows]))

    def _carry_over(self, out: Logits, z: State) -> Logits:
        token = z.clamp_max(self.mask - 1)[..., None]
        return out.scatter_add(-1, token, torch.where(z == self.mask, 0.0, MAX_LOGIT).to(out.dtype)[..., None])

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return CarryOver(inner, self.mask)


InputTransform = Callable[[State, Times], Tensor]
"""(states, times) -> input of the network."""
OutputTransform = Callable[[Logits, State, Times], Logits]
"""(raw outputs, states, times) -> prediction."""


class TransformedInput(Wrapper):
    """Replaces the state by a function of state and time, as papers on simplex diffusion do."""

    def __init__(self, inner: Denoiser, transform: InputTransform):
        super().__init__(inner)
        self.transform = transform

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.inner(self.transform(z, t), t, context, where)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return TransformedInput(inner, self.transform)


def centre_probabilities(num_classes: int) -> InputTransform:
    """Return θ ↦ 2 θ - 1, which maps probabilities to [-1, 1] (Graves et al. 2023)."""
    return lambda z, t: 2 * z[..., :num_classes] - 1


def split_by_concentration(alpha: Callable[[Times], Tensor]) -> InputTransform:
    """Return z ↦ [(1 - w) z, w z] with w = 2 / (α + 1), which shows how far z is from noise (Stark et al. 2024)."""

    def transform(z: State, t: Times) -> Tensor:
        w = torch.where(t > 0, 2 / (alpha(t) + 1), 0.0)[..., None].to(z.dtype)
        return torch.cat([(1 - w) * z, w * z], -1)

    return transform


def check_filters(top_p: float, top_k: int | None, min_p: float) -> None:
    """Raise UserError for filters out of their range."""
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p}.")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}.")
    if not 0 <= min_p <= 1:
        raise UserError(f"min_p must be at least 0 and at most 1, not {min_p}.")


def filter_logits(
    out: Logits, temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None, min_p: float = 0.0
) -> Logits:
    """Return logits divided by a temperature, -inf at unlikely tokens (see `LogitsFilter`)."""
    out = out / temperature
    if top_k is not None and top_k < out.shape[-1]:
        out = _keep_only(out, out >= out.topk(top_k, -1).values[..., -1:])
    if min_p > 0:
        out = _keep_only(out, out - out.amax(-1, keepdim=True) >= math.log(min_p))
    return out if top_p == 1 else _keep_nucleus(out, top_p)


class LogitsFilter(Wrapper):
    """Divides logits by a temperature, then keeps likely tokens only.

    `top_k`: the k likeliest. `min_p`: those with at least this fraction of the likeliest one's probability (Nguyen et
    al. 2024). `top_p`: the smallest set with this probability or more (Holtzman et al. 2020). Sums are in float64.
    """

    def __init__(
        self,
        inner: Denoiser,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
    ):
        super().__init__(inner)
        if temperature <= 0:
            raise UserError(f"The temperature must be above 0, not {temperature}.")
        check_filters(top_p, top_k, min_p)
        self.temperature, self.top_p, self.top_k, self.min_p = temperature, top_p, top_k, min_p

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        return filter_logits(out, self.temperature, self.top_p, self.top_k, self.min_p)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return LogitsFilter(inner, self.temperature, self.top_p, self.top_k, self.min_p)


def _keep_only(out: Logits, kept: Tensor) -> Logits:
    return out.masked_fill(~kept, -torch.inf)


def _keep_nucleus(out: Logits, top_p: float) -> Logits:
    """Keep the likeliest tokens until their probability reaches `top_p`, including the one that reaches it."""
    p, order = out.double().softmax(-1).sort(-1, descending=True)
    dropped = running_sum(p) - p >= top_p
    return _keep_only(out, ~torch.zeros_like(dropped).scatter(-1, order, dropped))


class ActiveRows(Wrapper):
    """Evaluates only the sequences that have a selected position."""

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        if not isinstance(where, Tensor) or bool((rows := where.any(1)).all()):
            return self.inner(z, t, context, where)
        return self.inner.select_rows(rows)(z[rows], t[rows], context[rows], where[rows])

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return ActiveRows(inner)


class CachedDenoiser(Denoiser):
    """Evaluates only the sequences that have changed since the last call (MDLM's cached sampler).

    It needs a denoiser that does not read the time.
    """

    def __init__(self, inner: Denoiser):
        super().__init__()
        if inner.reads_time:
            raise UserError("The cached sampler needs a model that does not read the time; use the ancestral sampler.")
        self.inner, self.block, self.reads_time = inner, inner.block, False
        self.z: Tensor | None = None
        self.out: Tensor | None = None

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        if self.z is None or self.out is None:
            self.out = self.inner(z, t, context)
        else:
            changed = (self.z != z).flatten(1).any(1)
            if changed.any():
                self.out[changed] = self.inner.select_rows(changed)(z[changed], t[changed], context[changed])
        self.z = z
        return self.out if where is None else self.out[where]


class NFECounter:
    """Number of network function evaluations: sequences that networks and classifiers have been evaluated on."""

    def __init__(self) -> None:
        self.sequences = 0


class CountedDenoiser(Wrapper):
    """Counts the sequences on which a denoiser is evaluated, the cost of sampling; refuses unusable predictions."""

    def __init__(self, inner: Denoiser, counter: NFECounter):
        super().__init__(inner)
        self.counter = counter

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        self.counter.sequences += len(z)
        out = self.inner(z, t, context, where)
        check_usable(out, self.inner, lambda: self.inner(z, t, context, where))
        return out

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return CountedDenoiser(inner, self.counter)


class LogisticHead(Wrapper):
    """Converts two outputs per position into a discretised logistic distribution over ordered tokens (D3PM, app. A.8).

        logit_k = log [σ((v_k + ½h - μ)/s) - σ((v_k - ½h - μ)/s)],   v from -1 to 1 in steps of h = 2/(V - 1)

    μ = tanh(input value + first output), between the smallest and the largest value; s = exp(second output - 2).
    """

    values: Tensor

    def __init__(self, inner: Denoiser, vocab_size: int):
        super().__init__(inner)
        self.register_buffer("values", torch.linspace(-1, 1, vocab_size), persistent=False)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        inputs = self.values[z if where is None else z[where]]
        return self._logits(self.inner(z, t, context, where), inputs)

    def _logits(self, outputs: Float[Tensor, "... 2"], inputs: Float[Tensor, "..."]) -> Logits:
        mean = (inputs + outputs[..., 0]).tanh()[..., None]
        scale = (outputs[..., 1] - 2).clamp(-7, 4).exp()[..., None]
        half = 1 / (len(self.values) - 1)
        low, high = ((self.values + side - mean) / scale for side in (-half, half))
        # log(σ(b) - σ(a)) = log σ(b) + log σ(-a) + log(1 - e^{a - b}), which is accurate in both tails.
        inside = torch.log(-torch.expm1((low - high).clamp_max(-1e-6)))
        return F.logsigmoid(high) + F.logsigmoid(-low) + inside

    def rewrap(self, inner: Denoiser) -> Denoiser:
        made = LogisticHead(inner, len(self.values))
        made.values = self.values  # keeps the device and the precision
        return made


class ScoreHead(Wrapper):
    """Converts raw outputs into log ratios log p_t(k)/p_t(z) by the function (outputs, z, t) -> ratios (SEDD)."""

    def __init__(self, inner: Denoiser, scale: OutputTransform):
        super().__init__(inner)
        self.scale = scale

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        return self.scale(out, z, t) if where is None else self.scale(out, z[where], t[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        inner, z, t = self.inner.logit_chunks(z, t, context, where), pack(z, where), pack(t, where)
        return inner.map(lambda out, rows: self.scale(out, z[rows], t[rows]))

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return ScoreHead(inner, self.scale)
