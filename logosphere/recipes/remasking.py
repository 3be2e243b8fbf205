"""Builders of masked systems that are sampled in another way than they are trained."""

from logosphere.denoisers.network import Network
from logosphere.denoisers.remasker import Remasker
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.recipes.discrete import mdlm
from logosphere.systems import build


def g_star(
    vocab_size: int,
    length: int,
    network: Network | None,
    *,
    schedule: str = "linear",
    exact_count: bool = True,
    loss: str = "cross-entropy",
    remasker_depth: int = 1,
) -> Model:
    """mdlm and a remasker, to be trained by `train_remasker` when the denoiser is."""
    model = mdlm(vocab_size, length, network, schedule=schedule, exact_count=exact_count, loss=loss)
    if network is not None:
        model.remasker = Remasker(model.process.codec, length, network, remasker_depth)
    return model


def llada(vocab_size: int, length: int, network: Network | None, *, loss: str = "bound") -> Model:
    """Masked diffusion with the linear schedule and the weight 1/t, read without time."""
    return mdlm(vocab_size, length, network, loss=loss)


def with_remasker(model: Model, depth: int = 1) -> Model:
    """A g-star model with the weights of a trained mdlm, remdm, star or p2 model."""
    if model.spec is None or model.spec.system not in ("mdlm", "remdm", "star", "p2", "g-star"):
        raise UserError("A remasker belongs to masked diffusion such as mdlm, made by build(…).")
    options = {**model.spec.options, "remasker_depth": depth}
    equipped = build("g-star", vocab_size=model.vocab_size, length=model.length, **options)
    assert equipped.remasker is not None and equipped.denoiser is not None and model.denoiser is not None
    equipped.denoiser.load_state_dict(model.denoiser.state_dict())
    return equipped.to(model.device)
