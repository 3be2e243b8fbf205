"""Muon (Jordan et al. 2024): orthogonalised momentum for the matrices of blocks, AdamW for all other parameters.

For the gradient G of an m × n matrix W, with momentum μ (Nesterov), weight decay λ and learning rate η:

    M ← μ M + (1 - μ) G,    O = NS₅((1 - μ) G + μ M) ≈ U Vᵀ,    W ← (1 - η λ) W - η · 0.2 √max(m, n) · O,

where U S Vᵀ is the singular value decomposition of the argument of NS₅. The factor 0.2 √max(m, n) gives updates a root
mean square of 0.2, about that of AdamW, so that learning rates of both are of the same order (Liu et al. 2025).

Queries, keys and values, which share one weight, are separate matrices. Embeddings, heads, biases, norms, local mixing
and modulations by time are left to AdamW.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.types import Float

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The quintic of Jordan et al. (2024): its fifth iterate maps singular values from about 0.003 to 1 to 0.68 to 1.14."""
ITERATIONS = 5
EPSILON = 1e-15
"""Against division by zero; gradients of matrices can be as small as 1e-6, and must not be damped."""
UPDATE_RMS = 0.2
BY_TIME = ("modulation", "time")
"""Linear layers of time features, by name."""
PARTS = {"qkv": 3, "key_value": 2}
"""Linear layers that hold several matrices, by name -> how many."""


def orthogonalise(matrices: Float[Tensor, "K m n"]) -> Float[Tensor, "K m n"]:
    """Return NS₅ of each matrix, m ≤ n: X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X, five times from X / |X|."""
    a, b, c = COEFFICIENTS
    x = matrices / (torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True) + EPSILON)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def block_matrices(network: nn.Module) -> dict[Tensor, int]:
    """Return the weights of linear layers within blocks, without modulations -> the number of matrices in each."""
    found: dict[Tensor, int] = {}
    for stack in network.modules():
        for block in stack if isinstance(stack, nn.ModuleList) else ():
            for name, layer in block.named_modules():
                if isinstance(layer, nn.Linear) and name.rpartition(".")[2] not in BY_TIME:
                    found[layer.weight] = PARTS.get(name.rpartition(".")[2], 1)
    return found


def matrix_groups(groups: list[dict[str, Any]], matrices: dict[Tensor, int], rate: float) -> list[dict[str, Any]]:
    """Split parameter groups by `parts`, the number of matrices that Muon updates in a parameter; 0 for AdamW.

    `rate` is the learning rate of Muon relative to that of AdamW.
    """
    split = []
    for group in groups:
        for parts in sorted({matrices.get(p, 0) for p in group["params"]}):
            chosen = [p for p in group["params"] if matrices.get(p, 0) == parts]
            scale = group["scale"] * (rate if parts else 1.0)
            split.append(group | {"params": chosen, "parts": parts, "scale": scale})
    return split


class Muon(torch.optim.AdamW):
    """AdamW whose groups with `parts` > 0 are updated by Muon instead; their weights hold `parts` matrices each.

    `dtype` is the precision of Newton–Schulz iterations.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        momentum: float,
        dtype: torch.dtype,
    ):
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["parts"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        pieces: defaultdict[tuple[int, int], list[tuple[Tensor, Tensor, float]]] = defaultdict(list)
        for group in groups:
            weights = [weight for weight in group["params"] if group["parts"] and weight.grad is not None]
            if not weights:
                continue
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            for weight, direction in zip(weights, self._directions(weights), strict=True):
                shape = (group["parts"], -1, weight.shape[1])
                matrices, wide = weight.view(shape), direction.view(shape)
                if wide.shape[1] > wide.shape[2]:
                    matrices, wide = matrices.mT, wide.mT
                pieces[wide.shape[1], wide.shape[2]].append((matrices, wide, group["lr"]))
        for (_, longest), found in pieces.items():  # one batched product for all matrices of one shape
            updates = orthogonalise(torch.cat([wide.to(self.dtype) for _, wide, _ in found]))
            sizes = [len(matrices) for matrices, _, _ in found]
            for (matrices, _, lr), update in zip(found, updates.split(sizes), strict=True):
                matrices.add_(update, alpha=-lr * UPDATE_RMS * longest**0.5)

    def _directions(self, weights: list[Tensor]) -> list[Tensor]:
        """Update the momentum of weights, and return what is to be orthogonalised."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] |= {"momentum_buffer": torch.zeros_like(weight), "step": torch.zeros(())}
            self.state[weight]["step"] += 1
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(buffers, gradients, 1 - self.momentum)
        return list(torch._foreach_lerp(gradients, buffers, self.momentum))
