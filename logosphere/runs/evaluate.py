"""Evaluation and export: the likelihood of a run with its standard error, and a small folder for a package."""

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from logosphere.data.batches import eval_batches, sequential_batches
from logosphere.data.corpus import Corpus, Examples, Split, check_length, count_sequences
from logosphere.data.tokenizer_registry import load_tokenizer, save_tokenizer
from logosphere.data.tokenizers import Tokenizer, WithEOS
from logosphere.data.wrapping import find_wrapping, wrap_windows
from logosphere.errors import UserError, plural
from logosphere.evaluation.protocols import DEFAULT_DRAWS
from logosphere.evaluation.report import PathBound, Report, evaluate
from logosphere.io import (
    RECIPE,
    TOKENIZER,
    WEIGHTS,
    as_file_name,
    file_sha256,
    hash_files,
    write_atomic,
    write_json,
    write_recipe,
    write_tensors,
)
from logosphere.model import Model
from logosphere.networks.published.lora import merged_state
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.pretrained import CARD, RECORD, load
from logosphere.processes.capabilities import SeveralPaths
from logosphere.runs.config import parse_options
from logosphere.runs.run import Run
from logosphere.runs.settings import ORDER_SEQUENCES, SEQUENCES, SILENT, Display, EvaluateConfig, OrderConfig
from logosphere.runs.staging import check_free, staged
from logosphere.runs.train_data import open_run_data
from logosphere.runs.training_records import sum_records
from logosphere.sampling.generate import generate
from logosphere.systems import preset_label, system
from logosphere.types import SIGN, Batch, Tokens
from logosphere.untrusted import read_object

LONGEST_NAME = 200
"""Bytes of a report's name; file systems allow 255, and temporary names are longer."""


def evaluate_run(
    run: Run | str | Path,
    config: EvaluateConfig | None = None,
    *,
    options: tuple[str, ...] = (),
    by_order: OrderConfig | None = None,
    corpus: Corpus | None = None,
    other_paths: bool = True,
    display: Display = SILENT,
    group: ProcessGroup = SINGLE,
) -> Report:
    """The likelihood of a run, the same in every process of a group.

    `options` (name=value) change options of its system for this measurement, where the weights allow it. `by_order`
    measures an order of positions instead of the bound. `corpus` is the text to measure, where the caller has opened
    it. With `other_paths` the report of a process that was trained on several paths (rdlm-heat) also has the bounds
    along the others.
    """
    config, by_order = config or EvaluateConfig(), by_order or OrderConfig()
    by_order.check()
    limit = config.sequences
    if limit is None:
        limit = SEQUENCES if by_order.order is None else ORDER_SEQUENCES
    run = run if isinstance(run, Run) else Run(run, trained=False, trust_references=config.trust_references)
    if limit < 0 or config.batch < 1:
        raise UserError("The number of sequences must be at least 0 and the batch at least 1.")
    tokenizer = run.tokenizer
    if remark := run.missing_average(config.weights):
        display.log(remark)
    check_changed(run, parse_options(options))
    model = run.model(config.weights, parse_options(options)).place(find_device(run.config.device))
    if not (config.data or run.config.data) and corpus is None:
        raise UserError(f"The model in {run.path} was saved without a training run; name a text with --data.")
    corpus = corpus or open_run_data(run, display, config.data, config.column)
    if corpus.tokenizer.size > model.vocab_size:
        raise UserError(
            f"{corpus.name} has {corpus.tokenizer.size} tokens and the model in {run.path} knows {model.vocab_size}: "
            "separate texts have a token for their end, which a model of running text lacks; name a plain text."
        )
    measured = choose_windows(config, by_order, corpus, tokenizer, model.length)
    total = count_sequences(measured.split, model.length, limit or None)

    def measure(model: Model, title: str) -> Report:
        finished = 0
        with display.bar(title) as bar:

            def watch(part: object) -> None:
                nonlocal finished
                finished = min(total, finished + config.batch)
                bar.update(finished / total, f"{finished:,}/{total:,} sequences")

            def watch_order(fraction: float) -> None:
                done = min(total, finished + fraction * min(config.batch, total - finished))
                bar.update(done / total, f"{finished:,}/{total:,} sequences")

            return evaluate(
                model,
                eval_batches(measured.split, model.length, config.batch, limit or None),
                draws=DEFAULT_DRAWS[config.protocol] if config.draws is None else config.draws,
                rng=config.seed,
                name=run.path.name,
                unit=measured.unit,
                corpus=measured.corpus,
                split=config.split,
                data=f"{corpus.name} {config.split}",
                tokenizer=tokenizer.fingerprint,
                protocol=config.protocol,
                weights=run.used_weights(config.weights),
                precision=config.precision,
                order=by_order.order,
                orders=by_order.orders,
                watch=watch,
                watch_order=watch_order,
                group=group,
            )

    report = measure(model, f"evaluate {run.path.name}")
    others_wanted = other_paths and by_order.order is None
    paths = model.process.trained_paths if others_wanted and isinstance(model.process, SeveralPaths) else ()
    others = []
    for path in paths:
        if path != model.process.path_name:
            other = measure(model.with_path(path), f"evaluate {run.path.name}, {path} path")
            others.append(PathBound(path, other.kind, other.bits, other.error))
    return replace(report, other_paths=tuple(others))


