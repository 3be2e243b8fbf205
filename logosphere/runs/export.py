"""Export of a run: weights in half precision, a model card, and a record of what the export must measure."""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from logosphere.atomic import write_json, write_whole
from logosphere.data.batches import eval_batches
from logosphere.data.datasets.examples import Examples, sequential_batches
from logosphere.data.tokenizer_registry import load_tokenizer
from logosphere.data.tokenizers import Tokenizer, WithEOS
from logosphere.errors import UserError
from logosphere.evaluation.report import Report, evaluate
from logosphere.loading import load
from logosphere.model import Model
from logosphere.pretrained import CARD, RECORD
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.progress import SILENT, Display
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.runs.train import open_with_display
from logosphere.runs.training_record import sum_records
from logosphere.sampling.generate import generate
from logosphere.systems import preset_label, system
from logosphere.types import SIGN, Batch, Tokens
from logosphere.weights import RECIPE, WEIGHTS, write_recipe, write_tensors

LARGEST = 12_000_000
"""Bytes of weights that a package may carry for one model."""
RECORD_SEQUENCES = 16
"""Sequences of text inside a record."""
DRAWS = 8


@dataclass(frozen=True)
class RecordSample:
    """The content of a record: a text, and the bits per unit measured on it."""

    text: str
    bits: float
    kind: str
    weights_sha256: str


def to_half(model: Model) -> dict[str, Tensor]:
    """The state of a model with its parameters in half precision; tables and clocks stay as they are."""
    learned = {name for name, _ in model.named_parameters()}
    state = {}
    for name, tensor in model.state_dict().items():
        half = name in learned and tensor.is_floating_point()
        if half and float(tensor.abs().max()) > torch.finfo(torch.float16).max:
            raise UserError(f"The weights {name} are too large for half precision; the model cannot be packed.")
        state[name] = tensor.half() if half else tensor
    return state


def export_run(
    run: Run, folder: Path, measure: EvaluateConfig, *, samples: int = 3, steps: int = 128, display: Display = SILENT
) -> tuple[Report, RecordSample]:
    """Measure and sample a run, and export it to a new folder; its report and its record."""
    check_free(folder)
    report = evaluate_run(run, measure, display=display)
    corpus = open_with_display(measure.data or run.config.data, run.tokenizer, display)
    held_out = next(iter(eval_batches(corpus.test, run.config.length, RECORD_SEQUENCES, RECORD_SEQUENCES))).tokens
    drawn = generate(run.model(measure.weights), n=samples, steps=steps, rng=torch.Generator().manual_seed(0))
    texts = [run.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    text = decode_sequences(held_out, run.tokenizer)
    return report, write_export(run, folder, report, text, texts, measure.weights)


def check_free(folder: Path) -> None:
    """Refuse a place where something is."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another --out or remove it.")


def write_export(
    run: Run, folder: Path, report: Report, text: str, samples: list[str], weights: str = "ema"
) -> RecordSample:
    """Write the folder of an export: `report` and `samples` are for its card, `text` is measured for its record."""
    check_free(folder)
    write_tensors(folder / WEIGHTS, to_half(run.model(weights)))
    if (size := (folder / WEIGHTS).stat().st_size) > LARGEST:
        shutil.rmtree(folder)
        limit = f"but a box holds {LARGEST / 1e6:.0f} MB"
        raise UserError(f"The weights take {size / 1e6:.1f} MB, {limit}; train a smaller network.")
    content = {key: value for key, value in run.content.items() if key in ("model", "recipe", "corpus")}
    write_recipe(folder / RECIPE, content | {"trainings": [asdict(one) for one in run.trainings]})
    shutil.copyfile(run.path / "tokenizer.json", folder / "tokenizer.json")
    record = make_record(folder, text)
    write_json(folder / RECORD, vars(record))
    write_whole(folder / CARD, card(run, report, samples, size).encode())
    return record


def decode_sequences(rows: Tokens, tokenizer: Tokenizer) -> str:
    """Sequences as the text of a record: one a line where texts end by themselves, else one after another."""
    if isinstance(tokenizer, WithEOS):
        return "\n".join(tokenizer.decode(row) for row in rows.numpy())
    return tokenizer.decode(rows.flatten().numpy())


def sequences_of(text: str, tokenizer: Tokenizer, length: int, limit: int | None = None) -> Batch:
    """The sequences of a record, at most `limit` of them; of a running text, what is left over is dropped."""
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
    """Measure a box on a text; the same weights and text always give the same number."""
    model, tokenizer = load(folder), load_tokenizer(folder / "tokenizer.json")
    batch = sequences_of(text, tokenizer, model.length)
    report = evaluate(model, [batch], draws=DRAWS, rng=0, unit=tokenizer.unit)
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    return RecordSample(text, report.bits, report.kind, digest)


def read_record(folder: Path) -> RecordSample:
    try:
        return RecordSample(**json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{folder / RECORD} is missing or damaged; install the package anew.") from None


def _began(run: Run) -> list[str]:
    """Where the last training began, if not with random weights."""
    if "begun" not in run.content:
        return []
    begun, before = run.content["begun"], sum_records(run.trainings[:-1])
    seen = f"{before.tokens:,} tokens of {before.data}" if before.data else "nobody knows what"
    return [f"{begun['with']} (weights {begun['weights_sha256'][:12]}), which had seen {seen}"]


def card(run: Run, report: Report, samples: list[str], size: int) -> str:
    """The model card: what it is, what it has seen, what it cost, how good it is, and how it writes."""
    config, about = run.config, system(run.config.system)
    trainings, corpus = run.trainings, run.content["corpus"]
    whole, over = sum_records(trainings), f", over {len(trainings)} trainings" if len(trainings) > 1 else ""
    facts = [
        ("system", f"{about.name}: {about.title} ({about.paper})"),
        ("preset", preset_label(run.spec)),
        ("network", f"{config.network.depth} blocks of width {config.network.width}, {config.network.heads} heads"),
        ("weights", f"half precision, {size / 1e6:.1f} MB; read as float32"),
        ("data", f"{corpus['name']}, sha256 {corpus['sha256']}"),
        ("tokens seen", f"{whole.tokens:,}, in {whole.steps:,} steps{over}"),
        ("cost", f"{whole.cpu_seconds / 3600:.2f} CPU hours{over}"),
        *[("began with", told) for told in _began(run)],
        (
            "likelihood",
            f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f} bits per {report.unit} ({report.kind}) on "
            f"{report.data}, {report.sample_size}",
        ),
        ("meant for", "trying, testing and comparing; too small to be relied on for anything it says"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in facts)
    texts = "\n\n".join("\n".join(f"    {line}" for line in text.splitlines() or [""]) for text in samples)
    return f"# {about.title}\n\n| | |\n|---|---|\n{table}\n\nSamples, not selected:\n\n{texts}\n"
