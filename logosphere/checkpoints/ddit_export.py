"""Writing our masked models in the DDiT layout: config.json and model.safetensors under the names of MDLM."""

from pathlib import Path
from typing import Any

from torch import Tensor

from logosphere.checkpoints.ddit_tensors import map_tensors, rotary_frequencies
from logosphere.errors import UserError
from logosphere.io import WEIGHTS, write_json, write_tensors
from logosphere.model import Model
from logosphere.networks.base import Wrapper
from logosphere.networks.published.ddit import DDiT
from logosphere.networks.published.denoiser import PublishedDenoiser

PREFIX = "backbone."
CONFIG = "config.json"
SYSTEM = "mdlm"


def export_ddit(model: Model, folder: Path) -> dict[str, Any]:
    """Write a model into a new folder and return its configuration; the tokenizer is not part of the layout."""
    network = find_ddit(model)
    config = describe_config(model, network)
    state = network.state_dict()
    tensors: dict[str, Tensor] = {}
    for ours, piece in map_tensors(network.config, PREFIX).items():
        tensors[piece.names[0]] = state[ours].float()
    tensors[f"{PREFIX}rotary_emb.inv_freq"] = rotary_frequencies(network.config)
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / CONFIG, config)
    return config


def find_ddit(model: Model) -> DDiT:
    """The network of a model that the layout can hold; others are refused with the reason."""
    spec = model.spec
    if spec is not None and spec.published is not None:
        raise UserError(
            "This model was imported, so the checkpoint that it comes from is in a published layout already; only "
            "models that were trained with body=ddit are exported."
        )
    denoiser = model.denoiser
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.inner
    if not isinstance(denoiser, PublishedDenoiser) or not isinstance(denoiser.network, DDiT):
        body = "another network" if spec is None else f"body={spec.options.get('body', 'transformer')}"
        raise UserError(
            f"The DDiT layout holds networks with body=ddit, and this model has {body}; train one with: "
            "logosphere train --system mdlm --network.body ddit"
        )
    if spec is None or spec.system != SYSTEM or denoiser.reads_time:
        what = "a model without a recipe" if spec is None else spec.system
        timed = " that reads the time" if denoiser.reads_time else ""
        raise UserError(
            f"The DDiT layout is written for masked models of the system {SYSTEM} without time_conditional, and this "
            f"is {what}{timed}."
        )
    return denoiser.network


def describe_config(model: Model, network: DDiT) -> dict[str, Any]:
    """config.json as MDLM has it."""
    config = network.config
    return {
        "model_type": "mdlm",
        "architectures": ["MDLM"],
        "vocab_size": config.rows,
        "model_length": model.length,
        "hidden_dim": config.width,
        "cond_dim": config.condition_width,
        "n_blocks": config.depth,
        "n_heads": config.heads,
        "dropout": network.dropout,
        "time_conditioning": False,
        "torch_dtype": "float32",
    }
