"""Conditions as input of a network: tokens for cross-attention, and features added at each position.

The condition tokens are one learned vector that stands for 'no condition', the label, and the source text as encoded by
a small network. Dropped conditions are masked out, so that only the first vector remains.
"""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import build_embedding
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone, ConditionTokens, LinearHead
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.types import NO_TOKEN, Bool, Condition, Float, LogitChunks, Logits, Positions, State, Times

SOURCE_DEPTH = 2
"""Blocks of the network that encodes source texts."""


class Conditioner(nn.Module):
    """Encodes the conditions that a network was built for."""

    withheld: Tensor
    """Number of training sequences whose condition was dropped."""

    def __init__(self, network: NetworkConfig):
        super().__init__()
        width = network.width
        self.network = network
        self.nothing = nn.Parameter(0.2 * torch.randn(1, 1, width))
        self.labels = build_embedding(network.labels, width) if network.labels else None
        # One vector more than there are tokens: it marks the end of the source.
        self.source = build_embedding(network.source + 1, width) if network.source else None
        encoder = replace(network, depth=SOURCE_DEPTH, shape="", body="transformer", labels=0, source=0, signal=0)
        self.reader = Backbone(encoder, network.source_length, reads_time=False) if network.source else None
        self.signal = nn.Linear(network.signal, width) if network.signal else None
        self.register_buffer("withheld", torch.zeros((), dtype=torch.long))

    def empty_tokens(self, batch: int) -> ConditionTokens:
        """Return the tokens of sequences without any condition."""
        features = self.nothing.expand(batch, -1, -1)
        return ConditionTokens(features, torch.ones(batch, 1, dtype=torch.bool, device=features.device), None)

    def forward(self, condition: Condition) -> ConditionTokens:
        self._check(condition)
        if self.training:
            self.withheld += (~condition.given).sum()
        features, valid, _ = self.empty_tokens(len(condition))
        all_features, all_valid = [features], [valid]
        given = condition.given[:, None]
        if self.labels is not None and condition.labels is not None:
            all_features.append(self.labels(condition.labels)[:, None])
            all_valid.append(given)
        if self.source is not None and self.reader is not None and condition.source is not None:
            # Padded to full length: the encoding must not depend on the other sources of a batch.
            padding = self.network.source_length - condition.source.shape[1]
            source = F.pad(condition.source, (0, padding), value=NO_TOKEN)
            padded = source == NO_TOKEN
            all_features.append(self.reader(self.source(torch.where(padded, self.network.source, source))))
            all_valid.append(given & ~padded)
        signal = None
        if self.signal is not None and condition.signal is not None:
            signal = self.signal(condition.signal) * given[..., None]
        return ConditionTokens(torch.cat(all_features, 1), torch.cat(all_valid, 1), signal)

    def _check(self, condition: Condition) -> None:
        built = self.network
        fields = {"labels": condition.labels, "source": condition.source, "signal": condition.signal}
        for name, field in fields.items():
            if field is not None and not getattr(built, name):
                raise UserError(f"This model was built without {name}; build it with {name}=… to condition on it.")
        if condition.labels is not None and not _within(condition.labels, 0, built.labels):
            raise UserError(f"Labels must be numbers from 0 to {built.labels - 1}.")
        if condition.source is not None:
            if condition.source.shape[1] > built.source_length:
                raise UserError(
                    f"A source text may have {built.source_length} tokens, not {condition.source.shape[1]}."
                )
            if not _within(condition.source, NO_TOKEN, built.source):
                raise UserError(f"Source tokens must be numbers from 0 to {built.source - 1}.")
        if condition.signal is not None and condition.signal.shape[2] != built.signal:
            raise UserError(f"A signal has {built.signal} numbers at each position, not {condition.signal.shape[2]}.")


def build_conditioner(network: NetworkConfig) -> Conditioner | None:
    """Return the encoder of a network's conditions; None if it accepts none."""
    return Conditioner(network) if network.conditional else None


def add_signal(
    h: Float[Tensor, "B M D"], memory: ConditionTokens | None, positions: slice = slice(None)
) -> Float[Tensor, "B M D"]:
    """Add the signal of a condition at these positions to their input embeddings."""
    return h if memory is None or memory.signal is None else h + memory.signal[:, positions]


class ConditionalNetwork(Denoiser, ABC):
    """A network that accepts a condition, if it was built with a conditioner."""

    conditioner: Conditioner | None
    head: LinearHead

    @abstractmethod
    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        """Return the input of the head, given the condition tokens."""

    def predict(
        self, z: State, t: Times, context: State, where: Positions | None, memory: ConditionTokens | None
    ) -> Logits:
        """Return the logits, given the condition tokens."""
        h = self.features(z, t, context, memory)
        return self.head(h if where is None else h[where])

    def predict_parts(
        self, z: State, t: Times, context: State, where: Positions, memory: ConditionTokens | None
    ) -> LogitChunks:
        """Return a function that computes some of the logits, given the condition tokens."""
        h = self.features(z, t, context, memory)[where]
        return lambda rows: self.head(h[rows])

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.predict(z, t, context, where, self._empty_tokens(len(z)))

    def logit_chunks(self, z: State, t: Times, context: State, where: Positions) -> LogitChunks:
        return self.predict_parts(z, t, context, where, self._empty_tokens(len(z)))

    def _empty_tokens(self, batch: int) -> ConditionTokens | None:
        return None if self.conditioner is None else self.conditioner.empty_tokens(batch)

    def open_session(self, memory: ConditionTokens | None) -> Denoiser:
        """Return a denoiser for one run of a sampler, given the condition tokens."""
        return self if memory is None else WithConditionTokens(self, memory)

    def begin_sampling(self) -> Denoiser:
        return self.open_session(None)

    def with_condition(self, condition: Condition) -> Denoiser:
        return super().with_condition(condition) if self.conditioner is None else WithCondition(self, condition)


class WithCondition(Denoiser):
    """A network with a condition bound to it, which is encoded anew at each call."""

    def __init__(self, network: ConditionalNetwork, condition: Condition):
        super().__init__()
        self.network, self.block, self.reads_time = network, network.block, network.reads_time
        self.condition = condition
        self.train(network.training)

    def _encode(self) -> ConditionTokens:
        assert self.network.conditioner is not None
        return self.network.conditioner(self.condition)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.network.predict(z, t, context, where, self._encode())

    def logit_chunks(self, z: State, t: Times, context: State, where: Positions) -> LogitChunks:
        return self.network.predict_parts(z, t, context, where, self._encode())

    def begin_sampling(self) -> Denoiser:
        with torch.no_grad():  # the condition is encoded once for a whole run
            return self.network.open_session(self._encode())

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return WithCondition(self.network, self.condition.map(lambda field: field[kept]))


class WithConditionTokens(Denoiser):
    """A network with an encoded condition bound to it."""

    def __init__(self, network: ConditionalNetwork, memory: ConditionTokens):
        super().__init__()
        self.network, self.block, self.reads_time, self.memory = network, network.block, network.reads_time, memory

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.network.predict(z, t, context, where, self.memory)


def check_guidable(denoiser: nn.Module) -> None:
    """Raise UserError if the network was never trained without conditions, which guidance needs."""
    for module in denoiser.modules():
        if isinstance(module, Conditioner) and int(module.withheld) == 0:
            raise UserError(
                "This model was never trained with dropped conditions, which guidance needs; "
                "train it with cond_dropout above 0, or use guidance=1."
            )


def _within(values: Tensor, low: int, high: int) -> bool:
    return not values.numel() or (low <= int(values.min()) and int(values.max()) < high)
