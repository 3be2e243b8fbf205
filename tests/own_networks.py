"""Networks, a sampler and a system from outside of the package, as a user's module would register them."""

from dataclasses import dataclass

import torch
from torch import nn

import logosphere as ls
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.mixing import Masking
from logosphere.schedules.signal import find_schedule
from logosphere.systems.discrete import diffusion_model


@ls.register_network("recurrent")
class Recurrent(nn.Module):
    """A bidirectional recurrent network."""

    def __init__(self, shape: ls.NetworkShape, network: ls.NetworkConfig):
        super().__init__()
        width = network.width
        self.stem = nn.Embedding(shape.inputs, width) if shape.reads_ids else nn.Linear(shape.inputs, width)
        self.time = nn.Linear(1, width)
        self.mix = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.stem(z) + self.time(t[..., None]))[0])


class Table(nn.Module):
    """Logits of each state alone."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.logits = nn.Embedding(vocab_size + 1, vocab_size)

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.logits(z)


@ls.register_sampler("twice", "the ancestral step with the likeliest tokens at the end", samples_model=True)
def build_twice(model: ls.Model) -> ls.Sampler:
    return ls.Sampler(ls.steppers.GreedyLastStep(ls.steppers.ancestral))


@dataclass(frozen=True)
class PlainMaskingSettings:
    """Options of plain masking."""

    schedule: str = "linear"
    """Schedule of the masks by name."""


@ls.register_system(
    ls.SystemInfo(
        name="plain-masking",
        title="Masked diffusion without options",
        paper="none",
        family="discrete",
        kind="bound",
        summary="independent masks",
        sampler="twice",
    ),
    PlainMaskingSettings,
)
def build_plain_masking(
    vocab_size: int, length: int, network: ls.NetworkConfig | None, settings: PlainMaskingSettings
) -> ls.Model:
    process = DiscreteDiffusion(Masking(vocab_size, find_schedule(settings.schedule)))
    return diffusion_model(process, length, None, network, time_conditional=False)
