"""Low-rank adapters of the linear layers of a published network (Hu et al. 2021, arXiv:2106.09685).

    y = W x + b + (α / r) B A x,   A [r, in] random, B [out, r] = 0 at initialisation

W and b are frozen; A, B and the vector of masks are trained. With B = 0 the network is its base to the last bit. Every
linear layer of the blocks is adapted; the head is none of them, since it may be the table of the tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError, shorten
from logosphere.networks.published.base import PublishedNetwork
from logosphere.types import Float

HEAD = "out"
"""The name of the head in networks whose head has weights of its own."""
MAX_RANK = 1 << 14


@dataclass(frozen=True)
class LoRAConfig:
    """The adapters of a network, and the weights that they adapt."""

    rank: int
    alpha: float
    base_sha256: str
    """sha256 of the file of the base weights."""
    base: str = ""
    """Where that file was when the run was made."""

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= MAX_RANK:
            raise UserError(f"The rank of adapters must be a whole number of at least 1, not {shorten(self.rank)}.")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise UserError(f"The scale of adapters (lora_alpha) must be above 0, not {shorten(self.alpha)}.")
        if not isinstance(self.base_sha256, str) or not isinstance(self.base, str):
            raise UserError("The base of adapters must be named by a path and the sha256 of its file.")

    def to_dict(self) -> dict[str, Any]:
        """For recipe.json."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "LoRAConfig":
        """From recipe.json, which may be a stranger's."""
        try:
            return LoRAConfig(**content)
        except TypeError as problem:
            raise UserError(f"The description of the adapters cannot be read ({problem}).") from None


class LoRALinear(nn.Module):
    """A frozen linear layer, under its own names, and an adapter of low rank that is added to it."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        device = linear.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, linear.in_features, dtype=torch.float32, device=device))
        self.lora_b = nn.Parameter(torch.zeros(linear.out_features, rank, dtype=torch.float32, device=device))
        self.scale = alpha / rank

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        y = F.linear(x, self.weight, self.bias)
        low = F.linear(F.linear(x.to(self.lora_a.dtype), self.lora_a), self.lora_b)
        return y + (self.scale * low).to(y.dtype)

    @torch.no_grad()
    def merged_weight(self) -> Float[Tensor, "m n"]:
        """W + (α / r) B A, in the type of W."""
        return (self.weight.float() + self.scale * (self.lora_b @ self.lora_a)).to(self.weight.dtype)


def add_adapters(network: PublishedNetwork, rank: int, alpha: float) -> None:
    """Freeze a network, and add an adapter to each of its linear layers but the head; its mask stays trainable."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and name != HEAD]
    if not layers:
        raise UserError("--lora adapts linear layers, and this network has none; leave it out to train all weights.")
    if rank > network.config.width:
        raise UserError(
            f"The rank of adapters is at most the width of the network, {network.config.width}, not {rank}; a larger "
            "one has more weights than the layers."
        )
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.endswith("embed.mask") or name.endswith("embedding.mask"))
    for name in layers:
        _replace(network, name, LoRALinear(network.get_submodule(name), rank, alpha))  # type: ignore[arg-type]


def initialise_adapters(module: nn.Module, seed: int) -> None:
    """Draw A uniformly as linear layers are initialised, and set B to 0; the seed determines all adapters."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, LoRALinear):
                limit = layer.lora_a.shape[1] ** -0.5
                drawn = torch.empty(layer.lora_a.shape).uniform_(-limit, limit, generator=rng)
                layer.lora_a = nn.Parameter(drawn)
                layer.lora_b = nn.Parameter(torch.zeros(layer.lora_b.shape))


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of the module with plain layers in the place of adapted ones; without adapters, its own state."""
    state = module.state_dict()
    for name, layer in module.named_modules():
        if isinstance(layer, LoRALinear):
            state[f"{name}.weight"] = layer.merged_weight()
            del state[f"{name}.lora_a"], state[f"{name}.lora_b"]
    return state


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)


def frozen_names(module: nn.Module) -> frozenset[str]:
    """The tensors that a checkpoint leaves out, since they are those of the base; empty where there are no adapters."""
    if not any(isinstance(layer, LoRALinear) for layer in module.modules()):
        return frozenset()
    return frozenset(name for name, parameter in module.named_parameters() if not parameter.requires_grad)


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that a checkpoint holds: all, or those that are not of the base of adapters."""
    frozen = frozen_names(module)
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}
