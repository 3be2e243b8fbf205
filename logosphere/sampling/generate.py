"""Generation of sequences: the sampling loop with a sampler, filters, conditions and guidance."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from logosphere.errors import UserError, check_count, check_number, shorten
from logosphere.inputs import IdsLike, as_id_rows, as_mask
from logosphere.model import Model
from logosphere.networks.base import CachePlan, Denoiser, check_block
from logosphere.networks.cache_probe import CacheProbe, CacheRecord, CacheReport
from logosphere.networks.conditioning import check_guidable
from logosphere.networks.guidance import PromptGuidance
from logosphere.networks.own import as_denoiser
from logosphere.networks.precision import casts_kept, find_precision, with_precision
from logosphere.networks.wrappers import ActiveRows, CachedDenoiser, CountedDenoiser, LogitsFilter, NFECounter
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import CounterNoise, RowSeeds, as_generator, draw_key
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.guidance import GuidanceConfig, Guide
from logosphere.sampling.layout import arrange, check_steps, count_prefix
from logosphere.sampling.loop import Frame, Grid, TimeGrid, find_grid, sample_loop
from logosphere.sampling.registry import choose_sampler
from logosphere.sampling.sampler import Sampler
from logosphere.sampling.steppers import GreedyLastStep, Rule, Stepper, ancestral, as_stepper
from logosphere.sampling.steppers.unmasking import MASKED
from logosphere.sampling.structured.constraint import Constraint
from logosphere.sampling.structured.generation import ConstrainedGeneration
from logosphere.types import Batch, Condition, Tokens, check_condition


@dataclass(frozen=True)
class Generation:
    """Sequences, and their cost."""

    tokens: Tokens
    nfe: float
    """Network evaluations per sequence."""
    seconds: float
    cache: CacheReport | None = None
    """What a cache that makes predictions approximate gained and cost, by the sequences of this process."""


def generate(
    model: Model,
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | int | RowSeeds | None = None,
    denoiser: nn.Module | None = None,
    known: IdsLike | None = None,
    tokens: IdsLike | None = None,
    *,
    sampler: Sampler | str | None = None,
    stepper: Stepper | Rule | None = None,
    grid: Grid | str | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    greedy_end: bool = False,
    renoise_known: bool = False,
    condition: Condition | None = None,
    guidance: float = 1.0,
    guide: Guide | None = None,
    precision: str = "float32",
    decoding: DecodingConfig | None = None,
    constraint: Constraint | None = None,
    particles: int = 1,
    watch: Callable[[Frame], object] | None = None,
    until: Callable[[Frame], bool] | None = None,
    group: ProcessGroup = SINGLE,
) -> Generation:
    """Sample n sequences; where `known`, they are `tokens`, and the rest is sampled conditioned on them.

    With a `condition` samples are conditioned on it, the more strongly the larger `guidance` (1: the model as trained);
    a `guide` (sampling/guidance.py) adds guidance by a classifier of noisy states.

    `sampler` is a name (`logosphere samplers`) or an object, by default that of the model's system; `rng` may be a
    seed, or hold one for each sequence (`RowSeeds`). `stepper`, `grid` (or its name) and `cached` make a custom
    sampler. `greedy_end` takes the likeliest tokens in the last step; the network computes in `precision` (float32,
    bfloat16 or auto). `decoding` are options of published decoding loops: lengths, blocks, thresholds and caches. A
    `constraint` (`ls.constrain`) keeps texts in a language, with `particles` for each that correct its look-ahead
    (docs/structured-output.md). `watch` is called with every frame. Sampling ends after the first frame for which
    `until` holds; tokens that are not determined by then are HIDDEN.
    The processes of a `group` share the sequences and all get them: a sequence depends only on the seed and its number.
    """
    n, steps = check_count("The number of samples", n), check_count("The number of steps", steps)
    _check_filters(temperature, top_p, top_k, min_p, guidance)
    given = model.denoiser if denoiser is None else denoiser
    if given is None:
        raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
    network = as_denoiser(given, model.process, model.length, model.block)
    if condition is not None:
        check_condition(condition, n)
    dtype = find_precision(precision, model.network_device)
    decoding = decoding or DecodingConfig()
    decoding.check()
    batch = _known_batch(model, n, known, tokens)
    if not network.answers_first:
        batch = _give_first(model, batch)
    prefix = count_prefix(batch.known)
    sampler = _choose_sampler(model, sampler, stepper, decoding, prefix)
    layout = arrange(model, prefix, decoding, sampler)
    plan = None if layout is None else layout.cache_plan(decoding)
    batch = batch if layout is None else layout.cut(batch)
    cached = (cached or sampler.cached) and plan is None and particles == 1
    stepper = as_stepper(sampler.stepper).begin_sampling()
    language: ConstrainedGeneration | None = None
    if constraint is not None:
        end = batch.tokens.shape[1] if layout is None else layout.end
        language = ConstrainedGeneration(constraint, particles, model, batch, end)
        guided = guide is not None or guidance != 1 or bool(decoding.cfg_scale)
        language.check(stepper, guided=guided, watched=watch is not None, alone=group.size == 1)
        batch, condition = language.batch, language.repeat_condition(condition)
    elif particles != 1:
        raise UserError("particles belong to a constraint; pass constraint=… or leave them out.")
    if constraint is None and (own := stepper.with_filters(temperature, top_p, top_k)) is not None:
        stepper, temperature, top_p, top_k = own, 1.0, 1.0, None
    filtered = (temperature, top_p, top_k, min_p) != (1, 1, None, 0)
    _check_stepper(stepper, network, filtered)
    if filtered and not model.process.predicts_tokens:
        raise UserError("This model predicts states, not tokens, so temperature, top_k, top_p and min_p do not apply.")
    if guide is not None:
        guide.check(model.process, n)
    if greedy_end and guidance != 1 and model.process.guides_transitions:
        raise UserError("greedy_end needs guided predictions, but guidance acts on the transitions of this model.")
    rows, counter = group.local_slice(len(batch)), NFECounter()
    batch = batch.select(rows)
    noise = _make_noise(rng, batch, rows, n * particles, model.device)
    condition = None if condition is None else condition.map(lambda field: field[rows].to(model.device))
    guide = None if guide is None or not guide.strength else guide.part(rows).with_counter(counter)
    grid = find_grid(grid) or find_grid(sampler.grid) or partial(stepper.grid, model.process)
    if layout is None:
        time_grid = model_time_grid(model, stepper.steps(model.length, steps), grid, sampler.blocks)
    else:
        wanted = stepper.steps(layout.stop - layout.first, steps)
        time_grid = layout.time_grid(wanted, grid, model.process.max_steps)
    record = CacheRecord() if plan is not None and model.block == model.length else None
    started = time.perf_counter()
    with _evaluation_mode(model, network), casts_kept(dtype, model.device):
        # A cache of predictions excludes the state of a sampling run, and so do evaluations of some rows.
        network = with_precision(network, dtype)
        stateful = not (cached or stepper.adaptive or particles > 1)
        conditional, unconditional = _bind_condition(
            network, condition, guidance, counter, stateful=stateful, plan=plan, record=record
        )
        if decoding.cfg_scale:
            _check_prompt_guidance(model, batch, guidance)
            hidden, _ = _bind_condition(network, condition, 1.0, counter, stateful=stateful, plan=plan)
            conditional = PromptGuidance(conditional, hidden, batch.known, model.vocab_size, decoding.cfg_scale)
        config = GuidanceConfig(guidance, unconditional, temperature, guide)
        predict, stepper = config.apply(model.process, conditional, stepper)
        stepper = GreedyLastStep(stepper) if greedy_end else stepper
        stepper = stepper if language is None else language.apply(stepper, batch)
        predict = ActiveRows(predict) if stepper.adaptive else predict
        predict = LogitsFilter(predict, temperature, top_p, top_k, min_p) if filtered else predict
        predict = CachedDenoiser(predict) if cached else predict
        drawn = batch.tokens
        if len(batch):  # of many processes some may have no sequences
            for frame in sample_loop(
                model.process, predict, time_grid, batch, noise, stepper,
                renoise_known=renoise_known, watched=watch is not None,
            ):  # fmt: skip
                if watch is not None:
                    watch(frame)
                if until is not None and until(frame):
                    break
            codec = model.process.codec
            if frame.step < frame.steps:
                drawn = frame.tokens
            else:
                drawn = codec.decode(frame.z) if language is None else language.decode(frame.z, batch, noise)
        seconds = time.perf_counter() - started
        cache = None if record is None else record.report()
    drawn = drawn if layout is None else drawn[:, : layout.end]
    (evaluations,) = group.all_reduce(counter.sequences + stepper.extra_nfe)
    return Generation(group.all_gather(drawn, n), evaluations / n, seconds, cache)


def sample(
    model: Model,
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | int | None = None,
    denoiser: nn.Module | None = None,
    known: IdsLike | None = None,
    tokens: IdsLike | None = None,
    *,
    sampler: Sampler | str | None = None,
    stepper: Stepper | Rule | None = None,
    grid: Grid | str | None = None,
    cached: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    condition: Condition | None = None,
    guidance: float = 1.0,
    guide: Guide | None = None,
    precision: str = "float32",
    decoding: DecodingConfig | None = None,
    constraint: Constraint | None = None,
    particles: int = 1,
) -> Tokens:
    """The tokens of `generate`, [n, L]."""
    drawn = generate(
        model, n, steps, rng, denoiser, known, tokens, sampler=sampler, stepper=stepper, grid=grid, cached=cached,
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, condition=condition, guidance=guidance,
        guide=guide, precision=precision, decoding=decoding, constraint=constraint, particles=particles,
    )  # fmt: skip
    return drawn.tokens


def _make_noise(
    rng: torch.Generator | int | RowSeeds | None, batch: Batch, rows: slice, n: int, device: torch.device
) -> CounterNoise:
    """The noise of the sequences of this process."""
    if isinstance(rng, RowSeeds):
        if len(rng) != n:
            raise UserError(f"There must be a seed for each of {n} sequences, not {len(rng)}.")
        return rng.noise(device, rows)
    key = draw_key(as_generator(0 if rng is None else rng, device))
    return CounterNoise(key, 0, batch.ids, batch.global_index, n)


def _choose_sampler(
    model: Model, sampler: Sampler | str | None, stepper: Stepper | Rule | None, decoding: DecodingConfig, prefix: int
) -> Sampler:
    if stepper is not None and not callable(stepper):
        raise UserError(f"stepper must be an object of ls.steppers or a rule, not {shorten(stepper)}.")
    if stepper is not None and sampler is not None:
        raise UserError("Pass either sampler=… or stepper=…, not both.")
    if sampler is not None and not isinstance(sampler, Sampler | str):
        raise UserError(f"sampler must be a name (logosphere samplers) or an ls.Sampler, not {shorten(sampler)}.")
    if stepper is None and not isinstance(sampler, Sampler):
        return choose_sampler(model, sampler or "auto", decoding, prefix)
    decoding.check_general()
    return sampler if isinstance(sampler, Sampler) else Sampler(ancestral if stepper is None else stepper)


def _check_prompt_guidance(model: Model, batch: Batch, guidance: float) -> None:
    """Raise UserError where there is no prompt that could be hidden."""
    if not MASKED.is_met(model.process) or model.process.codec.num_classes != model.vocab_size:
        raise UserError("cfg_scale hides the prompt behind masks, so it needs masked diffusion such as mdlm.")
    if guidance != 1:
        raise UserError("cfg_scale and guidance cannot be used together; leave out one of them.")
    if len(batch) and not bool(batch.known.any()):
        raise UserError("cfg_scale needs known tokens that can be hidden: give a prompt, or leave it out.")


def _check_filters(temperature: object, top_p: object, top_k: object, min_p: object, guidance: object) -> None:
    """Refuse what is no number; the ranges are checked by `LogitsFilter`."""
    named = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "guidance": guidance}
    for name, value in named.items():
        check_number(name, value)
    if top_k is not None:
        check_count("top_k", top_k)


def _check_stepper(stepper: Stepper, network: Denoiser, filtered: bool) -> None:
    if stepper.time_free and network.reads_time:
        raise UserError("This sampler needs a model without time conditioning; use ancestral.")
    if stepper.unfiltered and filtered:
        raise UserError("This sampler scores tokens by the model's own probabilities; use it without filters.")


@contextmanager
def _evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Modules in evaluation mode, and afterwards each submodule in its mode before."""
    before = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training


