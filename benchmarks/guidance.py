"""Guidance on handwritten digits: how often a sample shows the requested digit, and how varied samples are.

    python benchmarks/guidance.py mdlm udlm rdlm-heat diffusion-lm --minutes 3 --out runs/guidance  # class-conditional

Each system is trained by the recipe `digits` with a smaller network and evaluated on the test split, conditioned on the
labels; rdlm-heat has the any-order path. Samples are drawn with classifier-free guidance (γ = 0, 1, 2, 3), and
unconditionally with the guidance of a classifier of noisy states (γ = 1, 3, 10; first-order edits of discrete states,
gradients of continuous ones). A support vector machine trained on the validation and test splits classifies the
samples; the generators are trained on neither split. Variety is the mean distance of two samples of the same digit,
relative to that of real images.
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
from harness import print_table

import logosphere as ls
from logosphere.data.batches import train_batches
from logosphere.data.corpus import Corpus
from logosphere.networks.config import NetworkConfig
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

SCALES, STRENGTHS = (0.0, 1.0, 2.0, 3.0), (1.0, 3.0, 10.0)
"""γ of classifier-free and of classifier guidance."""
STEPS = 32
OPTIONS = {"rdlm-heat": ["--options", "path=any-order"]}


def load_pixels(split: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.stack(split.sequences), np.asarray(split.labels)


def fit_classifier(corpus: Corpus) -> tuple[Any, float]:
    """Fit a support vector machine on validation and test splits; return it and its accuracy on the training split."""
    from sklearn.svm import SVC

    (a, b), (c, d) = load_pixels(corpus.valid), load_pixels(corpus.test)
    machine = SVC(gamma=0.001).fit(np.concatenate([a, c]), np.concatenate([b, d]))
    return machine, machine.score(*load_pixels(corpus.train))


def mean_distance(images: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean distance of two images of the same label."""
    distances = []
    for label in np.unique(labels):
        rows = images[labels == label].astype(float)
        distance = np.abs(rows[:, None] - rows[None]).mean(-1)
        distances.append(distance[~np.eye(len(rows), dtype=bool)].mean())
    return float(np.mean(distances))


def run_command(*arguments: str) -> str:
    command = [sys.executable, "-m", "logosphere", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train_classifier(model: ls.Model, corpus: Corpus, minutes: float) -> ls.ClassifierCheckpoint:
    torch.manual_seed(0)
    checkpoint = ls.ClassifierCheckpoint.fresh(
        model, corpus.labels, NetworkConfig(width=48, depth=2, heads=4, shape="8x8")
    )
    made = checkpoint.classifier
    crops = train_batches(corpus.train, 64, 16, 7)
    calibration, optim = 20, OptimizerConfig(lr=1e-3, warmup=20)
    started = time.process_time()
    list(ls.train_classifier(made, model, map(crops.at, range(calibration)), steps=calibration, optim=optim))
    steps = max(calibration, int(60 * minutes / (time.process_time() - started) * calibration))
    steps_taken = list(
        ls.train_classifier(made, model, map(crops.at, range(calibration, 10**9)), steps=steps, optim=optim)
    )
    print(
        f"classifier: {steps} steps, {np.mean([step.loss for step in steps_taken[-20:]]):.3f} nats",
        file=sys.stderr,
        flush=True,
    )
    made.eval()
    return checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", default=["mdlm", "udlm"])
    parser.add_argument("--minutes", type=float, default=3.0, help="CPU time of each training")
    parser.add_argument("--classifier-minutes", type=float, default=0.5)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/guidance"))
    args = parser.parse_args()
    corpus = ls.open_corpus("digits")
    machine, accuracy = fit_classifier(corpus)
    test_images, test_labels = load_pixels(corpus.test)
    real = mean_distance(test_images, test_labels)
    labels = torch.arange(args.samples) % 10
    rows = {"real test images": {"success": accuracy, "variety": 1.0, "bits per pixel": 0.0, "s.e.": 0.0, "NFE": 0.0}}
    for system in args.systems:
        folder = args.out / system
        if not (folder / "test.json").exists():
            run_command("train", "digits", "--system", system, *OPTIONS.get(system, []), "--network.width", "64",
                        "--network.depth", "3", "--batch", "32", "--cpu-minutes", str(args.minutes),
                        "--validations", "1", "--out", str(folder))  # fmt: skip
            (folder / "test.json").write_text(run_command("evaluate", str(folder), "--split", "test", "--json"))
        report = json.loads((folder / "test.json").read_text())
        bound = {"bits per pixel": report["bits"], "s.e.": report["error"]}
        model = Run(folder).model("ema")
        condition = ls.Condition.of(labels=labels)
        checkpoint = train_classifier(model, corpus, args.classifier_minutes)
        sampling = {f"condition, γ = {scale:g}": {"condition": condition, "guidance": scale} for scale in SCALES}
        for scale in STRENGTHS:
            guide = checkpoint.guide(model, "0", args.samples, scale)
            sampling[f"classifier, γ = {scale:g}"] = {"guide": replace(guide, labels=labels)}
        for name, options in sampling.items():
            drawn = ls.generate(model, args.samples, STEPS, torch.Generator().manual_seed(0), **options)
            images = drawn.tokens.numpy()
            row = {"success": float((machine.predict(images) == labels.numpy()).mean()),
                   "variety": mean_distance(images, labels.numpy()) / real} | bound | {"NFE": drawn.nfe}  # fmt: skip
            rows[f"{system}, {name}"] = row
            print(system, name, row, file=sys.stderr, flush=True)
    print_table(
        f"digits, {args.samples} samples, {STEPS} steps; success of real images: accuracy of the classifier", rows
    )


if __name__ == "__main__":
    main()
