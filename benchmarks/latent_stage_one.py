"""The first stage of latent systems: how many tokens of held-out texts an autoencoder reconstructs, over CPU time.

    python benchmarks/latent_stage_one.py rows systems --data captions --minutes 20      # groups of rows, or rows
    python benchmarks/latent_stage_one.py rows causes --data captions --minutes 2
    python benchmarks/latent_stage_one.py table systems causes --data captions

Groups: systems (as a training on text has them by default), causes (what keeps an autoencoder from reconstructing, one
change at a time), compression (tokens for each latent). A row trains the autoencoder alone for its CPU minutes, with
a learning rate that ends with them. It is measured twelve times on the way, by greedy decoding of clean latents of the
validation split, and at the end on the test split. Finished rows are kept as JSON in --out and not trained again, an
interrupted one begins anew; its autoencoder is saved beside the record, for `logosphere train --autoencoder`. States of
the pretrained encoder are computed before the clock starts, and their cost is a figure of its own.
"""

import argparse
import json
import statistics
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

import logosphere as ls
from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Corpus, Examples
from logosphere.evaluation.likelihood import Reconstruction
from logosphere.io import write_json
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.systems.registry import complete_options
from logosphere.training.stages import measure_stage_one
from logosphere.training.trainer import Trainer

LENGTH = {"captions": 24, "e2e": 64, "tinystories": 64}
TOKENIZER = "minilm:2048"
MEASUREMENTS, HELD_OUT, TEST = 12, 256, 1024
BATCH, WIDTH, HEADS = 32, 128, 4

Options = dict[str, Any]
PLAIN: Options = {"position_drop": 0.0, "feature_noise": 0.0, "latent_dropout": 0.0}
OLD: Options = {"compression": 4, "latent_width": 16, "local_skip": False}
"""The default of models that are built without a tokenizer."""
GROUPS: dict[str, dict[str, tuple[str, Options]]] = {
    "systems": {
        "tencdm": ("tencdm", {}), "ld4lg": ("ld4lg", {}), "planner": ("planner", {}), "cosmos": ("cosmos", {}),
        "cosmos, without regularisation": ("cosmos", PLAIN),
    },
    "scratch": {
        f"{name}, scratch": (name, {"encoder": "scratch"}) for name in ("tencdm", "ld4lg", "cosmos")
    },
    "causes": {
        "cosmos, 4 tokens in 16 features, no local path": ("cosmos", OLD),
        "cosmos, no local path": ("cosmos", {"local_skip": False}),
        "cosmos, no local path, without regularisation": ("cosmos", PLAIN | {"local_skip": False}),
        "ld4lg, no local path": ("ld4lg", {"local_skip": False}),
        "planner, no local path": ("planner", {"local_skip": False}),
        "planner, no substitution": ("planner", {"substitution": 0.0}),
        "planner, no local path, no substitution": ("planner", {"local_skip": False, "substitution": 0.0}),
        "cosmos, no matched states, without regularisation": ("cosmos", PLAIN | {"state_loss_weight": 0.0}),
        "cosmos, decoded at a log-SNR of 8, without regularisation": ("cosmos", PLAIN | {"max_logsnr": 8.0}),
    },
    "ends": {  # for latent_bound.py: decoders that are trained down to the lowest end of the path
        "tencdm, decoded down to -4": ("tencdm", {"min_decode_logsnr": -4.0}),
        "cosmos, decoded down to -4": ("cosmos", PLAIN | {"min_decode_logsnr": -4.0}),
        "planner, decoded down to -4": ("planner", {"min_decode_logsnr": -4.0}),
    },
    "compression": {
        f"{name}, {tokens} tokens": (name, {"compression": tokens})
        for name in ("ld4lg", "planner", "cosmos") for tokens in (4, 12, 16)
    },
}  # fmt: skip
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "table"))
    parser.add_argument("names", nargs="*", help="groups or rows; default: systems")
    parser.add_argument("--data", choices=tuple(LENGTH), default="captions")
    parser.add_argument("--minutes", type=float, default=20.0, help="CPU time of each row")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("runs/latent-stage-one"))
    args = parser.parse_intermixed_args()
    names = select_rows(args.names or ["systems"])
    folder = args.out / f"{args.data}-{args.minutes:g}"
    if args.what == "rows":
        for seed in range(args.seeds):
            for name in names:
                row = measure_row(name, seed, folder, args)
                print(f"{name:60} seed {seed}  {row['test']['accuracy']:.2%} ± {row['test']['error']:.2%}", flush=True)
    print_table(folder, args.data, args.minutes, names)


def select_rows(chosen: list[str]) -> list[str]:
    """Return the rows of groups and names, each once."""
    if unknown := set(chosen) - GROUPS.keys() - ROWS.keys():
        sys.exit(f"Unknown rows: {', '.join(sorted(unknown))}. The groups are {', '.join(GROUPS)}.")
    return list(dict.fromkeys(row for name in chosen for row in GROUPS.get(name, [name])))


@cache
def open_data(data: str) -> Corpus:
    """The corpus in word pieces of MiniLM, opened once for all rows."""
    return ls.open_corpus(data, TOKENIZER)


