"""One position for all digits of a token: the network reads m states at once and has m heads."""

from logosphere.codecs.digits import DigitCodec
from logosphere.codecs.vertices import Coordinates
from logosphere.denoisers.conditioner import Conditional
from logosphere.denoisers.network import Network
from logosphere.denoisers.transformer import along, conditioner, shared_time
from logosphere.denoisers.trunk import Head, Memory, Trunk
from logosphere.types import Logits, Positions, State, Times


class FoldedTransformer(Conditional):
    """A sequence of L tokens costs L positions, not m·L."""

    def __init__(self, codec: DigitCodec, length: int, network: Network, *, reads_time: bool):
        super().__init__()
        self.block, self.reads_time = length * codec.digits, reads_time
        self.digits, self.base = codec.digits, codec.base
        self.stem = Coordinates(codec.digits * codec.base, network.width)
        self.trunk = Trunk(network, length, reads_time=reads_time)
        self.head = Head(network.width, codec.digits * codec.base)
        self.conditioner = conditioner(network)

    def read(self, z: State, t: Times, context: State, where: Positions | None, memory: Memory | None) -> Logits:
        together = z[..., : self.base].unflatten(1, (-1, self.digits)).flatten(2)
        times = shared_time(t[:, :: self.digits]) if self.reads_time else None
        h = self.trunk(along(self.stem(together), memory), times, memory=memory)
        out = self.head(h).unflatten(2, (self.digits, self.base)).flatten(1, 2)
        return out if where is None else out[where]
