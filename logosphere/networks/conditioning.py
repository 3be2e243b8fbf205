"""Conditions as input of a network: tokens for cross-attention, and features added at each position.

The condition tokens are one learned vector that stands for 'no condition', the label, and the source text as encoded by
a small network. Dropped conditions are masked out, so that only the first vector remains.

A signal belongs to places of an aligned sequence, such as the distance from a transcription start, while the rotary
positions of a transformer are relative. So its features say where a position is, and what the signal is elsewhere:

    W [s_i, max_j s_j, mean_j s_j, cos(2π i/λ), sin(2π i/λ)]        λ = 4, 8, …, 4096
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.tokens import TokenEmbedding
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone, ConditionTokens
from logosphere.networks.config import NetworkConfig
from logosphere.types import NO_TOKEN, Condition, Float

SOURCE_DEPTH = 2
"""Blocks of the network that encodes source texts."""


WAVELENGTHS = 4.0 * 2.0 ** torch.arange(11)
"""Of the waves that encode a position along a signal; the longest is a few times the 1,024 bases of promoters."""


class SignalFeatures(nn.Module):
    """Features of a signal at each position: its value there, its extent elsewhere, and the place of the position.

    Without the last two a bidirectional transformer has to find a distant part of the signal by relative attention,
    which it does not learn in hundreds of steps (docs/LOG.md).
    """

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.project = nn.Linear(3 * channels + 2 * len(WAVELENGTHS), width)
        # Each input is of the order of 1; the sum is then of the order of a token's embedding.
        nn.init.normal_(self.project.weight, std=0.2)
        nn.init.zeros_(self.project.bias)

    def forward(self, signal: Float[Tensor, "B L C"]) -> Float[Tensor, "B L D"]:
        places = torch.arange(signal.shape[1], device=signal.device, dtype=signal.dtype)
        angles = 2 * math.pi * places[:, None] / WAVELENGTHS.to(signal)
        waves = torch.cat([angles.cos(), angles.sin()], -1).expand(len(signal), -1, -1)
        elsewhere = [signal.amax(1, keepdim=True).expand_as(signal), signal.mean(1, keepdim=True).expand_as(signal)]
        features: Tensor = self.project(torch.cat([signal, *elsewhere, waves], -1))
        return features


class Conditioner(nn.Module):
    """Encodes the conditions that a network was built for."""

    withheld: Tensor
    """Number of training sequences whose condition was dropped."""

    def __init__(self, network: NetworkConfig):
        super().__init__()
        width = network.width
        self.network = network
        self.nothing = nn.Parameter(0.2 * torch.randn(1, 1, width))
        self.labels = TokenEmbedding(network.labels, width) if network.labels else None
        # One vector more than there are tokens: it marks the end of the source.
        self.source = TokenEmbedding(network.source + 1, width) if network.source else None
        encoder = replace(
            network, depth=SOURCE_DEPTH, decoder_depth=None, shape="", body="transformer", labels=0, source=0, signal=0
        )
        self.reader = Backbone(encoder, network.source_length, reads_time=False) if network.source else None
        self.signal = SignalFeatures(network.signal, width) if network.signal else None
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
