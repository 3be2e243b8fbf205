"""Latent systems, ar and mdlm with the same text, tokenizer, network and CPU time, and the cost of a training step.

    python benchmarks/latent.py cost                                                  # CPU seconds of a training step
    python benchmarks/latent.py rows systems --data e2e --seeds 2 --split test        # groups of rows, or rows
    python benchmarks/latent.py table systems --data e2e --split test                 # the finished rows

Groups: systems; pretrained (frozen MiniLM); layers (layer of MiniLM × d of tan-d); smoothing (ablations of cosmos);
self-conditioning. Both stages of a row share its CPU minutes. A row is trained once for each seed, is resumed after an
interruption, and is measured once for each split: validation for choices, test for published results. The metrics are
described in latent_metrics.py.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import harness
import torch
from latent_metrics import LatentMetrics

import logosphere as ls
from logosphere.autoencoders.pretrained import MiniLM, minilm_folder, reduce_vocabulary
from logosphere.data.corpus import Corpus, Examples
from logosphere.networks.config import NetworkConfig
from logosphere.processes.capabilities import OnlineStatistics
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.loop import StepTaken, run_training
from logosphere.runs.run import Run
from logosphere.training.trainer import Trainer
from logosphere.types import SIGN, Batch, Kind

SMOOTHING = ("state_loss_weight", "position_drop", "feature_noise", "latent_dropout")
FEW = ["latents=8", "latent_width=16"]
MINILM = ["encoder=minilm", "layer=4"]

GROUPS: dict[str, dict[str, list[str]]] = {
    "systems": {
        "ar": ["ar"], "mdlm": ["mdlm"], "ld4lg": ["ld4lg", *FEW], "planner": ["planner", *FEW], "tencdm": ["tencdm"],
        "cosmos": ["cosmos", *FEW],
    },
    "pretrained": {
        "ld4lg, minilm": ["ld4lg", *FEW, *MINILM], "tencdm, minilm": ["tencdm", *MINILM],
        "cosmos, minilm": ["cosmos", *FEW, *MINILM],
    },
    "layers": {
        f"tencdm, minilm layer {layer}, tan {d}": ["tencdm", "encoder=minilm", f"layer={layer}", f"tan={d}.0"]
        for layer in (0, 2, 4, 6) for d in (1, 3, 5, 9)
    },
    "smoothing": {
        "cosmos": ["cosmos", *FEW],
        **{f"cosmos, no {part}": ["cosmos", *FEW, f"{part}=0.0"] for part in SMOOTHING},
        "cosmos, state_loss_weight only": ["cosmos", *FEW, *(f"{part}=0.0" for part in SMOOTHING[1:])],
        "cosmos, min_decode_logsnr 0": ["cosmos", *FEW, "min_decode_logsnr=0.0"],
        "cosmos, joint": ["cosmos", *FEW, "joint=True"],
    },
    "self-conditioning": {
        "tencdm": ["tencdm"], "cosmos": ["cosmos", *FEW],  # default: 0.5
        **{f"tencdm, self-conditioning {p}": ["tencdm", f"self_conditioning={p}"] for p in (0.0, 0.95)},
        **{f"cosmos, self-conditioning {p}": ["cosmos", *FEW, f"self_conditioning={p}"] for p in (0.0, 0.95)},
    },
}  # fmt: skip
ROWS = {name: options for group in GROUPS.values() for name, options in group.items()}
LENGTH = {"e2e": 64, "tinystories": 64, "captions": 24}
PIECES = 1000
"""Captions are tokenised by the most frequent word pieces of MiniLM, so that all rows have its tokenizer."""
BPE = "bpe:512"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "rows", "table"))
    parser.add_argument("names", nargs="*", help="groups or rows; default: systems")
    parser.add_argument("--data", choices=tuple(LENGTH), default="captions")
    parser.add_argument("--split", choices=("valid", "test"), default="valid", help="split that is measured")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each row")
    parser.add_argument("--minutes", type=float, default=3.0, help="CPU time of each training, both stages")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path, default=Path("runs/latent"))
    args = parser.parse_intermixed_args()
    if args.what == "cost":
        harness.print_table("CPU seconds of a training step, 32 sequences of 64 tokens out of 1,000", measure_costs())
        return
    names = select_rows(args.names or ["systems"])
    rows = Rows(args.out / args.data, args.data, args.split, args.minutes, args.precision)
    if args.what == "rows":
        rows.measure_real_text()
        for seed in range(args.seeds):
            for name in names:
                print(f"{name:36} seed {seed}  {_format_row(rows.measure(name, seed))}", flush=True)
    rows.print_tables(names)


def select_rows(chosen: list[str]) -> list[str]:
    """Return the rows of groups and names, each once."""
    if unknown := set(chosen) - GROUPS.keys() - ROWS.keys():
        sys.exit(f"Unknown rows: {', '.join(sorted(unknown))}. The groups are {', '.join(GROUPS)}.")
    return list(dict.fromkeys(row for name in chosen for row in GROUPS.get(name, [name])))


# ---- cost of a step -------------------------------------------------------------------------------------------------


def measure_costs(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Measure steps of the second stage against those of diffusion on tokens, in consecutive pairs against load."""
    tokens = torch.randint(1000, (32, 64), generator=torch.Generator().manual_seed(0))

    def make_step(name: str, **options: Any) -> Callable[[], object]:
        model = ls.build(name, vocab_size=1000, length=64, width=128, depth=4, heads=4, **options)
        trainer = Trainer(model)
        assert isinstance(model.process, OnlineStatistics)
        model.process.update_statistics(0.99)
        return lambda: trainer.train_step(Batch.of(tokens), 0.99)

    rows = {}
    for other in ("mdlm", "gaussian-ce", "tencdm"):
        for name in ("cosmos", "ld4lg", "planner"):
            ratio = harness.measure_paired_ratio(make_step(other), make_step(name, latents=8), rounds)
            rows[f"{other} / {name} with 8 latents"] = ratio
    return rows