def check_changed(run: Run, options: dict[str, object]) -> None:
    """Raise UserError for options that are no choice of a measurement."""
    if fixed := sorted({"system", "vocab_size", "length", "denoiser", "name", "preset"} & options.keys()):
        raise UserError(f"'{fixed[0]}' is fixed in the model in {run.path}; leave it out of --options.")


@dataclass(frozen=True)
class Windows:
    """What a protocol measures of a split."""

    split: Split
    unit: str
    corpus: Corpus | None
    """The corpus whose units the tokens have; None where windows hold tokens that are no text of it."""


def choose_windows(
    config: EvaluateConfig, by_order: OrderConfig, corpus: Corpus, tokenizer: Tokenizer, length: int
) -> Windows:
    """The split as it is, or as windows between BOS and EOS under the protocol of papers."""
    split = corpus.split(config.split)
    wrapping = find_wrapping(tokenizer) if config.protocol == "paper" else None
    if config.protocol == "paper" and by_order.order is not None:
        raise UserError("An order of positions has no protocol; leave out --order or --protocol paper.")
    if wrapping is None:
        check_length(split, length)
        return Windows(split, tokenizer.unit if config.per == "auto" else config.per, corpus)
    if config.per not in ("auto", "token"):
        raise UserError(f"--protocol paper counts BOS and EOS as tokens, so --per must be token, not {config.per}.")
    return Windows(wrap_windows(split, wrapping, length).reshape(-1), "token", None)


def save_report(run: Run, report: Report, options: tuple[str, ...] = ()) -> Path:
    """Save a report among the results of a run, under the name of its data, order and options."""
    order = [f"order={report.order}-{report.draws}"] if report.order else []
    protocol = [] if report.protocol == "full" else [f"protocol={report.protocol}"]
    path = report_path(run, report.data, *order, *protocol, *options)
    report.save(path)
    return path


def report_path(run: Run, data: str, *more: str) -> Path:
    """Where the report on a text and split is saved, with its order and options."""
    name = as_file_name(" ".join([data, *more])).replace(" ", "-")
    if len(name.encode()) > LONGEST_NAME:  # the file of a long path
        name = f"{hashlib.sha256(name.encode()).hexdigest()[:16]}-{data.split()[-1]}"
    return run.results / f"{name}.json"


LARGEST = 12_000_000
"""Bytes of weights that a package may carry for one model."""
RECORD_SEQUENCES = 16
"""Sequences of text inside a record."""
DRAWS = 8


@dataclass(frozen=True)
class RecordSample:
    """The content of a record: a text, and the bits per token measured on it."""

    text: str
    bits: float
    kind: str
    weights_sha256: str


def to_half(model: Model) -> dict[str, Tensor]:
    """The state of a model with its parameters in half precision; buffers keep their precision."""
    learned = {name for name, _ in model.named_parameters()}
    state = {}
    for name, tensor in merged_state(model).items():
        half = name in learned and tensor.is_floating_point()
        if half and float(tensor.abs().max()) > torch.finfo(torch.float16).max:
            raise UserError(f"The weights {name} are too large for half precision; the model cannot be exported.")
        state[name] = tensor.half() if half else tensor
    return state


