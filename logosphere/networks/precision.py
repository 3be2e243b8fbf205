"""The precision in which networks compute: float32, or bfloat16 on processors that multiply it faster.

Weights, states, probabilities and bounds are float32 either way; autocast applies to the layers of a network.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import overload

import torch

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.config import PRECISIONS
from logosphere.types import LogitChunks, Logits, Predict, State, Times, Where


def find_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the type that a name stands for; auto is bfloat16 where the device has instructions for its products."""
    if name not in PRECISIONS:
        raise UserError(f"precision must be auto, float32 or bfloat16, not '{name}'.")
    if name == "bfloat16" and not has_float64(device):
        raise UserError(f"precision=bfloat16 needs a CPU or CUDA; use float32 on {device.type}.")
    if name == "auto":
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in 64-bit floating point."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def precision_name(dtype: torch.dtype) -> str:
    """Return float32 or bfloat16."""
    return str(dtype).removeprefix("torch.")


def _multiplies_bfloat16(device: torch.device) -> bool:
    if not has_float64(device):
        return False
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # avx512_bf16, which every processor with AMX has as well. Older versions of torch cannot tell.
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return device.type == "cpu" and bool(supported())


def autocast_to(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which layers compute in this precision."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


@contextmanager
def casts_kept(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Keep weights that autocast has converted until the end, for evaluations between which they do not change.

    Autocast forgets them when its outermost context ends; this one is outermost and does not itself convert anything.
    """
    with nullcontext() if dtype == torch.float32 else torch.autocast(device.type, enabled=False):
        yield


@overload
def with_precision(predict: Denoiser, dtype: torch.dtype) -> Denoiser: ...
@overload
def with_precision(predict: Predict, dtype: torch.dtype) -> Predict: ...
def with_precision(predict: Predict, dtype: torch.dtype) -> Predict:
    """Return a denoiser that computes in this precision; plain functions are returned as they are."""
    return MixedPrecision(predict, dtype) if isinstance(predict, Denoiser) and dtype != torch.float32 else predict


class MixedPrecision(Wrapper):
    """Evaluates a denoiser under autocast; its predictions are float32."""

    def __init__(self, inner: Denoiser, dtype: torch.dtype):
        super().__init__(inner)
        self.dtype = dtype

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        with autocast_to(self.dtype, z.device):
            return self.inner(z, t, context, where).float()

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        with autocast_to(self.dtype, z.device):
            chunks = self.inner.logit_chunks(z, t, context, where)

        def project(h: torch.Tensor, rows: slice) -> Logits:
            with autocast_to(self.dtype, z.device):
                return chunks.project(h, rows).float()

        return LogitChunks(chunks.features, project, chunks.parameters)

    def with_context(self, context: State) -> Denoiser:
        with autocast_to(self.dtype, context.device):
            return super().with_context(context)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return MixedPrecision(inner, self.dtype)