# ---- rows -----------------------------------------------------------------------------------------------------------

Row = dict[str, float | str]


@dataclass
class Rows:
    """Trains, measures and prints the rows of one corpus, kept in a folder."""

    out: Path
    data: str
    split: str
    minutes: float
    precision: str

    @cached_property
    def corpus(self) -> Corpus:
        """Opened once for all rows, because opening trains the tokenizer."""
        return ls.open_corpus(self.data, str(self._captions_tokenizer) if self.data == "captions" else BPE)

    @cached_property
    def _captions_tokenizer(self) -> Path:
        """The file of the tokenizer of captions; `pieces.json` next to it has the token ids of MiniLM."""
        path = self.out / "pieces" / "tokenizer.json"
        if not path.exists():
            plain = ls.open_corpus(self.data, "characters")
            assert isinstance(plain.train, Examples)
            texts = [plain.tokenizer.decode(row) for row in plain.train.sequences]
            part = reduce_vocabulary(minilm_folder() / "tokenizer.json", texts, PIECES)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name("pieces.json").write_text(json.dumps([*part.pieces, MiniLM.SEP]))  # SEP ends a text
            path.write_text(part.tokenizer)
        return path

    @cached_property
    def metrics(self) -> LatentMetrics:
        return LatentMetrics(self.corpus, self.split, LENGTH[self.data], self.out / "scorer")

    def measure(self, name: str, seed: int) -> Row:
        """Return the figures of a row; train and measure it first unless they exist."""
        path = self._figures_path(name, seed)
        if not path.exists():
            run = self._train(name, path.parent, seed)
            steps = [line for line in run.metrics() if "train/loss" in line]
            figures = self.metrics.measure(run.model(), pretrained="encoder=minilm" in ROWS[name])
            path.write_text(json.dumps({"steps": len(steps)} | figures, indent=1))
        return json.loads(path.read_text())

    def measure_real_text(self) -> Row:
        """Return the same metrics of real text."""
        path = self.out / f"real-{self.split}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.metrics.measure_real_text(), indent=1))
        return json.loads(path.read_text())

    def _figures_path(self, name: str, seed: int) -> Path:
        folder = name.replace(", ", "--").replace(" ", "-")
        return self.out / f"{folder}--seed-{seed}" / f"figures-{self.split}.json"

    def _train(self, name: str, folder: Path, seed: int) -> Run:
        system, *options = ROWS[name]
        if "encoder=minilm" in options:
            if self.data != "captions":
                sys.exit("Rows with MiniLM need --data captions, whose tokenizer is a subset of MiniLM's.")
            pieces = self._captions_tokenizer.with_name("pieces.json").read_text()
            options.append(f"encoder_token_ids={pieces}")
        recipe = TrainConfig(
            system=system, options=tuple(options), data=self.data, length=LENGTH[self.data], batch=32, steps=None,
            cpu_minutes=self.minutes, ema=0.998, precision=self.precision, seed=seed,
            validations=1, validation_sequences=32,
            network=NetworkConfig(width=128, depth=4, heads=4), optim=ls.OptimizerConfig(lr=2e-3, warmup=50),
        )  # fmt: skip
        run = Run(folder) if folder.exists() else create_run(recipe, self.corpus, folder)
        for event in run_training(run, self.corpus):
            if isinstance(event, StepTaken) and sys.stderr.isatty():
                print(f"\r{name} {event.done:.0%} ", end="", file=sys.stderr)
        return run

    def print_tables(self, names: list[str]) -> None:
        """Print means over seeds with their ranges in brackets: first likelihoods and reconstructions, then samples."""
        found = {name: [self._figures_path(name, seed) for seed in range(MOST_SEEDS)] for name in names}
        made = {
            name: [json.loads(path.read_text()) for path in paths if path.exists()] for name, paths in found.items()
        }
        _print_table(f"{self.data}, {self.split} split", made, lambda column: column in LIKELIHOOD)
        _print_table(
            "samples",
            made | {"real text": [self.measure_real_text()]},
            lambda column: column not in (*LIKELIHOOD, *HIDDEN),
        )


MOST_SEEDS = 100
LIKELIHOOD = ("steps", "bits", "recon", "diffusion", "accuracy", "whole", *(
    f"nats, {whose}" for whose in ("own", "shuffled", "mean", "random")
))  # fmt: skip
HIDDEN = ("kind", "texts", "error")


def _print_table(title: str, made: dict[str, list[Row]], is_shown: Callable[[str], bool]) -> None:
    columns = list(dict.fromkeys(column for rows in made.values() for row in rows[:1] for column in row))
    columns = [column for column in columns if is_shown(column)]
    print(f"\n{title}\n\n| row | seeds | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    for name, rows in made.items():
        if rows:
            cells = [
                _cell([float(row[column]) for row in rows if column in row], rows[0], column) for column in columns
            ]
            print(f"| {name} | {len(rows)} | " + " | ".join(cells) + " |", flush=True)


def _cell(values: list[float], row: Row, column: str) -> str:
    if not values:
        return "—"
    mark = f"{SIGN[cast(Kind, row['kind'])]} " if column == "bits" else ""
    digits = 0 if column == "steps" else 2 if max(values) > 3 else 3
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{mark}{statistics.mean(values):.{digits}f}{spread}"


def _format_row(row: Row) -> str:
    return json.dumps({key: value if isinstance(value, str) else round(value, 3) for key, value in row.items()
                       if key != "texts"})  # fmt: skip


if __name__ == "__main__":
    main()
