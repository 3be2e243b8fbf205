"""One position after another: what staggered clocks come to in the end, in closed form.

A position moves from the start to its vertex while all others stand, at the start or at their vertices. Let p be what
they say of its token. The bridge to k, with k drawn from p, is followed by drawing k first, and so a path X costs, with
the token read off at its end,

    log dP(X | x) / dΣ_k p_k P(X | k) - log p(x | X)  =  -log p(x),        p(x | X) ∝ p_x P(X | x)

for every bridge, every noise and every X: the evidence cancels. Nothing need be simulated, neither for the bound nor
for samples, and one query prices all positions that may come next. With n positions in random order (Uria et al. 2014),

    -log p(x) ≤ Σ_i E[-log p(x_i | those before it)] = E_l[(n/l) Σ_{l waiting} -log p(x_i | the n - l others)]

This is the bound of masked diffusion with starts for masks. The sphere then shapes what the network learns, not how it
is asked. From left to right only the next of those that wait counts, n times.
"""

from dataclasses import dataclass

from torch import Tensor

from logosphere.processes.spherical.rolling import Order, ranks
from logosphere.rng import Noise
from logosphere.types import Float, Positions


@dataclass(frozen=True)
class AnyOrder:
    """Whose turn it is; states that spell one token (`together` of them) take theirs at once."""

    order: Order = "random"
    together: int = 1

    def waiting(self, w: Float[Tensor, "B 1"], free: Positions, noise: Noise) -> tuple[Positions, Float[Tensor, "B M"]]:
        """Which positions still wait when the share w of the n turns is over, and how much each of them counts."""
        rank, count = ranks(free, self.order, noise, self.together), self._count(free)
        done = (w * count).floor().long().minimum(count - 1)
        counts = count / (count - done) if self.order == "random" else count * (rank == done)
        return free & (rank >= done), counts.expand(free.shape).float()

    def position_times(self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise) -> Float[Tensor, "S B M"]:
        """1 before its turn and 0 after it, for each position; the turns are spread evenly over the common clock."""
        share = (1 - rows[:, None].double()) * self._count(free)  # times are rounded, and 7 must not become 6
        return (ranks(free, self.order, noise, self.together) >= (share + 1e-4).floor()).float()

    def _count(self, free: Positions) -> Tensor:
        return (free.sum(1, keepdim=True) // self.together).clamp_min(1)
