"""Sampling: texts of a run, from a prompt, around gaps, for a condition or a length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logosphere.data.tokenizers import IntegerTokenizer, Prompt, TokenIds, encode_hold, encode_infill, encode_prompt
from logosphere.errors import UserError, check_count, shorten, suggest
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.networks.cache_probe import CacheReport
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.pretrained import PREFIX, default_pretrained, sampling_defaults
from logosphere.rng import as_generator
from logosphere.runs.chat import GEN_LENGTH, apply_template, cut_answer
from logosphere.runs.run import Run, latest_or_pretrained
from logosphere.runs.settings import ClassifierGuidance, SampleConfig
from logosphere.runs.structured import cut_text, find_constraint
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.sampling.constraints import generate_long, with_length
from logosphere.sampling.generate import Generation, generate
from logosphere.sampling.guidance import Guide
from logosphere.sampling.layout import generates_parts
from logosphere.sampling.loop import GRIDS, Frame
from logosphere.sampling.published import start_token
from logosphere.sampling.sampler import Sampler
from logosphere.sampling.structured.constraint import Constraint
from logosphere.sampling.trajectory import Recorder, Trajectory, TrajectoryFrame
from logosphere.types import Condition, TextTokenizer, Tokens
from logosphere.untrusted import open_regular

RENOISED = (
    "This model was trained without known positions, so the text around them is approximate; "
    "train with --task infilling for exact conditioning."
)

LONG = 1024
"""Positions of imported models of which a part is generated unless the user says; others are generated whole."""


@dataclass(frozen=True)
class Samples:
    """Texts of a run, and what they cost."""

    run: Run
    texts: list[str]
    tokens: Tokens
    nfe: float
    """Network evaluations per text."""
    seconds: float
    trajectory: Trajectory | None
    """The record of the sampling, if requested."""
    cache: CacheReport | None = None
    """What a cache of keys and values gained, and how far it changed predictions; None for exact predictions."""
    answers: list[list[int]] | None = None
    """In a chat the tokens of each answer, which its text is of."""


def sample_run(
    run: Run | str | Path | None = None,
    config: SampleConfig | None = None,
    *,
    record: bool = False,
    watch: Callable[[Run, Prompt | None, TrajectoryFrame], None] | None = None,
    notify: Callable[[str], None] = lambda message: None,
    group: ProcessGroup = SINGLE,
) -> Samples:
    """Texts of a run; without one, of the run trained last, or else of the bundled default model.

    With `record` the trajectory of the sampling is kept; `watch` is called after every step of it. `notify` is called
    with remarks for the user. The processes of a `group` share the texts, and all get them.
    """
    config = config or SampleConfig()
    config.check()
    run, config = _choose(run, config, notify)
    model = run.model(config.weights).place(find_device(run.config.device))
    chatting = bool(config.chat)
    config = apply_template(model, run.tokenizer, config) if chatting else _limit_length(model, run, config, notify)
    start = None if chatting else start_token(model)  # a chat template writes it where it belongs
    given = _known_text(model, run.tokenizer, config, start)
    recorder = Recorder(model) if record or watch is not None else None

    def see(frame: Frame) -> None:
        assert recorder is not None
        recorded = recorder.record(frame)
        if watch is not None:
            watch(run, given, recorded)

    before = 0 if given is None else int(given.known.sum()) if chatting else int(start is not None)
    constraint = find_constraint(model, config, before)
    drawn = _draw(run, model, given, config, constraint, None if recorder is None else see, notify, group)
    tokenizer = run.tokenizer
    rows, answers = drawn.tokens.tolist(), None
    if chatting and given is not None:
        rows = answers = [cut_answer(model, row, before) for row in rows]
    elif constraint is not None:
        rows = [cut_text(row, constraint) for row in rows]
    texts = [tokenizer.decode(row) for row in rows]
    trajectory = None if recorder is None else recorder.trajectory
    return Samples(run, texts, drawn.tokens, drawn.nfe, drawn.seconds, trajectory, drawn.cache, answers)


def _choose(
    run: Run | str | Path | None, config: SampleConfig, notify: Callable[[str], None]
) -> tuple[Run, SampleConfig]:
    """The run to sample from, and the settings with every default filled in."""
    infilling = bool(config.infill or config.hold or config.constrained)
    if isinstance(run, Run):
        chosen = run
    else:
        place = run or latest_or_pretrained(infilling=infilling, notify=notify)
        chosen = Run(place, trained=False, trust_references=config.trust_references)
    if remark := chosen.missing_average(config.weights):
        notify(remark)
    if run is None and chosen.path != default_pretrained(infilling):
        notify(f"From {chosen.path}, the run trained last; for another one: logosphere sample RUN")
    if config.temperature is not None:
        return chosen, config
    if run is not None or chosen.path != default_pretrained(infilling):
        return chosen, replace(config, temperature=1.0)
    best = sampling_defaults(chosen.path.name)
    decodes = bool(config.decoding.given())
    name = best.sampler if config.sampler == "auto" and not decodes else config.sampler
    length = config.length
    if length is None and not decodes and best.length is not None and not (config.infill or config.constrained):
        fits = min(best.length, chosen.config.length - 1)
        length = fits if 2 * len(chosen.tokenizer.encode(config.prompt)) < fits else None  # a long prompt needs room
    way = f"at a temperature of {best.temperature}" + (f" with the sampler '{name}'" if name != "auto" else "")
    way += "" if length == config.length else f", {length} tokens each"
    notify(
        f"There is no run here, so the bundled checkpoint {PREFIX}{chosen.path.name} generates, {way}; "
        "--temperature 1 samples from the model itself."
    )
    return chosen, replace(config, temperature=best.temperature, sampler=name, length=length)


def _limit_length(model: Model, run: Run, config: SampleConfig, notify: Callable[[str], None]) -> SampleConfig:
    """The settings with a part of the sequences of an imported model, which may have thousands of positions.

    A --length below that of the model is generated alone, instead of being cut from a whole sequence.
    """
    given = config.decoding.gen_length or config.infill or config.hold
    if model.spec is None or model.spec.published is None or given or not generates_parts(model):
        return config
    prefix = 0
    if config.prompt:
        prefix = int(encode_prompt(config.prompt, run.tokenizer, model.length, start_token(model)).known.sum())
    length = config.length
    if length is None and model.length > LONG:
        length = min(model.length, prefix + GEN_LENGTH)
        notify(
            f"Sequences of this model have {model.length:,} tokens, of which {length - prefix} are generated; "
            "--gen-length sets another number."
        )
    elif length is None or run.tokenizer.eos is not None or not prefix < length < model.length:
        return config
    return replace(config, length=None, decoding=replace(config.decoding, gen_length=length - prefix))


def _known_text(model: Model, tokenizer: TextTokenizer, config: SampleConfig, start: int | None) -> Prompt | None:
    """The tokens of the prompt or of the text around gaps, after the token `start`; or those of what is held."""
    prompt, infill, hold = config.prompt, config.infill, config.hold
    given: Prompt | None = None
    if prompt:
        given = encode_prompt(prompt, tokenizer, model.length, start)
    elif infill:
        given = encode_infill(infill, tokenizer, model.length, start)
    elif hold:
        given = encode_hold(hold, tokenizer, model.length)
    if given is not None:
        model.check_known(given.known)
    return given


def _draw(
    run: Run,
    model: Model,
    given: Prompt | None,
    config: SampleConfig,
    constraint: Constraint | None,
    watch: Callable[[Frame], None] | None,
    notify: Callable[[str], None],
    group: ProcessGroup,
) -> Generation:
    renoises = run.needs_renoise(model)
    fixes_end = config.length is not None and run.tokenizer.eos is not None and config.length < model.length
    if renoises and ((given is not None and bool(given.known.any())) or fixes_end):
        notify(RENOISED)
    ends_known = fixes_end and constraint is not None
    rng = as_generator(config.seed, model.device)
    guide = classifier_guide(config.by_classifier, run, model, config.label, config.n)
    label = "" if guide is not None else config.label  # a classifier guides in place of the model's own condition

    def write(denoiser: Denoiser | None, known: Tensor | None, tokens: Tensor | None) -> Generation:
        return generate(
            model,
            n=config.n,
            steps=config.steps,
            rng=rng,
            denoiser=denoiser,
            known=known,
            tokens=tokens,
            sampler=None if config.sampler == "auto" else config.sampler,
            grid=GRIDS.get(config.grid),
            temperature=1.0 if config.temperature is None else config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p,
            greedy_end=config.greedy_end,
            condition=find_condition(run, label, config.source, config.signal, config.n),
            guidance=config.guidance,
            guide=guide,
            precision=config.precision,
            decoding=config.decoding,
            constraint=constraint,
            particles=config.particles,
            renoise_known=renoises and (ends_known or (known is not None and bool(known.any()))),
            watch=watch,
            group=group,
        )

    if constraint is not None:
        drawn = write(None, None if given is None else given.known, None if given is None else given.tokens)
        whole = constraint.end is not None  # the text is followed by further ends
        return drawn if whole else replace(drawn, tokens=drawn.tokens[:, : constraint.stop])
    return _with_length(write, model, run.tokenizer, given, config.length, config.overlap)


Write = Callable[[Denoiser | None, Tensor | None, Tensor | None], Generation]
"""(denoiser in place of the model's, known positions, their tokens) -> sequences of the model's length."""


def _with_length(
    write: Write,
    model: Model,
    tokenizer: TextTokenizer,
    given: Prompt | None,
    length: int | None,
    overlap: int | None = None,
) -> Generation:
    """Sequences around known tokens, of a requested length if there is one."""
    known, tokens = (None, None) if given is None else (given.known, given.tokens)
    if length is None:
        return write(None, known, tokens)
    if tokenizer.eos is not None:
        wanted = with_length(model, tokenizer.eos, length, known, tokens)
        return write(wanted.denoiser, wanted.known, wanted.tokens)
    overlap = model.length // 2 if overlap is None else overlap
    return generate_long(
        partial(write, None), window=model.length, length=length, overlap=overlap, known=known, tokens=tokens
    )


def generate_text(
    model: Model,
    prompt: str = "",
    n: int = 1,
    steps: int = 64,
    rng: torch.Generator | int | None = None,
    *,
    infill: str = "",
    length: int | None = None,
    sampler: Sampler | str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float = 0.0,
    greedy_end: bool = False,
    condition: Condition | None = None,
    guidance: float = 1.0,
    guide: Guide | None = None,
    renoise_known: bool | None = None,
    precision: str = "float32",
    constraint: Constraint | None = None,
    particles: int = 1,
) -> list[str]:
    """n texts of a model that has a tokenizer, after a `prompt` or around the gaps of `infill` ("the [....] of").

    `length` and the other arguments are those of `logosphere sample`; `rng` may be a seed. With `renoise_known` the
    network sees known tokens as noisy as the rest: by default if it reads the time, because such a network was trained
    without clean tokens among noisy ones unless its batches had known positions. A `constraint` (`ls.constrain`) is
    on the whole text, with what is known of it.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UserError("This model has no tokenizer: set model.tokenizer, or draw token ids with ls.sample.")
    for name, text in (("prompt", prompt), ("infill", infill)):
        if not isinstance(text, str):
            raise UserError(f"{name} must be a string, not {shorten(text)}.")
    if prompt and infill:
        raise UserError("Give either prompt or infill; an infill text may begin with a prompt.")
    if length is not None:
        check_count("length", length)
    renoises = model.process.time_conditional if renoise_known is None else renoise_known
    seed = as_generator(0 if rng is None else rng, model.device)

    def write(denoiser: Denoiser | None, known: Tensor | None, tokens: Tensor | None) -> Generation:
        return generate(
            model,
            n,
            steps,
            seed,
            denoiser,
            known,
            tokens,
            sampler=sampler,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            greedy_end=greedy_end,
            renoise_known=renoises and known is not None and bool(known.any()),
            condition=condition,
            guidance=guidance,
            guide=guide,
            precision=precision,
            constraint=constraint,
            particles=particles,
        )

    config = SampleConfig(prompt=prompt, infill=infill)
    given = _known_text(model, tokenizer, config, start_token(model))
    if constraint is not None:
        if length is not None:
            raise UserError("A constraint has a length of its own: ls.constrain(model, …, length=…).")
        drawn = write(None, None if given is None else given.known, None if given is None else given.tokens)
        return [tokenizer.decode(cut_text(row, constraint)) for row in drawn.tokens.tolist()]
    drawn = _with_length(write, model, tokenizer, given, length)
    return [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]


def find_condition(run: Run, label: str, source: str, signal: Path | None, n: int) -> Condition | None:
    """The condition of n texts: a label, a source or a signal; None when none is given."""
    if not label and not source and signal is None:
        return None
    labels = sources = signals = None
    if label:
        labels = torch.full((n,), _label_index(label, run))
    if source:
        sources = torch.from_numpy(_encode_source(source, run)).expand(n, -1)
    if signal is not None:
        signals = torch.from_numpy(_read_signal(signal, run, n))
    return Condition.of(labels=labels, source=sources, signal=signals)


def _encode_source(source: str, run: Run) -> TokenIds:
    """A source in its own alphabet: that of the texts, unless both are integers and sources have more of them."""
    size = run.conditions["source"]
    if not size:
        raise UserError(f"The model in {run.path} was trained without sources; leave out --source.")
    tokenizer = run.tokenizer
    return (IntegerTokenizer(size) if isinstance(tokenizer, IntegerTokenizer) else tokenizer).encode(source)


def _read_signal(path: Path, run: Run, n: int) -> npt.NDArray[np.float32]:
    """The signals [n, L, C] of n texts, from a file that holds one for all of them or one for each."""
    channels, length = run.conditions["signal"], int(run.config.length)
    if not channels:
        raise UserError(f"The model in {run.path} was trained without a signal; leave out --signal.")
    try:
        with open_regular(path) as file:
            found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(f"{path} cannot be read as a .npy file ({problem}).") from None
    if found.shape == (length,) and channels == 1:
        found = found[:, None]
    if found.shape not in ((length, channels), (n, length, channels)) or found.dtype.kind not in "fiu":
        raise UserError(
            f"{path} must hold {length} × {channels} numbers, or as many for each of {n} texts, not {found.shape}."
        )
    if not np.isfinite(found).all():
        raise UserError(f"{path} holds numbers that are not finite.")
    return np.broadcast_to(found, (n, length, channels)).astype(np.float32)


def _label_index(label: str, run: Run) -> int:
    names = run.labels
    if not names:
        raise UserError(f"The model in {run.path} was trained without labels; leave out --label.")
    if label not in names:
        raise UserError(f"There is no label '{label}'.{suggest(label, names)}")
    return names.index(label)


def classifier_guide(settings: ClassifierGuidance, run: Run, model: Model, label: str, n: int) -> Guide | None:
    """The guide of n texts towards a label, or None where there is no classifier."""
    if settings.classifier is None:
        return None
    checkpoint = ClassifierCheckpoint.load(settings.classifier, model, run.tokenizer.fingerprint)
    strength = 1.0 if settings.strength is None else settings.strength
    return checkpoint.guide(model, label, n, strength, exact=settings.exact_edits)