def export_run(
    run: Run,
    folder: Path,
    measure: EvaluateConfig,
    *,
    with_samples: bool = False,
    samples: int = 3,
    steps: int = 128,
    display: Display = SILENT,
) -> tuple[Report, RecordSample]:
    """Measure a run and export it to a new folder; its report and its record.

    The folder holds no text of the run unless `with_samples` is set: the record is then measured on held-out text
    rather than on random tokens, and the card shows samples, which may repeat passages of the training text.
    """
    check_free(folder)
    if run.is_imported:
        raise UserError(f"The model in {run.path} was imported, and only models that were trained here are exported.")
    report = evaluate_run(run, measure, display=display)
    texts: list[str] = []
    if with_samples:
        corpus = open_run_data(run, display, measure.data, measure.column)
        held_out = next(iter(eval_batches(corpus.test, run.config.length, RECORD_SEQUENCES, RECORD_SEQUENCES))).tokens
        drawn = generate(run.model(measure.weights), n=samples, steps=steps, rng=torch.Generator().manual_seed(0))
        texts = [run.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
        text = decode_sequences(held_out, run.tokenizer)
    else:
        text = random_text(run.tokenizer, run.config.length)
    return report, write_export(run, folder, report, text, texts, measure.weights)


def random_text(tokenizer: Tokenizer, length: int) -> str:
    """Random tokens as the text of a record, at least a sequence of them, whatever tokenizer reads them again."""
    rng = np.random.default_rng(0)
    if not isinstance(tokenizer, WithEOS):
        return tokenizer.decode(rng.integers(tokenizer.size, size=RECORD_SEQUENCES * length))
    # Bytes that are no text are read again as up to three bytes each, and must still fit.
    rows = [rng.integers(tokenizer.eos, size=max(1, length // 4)) for _ in range(RECORD_SEQUENCES)]
    return "\n".join(tokenizer.decode(row).replace("\n", "") for row in rows)


def write_export(
    run: Run, folder: Path, report: Report, text: str, samples: list[str], weights: str = "ema"
) -> RecordSample:
    """Write the folder of an export: `report` and `samples` are for its card, `text` is measured for its record."""
    with staged(folder, "export") as draft:
        write_tensors(draft / WEIGHTS, to_half(run.model(weights)))
        if (size := (draft / WEIGHTS).stat().st_size) > LARGEST:
            limit = f"but an export holds at most {LARGEST / 1e6:.0f} MB"
            raise UserError(f"The weights take {size / 1e6:.1f} MB, {limit}; train a smaller network.")
        save_tokenizer(run.tokenizer, draft / TOKENIZER)
        content = {key: value for key, value in run.content.items() if key in ("recipe", "corpus")}
        content["model"] = replace(run.spec, adapters=None).content()
        trainings = {"trainings": [asdict(one) for one in run.trainings]}
        write_recipe(draft / RECIPE, content | trainings | hash_files(draft, WEIGHTS, TOKENIZER))
        record = make_record(draft, text)
        write_json(draft / RECORD, vars(record))
        write_atomic(draft / CARD, card(run, report, samples, size).encode())
    return record


def decode_sequences(rows: Tokens, tokenizer: Tokenizer) -> str:
    """Sequences as the text of a record: one a line for separate texts, else concatenated."""
    if isinstance(tokenizer, WithEOS):
        return "\n".join(tokenizer.decode(row) for row in rows.numpy())
    return tokenizer.decode(rows.flatten().numpy())


def sequences_of(text: str, tokenizer: Tokenizer, length: int, limit: int | None = None) -> Batch:
    """The sequences of a record, at most `limit` of them; of a running text, the remainder is dropped."""
    if isinstance(tokenizer, WithEOS):
        lines = [tokenizer.encode(line) for line in text.split("\n")][:limit]
        return next(sequential_batches(Examples(lines, eos=tokenizer.eos), length, len(lines)))
    tokens = tokenizer.encode(text)
    count = len(tokens) // length
    if count < 1:
        raise UserError(f"The text of a record must have at least {length} tokens.")
    rows = torch.from_numpy(np.asarray(tokens[: count * length], dtype=np.int64)).view(count, length)
    return Batch.of(rows[:limit])


def make_record(folder: Path, text: str) -> RecordSample:
    """Measure an export on a text; the same weights and text always give the same number."""
    model, tokenizer = load(folder), load_tokenizer(folder / "tokenizer.json")
    batch = sequences_of(text, tokenizer, model.length)
    report = evaluate(model, [batch], draws=DRAWS, rng=0)
    digest = file_sha256(folder / WEIGHTS)
    return RecordSample(text, report.bits, report.kind, digest)


def read_record(folder: Path) -> RecordSample:
    try:
        return RecordSample(**read_object(folder / RECORD, inside=folder))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{folder / RECORD} is missing or damaged; install the package anew.") from None


def _began(run: Run) -> list[str]:
    """The parent of the last training, if it did not begin with random weights."""
    if "begun" not in run.content:
        return []
    begun, before = run.content["begun"], sum_records(run.trainings[:-1])
    seen = f"{before.tokens:,} tokens of {before.data}" if before.data else "unknown data"
    return [f"{begun['with']} (weights {begun['weights_sha256'][:12]}), which had seen {seen}"]


def card(run: Run, report: Report, samples: list[str], size: int) -> str:
    """The model card: system, training data, cost, likelihood and samples."""
    config, about = run.config, system(run.config.system)
    trainings, corpus = run.trainings, run.content["corpus"]
    whole, over = sum_records(trainings), f", over {len(trainings)} trainings" if len(trainings) > 1 else ""
    facts = [
        ("system", f"{about.name}: {about.title} ({about.paper})"),
        ("preset", preset_label(run.spec)),
        ("network", f"{config.network.depth} blocks of width {config.network.width}, {config.network.heads} heads"),
        ("weights", f"half precision, {size / 1e6:.1f} MB; read as float32"),
        ("data", f"{corpus['name']}, sha256 {corpus['sha256']}"),
        ("tokens seen", f"{whole.tokens:,}, in {plural(whole.steps, 'step')}{over}"),
        ("cost", f"{whole.cpu_seconds / 3600:.2f} CPU hours{over}"),
        *[("began with", parent) for parent in _began(run)],
        (
            "likelihood",
            f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f} bits per {report.unit} "
            f"({report.kind_and_path}) on {report.data}, {report.sample_size}",
        ),
        ("meant for", "trying, testing and comparing; too small to rely on what it generates"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in facts)
    page = f"# {about.title}\n\n| | |\n|---|---|\n{table}\n"
    if not samples:
        return page
    texts = "\n\n".join("\n".join(f"    {line}" for line in text.splitlines() or [""]) for text in samples)
    return f"{page}\nSamples, not selected:\n\n{texts}\n"
