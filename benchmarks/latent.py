"""Latent systems beside ar and mdlm: same text, tokenizer, network and processor time. And what a step of theirs costs.

    python benchmarks/latent.py cost                                              # CPU seconds of a training step
    python benchmarks/latent.py rows --data e2e --minutes 3 --out runs/latent     # all rows, or name some
    python benchmarks/latent.py rows --data captions --minutes 3 --out runs/latent "cosmos" "cosmos, no match"

A row is trained once and kept in its folder. For each: the likelihood; how well latents are read back, and what the
decoder says without them; what a judge (ar, trained on the validation split) makes of samples, and their entropy; on
E2E the share of slots that samples mention.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import harness
import torch

import logosphere as ls
from logosphere.data.batches import draws, sequences
from logosphere.data.corpora import Corpus
from logosphere.evaluation.checkers import slot_accuracy
from logosphere.evaluation.latents import reading
from logosphere.training.fit import Training
from logosphere.types import NO_TOKEN, Batch

SMOOTHING = ("match", "position_drop", "feature_noise", "latent_dropout")
ROWS: dict[str, list[str]] = {
    "ar": ["ar"],
    "mdlm": ["mdlm"],
    "ld4lg": ["ld4lg", "latents=8"],
    "planner": ["planner", "latents=8"],
    "tencdm": ["tencdm"],
    "cosmos": ["cosmos", "latents=8"],
    "cosmos, joint": ["cosmos", "latents=8", "joint=True"],
    "cosmos, blurred": ["cosmos", "latents=8", "blurred=0.0"],
    "cosmos, no smoothing": ["cosmos", "latents=8", *(f"{part}=0.0" for part in SMOOTHING[1:])],
    **{f"cosmos, no {part}": ["cosmos", "latents=8", f"{part}=0.0"] for part in SMOOTHING},
    **{f"tencdm, tan {d}": ["tencdm", f"tan={d}.0"] for d in (1, 3, 5)},
    **{f"tencdm, self-conditioning {p}": ["tencdm", f"self_conditioning={p}"] for p in (0.0, 0.95)},
}
NETWORK = ["--batch", "32", "--network.width", "128", "--network.depth", "4", "--network.heads", "4"]
LENGTH = {"e2e": "64", "captions": "32"}
SEQUENCES, DRAWS, SAMPLES, JUDGE_STEPS = 256, 4, 128, 200


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("what", choices=("cost", "rows"))
    read.add_argument("names", nargs="*", help="rows to make; all when none is named")
    read.add_argument("--data", choices=tuple(LENGTH), default="captions")
    read.add_argument("--minutes", type=float, default=3.0, help="processor time of each training")
    read.add_argument("--out", type=Path, default=Path("runs/latent"))
    given = read.parse_intermixed_args()
    if unknown := set(given.names) - set(ROWS):
        sys.exit(f"No such row: {', '.join(sorted(unknown))}. There are: {'; '.join(ROWS)}.")
    if given.what == "cost":
        harness.present("CPU seconds of a training step, 32 sequences of 64 tokens out of 1,000", cost())
        return
    out = given.out / given.data
    for name in given.names or ROWS:
        row = made(name, out, given.data, given.minutes)
        shown = {figure: value if isinstance(value, str) else round(value, 4) for figure, value in row.items()}
        print(f"{name:32} {json.dumps(shown)}", flush=True)


# ---- what a step costs ----------------------------------------------------------------------------------------------


def cost(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Steps of the second stage against those of diffusion on tokens, neighbours in time, so that load drops out."""
    tokens = torch.randint(1000, (32, 64), generator=torch.Generator().manual_seed(0))

    def stepping(name: str, **options: object):
        model = ls.build(name, vocab_size=1000, length=64, width=128, depth=4, heads=4, **options)
        training = Training(model)
        model.process.settle(0.99)
        return lambda: training.advance(Batch.of(tokens), 100, 0.99)

    rows = {}
    for other in ("mdlm", "gaussian-ce", "tencdm"):
        for name in ("cosmos", "ld4lg", "planner"):
            ratio = harness.paired_ratio(stepping(other), stepping(name, latents=8), rounds)
            rows[f"{other} / {name} with 8 latents"] = ratio
    return rows


