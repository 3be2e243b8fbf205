"""Networks of users as denoisers: any module with forward(z, t) -> predictions [B, M, K].

`wrap` makes a denoiser of a module that exists; `registered_denoiser` builds the network that a recipe names.
"""

import torch
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError, shorten
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.registry import NETWORKS, NetworkShape, is_registered
from logosphere.processes.base import Process
from logosphere.types import Condition, Logits, State, Times, Where

UNBOUND = 0
"""The block of a wrapped module before it belongs to a model."""


class ModuleDenoiser(Denoiser):
    """A module with forward(z, t) -> predictions, which reads all states of a sequence at once.

    Its predictions have the shape [B, M, outputs]. Times are 0 where `reads_time` is False, so that the predictions do
    not depend on them.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        block: int = UNBOUND,
        reads_time: bool | None = None,
        outputs: int | None = None,
        registered: str = "",
    ):
        super().__init__()
        self.module, self.block, self.outputs, self.registered = module, block, outputs, registered
        self.time_conditional = reads_time
        self.reads_time = reads_time is not False

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.module(z, t if self.reads_time else torch.zeros_like(t))
        self._check(out, z)
        return out if where is None else out[where]

    def _check(self, out: object, z: State) -> None:
        shape, outputs = tuple(z.shape[:2]), self.outputs
        if not isinstance(out, Tensor):
            raise UserError(
                f"The network {self.name} returned a {type(out).__name__}; forward(z, t) must return a tensor of "
                "predictions [B, L, K]."
            )
        if (
            out.shape[:2] != shape
            or out.dim() != 3
            or outputs not in (None, out.shape[2])
            or not out.is_floating_point()
        ):
            expected = [*shape, "K" if outputs is None else outputs]
            raise UserError(
                f"The network {self.name} returned {str(out.dtype).removeprefix('torch.')} {list(out.shape)} for "
                "states "
                f"{list(z.shape)}; predictions have the shape [{', '.join(map(str, expected))}] and are floats."
            )

    @property
    def name(self) -> str:
        """The name that it was registered by, or that of its class."""
        return self.registered or type(self.module).__name__

    def with_condition(self, condition: Condition) -> Denoiser:
        raise UserError(
            f"The network {self.name} takes no condition; use body=transformer for labels, source or signal."
        )

    def bind(self, process: Process, length: int, block: int) -> "ModuleDenoiser":
        """The same module as the denoiser of a model."""
        if self.block != UNBOUND:
            return self
        if block != length:
            raise UserError(
                f"A wrapped network reads whole sequences, and this model generates blocks of {block} positions; use a "
                "system of whole sequences such as mdlm, or derive a denoiser from ls.Denoiser."
            )
        reads_time = process.time_conditional if self.time_conditional is None else self.time_conditional
        outputs = process.codec.num_classes if process.predicts_tokens else None
        bound = ModuleDenoiser(self.module, block=block, reads_time=reads_time, outputs=outputs)
        return bound.train(self.training)


def wrap(module: nn.Module, *, reads_time: bool | None = None) -> ModuleDenoiser:
    """A module with forward(z, t) -> logits [B, L, V] as a denoiser, for `ls.build(…, denoiser=ls.wrap(module))`.

    z are the noisy states of the system (token ids [B, L], the mask being V, or vectors [B, L, d]) and t their times
    [B, L]. Its predictions are used as they are: docs/own-networks.md says what each family predicts. Unless
    `reads_time` is set, times are given where the system depends on them and are 0 elsewhere.
    """
    if isinstance(module, Denoiser) or not isinstance(module, nn.Module):
        raise UserError(f"wrap takes a torch module with forward(z, t), not {shorten(module)}.")
    return ModuleDenoiser(module, reads_time=reads_time)


def as_denoiser(given: object, process: Process, length: int, block: int) -> Denoiser:
    """What users pass as the denoiser of a model: a denoiser, or a module, which is wrapped."""
    if isinstance(given, nn.Module) and not isinstance(given, Denoiser):
        given = wrap(given)
    if isinstance(given, ModuleDenoiser):
        return given.bind(process, length, block)
    if not isinstance(given, Denoiser):
        raise UserError(
            f"A denoiser must be a torch module with forward(z, t) -> logits or an ls.Denoiser, not {shorten(given)}."
        )
    return given


def registered_denoiser(
    codec: Codec,
    positions: int,
    network: NetworkConfig,
    *,
    reads_time: bool,
    inputs: int | None = None,
    outputs: int | None = None,
) -> Denoiser | None:
    """The registered network that a configuration names; None for a backbone of the package."""
    if not is_registered(network.body):
        return None
    if network.conditional or network.tied:
        what = "condition" if network.conditional else "tied head"
        raise UserError(f"The network {network.body} takes no {what}; leave it out, or use body=transformer.")
    reads_ids = isinstance(codec, TokenCodec) and inputs is None
    if inputs is None:
        inputs = codec.states if isinstance(codec, TokenCodec) else _count_features(codec, positions)
    outputs = codec.num_classes if outputs is None else outputs
    shape = NetworkShape(positions, inputs, outputs, reads_ids, reads_time)
    module = NETWORKS[network.body].build(shape, network)
    if isinstance(module, Denoiser):
        return module
    if not isinstance(module, nn.Module):
        raise UserError(f"The network {network.body} must be built as a torch module, not {shorten(module)}.")
    return ModuleDenoiser(module, block=positions, reads_time=reads_time, outputs=outputs, registered=network.body)


def _count_features(codec: Codec, positions: int) -> int:
    """The features of a clean state."""
    with torch.no_grad():
        return int(codec.encode(torch.zeros(1, positions, dtype=torch.long)).shape[-1])
