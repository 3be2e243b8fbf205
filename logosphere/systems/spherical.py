"""Diffusion on the sphere: RDLM with the log bridge of the paper, and with the Brownian (heat) bridge."""

from collections.abc import Callable
from dataclasses import dataclass

from logosphere.codecs.tokens import DigitCodec
from logosphere.errors import UserError
from logosphere.geometry.bridge_tables import STEPS, match_moments, tabulate_bridges
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge
from logosphere.model import Model
from logosphere.networks.base import check_block
from logosphere.networks.config import NetworkConfig
from logosphere.processes.spherical.diffusion import SphericalDiffusion, Start
from logosphere.processes.spherical.digit_posterior import DigitSphericalDiffusion
from logosphere.processes.spherical.projected import ProjectedSphericalDiffusion
from logosphere.processes.spherical.published import PublishedDigitDiffusion, PublishedSphericalDiffusion
from logosphere.processes.spherical.times import SCHEDULES, AnyOrder, RollingOffsets
from logosphere.processes.spherical.wide import WideSphericalDiffusion
from logosphere.rng import WIDE
from logosphere.systems.registry import SystemInfo, check_choice, check_subtraction, register
from logosphere.systems.spherical_parts import (
    MIXTURES,
    check_window,
    default_noise,
    schedule_tables,
    sphere_codec,
    sphere_network,
    start_points,
    start_probabilities,
    time_sampler,
)

CHOICES = {
    "input": ("belief", "state"),
    "loss": ("cross-entropy", "importance-weighted", "bound-weighted", "drift"),
    "time_sampler": ("information", "even", *SCHEDULES),
    "transitions": ("exact", "normal", "published"),
    "digits": ("positions", "heads"),
    "order": ("random", "left-to-right"),
    "path": ("joint", "any-order"),
    "codes": ("valid", "published"),
    "protocol": ("bound", "published"),
}
MAX_TIMESTEPS = 5_000
"""Most steps of a chain, whose tables of the bridge take 0.4 MB a step."""
RISING = "rising"
"""The fraction of any-order sequences that grows from 0 to 1 within the first half of training."""


