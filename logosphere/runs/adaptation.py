"""How an autoregressive network becomes that of a diffusion: its masks, its shift, and how its attention opens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from logosphere.errors import UserError
from logosphere.networks.published.config import PublishedConfig
from logosphere.runs.config import TrainConfig
from logosphere.training.optimizer import OptimizerConfig

SYSTEMS = {"mdlm": "full", "bd3lm": "blocks"}
"""Systems that a network can be adapted to, and the attention of their networks."""


@dataclass(frozen=True)
class AdaptConfig:
    """What changes in an autoregressive network."""

    shift: bool = True
    """The output at position i - 1 answers position i, as before (DiffuLLaMA, Dream). False: the output at position i
    does (LLaDA), which the network has to learn."""
    mask_id: int | None = None
    """The token that becomes the mask, such as an unused one; it is not predicted any more. None: a new vector."""
    anneal: float = 0.0
    """Fraction of the training in which attention opens from causal to full; 0: it is open at once."""


def adapt_defaults() -> TrainConfig:
    """The training of an adaptation unless options say otherwise: cross-entropy at masks, weighted as in the bound."""
    return TrainConfig(
        system="mdlm", options=("loss=bound",), length=128, batch=8, steps=1000, validations=10,
        validation_sequences=32, ema=0.99, optim=OptimizerConfig("adamw", lr=2e-4, warmup=50, weight_decay=0.0),
    )  # fmt: skip


def adapt_network(published: Mapping[str, Any], config: TrainConfig, adapt: AdaptConfig) -> dict[str, Any]:
    """The network of a diffusion (`config.system`) with the weights of this autoregressive one."""
    source = PublishedConfig.from_dict(published)
    if config.system not in SYSTEMS:
        raise UserError(f"A network is adapted to the system {' or '.join(SYSTEMS)}, not to '{config.system}'.")
    if adapt.mask_id is not None and not 0 <= adapt.mask_id < source.rows:
        raise UserError(f"--mask-id must be a row of the table, from 0 to {source.rows - 1}, not {adapt.mask_id}.")
    if not 0 <= adapt.anneal <= 1:
        raise UserError(f"--anneal must be a fraction of the training, from 0 to 1, not {adapt.anneal}.")
    if config.length > source.positions and source.layout == "gpt2":
        raise UserError(f"This network has {source.positions} positions, and --length asks for {config.length}.")
    adapted = replace(
        source,
        attention=SYSTEMS[config.system],
        shift=adapt.shift,
        mask_id=adapt.mask_id,
        # Adapters leave the table as it is, so that a mask among its rows would not be trained.
        mask_vector=adapt.mask_id is None or config.lora > 0,
        anneal=float(adapt.anneal),
    )
    return adapted.to_dict()