def measure_row(name: str, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a row; train and measure it first unless they exist."""
    place = folder / f"{name.replace(', ', '--').replace(' ', '-')}--seed-{seed}"
    path = place / "record.json"
    if not path.exists():
        write_json(path, train_row(name, seed, place, args))
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def train_row(name: str, seed: int, place: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Train the autoencoder of a row and save it."""
    (system, own), corpus, length = ROWS[name], open_data(args.data), LENGTH[args.data]
    options = complete_options(system, own, corpus.tokenizer.describe())[0]
    torch.manual_seed(seed)
    model = ls.build(
        system, vocab_size=corpus.tokenizer.size, length=length, width=WIDTH, depth=2, heads=HEADS, **options
    )  # fmt: skip
    process = model.process
    assert isinstance(process, AutoencoderStage)
    started = time.process_time()
    if isinstance(corpus.train, Examples):
        rows, origin = corpus.train, f"{corpus.sha256[:24]}-{corpus.tokenizer.fingerprint[:24]}"
        process.precompute(lambda: rows.padded_rows(length), origin)
    encoding = time.process_time() - started
    trainer = Trainer(
        model, optim=ls.OptimizerConfig(lr=args.lr, warmup=50), ema=None, seed=seed, precision=args.precision
    )
    batches = train_batches(corpus.train, length, BATCH, seed)
    budget, spent = 60 * args.minutes, 0.0
    curve: list[dict[str, float]] = []
    share = process.stage_one
    while spent < budget:
        started = time.process_time()
        done = spent / budget
        trainer.train_step(batches.at(trainer.step), share * min(done, 1 - 1e-9), (0, done))
        spent += time.process_time() - started
        if spent >= budget * (len(curve) + 1) / MEASUREMENTS:
            reached = measure_stage_one(model, eval_batches(corpus.valid, length, BATCH, HELD_OUT))
            curve.append({"cpu_seconds": round(spent, 1), "step": trainer.step} | figures_of(reached))
            print(f"  {name} {spent:6.0f} s  step {trainer.step:,}  {reached}", file=sys.stderr, flush=True)
    reached = measure_stage_one(model, eval_batches(corpus.test, length, BATCH, TEST))
    about = {"name": corpus.name, "sha256": corpus.sha256, "cpu_seconds": round(spent, 1)}
    ls.save_autoencoder(model, place, reached, {"tokenizer": corpus.tokenizer.describe(), "corpus": about})
    codec = model.process.codec
    return {
        "row": name, "system": system, "options": own, "data": args.data, "seed": seed, "minutes": args.minutes,
        "lr": args.lr, "precision": args.precision, "tokens": length, "latents": codec.latents,
        "features": codec.features, "vocabulary": corpus.tokenizer.size, "steps": trainer.step,
        "parameters": sum(p.numel() for p in codec.parameters()), "encoding_cpu_seconds": round(encoding, 1),
        "curve": curve, "test": figures_of(reached),
    }  # fmt: skip


def figures_of(reached: Reconstruction) -> dict[str, float]:
    """A measurement as plain numbers; nats per token given a text's own latents and another text's."""
    return {
        "accuracy": reached.accuracy, "error": reached.error, "exact": reached.exact_match,
        "sequences": reached.sequences, "own": reached.nats["own"], "shuffled": reached.nats["shuffled"],
    }  # fmt: skip


def print_table(folder: Path, data: str, minutes: float, names: list[str]) -> None:
    """Print the finished rows: means over seeds, with the largest standard error over texts."""
    found = {json.loads(path.read_text())["row"]: [] for path in sorted(folder.glob("*/record.json"))}  # type: ignore[var-annotated]
    for path in sorted(folder.glob("*/record.json")):
        record = json.loads(path.read_text())
        found[record["row"]].append(record)
    print(f"\n{data}, {minutes:g} CPU minutes, test split\n")
    print(
        "| row | latents | steps | 97% after | 99% after | tokens reconstructed | texts | nats, own | another text's |"
    )
    print("|---|---|---:|---:|---:|---|---:|---:|---:|")
    for name in names:
        if records := found.get(name):
            print("| " + " | ".join([name, *_cells(records)]) + " |")


def _cells(records: list[dict[str, Any]]) -> list[str]:
    def mean(name: str) -> float:
        return statistics.mean(record["test"][name] for record in records)

    def after(accuracy: float) -> str:
        times = [[p["cpu_seconds"] for p in record["curve"] if p["accuracy"] >= accuracy] for record in records]
        return f"{max(min(reached) for reached in times):.0f} s" if all(times) else "—"

    first = records[0]
    accuracy = f"{mean('accuracy'):.2%} ± {max(record['test']['error'] for record in records):.2%}"
    shape = f"{first['latents']} × {first['features']} for {first['tokens']}"
    return [
        shape, f"{statistics.mean(record['steps'] for record in records):,.0f}", after(0.97), after(0.99),
        accuracy, f"{mean('exact'):.1%}", f"{mean('own'):.3f}", f"{mean('shuffled'):.1f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
