"""A stand-in for pretrained encoders: small, with fixed random weights, for any vocabulary."""

import pytest
import torch

from logosphere.autoencoders.pretrained import PretrainedEncoder
from logosphere.systems import latent


class TinyEncoder(PretrainedEncoder):
    """Fixed random weights; each state depends on its piece, its position and its neighbours."""

    name, layer, width, max_length, eos = "tiny", 1, 8, 64, 1

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        rng = torch.Generator().manual_seed(0)
        self.embeddings = 2 * torch.randn(min(vocab_size, 4096), self.width, generator=rng) + 0.5
        self.positions = torch.randn(self.max_length, self.width, generator=rng)

    def states(self, pieces: torch.Tensor) -> torch.Tensor:
        h = self.embeddings[pieces % len(self.embeddings)] + self.positions[: pieces.shape[1]]
        return torch.tanh(h + 0.5 * h.roll(1, 1) - 0.3 * h.roll(-1, 1)) * torch.linspace(0.5, 3, self.width)


def use_tiny_encoder(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Replace every named encoder by a `TinyEncoder`."""
    monkeypatch.setattr(latent, "encoder_by_name", lambda name, layer: TinyEncoder(vocab_size))
