"""Settings of all verbs but train: plain dataclasses without torch, which become options of the command line."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol, runtime_checkable

import tyro

from logosphere.errors import UserError
from logosphere.sampling.decoding import DecodingConfig

Split = Literal["train", "valid", "test"]
Weights = Literal["ema", "best", "model"]
Precision = Literal["auto", "float32", "bfloat16"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]
OrderName = Literal["left-to-right", "entropy", "margin", "confidence", "random"]

SEQUENCES = 1024
"""Sequences of an evaluation, if their number is not set."""
ORDER_SEQUENCES = 64
"""The same for an order of positions, which takes a network evaluation for each token of a sequence."""
GAPS = (1, 4, 16)
"""Tokens of the gaps of the infilling benchmark, unless others are named."""
INFILLING_SEQUENCES = 256
"""Sequences of the infilling benchmark, which samples each of them."""


@dataclass(frozen=True)
class EvaluateConfig:
    """The data and the settings of an evaluation."""

    data: str | None = None
    """Another corpus than the one trained on: a name, a file or a folder."""
    column: str = ""
    """The column of a table that holds its text; without it that of the training, or the only one that looks like
    text."""
    split: Split = "test"
    """Which part of the text. Tune on valid, report test."""
    sequences: int | None = None
    """Sequences to measure, spread over the split; 0 for all. 1,024 unless set, 256 for --infilling, and 64 for an
    order of positions."""
    draws: int | None = None
    """Draws of time and noise for each sequence: 4 unless set, and 1 with --protocol paper."""
    protocol: Literal["full", "paper"] = "full"
    """full: a bound over all of time. paper: as papers on masked diffusion report perplexities, without t < 0.001, in
    windows between BOS and EOS; a surrogate."""
    batch: int = 64
    """Sequences at a time; the result does not depend on it."""
    per: Literal["auto", "token", "character", "byte"] = "auto"
    """The unit of bits; auto: the unit of the tokenizer."""
    trust_references: bool = False
    """Open the data and the encoder that the recipe of a run names, although it was not written on this machine."""
    weights: Weights = "ema"
    """Averaged weights, the best of them on the validation split, or the live ones."""
    precision: Precision = "auto"
    """Precision of the network; auto: bfloat16 where the processor has instructions for it, else float32."""
    seed: int = 0
    """Fixes the noise."""


@dataclass(frozen=True)
class ImportConfig:
    """How a published checkpoint is imported; what is None is that of the checkpoint."""

    dtype: str = "auto"
    """Type of the weights: float32, bfloat16, or auto: that of the files, of others float32."""
    tokenizer: str | None = None
    """A tokenizer.json, its folder, text8 or byte."""
    mask_id: int | None = None
    shift: bool | None = None
    length: int | None = None
    block: int | None = None
    system: str | None = None

    def overrides(self) -> dict[str, str | int | bool]:
        """The conventions that are given."""
        given = {name: getattr(self, name) for name in ("system", "mask_id", "shift", "block", "length")}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class OrderConfig:
    """An order of positions to measure instead of the bound."""

    order: OrderName | None = None
    """The likelihood of samples that reveal one token at a time in this order, for masked diffusion and any-order
    sphere systems. It takes a network evaluation per token. random is a bound, the others are exact."""
    orders: int = 1
    """Random orders per sequence; the bound decreases with their number."""

    def check(self) -> None:
        """Raise for options that contradict each other."""
        if self.order is None and self.orders != 1:
            raise UserError("--orders is the number of random orders; add --order random.")


@dataclass(frozen=True)
class InfillingConfig:
    """Gaps to fill instead of the likelihood of whole sequences."""

    infilling: bool = False
    """Measure gaps cut from the text with both sides visible: exact match, token accuracy, bits per token of a gap."""
    gaps: tuple[int, ...] = GAPS
    """Tokens of the gaps; one gap for each sequence and length."""
    steps: int = 64
    """Steps of the sampler that fills the gaps."""
    sampler: str = "auto"
    """Name of the sampler; auto is the one of the system."""
    temperature: float = 1.0
    """Temperature of the samples; bits do not depend on it."""

    def check(self) -> None:
        """Raise for options that need --infilling."""
        changed = [name for name, value in vars(InfillingConfig()).items() if vars(self)[name] != value]
        if changed and not self.infilling:
            raise UserError(f"--{changed[0]} is an option of the infilling benchmark; add --infilling.")


@dataclass(frozen=True)
class TaskConfig:
    """Tasks of the lm-evaluation-harness instead of the likelihood of a text (extra 'eval')."""

    tasks: str = ""
    """Tasks of the lm-evaluation-harness, separated by commas, such as lambada_openai,arc_easy; --draws is 32 unless
    set."""
    tasks_folder: Path | None = None
    """A folder with definitions of further tasks (.yaml)."""
    limit: int | None = None
    """Documents of each task; all unless set."""
    task_steps: int = 64
    """Steps of the sampler, for tasks that generate."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.tasks.split(",") if name.strip()))

    def check(self) -> None:
        """Raise for options that need --tasks, and for values out of range."""
        if not self.names:
            if self.tasks:
                raise UserError(f"--tasks must name tasks separated by commas, not '{self.tasks}'.")
            if self.tasks_folder is not None or self.limit is not None:
                raise UserError("--tasks-folder and --limit belong to tasks; name them with --tasks.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit must be at least 1 document, not {self.limit}.")
        if self.task_steps < 1:
            raise UserError(f"--task-steps must be at least 1, not {self.task_steps}.")
        if self.tasks_folder is not None and not self.tasks_folder.is_dir():
            raise UserError(f"--tasks-folder must be a folder with .yaml files; there is none at {self.tasks_folder}.")