@dataclass(frozen=True)
class RDLMSettings:
    """Options of the systems on the sphere."""

    start: str | float = "mask"
    """Where bridges begin: mask, uniform, or a number λ between the mask (0) and the centre of the tokens (1);
    mask+uniform draws one of both for each sequence; step:0.35, linear and sqrt are the mixture paths of the paper,
    whose value is a surrogate."""
    total_noise: float | None = None
    """V = ∫σ²; None: chosen for the size of the vocabulary."""
    input: str = "belief"
    """Input of the network: belief (the posterior of each token given its own state) or state (with the time)."""
    posterior_head: bool | None = None
    """Add the evidence of a state about its own token to the logits; None: where the network reads states, and on the
    joint path. On the any-order path states have all the evidence or none."""
    subtract_input_embedding: bool | None = None
    """Subtract the embedding of a position's own state before the output head, so that the network predicts from the
    other positions; None: where it reads beliefs and a posterior head adds the evidence of the state."""
    loss: str = "cross-entropy"
    """cross-entropy, importance-weighted (uniform in schedule time), bound-weighted, or drift (the bound)."""
    switch: float | None = None
    """Fraction of training after which the loss becomes bound-weighted; None: never."""
    time_sampler: str = "information"
    """Times of training: information (learned), even, or those of the paper's schedules geometric, linear, cosine."""
    window: list[float] | None = None
    """[left, right] of the paper's importance density; needs one of its schedules as time_sampler."""
    transitions: str = "exact"
    """States are drawn from the exact bridge, or from the Riemannian normal with the right moments (normal) or with
    those of the paper (published); the value of the joint path is then a surrogate."""
    rho_scale: float = 1.0
    """Factor of the standard deviation ρ of the Riemannian normal (the paper has 1.14 on LM1B)."""
    protocol: str = "bound"
    """bound: tabulated times that end where tokens are certain, and a reconstruction term; published: continuous time
    of the schedule up to 1 - 10⁻⁴, training on `transitions`, values on simulated bridges without a reconstruction
    term, which are surrogates (processes/spherical/published.py)."""
    timesteps: int | None = None
    """Bound and sampler of the geodesic random walk with this number of steps; None: continuous time."""
    base: int | None = None
    """Split tokens into digits of this base; None: one vertex for each token."""
    digits: str = "positions"
    """With a base, each digit is a position, or each is an output head of one position (heads)."""
    codes: str = "valid"
    """valid: codes of no token have probability 0; published: digits are independent, the smallest first."""
    self_conditioning: bool | float = False
    """Probability with which training conditions the network on its own estimate; True: 0.5."""
    projected: bool = False
    """For large vocabularies: draw training states in the width of the network instead of the vocabulary."""
    stagger: float = 0.0
    """Fraction of the time over which positions begin one after another; 0: all at once, as in the paper."""
    order: str = "random"
    """Order of staggered positions and of the any-order path: random for each sequence, or left-to-right."""
    path: str = "joint"
    """Path of bounds and samples: joint (all positions move together) or any-order (one position at a time)."""
    any_order_fraction: float | str | None = None
    """Fraction of training sequences with states of the any-order path, or rising: from 0 to 1 within the first half of
    training; None: rising with path=any-order and plain cross-entropy, else 0."""
    block: int | None = None
    """Positions of a block; blocks are generated from left to right. None: one block."""

    def __post_init__(self) -> None:
        for option, choices in CHOICES.items():
            check_choice(option, getattr(self, option), choices)
        if self.timesteps is not None and not 2 <= self.timesteps <= MAX_TIMESTEPS:
            raise UserError(f"timesteps must be from 2 to {MAX_TIMESTEPS:,}, not {self.timesteps:,}.")
        if self.switch is not None and not 0 <= self.switch <= 1:
            raise UserError(f"switch must be a fraction of the training from 0 to 1, not {self.switch}.")
        if self.projected and (
            self.start != "mask"
            or self.base is not None
            or self.self_conditioning
            or self.transitions != "exact"
            or self.loss == "drift"
        ):
            raise UserError("projected=True needs start=mask, transitions=exact, no base and a loss other than drift.")
        if not self.rho_scale > 0:
            raise UserError(f"rho_scale must be above 0, not {self.rho_scale}.")
        if self.rho_scale != 1 and self.transitions == "exact":
            raise UserError(f"rho_scale={self.rho_scale} needs transitions=normal or transitions=published, not exact.")
        if not 0 <= self.stagger < 1:
            raise UserError(f"stagger must be a fraction of the time from 0 to below 1, not {self.stagger}.")
        if self.stagger and (self.window is not None or self.timesteps is not None):
            raise UserError("stagger allows no window and no timesteps; leave these out, or use stagger=0.")
        check_subtraction(bool(self.subtract_input_embedding), self.adds_evidence)
        self._check_any_order_fraction()
        self._check_block()
        if self.path == "any-order" and (self.has_mixture_path or self.timesteps is not None):
            raise UserError("path=any-order allows no timesteps and no start that changes with time; use path=joint.")
        if self.protocol == "published":
            self._check_published()

    def _check_any_order_fraction(self) -> None:
        fraction = self.any_order_fraction
        if isinstance(fraction, str):
            check_choice("any_order_fraction", fraction, (RISING,))
            if self.path == "joint":
                raise UserError(
                    "any_order_fraction=rising ends with any-order sequences alone, after which the bound of the joint "
                    "path is poor; use path=any-order."
                )
        elif fraction is not None and not 0 <= fraction < 1:
            raise UserError(f"any_order_fraction must be from 0 to below 1, or {RISING}, not {fraction}.")
        if fraction and not self.has_plain_loss:
            raise UserError("any_order_fraction > 0 requires loss=cross-entropy and switch=None.")

    def _check_block(self) -> None:
        if self.block is None:
            return
        for option, default in (("base", None), ("projected", False), ("protocol", "bound"),
                                ("self_conditioning", False)):  # fmt: skip
            if getattr(self, option) != default:
                raise UserError(f"block={self.block} needs {option}={default}, not {getattr(self, option)}.")

    def _check_published(self) -> None:
        if self.time_sampler not in SCHEDULES:
            names = f"{', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}"
            raise UserError(f"protocol=published needs time_sampler={names}, not '{self.time_sampler}'.")
        if (
            self.stagger
            or self.timesteps is not None
            or self.projected
            or self.path == "any-order"
            or self.any_order_fraction
        ):
            raise UserError(
                "protocol=published moves all positions jointly in continuous time: it allows no stagger, timesteps, "
                "projected, path=any-order or any_order_fraction."
            )

    @property
    def has_plain_loss(self) -> bool:
        """Whether the loss is unweighted cross-entropy throughout."""
        return self.loss == "cross-entropy" and self.switch is None

    @property
    def has_mixture_path(self) -> bool:
        """Whether the probabilities of the start points change with time."""
        return str(self.start).partition(":")[0] in MIXTURES

    @property
    def share_of_any_order(self) -> float | str:
        """The value of any_order_fraction, also where it is None."""
        if self.any_order_fraction is not None:
            return self.any_order_fraction
        return RISING if self.path == "any-order" and self.has_plain_loss else 0.0

    @property
    def adds_evidence(self) -> bool:
        """The value of posterior_head, also where it is None."""
        if self.posterior_head is not None:
            return self.posterior_head
        return self.projected or self.input == "state" or (self.path == "joint" and not self.share_of_any_order)

    @property
    def subtracts_input(self) -> bool:
        """The value of subtract_input_embedding, also where it is None."""
        if self.subtract_input_embedding is not None:
            return self.subtract_input_embedding
        return self.adds_evidence and self.input == "belief" and not self.projected


