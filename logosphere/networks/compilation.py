"""Compiled blocks (torch.compile): one block is compiled, and all blocks of a stack run its code.

The weights are inputs of the compiled code, so that compilation takes as long for a deep network as for one block. The
code is kept in the cache folder for later trainings. It is used in training only: evaluation and sampling call blocks
in many shapes, with caches of growing length, each of which would be compiled anew.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.io import cache_folder
from logosphere.networks.attention import KVCache

MAX_SHAPES = 8
"""Shapes of the inputs for which a block is compiled; others, such as texts of random lengths, are not."""


def compile_blocks(blocks: Iterable[nn.Module], length: int | None = None) -> None:
    """Let the blocks of a stack run compiled code in training, made at the first call or found in the cache folder.

    With `length`, only calls with a multiple of this number of positions: a shortened text is not compiled for.
    """
    prepare_compiler()
    shared: dict[str, dict[object, Callable[..., Tensor]]] = {}
    for block in blocks:
        code = shared.setdefault(repr(block), {})  # blocks of the same layers; convolutions differ in their dilations
        block.forward = CompiledForward(block, code, length)


class CompiledForward:
    """The forward pass of a block: compiled in training, as it was otherwise.

    Each shape of the inputs has compiled code of its own, because torch would generalise code that it has to compile a
    second time, and because it keeps few variants for one function (torch._dynamo.config.recompile_limit).
    """

    def __init__(self, block: nn.Module, code: dict[object, Callable[..., Tensor]], length: int | None):
        self.block, self.code, self.length = block, code, length

    def __call__(self, *inputs: object) -> Tensor:
        compiled = self._find(inputs) if self.block.training and torch.is_grad_enabled() else None
        return _call(self.block, *inputs) if compiled is None else compiled(self.block, *inputs)

    def _find(self, inputs: tuple[object, ...]) -> Callable[..., Tensor] | None:
        """The compiled code for these inputs; None if there is to be none."""
        h = inputs[0]
        assert isinstance(h, Tensor)
        if self.length is not None and (h.shape[1] % self.length or not h.shape[1]):
            return None
        if not h.shape[0] or any(isinstance(x, KVCache) for x in inputs):
            return None
        key = (_describe(inputs), torch.is_autocast_enabled(h.device.type))
        if key not in self.code:
            if len(self.code) == MAX_SHAPES:
                return None
            self.code[key] = torch.compile(_callable(), dynamic=False)
        return self.code[key]


def _call(block: nn.Module, *inputs: object) -> Tensor:
    out: Tensor = type(block).forward(block, *inputs)
    return out


def _callable() -> Callable[..., Tensor]:
    """A function like `_call` with a code object of its own, by which torch finds compiled code."""
    code = (lambda block, *inputs: type(block).forward(block, *inputs)).__code__
    return FunctionType(code.replace(), globals())


def _describe(inputs: Iterable[object]) -> tuple[object, ...]:
    """What compiled code depends on."""
    described: list[object] = []
    for x in inputs:
        if isinstance(x, Tensor):
            described.append((x.shape, x.stride(), x.dtype, x.requires_grad))
        else:
            described.append(_describe(x) if isinstance(x, tuple) else x)
    return tuple(described)


def prepare_compiler() -> None:
    """Set where compiled code is cached, and shorten the first compilation; raise UserError without a C++ compiler."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"--compile needs a C++ compiler, and '{compiler}' is not installed; install it, name another in the "
            "environment variable CXX, or leave out --compile."
        )
    chosen = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    own = chosen.parent == Path(tempfile.gettempdir()) and chosen.name.startswith("torchinductor_")
    if own or not chosen.name:  # torch sets the variable itself when it is imported, to a folder that does not last
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "compiled")
    from torch._inductor import config  # takes seconds, which only compilation needs

    if config.cpp.vec_isa_ok is None and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        config.cpp.vec_isa_ok = True  # torch runs such kernels already: no need to compile samples of them
    cacheable = getattr(config, "unsafe_marked_cacheable_functions", None)
    if isinstance(cacheable, dict):  # leaving autocast for a part of a block depends on nothing but the code
        for name in ("_enter_autocast", "_exit_autocast"):
            cacheable[f"torch.amp.autocast_mode.{name}"] = torch.__version__
