"""Builders of masked systems that are sampled in another way than they are trained."""

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.classifier import Remasker
from logosphere.networks.config import NetworkConfig
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.recipes.discrete import mdlm
from logosphere.systems import build


def g_star(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    schedule: str = "linear",
    exact_count: bool = True,
    loss: str = "cross-entropy",
    times: str = "low-variance",
    t_min: float = 0.0,
    all_masked: bool = False,
    remasker_depth: int = 1,
) -> Model:
    """mdlm and a remasker, to be trained by `train_remasker` when the denoiser is."""
    model = mdlm(
        vocab_size, length, network, schedule=schedule, exact_count=exact_count, loss=loss, times=times, t_min=t_min,
        all_masked=all_masked,
    )  # fmt: skip
    if network is not None:
        model.remasker = Remasker(model.process.codec, length, network, remasker_depth)
    return model


def llada(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    *,
    loss: str = "bound",
    exact_count: bool = True,
    times: str = "low-variance",
    t_min: float = 0.0,
) -> Model:
    """Masked diffusion with the linear schedule and the weight 1/t, read without time.

    The paper trains with masks by chance (exact_count=False) and measures with counted masks, as is always done here.
    """
    model = mdlm(vocab_size, length, network, loss=loss, times=times, t_min=t_min)
    assert isinstance(model.process, DiscreteDiffusion)
    model.process.random_mask_count = not exact_count
    return model


def with_remasker(model: Model, depth: int = 1) -> Model:
    """A g-star model with the weights of a trained mdlm, remdm, star or p2 model."""
    if model.spec is None or model.spec.system not in ("mdlm", "remdm", "star", "p2", "g-star"):
        raise UserError("A remasker belongs to masked diffusion such as mdlm, made by build(…).")
    options = {**model.spec.options, "remasker_depth": depth}
    equipped = build("g-star", vocab_size=model.vocab_size, length=model.length, **options)
    assert equipped.remasker is not None and equipped.denoiser is not None and model.denoiser is not None
    equipped.denoiser.load_state_dict(model.denoiser.state_dict())
    return equipped.to(model.device)
