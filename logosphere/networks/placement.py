"""Networks on devices without 64-bit floating point, such as Apple's GPUs (mps).

Noise, noisy states and bounds are computed in float64: times close to 0, sums over a vocabulary and differences of
log-SNRs need it. On a device that has float32 only, the network alone is on the device; the process, its noise and what
follows from the predictions stay on the CPU, with the numbers that they have there.
"""

from typing import Any

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.transformer import squeeze_shared_time
from logosphere.types import Condition, LogitChunks, Logits, Rows, State, Times, Where


class OnDevice(Wrapper):
    """A network on a device of its own: inputs are moved to it as float32, and predictions to the device of the inputs.

    Names of weights are those of the network, so that files of weights do not depend on the device.
    """

    def __init__(self, inner: Denoiser, device: torch.device):
        super().__init__(inner)
        self.device = device
        self.register_state_dict_post_hook(_hide_wrapper)
        self.register_load_state_dict_pre_hook(_restore_wrapper)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out: Tensor = self.inner(self._move(z), self._move_times(t), self._move(context), self._move_where(where))
        return out.to(z.device)

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        chunks = self.inner.logit_chunks(
            self._move(z), self._move_times(t), self._move(context), self._move_where(where)
        )
        return chunks.map(lambda out, rows: out.to(z.device))

    def with_condition(self, condition: Condition) -> Denoiser:
        return super().with_condition(condition.map(self._move))

    def select_rows(self, kept: Rows) -> Denoiser:
        return super().select_rows(kept.to(self.device))

    def with_context(self, context: State) -> Denoiser:
        return super().with_context(self._move(context))

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return OnDevice(inner, self.device)

    def _move(self, tensor: Tensor) -> Tensor:
        return (tensor.float() if tensor.is_floating_point() else tensor).to(self.device)

    def _move_times(self, t: Times) -> Times:
        """Move times, those that a sequence shares as one number: the network recognises them by their stride of 0."""
        return self._move(squeeze_shared_time(t)).expand(t.shape)

    def _move_where(self, where: Where) -> Where:
        if where is None or isinstance(where, Tensor):
            return None if where is None else where.to(self.device)
        rows, columns = where
        return rows.to(self.device), columns.to(self.device)


def _hide_wrapper(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Name the weights of the network as if it were not wrapped."""
    inside = f"{prefix}inner."
    for name in [name for name in state if name.startswith(inside)]:
        state[prefix + name.removeprefix(inside)] = state.pop(name)


def _restore_wrapper(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Undo `_hide_wrapper` in weights that are loaded."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}inner.{name.removeprefix(prefix)}"] = state.pop(name)


def place_network(denoiser: Denoiser, device: torch.device) -> Denoiser:
    """Return the denoiser with its network, inside of all wrappers, on a device; the wrappers stay where they are."""
    if isinstance(denoiser, Wrapper):
        return denoiser.rewrap(place_network(denoiser.inner, device)).train(denoiser.training)
    if not any(True for _ in denoiser.parameters()):
        return denoiser  # an oracle, which computes on the device of its inputs
    for module in denoiser.modules():
        if getattr(module, "recompute", False):
            raise UserError(f"recompute needs a CPU or CUDA; leave it out on {device.type}.")
    return OnDevice(denoiser.to(device), device)


def unplace_network(denoiser: Denoiser) -> Denoiser:
    """Return the denoiser without a device of its own for the network; weights stay where they are."""
    if isinstance(denoiser, OnDevice):
        return denoiser.inner
    return denoiser.rewrap(unplace_network(denoiser.inner)) if isinstance(denoiser, Wrapper) else denoiser


def network_device(denoiser: Denoiser | None) -> torch.device | None:
    """Return the device of the network if it has one of its own."""
    modules = [] if denoiser is None else denoiser.modules()
    return next((module.device for module in modules if isinstance(module, OnDevice)), None)
