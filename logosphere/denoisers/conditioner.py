"""Conditions as a network sees them: a memory it can look at, and features along the sequence.

The memory always holds one learned vector that means 'nothing given', then the label, then the source text as a small
network has read it. What is withheld is hidden, so that nothing else is left to look at.
"""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import embedding
from logosphere.denoisers.base import Denoiser
from logosphere.denoisers.network import Network
from logosphere.denoisers.trunk import Head, Memory, Trunk
from logosphere.errors import UserError
from logosphere.shapes import Bool, Float
from logosphere.types import NO_TOKEN, Condition, Logits, Parts, Positions, State, Times

READING_DEPTH = 2
"""Blocks of the small network that reads a source text."""


class Conditioner(nn.Module):
    """Reads the conditions that a network was built for."""

    withheld: Tensor
    """Training sequences that were shown without their condition."""

    def __init__(self, network: Network):
        super().__init__()
        width = network.width
        self.network = network
        self.nothing = nn.Parameter(0.2 * torch.randn(1, 1, width))
        self.labels = embedding(network.labels, width) if network.labels else None
        # One vector more than tokens: it stands for the end of the source.
        self.source = embedding(network.source + 1, width) if network.source else None
        reading = replace(network, depth=READING_DEPTH, shape="", body="transformer", labels=0, source=0, signal=0)
        self.reader = Trunk(reading, network.source_length, reads_time=False) if network.source else None
        self.signal = nn.Linear(network.signal, width) if network.signal else None
        self.register_buffer("withheld", torch.zeros((), dtype=torch.long))

    def blank(self, batch: int) -> Memory:
        """The memory of sequences without any condition."""
        features = self.nothing.expand(batch, -1, -1)
        return Memory(features, torch.ones(batch, 1, dtype=torch.bool, device=features.device), None)

    def forward(self, condition: Condition) -> Memory:
        self._check(condition)
        if self.training:
            self.withheld += (~condition.given).sum()
        features, valid, _ = self.blank(len(condition))
        parts, shown = [features], [valid]
        given = condition.given[:, None]
        if self.labels is not None and condition.labels is not None:
            parts.append(self.labels(condition.labels)[:, None])
            shown.append(given)
        if self.source is not None and self.reader is not None and condition.source is not None:
            # Always of full length: what is read must not depend on which other sources are in a batch.
            room = self.network.source_length - condition.source.shape[1]
            source = F.pad(condition.source, (0, room), value=NO_TOKEN)
            ended = source == NO_TOKEN
            parts.append(self.reader(self.source(torch.where(ended, self.network.source, source))))
            shown.append(given & ~ended)
        along = None
        if self.signal is not None and condition.signal is not None:
            along = self.signal(condition.signal) * given[..., None]
        return Memory(torch.cat(parts, 1), torch.cat(shown, 1), along)

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


class Conditional(Denoiser, ABC):
    """A network that can be told a condition, if it was built for one."""

    conditioner: Conditioner | None
    head: Head

    @abstractmethod
    def features(self, z: State, t: Times, context: State, memory: Memory | None) -> Float[Tensor, "B M D"]:
        """What the head speaks from, with this memory in view."""

    def read(self, z: State, t: Times, context: State, where: Positions | None, memory: Memory | None) -> Logits:
        """The prediction, with this memory in view."""
        h = self.features(z, t, context, memory)
        return self.head(h if where is None else h[where])

    def read_parts(self, z: State, t: Times, context: State, where: Positions, memory: Memory | None) -> Parts:
        """The same, a few rows at a time."""
        h = self.features(z, t, context, memory)[where]
        return lambda rows: self.head(h[rows])

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.read(z, t, context, where, self._blank(len(z)))

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        return self.read_parts(z, t, context, where, self._blank(len(z)))

    def _blank(self, batch: int) -> Memory | None:
        return None if self.conditioner is None else self.conditioner.blank(batch)

    def cached(self, memory: Memory | None) -> Denoiser:
        """A denoiser for one run of the sampler, with this memory in view."""
        return self if memory is None else Told(self, memory)

    def session(self) -> Denoiser:
        return self.cached(None)

    def given(self, condition: Condition) -> Denoiser:
        return super().given(condition) if self.conditioner is None else Conditioned(self, condition)


class Conditioned(Denoiser):
    """A network that has been told a condition."""

    def __init__(self, network: Conditional, condition: Condition):
        super().__init__()
        self.network, self.block, self.reads_time = network, network.block, network.reads_time
        self.condition = condition
        self.train(network.training)

    def _memory(self) -> Memory:
        assert self.network.conditioner is not None
        return self.network.conditioner(self.condition)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.network.read(z, t, context, where, self._memory())

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        return self.network.read_parts(z, t, context, where, self._memory())

    def session(self) -> Denoiser:
        with torch.no_grad():  # a condition is read once for a whole run
            return self.network.cached(self._memory())

    def rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return Conditioned(self.network, self.condition.each(lambda field: field[kept]))


class Told(Denoiser):
    """A network with a memory in view."""

    def __init__(self, network: Conditional, memory: Memory):
        super().__init__()
        self.network, self.block, self.reads_time, self.memory = network, network.block, network.reads_time, memory

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.network.read(z, t, context, where, self.memory)


def check_guidable(denoiser: nn.Module) -> None:
    """Guidance needs a network that has seen sequences without their condition."""
    for module in denoiser.modules():
        if isinstance(module, Conditioner) and int(module.withheld) == 0:
            raise UserError(
                "This model was never shown sequences without their condition, which guidance needs; "
                "train it with withhold above 0, or use guidance=1."
            )


def _within(values: Tensor, low: int, high: int) -> bool:
    return not values.numel() or (low <= int(values.min()) and int(values.max()) < high)
