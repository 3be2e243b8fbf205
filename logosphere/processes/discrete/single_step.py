"""No path at all: every token of a block is drawn at once, from nothing but what came before the block.

With blocks of one position and a causal denoiser this *is* the autoregressive model,

    -log p(x) = Σ_i -log p(x_i | x_<i),

and with one block of the whole length it is the model that takes positions for independent.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.rng import Noise, categorical
from logosphere.types import Float, Kind, Logits, Positions, State, Times


class SingleStep(Process):
    """A chain of a single step: hidden for every t > 0, clean at t = 0. Its likelihood is exact."""

    kind: Kind = "exact"
    recon_time = 1.0
    time_conditional = False
    max_steps = 1
    chunkable = True

    def __init__(self, vocab_size: int):
        super().__init__()
        if vocab_size < 2:
            raise UserError(f"A vocabulary needs at least 2 tokens, not {vocab_size}.")
        self.codec: TokenCodec = TokenCodec(vocab_size, mask=True)
        self.hidden = vocab_size

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return torch.full((batch, length), self.hidden, device=noise.device)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return torch.where(t > 0, self.hidden, u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        t = free.float()
        return ForwardSample(self.corrupt(u, t, noise), t, torch.ones_like(t))

    def needs_prediction(self, z: State, moving: Positions) -> Positions:
        return moving & (z == self.hidden)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return self.add_evidence(torch.zeros(*t.shape, self.hidden, device=t.device), z, t)

    def add_evidence(self, logits: Logits, z: State, t: Float[Tensor, "..."]) -> Logits:
        own = z.clamp_max(self.hidden - 1)[..., None]
        return logits.scatter_add(-1, own, torch.where(z == self.hidden, 0.0, MAX_LOGIT).to(logits.dtype)[..., None])

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return F.cross_entropy(out.flatten(0, -2), u.flatten(), reduction="none").view_as(u)

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        drawn = (s == 0) & (z == self.hidden)
        z = z.clone()
        z[drawn] = categorical(out[drawn], noise.for_positions(drawn).uniform(int(drawn.sum())))
        return z
