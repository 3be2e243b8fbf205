"""Masked systems that are trained like MDLM and sampled in other ways: ReMDM, Star, G-Star, P2 and LLaDA."""

from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.classifier import Remasker
from logosphere.networks.config import NetworkConfig
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.mixing import Masking
from logosphere.processes.time_sampler import TrainingTimes
from logosphere.schedules.signal import find_schedule as schedule_by_name
from logosphere.systems.discrete import diffusion_model, is_unweighted
from logosphere.systems.masked import MDLMSettings, build_mdlm
from logosphere.systems.registry import SystemInfo, build, register

register(
    SystemInfo(
        name="remdm",
        title="Remasking discrete diffusion",
        paper="Wang et al. 2025, arXiv:2503.00307",
        family="discrete",
        kind="bound",
        summary="trained as mdlm; tokens may be masked again during sampling, with the same marginals",
        sampler="remdm-cap",
        tied=True,
    ),
    MDLMSettings,
)(build_mdlm)
register(
    SystemInfo(
        name="star",
        title="Star-shaped masked diffusion",
        paper="Meshchaninov et al. 2025, arXiv:2510.08369",
        family="discrete",
        kind="bound",
        summary="trained as mdlm; near the end of sampling every step masks all positions anew",
        sampler="star",
        tied=True,
    ),
    MDLMSettings,
)(build_mdlm)
register(
    SystemInfo(
        name="p2",
        title="Path planning",
        paper="Peng et al. 2025, arXiv:2502.03540",
        family="discrete",
        kind="bound",
        summary="trained as mdlm; every sampling step scores all tokens and keeps the most confident ones",
        sampler="p2",
        tied=True,
    ),
    MDLMSettings,
)(build_mdlm)


@dataclass(frozen=True)
class GStarSettings(MDLMSettings):
    """Options of G-Star: those of MDLM with one block and a network that is not conditioned on time."""

    remasker_depth: int = 1
    """Blocks of the remasker."""

    def __post_init__(self) -> None:
        if self.block is not None or self.time_conditional:
            raise UserError("g-star needs block=None and time_conditional=False.")


@register(
    SystemInfo(
        name="g-star",
        title="Guided star-shaped masked diffusion",
        paper="Meshchaninov et al. 2025, arXiv:2510.08369",
        family="discrete",
        kind="bound",
        summary="as star, but a second network, trained on the frozen denoiser, selects the tokens to mask",
        sampler="g-star",
        tied=True,
    ),
    GStarSettings,
)
def build_g_star(vocab_size: int, length: int, network: NetworkConfig | None, settings: GStarSettings) -> Model:
    """MDLM and a remasker, which `train_remasker` trains after the denoiser."""
    model = build_mdlm(vocab_size, length, network, settings)
    if network is not None:
        model.remasker = Remasker(model.process.codec, length, network, settings.remasker_depth)
    return model


@dataclass(frozen=True)
class LLaDASettings:
    """Options of LLaDA."""

    loss: str = "bound"
    """bound, with the weight 1/t, or cross-entropy."""
    exact_count: bool = True
    """Mask exactly as many positions as the stratified time gives; False: mask each position independently in
    training, as published. Bounds always use exact counts, as in the paper."""
    times: str = "low-variance"
    """Times of training: low-variance, uniform or independent."""
    t_min: float = 0.0
    """Smallest time of training; above 0 it needs times=uniform or times=independent."""


@register(
    SystemInfo(
        name="llada",
        title="Large language diffusion with masking",
        paper="Nie et al. 2025, arXiv:2502.09992",
        family="discrete",
        kind="bound",
        summary="trained on the bound without conditioning on time; samples the likeliest tokens first, block by block",
        sampler="llada",
        tied=True,
    ),
    LLaDASettings,
)
def build_llada(vocab_size: int, length: int, network: NetworkConfig | None, settings: LLaDASettings) -> Model:
    """Masked diffusion with the linear schedule and a network that is not conditioned on time."""
    process = DiscreteDiffusion(
        Masking(vocab_size, schedule_by_name("linear")),
        exact_count=True,
        random_mask_count=not settings.exact_count,
        unweighted=is_unweighted(settings.loss),
        times=TrainingTimes(settings.times, settings.t_min),
    )
    return diffusion_model(process, length, None, network, time_conditional=False)


def with_remasker(model: Model, depth: int = 1) -> Model:
    """A g-star model with the weights of a trained mdlm, remdm, star or p2 model."""
    if model.spec is None or model.spec.system not in ("mdlm", "remdm", "star", "p2", "g-star"):
        raise UserError("A remasker belongs to masked diffusion such as mdlm, made by build(…).")
    options = {**model.spec.options, "remasker_depth": depth}
    equipped = build("g-star", vocab_size=model.vocab_size, length=model.length, **options)
    assert equipped.remasker is not None and equipped.denoiser is not None and model.denoiser is not None
    equipped.tokenizer = model.tokenizer
    equipped.denoiser.load_state_dict(model.denoiser.state_dict())
    return equipped.place(model.network_device)
