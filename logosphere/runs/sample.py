"""Sampling: texts of a run, from a prompt, around gaps, for a condition or a length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logosphere.data.tokenizers import IntegerTokenizer, Prompt, TokenIds, WithEOS, encode_infill, encode_prompt
from logosphere.errors import UserError, suggest
from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.pretrained import PREFIX, default_pretrained, sampling_defaults
from logosphere.runs.run import Run, latest_or_pretrained
from logosphere.runs.settings import ClassifierGuidance, SampleConfig
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.sampling.constraints import generate_long, with_length
from logosphere.sampling.generate import Generation, generate
from logosphere.sampling.guidance import Guide
from logosphere.sampling.loop import GRIDS, Frame
from logosphere.sampling.registry import sampler
from logosphere.sampling.trajectory import Recorder, Trajectory, TrajectoryFrame
from logosphere.types import Condition, Tokens

RENOISED = (
    "This model was trained without known positions, so the text around them is approximate; "
    "train with --task infilling for exact conditioning."
)


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
    model = run.model(config.weights).to(find_device(run.config.device))
    given = _known_text(run, model, config)
    recorder = Recorder(model) if record or watch is not None else None

    def see(frame: Frame) -> None:
        assert recorder is not None
        recorded = recorder.record(frame)
        if watch is not None:
            watch(run, given, recorded)

    drawn = _draw(run, model, given, config, None if recorder is None else see, notify, group)
    tokenizer = run.tokenizer
    texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    trajectory = None if recorder is None else recorder.trajectory
    return Samples(run, texts, drawn.tokens, drawn.nfe, drawn.seconds, trajectory)


def _choose(
    run: Run | str | Path | None, config: SampleConfig, notify: Callable[[str], None]
) -> tuple[Run, SampleConfig]:
    """The run to sample from, and the settings with every default filled in."""
    chosen = run if isinstance(run, Run) else Run(run or latest_or_pretrained())
    if config.temperature is not None:
        return chosen, config
    if run is not None or chosen.path != default_pretrained():
        return chosen, replace(config, temperature=1.0)
    best = sampling_defaults(chosen.path.name)
    name = best.sampler if config.sampler == "auto" else config.sampler
    way = f"at a temperature of {best.temperature}" + (f" with the sampler '{name}'" if name != "auto" else "")
    notify(
        f"There is no run here, so the bundled checkpoint {PREFIX}{chosen.path.name} generates, {way}; "
        "--temperature 1 samples from the model itself."
    )
    return chosen, replace(config, temperature=best.temperature, sampler=name)


def _known_text(run: Run, model: Model, config: SampleConfig) -> Prompt | None:
    """The tokens of the prompt or of the text around gaps."""
    given: Prompt | None = None
    if config.prompt:
        given = encode_prompt(config.prompt, run.tokenizer, model.length)
    elif config.infill:
        given = encode_infill(config.infill, run.tokenizer, model.length)
    if given is not None:
        model.check_known(given.known)
    return given


def _draw(
    run: Run,
    model: Model,
    given: Prompt | None,
    config: SampleConfig,
    watch: Callable[[Frame], None] | None,
    notify: Callable[[str], None],
    group: ProcessGroup,
) -> Generation:
    known, tokens = (None, None) if given is None else (given.known, given.tokens)
    denoiser, length, tokenizer = None, config.length, run.tokenizer
    if length is not None and isinstance(tokenizer, WithEOS):
        wanted = with_length(model, tokenizer.eos, length, known, tokens)
        denoiser, known, tokens, length = wanted.denoiser, wanted.known, wanted.tokens, None
    renoise = known is not None and bool(known.any()) and run.needs_renoise(model)
    if renoise:
        notify(RENOISED)
    rng = torch.Generator(model.device).manual_seed(config.seed)
    method = sampler(model.sampler if config.sampler == "auto" else config.sampler, model)
    guide = classifier_guide(config.by_classifier, run, model, config.label, config.n)
    label = "" if guide is not None else config.label  # a classifier guides in place of the model's own condition

    def write(known: Tensor | None, tokens: Tensor | None) -> Generation:
        return generate(
            model,
            n=config.n,
            steps=config.steps,
            rng=rng,
            denoiser=denoiser,
            known=known,
            tokens=tokens,
            sampler=method,
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
            renoise_known=renoise,
            watch=watch,
            group=group,
        )

    if length is None:
        return write(known, tokens)
    overlap = model.length // 2 if config.overlap is None else config.overlap
    return generate_long(write, window=model.length, length=length, overlap=overlap, known=known, tokens=tokens)


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
        found = np.load(path, allow_pickle=False)
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