@register(
    SystemInfo(
        name="rdlm",
        title="Riemannian diffusion language model",
        paper="Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        summary="tokens are vertices of a sphere, reached by log bridges; states drawn exactly, learned time sampler",
    ),
    RDLMSettings,
)
def build_rdlm(vocab_size: int, length: int, network: NetworkConfig | None, settings: RDLMSettings) -> Model:
    """Diffusion on the sphere along log bridges."""
    return _build(vocab_size, length, network, settings, lambda d, total_noise: LogBridge(total_noise))


@register(
    SystemInfo(
        name="rdlm-heat",
        title="Riemannian diffusion with Brownian bridges",
        paper="after Jo and Hwang 2025, arXiv:2502.11564",
        family="continuous",
        kind="bound",
        summary="as rdlm, with Brownian bridges, whose beliefs are exact and whose bound is tight",
    ),
    RDLMSettings,
)
def build_rdlm_heat(vocab_size: int, length: int, network: NetworkConfig | None, settings: RDLMSettings) -> Model:
    """Diffusion on the sphere along Brownian bridges."""
    if settings.protocol == "published":
        raise UserError("protocol=published needs the log bridge of rdlm; rdlm-heat has protocol=bound.")
    return _build(vocab_size, length, network, settings, HeatBridge.on)


def _build(
    vocab_size: int,
    length: int,
    network: NetworkConfig | None,
    settings: RDLMSettings,
    bridge_on: Callable[[int, float], Bridge],
) -> Model:
    """A model with this bridge, a function of the dimension and the total noise."""
    codec = sphere_codec(vocab_size, network, settings)
    d = codec.num_classes + 1
    bridge = bridge_on(d, default_noise(d) if settings.total_noise is None else settings.total_noise)
    points = start_points(settings.start, codec.num_classes)
    process: SphericalDiffusion
    if settings.protocol == "published":
        starts, normals = schedule_tables(bridge, d, points, settings)
        published = PublishedDigitDiffusion if _has_valid_digits(settings) else PublishedSphericalDiffusion
        process = published(
            codec,
            bridge,
            starts,
            schedule=settings.time_sampler,
            normals=normals,
            length=length,
            uniform=points.uniform,
            window=None if settings.window is None else check_window(settings.window),
            loss=settings.loss,  # type: ignore[arg-type]
            switch=settings.switch,
        )
        return _model(process, length, network, settings)
    steps = STEPS if settings.timesteps is None else settings.timesteps - 1
    tables = tabulate_bridges(bridge, d, points.cosines, steps, geodesic_walk=settings.timesteps is not None)
    if settings.transitions != "exact":
        is_published = settings.transitions == "published"
        tables = [match_moments(table, d, published=is_published, scale=settings.rho_scale) for table in tables]
    times, digits = tables[0].times, codec.digits if isinstance(codec, DigitCodec) else 1
    block = length if settings.block is None else settings.block
    check_block(length, block)
    any_order = AnyOrder(settings.order, digits, length // block)  # type: ignore[arg-type]
    kind = SphericalDiffusion
    if settings.projected:
        kind = ProjectedSphericalDiffusion
    elif _has_valid_digits(settings):
        kind = DigitSphericalDiffusion
    elif codec.num_classes > WIDE and settings.base is None:
        kind = WideSphericalDiffusion
    process = kind(
        codec,
        bridge,
        [Start(point, table) for point, table in zip(points.points, tables, strict=True)],
        time_sampler(settings.time_sampler, settings.window, times),
        start_probabilities=None if points.uniform is None else start_probabilities(points.uniform, times),
        loss=settings.loss,  # type: ignore[arg-type]
        switch=settings.switch,
        exact=settings.transitions == "exact",
        chain=settings.timesteps is not None,
        rolling=RollingOffsets(settings.stagger, settings.order, digits, length // block) if settings.stagger else None,  # type: ignore[arg-type]
        path=settings.path,  # type: ignore[arg-type]
        any_order=any_order,
        any_order_fraction=settings.share_of_any_order,
    )
    return _model(process, length, network, settings)


def _has_valid_digits(settings: RDLMSettings) -> bool:
    return settings.base is not None and settings.codes == "valid"


def _model(process: SphericalDiffusion, length: int, network: NetworkConfig | None, settings: RDLMSettings) -> Model:
    denoiser = None if network is None else sphere_network(process, length, network, settings)
    return Model(process, denoiser, length=length, block=settings.block or length)
