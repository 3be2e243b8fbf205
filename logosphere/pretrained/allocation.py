"""Models without the memory of their weights: built on the device meta, allocated when the weights are known to fit.

The tables that a process or a network computes stay on the CPU; they are not in the file of the weights, and what they
take is limited (`limits.py`). Only the parameters, which a recipe can make as large as it likes, have no memory.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
DRAWS = frozenset({"normal_", "uniform_", "kaiming_uniform_", "exponential_", "bernoulli_", "random_"})
"""Methods of tensors, and functions of torch.nn.init, that draw values."""
SMALL = 1 << 10
"""Numbers of a parameter that has memory at once: schedules with parameters compute their ends when they are built."""


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules that this thread builds inside get parameters without memory, apart from small ones.

    A constructor allocates a parameter without writing to it, which takes no memory yet, and registers it; here it is
    replaced by one on the device meta. Drawing initial values is left out.
    """
    owner = threading.get_ident()

    def replace(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != owner or parameter.numel() <= SMALL or parameter.device == META:
            return None  # on meta, it is shared with another module, and stays shared
        return nn.Parameter(torch.empty_like(parameter, device=META), requires_grad=parameter.requires_grad)

    # The annotation of the function leaves out that a hook may return another parameter.
    handle = register_module_parameter_registration_hook(replace)  # type: ignore[arg-type]
    try:
        with _SkippedDraws():
            yield
    finally:
        handle.remove()


class _SkippedDraws(TorchFunctionMode):
    """Leaves out random values for tensors without memory, for which torch would import its compiler, in seconds."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        drawn = (args[0] if args else kwargs.get("tensor")) if getattr(func, "__name__", "") in DRAWS else None
        if isinstance(drawn, torch.Tensor) and drawn.device == META:
            return drawn
        return func(*args, **kwargs)


def is_complete(model: nn.Module) -> bool:
    """Whether a file with all tensors of a model gives every parameter without memory a value."""
    named = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    return all(id(parameter) in named for parameter in model.parameters() if parameter.device == META)


def allocate(model: nn.Module) -> None:
    """Give every parameter without memory its memory, whose content is arbitrary until weights are loaded."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.device == META:
                if id(parameter) not in made:
                    memory = torch.empty(parameter.shape, dtype=parameter.dtype)
                    made[id(parameter)] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
                setattr(module, name, made[id(parameter)])
