"""Predictions that are not finite: they are refused, and the module that made them is named.

Softmax makes NaN of them, and a draw from NaN is a token like any other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.errors import UserError

REMEDY = "use an earlier checkpoint, another precision, or less extreme settings"


def is_usable(out: Tensor) -> bool:
    """Whether every row has a finite largest value: -inf excludes a token, but not all of them."""
    return not out.numel() or bool(out.amax(-1).isfinite().all())


def check_usable(out: Tensor, network: nn.Module, repeat: Callable[[], object]) -> None:
    """Raise UserError for predictions that no distribution can be made of; `repeat` makes them again."""
    if not is_usable(out):
        raise UserError(f"The network predicts numbers that are not finite{first_place(network, repeat)}; {REMEDY}.")


def first_place(network: object, repeat: Callable[[], object]) -> str:
    """', first in MODULE' for the first module whose output is not finite when a computation is repeated."""
    if not isinstance(network, nn.Module):
        return ""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def check(module: nn.Module, inputs: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple | list) else (output,)
            tensors = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
            if not found and any(bool((part.isnan() | part.isposinf()).any()) for part in tensors):
                found.append(name or type(module).__name__)

        return check

    hooks = [module.register_forward_hook(watch(name)) for name, module in network.named_modules()]
    try:
        with torch.no_grad():
            repeat()
    except UserError:
        pass  # the repeated computation is refused as well; what it came to is known by then
    finally:
        for hook in hooks:
            hook.remove()
    return f", first in {found[0]}" if found else ""
