"""Builders of the systems on the sphere: RDLM with the paper's bridge, and with the Brownian one."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.codecs.digits import DigitCodec
from logosphere.codecs.vertices import CoordinateStem, VertexCodec
from logosphere.errors import UserError, suggest
from logosphere.geometry.bridge_tables import STEPS, fit_normal, match_moments, tabulate_bridges, tabulate_bridges_at
from logosphere.geometry.bridges import Bridge, HeatBridge, LogBridge
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.config import NetworkConfig
from logosphere.networks.self_conditioning import SelfConditioning
from logosphere.networks.transformer import DigitTransformer, FullTransformer
from logosphere.networks.wrappers import BeliefInput, PosteriorHead
from logosphere.processes.spherical.diffusion import SphericalDiffusion, Start
from logosphere.processes.spherical.digit_posterior import DigitSphericalDiffusion
from logosphere.processes.spherical.projected import ProjectedCodec, ProjectedSphericalDiffusion
from logosphere.processes.spherical.published import PublishedDigitDiffusion, PublishedSphericalDiffusion, table_times
from logosphere.processes.spherical.times import (
    SCHEDULES,
    AnyOrder,
    RollingOffsets,
    noise_left,
    rdlm_importance_density,
    rdlm_time_density,
)
from logosphere.processes.time_sampler import TimeSampler, uniform_density
from logosphere.recipes.starts import shares, starts

CHOICES = {
    "input": ("belief", "state"),
    "loss": ("cross-entropy", "importance-weighted", "bound-weighted", "drift"),
    "clock": ("information", "even", "geometric", "linear", "cosine"),
    "transitions": ("exact", "normal", "published"),
    "digits": ("positions", "heads"),
    "order": ("random", "left-to-right"),
    "path": ("together", "in-turn"),
    "codes": ("valid", "published"),
    "protocol": ("bound", "published"),
}


def _builder(bridge_on: Callable[[int, float], Bridge], usual_path: str = "together") -> Callable[..., Model]:
    """The builder of the systems with this bridge, a function of the dimension and the noise."""

    def build(
        vocab_size: int,
        length: int,
        network: NetworkConfig | None,
        *,
        start: str | float = "mask",
        total_noise: float | None = None,
        posterior_head: bool | None = None,
        input: str = "belief",
        loss: str = "cross-entropy",
        switch: float | None = None,
        clock: str = "information",
        window: list[float] | None = None,
        transitions: str = "exact",
        rho_scale: float = 1.0,
        protocol: str = "bound",
        timesteps: int | None = None,
        base: int | None = None,
        digits: str = "positions",
        codes: str = "valid",
        self_conditioning: bool | float = False,
        projected: bool = False,
        stagger: float = 0.0,
        order: str = "random",
        path: str | None = None,
        any_order_fraction: float | None = None,
    ) -> Model:
        """A model on the sphere; preset="paper" selects all options of the published system.

        start         mask, uniform, a share of the way between; "mask+uniform": one of both for each sequence;
                      step:0.35, linear, sqrt: the paper's mixture paths, whose value is a surrogate
        total_noise   V; by default chosen for the size of the vocabulary
        posterior_head  what a state says of its own token is added to the logits; by default where the network reads
                      states, for one that reads beliefs learns faster without
        loss          cross-entropy, importance-weighted (even in schedule time), bound-weighted, drift (the bound)
        switch        the share of training after which the loss becomes bound-weighted
        clock         information (learned), even, or the paper's geometric, linear, cosine; window: its [left, right]
        transitions   exact, or the Riemannian normal with the right (normal) or the published moments, under which the
                      value of the path together is a surrogate
        rho_scale     factor on the standard deviation ρ of the Riemannian normal (the paper has 1.14 on LM1B)
        protocol      bound: times of a table that ends where tokens are certain, and a reconstruction term there;
                      published: the continuous time of the schedule up to 1 - 10⁻⁴, training on `transitions`,
                      values on simulated bridges without that term, a surrogate (processes/spherical/published.py)
        timesteps     bound and sampler of the geodesic random walk with so many steps
        base          splits tokens into digits of this base, each a position or each a head
        codes         valid: codes of no token have probability 0; published: digits are independent, smallest first
        self_conditioning   the probability with which training shows the network its own estimate; True: 0.5
        stagger       the share of the time over which positions set out one after another; 0: all at once (the paper)
        order         in which they do: random, drawn for each sequence, or left-to-right
        path          of bounds and samples: together, or in-turn: one position at a time between others that stand,
                      which is the default of rdlm-heat unless positions are staggered
        any_order_fraction  the share of training sequences that are shown as they stand when positions move in turn;
                      by default half where the path is in turn
        projected     for large vocabularies: in training states are drawn in the width of the network, never whole
        """
        given = {"input": input, "loss": loss, "clock": clock, "transitions": transitions, "digits": digits}
        given |= {"order": order, "path": usual_path if path is None else path, "codes": codes, "protocol": protocol}
        for option, word in given.items():
            if word not in CHOICES[option]:
                raise UserError(f"'{word}' is not a choice for {option}.{suggest(str(word), CHOICES[option])}")
        if timesteps is not None and timesteps < 2:
            raise UserError(f"A walk has at least 2 timesteps, not {timesteps}.")
        if switch is not None and not 0 <= switch <= 1:
            raise UserError(f"The switch is a share of the training from 0 to 1, not {switch}.")
        if projected:
            if start != "mask" or base is not None or self_conditioning or transitions != "exact" or loss == "drift":
                raise UserError(
                    "projected=True goes with start=mask, exact transitions and cross-entropy, without base."
                )
            codec: Codec = ProjectedCodec(vocab_size, (network or NetworkConfig()).width)
        else:
            codec = _codec(vocab_size, base, codes)
        d = codec.num_classes + 1
        bridge = bridge_on(d, default_noise(d) if total_noise is None else total_noise)
        points, mixing = starts(start, codec.num_classes)
        _check_rho(rho_scale, transitions)
        if protocol == "published":
            _check_published(bridge, clock, stagger, timesteps, projected, path, any_order_fraction)
            scheduled = _scheduled(
                PublishedDigitDiffusion if base is not None and codes == "valid" else PublishedSphericalDiffusion,
                codec,
                bridge,
                points,
                transitions,
                rho_scale,
                schedule=clock,
                length=length,
                uniform=mixing,
                window=None if window is None else _window(window),
                loss=loss,
                switch=switch,
            )
            return _model(scheduled, length, network, input, digits, self_conditioning, posterior_head)
        steps = STEPS if timesteps is None else timesteps - 1
        laws = tabulate_bridges(bridge, d, [float(p[0]) for p in points], steps, geodesic_walk=timesteps is not None)
        if transitions != "exact":
            laws = [match_moments(law, d, published=transitions == "published", scale=rho_scale) for law in laws]
        # Mixture paths, fixed steps and staggered clocks are about moving together.
        plain = mixing is None and timesteps is None and stagger == 0
        in_turn = given["path"] == "in-turn" and (path is not None or plain)
        plain_loss = loss == "cross-entropy" and switch is None
        if any_order_fraction is None:
            any_order_fraction = 0.5 if in_turn and plain_loss else 0.0
        _check_turns(in_turn, any_order_fraction, plain_loss, mixed=mixing is not None, timesteps=timesteps)
        states_per_token = codec.digits if isinstance(codec, DigitCodec) else 1
        kind = (
            ProjectedSphericalDiffusion
            if projected
            else DigitSphericalDiffusion
            if base is not None and codes == "valid"
            else SphericalDiffusion
        )
        process = kind(
            codec,
            bridge,
            [Start(point, law) for point, law in zip(points, laws, strict=True)],
            _clock(clock, window, laws[0].times),
            start_probabilities=None if mixing is None else shares(mixing, laws[0].times),
            loss=loss,  # type: ignore[arg-type]
            switch=switch,
            exact=transitions == "exact",
            chain=timesteps is not None,
            rolling=_stagger(stagger, order, states_per_token, window, timesteps),
            path="any-order" if in_turn else "joint",
            any_order=AnyOrder(order, states_per_token),  # type: ignore[arg-type]
            any_order_fraction=any_order_fraction,
        )
        return _model(process, length, network, input, digits, self_conditioning, posterior_head)

    return build


rdlm = _builder(lambda d, total_noise: LogBridge(total_noise))
rdlm_heat = _builder(HeatBridge.on, "in-turn")


def _model(
    process: SphericalDiffusion,
    length: int,
    network: NetworkConfig | None,
    input: str,
    digits: str,
    self_conditioning: bool | float,
    posterior_head: bool | None,
) -> Model:
    denoiser: Denoiser | None = None
    if network is not None:
        denoiser = _network(process, length, network, input, digits == "heads", self_conditioning)
        reads_states = isinstance(process, ProjectedSphericalDiffusion) or input == "state"
        if posterior_head or (posterior_head is None and reads_states):
            denoiser = PosteriorHead(denoiser, process.add_evidence)
    return Model(process, denoiser, length=length, block=length)


def _codec(vocab_size: int, base: int | None, codes: str) -> Codec:
    if base is None:
        if codes != "valid":
            raise UserError("codes=published is about digits; give a base as well.")
        return VertexCodec(vocab_size)
    return DigitCodec(vocab_size, base, smallest_first=codes == "published")


def _scheduled(
    kind: type[PublishedSphericalDiffusion],
    codec: Codec,
    bridge: Bridge,
    points: list[Tensor],
    transitions: str,
    rho_scale: float,
    *,
    schedule: str,
    **options: Any,
) -> PublishedSphericalDiffusion:
    """The process of protocol=published."""
    d, cosines = codec.num_classes + 1, [float(point[0]) for point in points]
    laws = tabulate_bridges_at(bridge, d, cosines, 1 - noise_left(schedule, table_times()))
    normals = None
    if transitions != "exact":
        published = transitions == "published"
        # A last row at τ = 1, where the mean is the vertex and ρ = 0.
        rows = [
            torch.cat(
                [
                    fit_normal(law, d, cosine, published=published, scale=rho_scale),
                    torch.tensor([[math.sqrt(1 - cosine**2)], [0.0]]),
                ],
                dim=1,
            )
            for law, cosine in zip(laws, cosines, strict=True)
        ]
        normals = torch.stack(rows)
    begun = [Start(point, law) for point, law in zip(points, laws, strict=True)]
    return kind(codec, bridge, begun, schedule=schedule, normals=normals, **options)


def _network(
    process: SphericalDiffusion,
    length: int,
    network: NetworkConfig,
    input: str,
    heads: bool,
    self_conditioning: bool | float,
) -> Denoiser:
    # Beliefs are likelihoods, and tokens depend on states through them alone: the time says nothing more.
    codec, reads_time = process.codec, input == "state"
    inner: Denoiser
    if isinstance(process, ProjectedSphericalDiffusion):
        if codec.vocab_size < network.width + 3:
            raise UserError(f"projected=True is for vocabularies larger than the width of {network.width}.")
        return FullTransformer(codec, length, network, reads_time=True)
    if isinstance(codec, DigitCodec) and heads:
        if self_conditioning:
            raise UserError("Self-conditioning needs digits=positions.")
        inner = DigitTransformer(codec, length, network, reads_time=reads_time)
    else:
        if isinstance(codec, DigitCodec) and network.signal:
            raise UserError("A signal stands along tokens and not along their digits; leave out base.")
        states = length * codec.digits if isinstance(codec, DigitCodec) else length
        inner = FullTransformer(codec, states, network, reads_time=reads_time)
        if self_conditioning:
            inner.stem = CoordinateStem(2 * codec.num_classes, network.width)
            probability = 0.5 if self_conditioning is True else self_conditioning
            inner = SelfConditioning(inner, codec.num_classes, codec.num_classes, probability=probability)
    return BeliefInput(inner, process.log_likelihood) if input == "belief" else inner


def _clock(name: str, window: list[float] | None, times: Tensor) -> TimeSampler:
    even = uniform_density(len(times))
    if name in ("information", "even"):
        if window is not None:
            raise UserError("A window belongs to the clocks geometric, linear and cosine.")
        return TimeSampler(even, None if name == "information" else even)
    law = rdlm_time_density(name, times)
    if window is None:
        return TimeSampler(law, law)
    return TimeSampler(law, rdlm_importance_density(name, times, *_window(window)))


def _window(window: list[float]) -> tuple[float, float]:
    if len(window) != 2 or not 0 <= window[0] < window[1] <= 1:
        raise UserError(f"A window is two times [left, right] between 0 and 1, not {window}.")
    return window[0], window[1]


def _stagger(
    spread: float, order: str, states_per_token: int, window: list[float] | None, timesteps: int | None
) -> RollingOffsets | None:
    if not 0 <= spread < 1:
        raise UserError(f"stagger is a share of the time, from 0 (all positions at once) to below 1, not {spread}.")
    if spread == 0:
        return None
    if window is not None or timesteps is not None:
        raise UserError("Staggered positions have no window and no fixed timesteps; leave these away, or stagger=0.")
    return RollingOffsets(spread, order, states_per_token)  # type: ignore[arg-type]


def _check_turns(in_turn: bool, taught: float, plain_loss: bool, *, mixed: bool, timesteps: int | None) -> None:
    if in_turn and (mixed or timesteps is not None):
        raise UserError("path=in-turn has no fixed timesteps and no start that changes with time; use path=together.")
    if not 0 <= taught < 1:
        raise UserError(f"any_order_fraction is a share of the sequences, from 0 to below 1, not {taught}.")
    if taught and not plain_loss:
        raise UserError("What is taught in turn is learnt by cross-entropy; leave the loss at that, without a switch.")


def _check_rho(rho_scale: float, transitions: str) -> None:
    if not rho_scale > 0:
        raise UserError(f"rho_scale must be above 0, not {rho_scale}.")
    if rho_scale != 1 and transitions == "exact":
        raise UserError(f"rho_scale={rho_scale} scales a Riemannian normal and needs transitions=normal or published.")


def _check_published(
    bridge: Bridge,
    clock: str,
    stagger: float,
    timesteps: int | None,
    projected: bool,
    path: str | None,
    any_order_fraction: float | None,
) -> None:
    if not isinstance(bridge, LogBridge):
        raise UserError("protocol=published is that of rdlm and its log bridge; rdlm-heat has protocol=bound.")
    if clock not in SCHEDULES:
        raise UserError(
            f"protocol=published needs clock={', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}, not '{clock}'."
        )
    if stagger or timesteps is not None or projected or path == "in-turn" or any_order_fraction:
        raise UserError(
            "protocol=published moves all positions together in continuous time: it allows no stagger, timesteps, "
            "projected, path=in-turn or any_order_fraction."
        )


def default_noise(d: int) -> float:
    """Total noise V such that noise has a squared norm of about 0.4 where tokens become clear.

    Tokens among d become clear at s ≈ 1.6 V (log d + 3), where the noise V s d has that norm; for d = 28 this is the
    0.0376 of the paper's schedule.
    """
    return math.sqrt(0.4 / (1.62 * d * (math.log(d) + 3)))