@dataclass(frozen=True)
class ClassifierGuidance:
    """Guidance by a classifier that `logosphere train-classifier` has trained."""

    classifier: Path | None = None
    """Folder of a classifier (`logosphere train-classifier`) to guide towards --label, independently of the
    conditions of the model."""
    strength: float | None = None
    """How strongly to follow the classifier: 1 is Bayes' rule, more is stronger and less varied; 0 is not at all."""
    exact_edits: bool = False
    """Evaluate the classifier for every token at every position, rather than one gradient; slow."""

    def check(self, label: str) -> None:
        """Raise for options that need one another."""
        if self.classifier is None and (self.strength is not None or self.exact_edits):
            raise UserError("--strength and --exact-edits need --classifier, the folder of a classifier.")
        if self.classifier is not None and not label:
            raise UserError("--classifier needs --label, the label to guide towards.")
        if self.strength is not None and not 0 <= self.strength < float("inf"):
            raise UserError(f"The strength of a classifier must be at least 0, not {self.strength}.")


@dataclass(frozen=True)
class SampleConfig:
    """What to sample, and how."""

    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 4
    """How many texts."""
    steps: int = 64
    """Steps of the sampler; more steps are closer to the model's distribution."""
    prompt: str = ""
    """Begin with this text."""
    chat: tuple[str, ...] = ()
    """Messages to an instruct model, in the template of its checkpoint: one by the user, or several by user and model
    in turn. The text is the answer, of 128 tokens at most unless --gen-length is given."""
    system_message: str = ""
    """With --chat: the message of the system at the beginning of the conversation."""
    infill: str = ""
    """Fill the gaps of this text: 'the [....] of' has a gap of four, '[12]' one of twelve."""
    hold: str = ""
    """Hold token numbers at positions: '0:17,4 12:33' holds 17 and 4 from position 0 on, and 33 at position 12."""
    match: str = ""
    """Only texts that match this regular expression of Python from beginning to end."""
    json_schema: Path | None = None
    """Only texts that are JSON of the schema in this file."""
    particles: int = 1
    """With --match or --json-schema: particles for each text, which correct the look-ahead of predictions."""
    label: str = ""
    """Sample for this label, where the model or a --classifier was trained with labels."""
    source: str = ""
    """Sample for this source text, where the model was trained on pairs."""
    signal: Path | None = None
    """Sample for this signal along the sequence, where the model was trained with one: a .npy file of L × C numbers, or
    n of them."""
    guidance: float = 1.0
    """How strongly to follow a label, source or signal; 1 is as trained, more is stronger and less varied."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")] = field(default_factory=DecodingConfig)
    by_classifier: Annotated[ClassifierGuidance, tyro.conf.arg(name="")] = field(default_factory=ClassifierGuidance)
    length: int | None = None
    """Tokens of each text. Models of separate texts, which end, sample texts of just this length; others as many
    tokens, more than their own length window by window."""
    overlap: int | None = None
    """Tokens that windows share; half of the model's length unless set."""
    sampler: str = "auto"
    """Name of the sampler; auto is the one of the system. `logosphere samplers` lists them all."""
    grid: Literal["auto", "uniform", "cosine"] = "auto"
    """Spacing of the steps; auto is the sampler's own."""
    temperature: float | None = None
    """Below 1: likelier, less varied. 1 unless set; the bundled checkpoint has a default of its own."""
    top_p: float = 1.0
    """Draw only from the most likely tokens that have this much probability together."""
    top_k: int | None = None
    """Draw only from this number of most likely tokens."""
    min_p: float = 0.0
    """Draw only tokens with at least this fraction of the largest probability."""
    greedy_end: bool = False
    """Take the most likely tokens in the last step."""
    weights: Weights = "ema"
    """Averaged weights, the best of them, or the live ones."""
    precision: Precision = "auto"
    """Precision of the network; auto: bfloat16 where the processor has instructions for it, else float32."""
    seed: int = 0
    """Fixes the texts, together with the precision."""
    trust_references: bool = False
    """Fetch the encoder that the recipe of a run names, although it was not written on this machine."""

    @property
    def constrained(self) -> bool:
        """Whether texts are constrained to a language."""
        return bool(self.match) or self.json_schema is not None

    def check(self) -> None:
        """Raise for options that contradict each other."""
        if self.prompt and self.infill:
            raise UserError("Give either --prompt or --infill; an infill text may begin with a prompt.")
        if self.chat and (self.prompt or self.infill or self.hold):
            raise UserError("--chat makes the prompt of its messages; leave out --prompt, --infill and --hold.")
        if self.system_message and not self.chat:
            raise UserError("--system-message begins a conversation; add --chat with a message of the user.")
        if self.hold and (self.prompt or self.infill):
            raise UserError("--hold names tokens at their positions; leave out --prompt and --infill.")
        if self.match and self.json_schema is not None:
            raise UserError("Give either --match or --json-schema; both describe the whole text.")
        if self.particles != 1 and not self.constrained:
            raise UserError("--particles belongs to --match and --json-schema; add one of them.")
        self.by_classifier.check(self.label)
        self.decoding.check()
        if self.length is not None and self.decoding.gen_length is not None:
            raise UserError("Give either --length, tokens of the whole text, or --gen-length, tokens after the prompt.")
        if self.guidance != 1 and not (self.label or self.source or self.signal):
            raise UserError("--guidance needs a condition: give --label, --source or --signal, or leave it out.")


