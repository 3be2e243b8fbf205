"""One position for all digits of a token: the network reads m states at once and has m heads."""

from torch import Tensor

from logosphere.codecs.digits import DigitCodec
from logosphere.codecs.vertices import Coordinates
from logosphere.denoisers.conditioner import Conditional
from logosphere.denoisers.network import Network
from logosphere.denoisers.transformer import along, conditioner, shared_time
from logosphere.denoisers.trunk import Head, Memory, Trunk
from logosphere.shapes import Float
from logosphere.types import Logits, Parts, Positions, State, Times


class FoldedTransformer(Conditional):
    """A sequence of L tokens costs L positions, not m·L."""

    def __init__(self, codec: DigitCodec, length: int, network: Network, *, reads_time: bool):
        super().__init__()
        self.block, self.reads_time = length * codec.digits, reads_time
        self.digits, self.base = codec.digits, codec.base
        self.stem = Coordinates(codec.digits * codec.base, network.width)
        self.trunk = Trunk(network, length, reads_time=reads_time, reach=network.neighbours)
        self.head = Head(network.width, codec.digits * codec.base)
        self.conditioner = conditioner(network)

    def features(self, z: State, t: Times, context: State, memory: Memory | None) -> Float[Tensor, "B T D"]:
        together = z[..., : self.base].unflatten(1, (-1, self.digits)).flatten(2)
        times = shared_time(t[:, :: self.digits]) if self.reads_time else None
        return self.trunk(along(self.stem(together), memory), times, memory=memory)

    def read(self, z: State, t: Times, context: State, where: Positions | None, memory: Memory | None) -> Logits:
        out = self.head(self.features(z, t, context, memory)).unflatten(2, (self.digits, self.base)).flatten(1, 2)
        return out if where is None else out[where]

    def read_parts(self, z: State, t: Times, context: State, where: Positions, memory: Memory | None) -> Parts:
        out = self.read(z, t, context, where, memory)
        return lambda rows: out[rows]
