"""Guidance on handwritten digits: how often the digit that was asked for is written, and how varied it stays.

    python benchmarks/guidance.py mdlm udlm rdlm-heat diffusion-lm --minutes 3 --out runs/guidance  # class-conditional

Each system is trained by the recipe `digits`, with a smaller network, and evaluated on the test split, given the
labels. Samples are drawn with guidance by the condition (γ = 0, 1, 2, 3), and without the condition by a classifier of
noisy states (γ = 1, 3, 10; first-order edits of discrete states, gradients of continuous ones). A support vector
machine that has seen the validation and test splits, of which the generators have seen nothing, says which digit each
sample is. Variety is the mean distance of two samples of the same digit, over that of real ones.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import present

import logosphere as ls
from logosphere.data.batches import train_batches
from logosphere.data.corpus import Corpus
from logosphere.networks.config import NetworkConfig
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

SCALES, STRENGTHS = (0.0, 1.0, 2.0, 3.0), (1.0, 3.0, 10.0)
"""γ of the condition, and of the classifier."""
STEPS = 32


def pixels(split: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.stack(split.sequences), np.asarray(split.labels)


def judge(corpus: Corpus) -> tuple[Any, float]:
    """A support vector machine on what the generators have not seen, and its accuracy on what they have."""
    from sklearn.svm import SVC

    (a, b), (c, d) = pixels(corpus.valid), pixels(corpus.test)
    machine = SVC(gamma=0.001).fit(np.concatenate([a, c]), np.concatenate([b, d]))
    return machine, machine.score(*pixels(corpus.train))


def spread(images: np.ndarray, labels: np.ndarray) -> float:
    """The mean distance of two images of one kind."""
    found = []
    for label in np.unique(labels):
        rows = images[labels == label].astype(float)
        apart = np.abs(rows[:, None] - rows[None]).mean(-1)
        found.append(apart[~np.eye(len(rows), dtype=bool)].mean())
    return float(np.mean(found))


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "logosphere", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train_checkpoint(model: ls.Model, corpus: Corpus, minutes: float) -> ls.ClassifierCheckpoint:
    torch.manual_seed(0)
    checkpoint = ls.ClassifierCheckpoint.fresh(
        model, corpus.labels, NetworkConfig(width=48, depth=2, heads=4, shape="8x8")
    )
    made = checkpoint.classifier
    crops = train_batches(corpus.train, 64, 16, 7)
    pace, optim = 20, OptimizerConfig(lr=1e-3, warmup=20)
    started = time.process_time()
    list(ls.train_classifier(made, model, map(crops.at, range(pace)), steps=pace, optim=optim))
    steps = max(pace, int(60 * minutes / (time.process_time() - started) * pace))
    told = list(ls.train_classifier(made, model, map(crops.at, range(pace, 10**9)), steps=steps, optim=optim))
    print(
        f"classifier: {steps} steps, {np.mean([one.loss for one in told[-20:]]):.3f} nats", file=sys.stderr, flush=True
    )
    made.eval()
    return checkpoint


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("systems", nargs="*", default=["mdlm", "udlm"])
    read.add_argument("--minutes", type=float, default=3.0, help="processor time of each training")
    read.add_argument("--classifier-minutes", type=float, default=0.5)
    read.add_argument("--samples", type=int, default=200)
    read.add_argument("--out", type=Path, default=Path("runs/guidance"))
    given = read.parse_args()
    corpus = ls.open_corpus("digits")
    machine, accuracy = judge(corpus)
    images, kinds = pixels(corpus.test)
    real = spread(images, kinds)
    labels = torch.arange(given.samples) % 10
    rows = {"real test images": {"success": accuracy, "variety": 1.0, "bits per pixel": 0.0, "s.e.": 0.0, "NFE": 0.0}}
    for system in given.systems:
        folder = given.out / system
        if not (folder / "test.json").exists():
            run("train", "digits", "--system", system, "--network.width", "64", "--network.depth", "3", "--batch", "32",
                "--cpu-minutes", str(given.minutes), "--validations", "1", "--out", str(folder))  # fmt: skip
            (folder / "test.json").write_text(run("evaluate", str(folder), "--split", "test", "--json"))
        report = json.loads((folder / "test.json").read_text())
        bound = {"bits per pixel": report["bits"], "s.e.": report["error"]}
        model = Run(folder).model("ema")
        told = ls.Condition.of(labels=labels)
        checkpoint = train_checkpoint(model, corpus, given.classifier_minutes)
        ways = {f"condition, γ = {scale:g}": {"condition": told, "guidance": scale} for scale in SCALES}
        for scale in STRENGTHS:
            guide = checkpoint.guide(model, "0", given.samples, scale)
            ways[f"classifier, γ = {scale:g}"] = {"guide": replace(guide, labels=labels)}
        for name, way in ways.items():
            drawn = ls.generate(model, given.samples, STEPS, torch.Generator().manual_seed(0), **way)
            written = drawn.tokens.numpy()
            row = {"success": float((machine.predict(written) == labels.numpy()).mean()),
                   "variety": spread(written, labels.numpy()) / real} | bound | {"NFE": drawn.nfe}  # fmt: skip
            rows[f"{system}, {name}"] = row
            print(system, name, row, file=sys.stderr, flush=True)
    present(f"digits, {given.samples} samples, {STEPS} steps; success of real images: accuracy of the judge", rows)


if __name__ == "__main__":
    main()