@dataclass(frozen=True)
class SampleMetrics:
    """Settings of the samples in the report of a comparison."""

    samples: int = 32
    """Texts for each setting; 0 for no samples."""
    sampling_steps: tuple[int, ...] = (4, 16, 64)
    """Numbers of steps to sample with, at temperature 1."""
    temperatures: tuple[float, ...] = (0.7, 0.85)
    """Further temperatures, with the most steps."""
    metrics: tuple[str, ...] = ()
    """Sample metrics by name; all when none is named."""
    scorer: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--judge"])] = ()
    """Scorer models of samples: the folder of an ar run, 'train' (trains one on the validation split), smollm2,
    hf:NAME."""

    def check(self) -> None:
        """Raise for settings with which no samples can be measured."""
        if self.samples and self.samples < 2:
            raise UserError(f"--samples must be 0 (no samples) or at least 2, not {self.samples}.")
        if not self.sampling_steps or min(self.sampling_steps) < 1:
            raise UserError(f"--sampling-steps must be numbers of at least 1, not {self.sampling_steps}.")
        if any(temperature <= 0 for temperature in self.temperatures):
            raise UserError(f"--temperatures must be above 0, not {self.temperatures}.")


@dataclass(frozen=True)
class Budget:
    """How long each system of a comparison trains; one of these."""

    steps: int | None = None
    """Steps for each of them."""
    tokens: float | None = None
    """Tokens for each of them."""
    minutes: float | None = None
    """Wall-clock minutes for each of them."""
    cpu_minutes: float | None = None
    """Minutes of processor time for each of them."""
    flops: float | None = None
    """Operations of matrix products for each of them, such as 1e13."""

    def __post_init__(self) -> None:
        given = self.given()
        if len(given) > 1:
            raise UserError(f"Give one budget, not {' and '.join(given)}: every system gets the same.")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise UserError(f"The budget --{name.replace('_', '-')} must be above 0 and finite, not {value:g}.")

    def given(self) -> dict[str, float]:
        """The budgets that are set."""
        return {name: float(value) for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class AuxiliaryConfig:
    """Training of an auxiliary network for a trained model, which is frozen."""

    steps: int = 500
    """Steps to train."""
    batch: int = 64
    """Sequences per step."""
    lr: float = 2e-3
    """Largest learning rate."""
    seed: int = 0
    """Fixes data order and noise."""

    def check(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise UserError("The number of steps and the batch must be at least 1.")


@runtime_checkable
class Bar(Protocol):
    """A progress bar."""

    def update(self, done: float, text: str) -> None:
        """Show the fraction done and a line of figures."""


class _SilentBar:
    def update(self, done: float, text: str) -> None:
        pass


@contextmanager
def _silent_bar(title: str) -> Iterator[Bar]:
    yield _SilentBar()


@dataclass(frozen=True)
class Display:
    """Where progress and remarks go: the terminal for commands, nowhere by default."""

    bar: Callable[[str], AbstractContextManager[Bar]] = _silent_bar
    """Opens a bar with a title."""
    log: Callable[[str], None] = lambda message: None
    """Takes a remark of one line."""


SILENT = Display()
