"""A pretrained encoder made here, for tests of systems that need one: small, fixed, and of any vocabulary."""

import pytest
import torch

from logosphere.autoencoders.pretrained import PretrainedEncoder
from logosphere.systems import latent


class TinyEncoder(PretrainedEncoder):
    """States of fixed random weights; each depends on its piece, on its place and on its neighbours."""

    name, layer, width, max_length, eos = "tiny", 1, 8, 64, 1

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        rng = torch.Generator().manual_seed(0)
        self.words = 2 * torch.randn(min(vocab_size, 4096), self.width, generator=rng) + 0.5
        self.places = torch.randn(self.max_length, self.width, generator=rng)

    def states(self, pieces: torch.Tensor) -> torch.Tensor:
        h = self.words[pieces % len(self.words)] + self.places[: pieces.shape[1]]
        return torch.tanh(h + 0.5 * h.roll(1, 1) - 0.3 * h.roll(-1, 1)) * torch.linspace(0.5, 3, self.width)


def use_tiny_encoder(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Let every encoder by name be a tiny one."""
    monkeypatch.setattr(latent, "encoder_by_name", lambda name, layer: TinyEncoder(vocab_size))