# ---- rows -----------------------------------------------------------------------------------------------------------


def made(name: str, out: Path, data: str, minutes: float) -> dict[str, float | str]:
    """The figures of a row, made unless they are there."""
    folder = out / name.replace(", ", "--").replace(" ", "-")
    path = folder / "figures.json"
    if not path.exists():
        system, *options = ROWS[name]
        _train(system, options, data, minutes, folder)
        path.write_text(json.dumps(figures(folder, out / "judge", data), indent=1))
    return json.loads(path.read_text())


def _train(system: str, options: list[str], data: str, minutes: float, folder: Path) -> None:
    chosen = ["--options", *options] if options else []
    command = [
        sys.executable, "-m", "logosphere", "train", "e2e", "--data", data, "--length", LENGTH[data], *NETWORK,
        "--system", system, *chosen, "--cpu-minutes", str(minutes), "--validations", "2", "--out", str(folder),
    ]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


def figures(folder: Path, judge_folder: Path, data: str) -> dict[str, float | str]:
    model, corpus = ls.load(folder), ls.open_corpus(data, "bpe:512")
    length = model.length
    held_out = list(sequences(corpus.test, length, 32, SEQUENCES))
    report = ls.evaluate(model, held_out, draws=DRAWS, rng=0)
    row: dict[str, float | str] = {"kind": report.kind, "bits": report.bits, "error": report.error}
    row |= {"recon": report.recon, "diffusion": report.diffusion}
    if ls.system(model.spec.system).family == "latent":
        found = asdict(reading(model, held_out, torch.Generator().manual_seed(0)))
        nats = found.pop("nats")
        row |= found | {f"nats, {name} latents": value for name, value in nats.items()}
    given = next(iter(sequences(corpus.test, length, SAMPLES, SAMPLES)))
    drawn = ls.generate(model, len(given), 64, torch.Generator().manual_seed(1), condition=given.condition)
    row |= {"nfe": drawn.nfe, "seconds": drawn.seconds}
    judge = judged(judge_folder, corpus, length)
    for whose, tokens in (("samples", drawn.tokens), ("real text", given.tokens)):
        nats = judge.nelbo(tokens, torch.Generator().manual_seed(0)).total / length
        row |= {f"judge, {whose}": float(nats.mean()) / math.log(2), f"entropy, {whose}": entropy(tokens)}
        if data == "e2e":
            meanings = [
                corpus.tokenizer.decode(source[source != NO_TOKEN]) for source in given.condition.source.numpy()
            ]
            texts = [corpus.tokenizer.decode(text) for text in tokens.numpy()]
            row[f"slots, {whose}"] = slot_accuracy(meanings, texts)
    return row


def entropy(tokens: torch.Tensor) -> float:
    """Bits per token of the tokens that samples use, all samples together: low where they are all alike."""
    share = torch.bincount(tokens.flatten()).double() / tokens.numel()
    return float(torch.special.entr(share).sum()) / math.log(2)


def judged(folder: Path, corpus: Corpus, length: int) -> ls.Model:
    """An autoregressive model that has seen the validation split alone."""
    if not (folder / "recipe.json").exists():
        torch.manual_seed(0)
        model = ls.build("ar", vocab_size=corpus.tokenizer.size, length=length, width=128, depth=3, heads=4)
        picks = draws(corpus.valid, length, 32, 0)
        for _ in ls.fit(model, (picks.at(step).tokens for step in range(JUDGE_STEPS)), steps=JUDGE_STEPS, ema=0.98):
            pass
        model.save(folder)
    return ls.load(folder)


if __name__ == "__main__":
    main()