def _bind_condition(
    network: Denoiser,
    condition: Condition | None,
    guidance: float,
    counter: NFECounter,
    *,
    stateful: bool,
    plan: CachePlan | None = None,
    record: CacheRecord | None = None,
) -> tuple[Denoiser, Denoiser | None]:
    """The counted denoiser with its condition; and, for guidance, the one without it.

    The evaluations of a cache (`plan`) are recorded.
    """

    def counted(denoiser: Denoiser) -> Denoiser:
        if plan is not None:
            session = denoiser.with_cache(plan)
            return CountedDenoiser(session if record is None else CacheProbe(session, denoiser, record), counter)
        return CountedDenoiser(denoiser.begin_sampling() if stateful else denoiser, counter)

    if condition is None:
        if guidance != 1:
            raise UserError(f"guidance={guidance} needs a condition; pass condition=… or leave guidance at 1.")
        return counted(network), None
    conditional = network.with_condition(condition)
    if guidance == 1:
        return counted(conditional), None
    check_guidable(network)
    unconditional = network.with_condition(condition.drop(torch.ones_like(condition.given)))
    return counted(conditional), counted(unconditional)


def model_time_grid(model: Model, steps: int, grid: Grid | None = None, blocks: int = 1) -> TimeGrid:
    """`steps` divided among the blocks of a model or sampler, and no more than its process can use."""
    if steps < 1:
        raise UserError(f"Sampling needs at least 1 step, not {steps}.")
    check_block(model.length, model.length // blocks)
    block = min(model.block, model.length // blocks)
    if model.block % block:
        raise UserError(
            f"The blocks of this model have {model.block} positions, which blocks of {block} positions do not divide; "
            "use a sampler without blocks such as confidence."
        )
    per_block = max(1, steps * block // model.length)
    if model.process.max_steps is not None:
        per_block = min(per_block, model.process.max_steps)
    check_steps(per_block, steps, model.length)
    return TimeGrid.blocks(model.length, block, per_block, grid or model.process.grid)


def _give_first(model: Model, batch: Batch) -> Batch:
    """The batch with the token that begins a text at position 0, where it is not known."""
    first = model.special_token("bos")
    if first is None and not bool(batch.known[:, 0].all()):
        raise UserError(
            "This model does not predict the first position, and its checkpoint names no token that begins a text: "
            "give a prompt, or known=… and tokens=… that hold position 0."
        )
    return batch.hold_first(first)


def _known_batch(model: Model, n: int, known: object, tokens: object) -> Batch:
    """n sequences with their known positions."""
    shape, device = (n, model.length), model.device
    if known is None or tokens is None:
        if known is not None or tokens is not None:
            raise UserError("Known positions need both known=… (positions) and tokens=… (their tokens).")
        return Batch.of(torch.zeros(shape, dtype=torch.long, device=device))
    known, tokens = as_mask(known, "known"), as_id_rows(tokens, "tokens")
    for name, field in (("known", known), ("tokens", tokens)):
        if field.shape[-1:] != shape[1:] or field.dim() > 2 or field.shape[:-1] not in ((), (1,), (n,)):
            raise UserError(
                f"{name} must have the shape [{model.length}] or [{n}, {model.length}] of {n} samples with the model's "
                f"length, not {list(field.shape)}."
            )
    known, tokens = known.to(device).expand(shape), tokens.to(device).expand(shape)
    model.check_known(known)
    if bool(((tokens < 0) | (tokens >= model.vocab_size))[known].any()):
        raise UserError(f"Known tokens must be from 0 to {model.vocab_size - 1}.")
    return Batch.of(torch.where(known, tokens, 0), known)
