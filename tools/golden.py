"""Golden records: losses, bounds and samples of every system and preset at fixed seeds, as JSON.

    python tools/golden.py record FILE             write the records of this version
    python tools/golden.py compare FILE            compare this version with records; equal to the last bit
    python tools/golden.py compare FILE --tolerance 1e-5   on another processor

A refactoring must leave the records of the machine it is done on equal to the last bit.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

import logosphere as ls
from logosphere.errors import UserError

VOCABULARY, LENGTH, BATCH, STEPS, DRAWS, SAMPLES = 11, 16, 8, 5, 4, 8
SIZE: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2}
PRECISION = "float32"
"""Rounding of bfloat16 products differs between processors by more than records may."""
AGREEMENT = 0.95
"""Fraction of sampled tokens that must agree where numbers differ by rounding, which may change single draws."""


def cases() -> list[str]:
    """Every system with each of its presets, as SYSTEM/PRESET."""
    return [f"{name}/{preset}" for name in ls.systems() for preset in ls.presets(name)]


def record(case: str) -> dict[str, Any]:
    """Losses of five steps, a bound with its standard error, and samples of one system and preset."""
    name, _, preset = case.partition("/")
    language = ls.languages.markov(
        torch.eye(VOCABULARY).roll(1, 0) * 0.6 + 0.4 / VOCABULARY, torch.full((VOCABULARY,), 1 / VOCABULARY), LENGTH
    )
    rng = torch.Generator().manual_seed(1)
    batches = [language.sample(BATCH, rng) for _ in range(STEPS)]
    torch.manual_seed(0)
    try:
        model = ls.build(name, vocab_size=VOCABULARY, length=LENGTH, preset=preset, **SIZE)
    except UserError as refusal:
        return {"refused": str(refusal)}
    losses = [progress.loss for progress in ls.fit(model, batches, steps=STEPS, ema=0.5, precision=PRECISION)]
    bound = model.eval().nelbo(language.sample(BATCH, rng), torch.Generator().manual_seed(2), draws=DRAWS)
    total = bound.total.double()
    samples = ls.sample(model, n=SAMPLES, steps=8, rng=torch.Generator().manual_seed(3), precision=PRECISION)
    return {
        "losses": losses,
        "kind": bound.kind,
        "precision": PRECISION,
        "bound": float(total.mean()),
        "error": float(total.std() / math.sqrt(BATCH)),
        "samples": samples.tolist(),
    }


def differences(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> list[str]:
    """What differs between two records of one case, in words."""
    if "refused" in old or "refused" in new:
        return [] if old.keys() == new.keys() else [f"{old.get('refused', 'built')} -> {new.get('refused', 'built')}"]
    found = [f"{key} {old[key]} -> {new[key]}" for key in ("kind", "precision") if old[key] != new[key]]
    for key in ("bound", "error"):
        if not _close(old[key], new[key], tolerance):
            found.append(f"{key} {old[key]!r} -> {new[key]!r}")
    for step, (a, b) in enumerate(zip(old["losses"], new["losses"], strict=True), 1):
        if not _close(a, b, tolerance):
            found.append(f"loss of step {step} {a!r} -> {b!r}")
            break
    same = (torch.tensor(old["samples"]) == torch.tensor(new["samples"])).float().mean().item()
    if same < (1.0 if tolerance == 0 else AGREEMENT):
        found.append(f"{1 - same:.1%} of the sampled tokens")
    return found


def _close(a: float, b: float, tolerance: float) -> bool:
    return a == b or abs(a - b) <= tolerance * max(1.0, abs(a))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    old = json.loads(chosen.file.read_text()) if chosen.file.exists() else {}
    new, failed = {}, 0
    for case in cases():
        if chosen.only in case:
            started = time.process_time()
            new[case] = record(case)
            if chosen.action == "compare":
                found = differences(old[case], new[case], chosen.tolerance) if case in old else ["no record"]
                failed += bool(found)
                print(f"{case:<28} {'; '.join(found) or 'equal'}  ({time.process_time() - started:.1f} s)", flush=True)
    if chosen.action == "record":
        chosen.file.write_text(json.dumps(old | new, indent=None, sort_keys=True) + "\n")
    missing = sorted(old.keys() - set(cases())) if not chosen.only else []
    if missing and chosen.action == "compare":
        print(f"records of cases that are no more: {', '.join(missing)}")
    return 1 if failed or (missing and chosen.action == "compare") else 0


if __name__ == "__main__":
    sys.exit(main())
