"""A network whose numbers are ratios of probabilities, not probabilities (Lou et al. 2024, SEDD)."""

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.processes.heads import Score
from logosphere.processes.mixing import Mixing
from logosphere.types import Logits, Parts, Positions, State, Times


class Scoring(Wrapper):
    """Turns the raw numbers of a network into log p_t(k)/p_t(z), the words of a `Score` head."""

    def __init__(self, inner: Denoiser, law: Mixing, head: Score):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.law, self.head = law, head

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where)
        if where is not None:
            z, t = z[where], t[where]
        return self.head.rated(self.law, out, z, t)

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        inner, z, t = self.inner.parts(z, t, context, where), z[where], t[where]
        return lambda rows: self.head.rated(self.law, inner(rows), z[rows], t[rows])

    def around(self, inner: Denoiser) -> Denoiser:
        return Scoring(inner, self.law, self.head)
