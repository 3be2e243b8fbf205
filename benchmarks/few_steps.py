"""Samples of few steps, with and without guidance by context: bits under a scorer, entropy and 3-grams.

    python benchmarks/flagship.py --minutes 6 --out runs/flagship "rdlm-heat, joint" mdlm
    python benchmarks/few_steps.py runs/flagship/6min/rdlm-heat--joint--0 runs/flagship/6min/mdlm--0 --out few.json
    python benchmarks/few_steps.py runs/flagship/6min/rdlm-heat--joint--0 --out few.json \
        --steps 16 --samplers --guidance 1 0.8 --guidance 2 0.85                   # other scales and temperatures
    python benchmarks/few_steps.py --out few.json --records                       # what is there, as records

Bits per character are those of the bundled `ar`, entropy that of the characters within a sample. Both fall when samples
repeat frequent tokens. The divergence of 3-grams from the training text does not: it grows when frequencies are wrong
in either direction, and the scale and temperature of the guidance were chosen by it, with 64 samples of 16 steps from
the seed 7. Measurements that are in the file are not repeated.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from records import find_commit, print_experiment
from scoring import load_test_windows, score

import logosphere as ls
from logosphere.evaluation.sample_metrics import ngram_divergence
from logosphere.evaluation.texts import extract_ngrams
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.runs.run import Run
from logosphere.sampling.steppers import ContextGuidance

STEPS = (4, 8, 16, 32, 64, 128)
SEEDS = (0, 1)
TRAIN_CHARACTERS, ORDER = 1_000_000, 3
torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of trained models of text8")
    parser.add_argument("--samplers", nargs="*", default=["ancestral", "context"])
    parser.add_argument("--guidance", nargs=2, action="append", default=[], metavar=("SCALE", "TEMPERATURE"),
                        help="guidance by context with this scale and temperature, beyond the samplers")  # fmt: skip
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--samples", type=int, default=32, help="samples of each seed")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the measurements, extended after each")
    parser.add_argument("--records", action="store_true", help="only print what is there, as records")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.records:
        return _print_records(found)
    scorer, reference = ls.load("pretrained:ar"), _train_ngrams()
    models = {run.name: Run(run).model("ema") for run in args.runs}
    common = {"samples": args.samples * len(args.seeds), "sampling_seeds": list(args.seeds), "commit": find_commit()}
    if "real text" not in found:
        about = {key: common[key] for key in ("samples", "commit")}
        found["real text"] = _measure(scorer, reference, load_test_windows(common["samples"])) | about
    for steps in args.steps:  # few steps first: a partial table compares all samplers
        for name, model in models.items():
            for sampler, how in _samplers(args.samplers, args.guidance).items():
                key = f"{name} {sampler} {steps}"
                if key not in found:
                    drawn = [ls.sample(model, args.samples, steps, seed, **how) for seed in args.seeds]
                    about = {"system": _system(model), "sampler": sampler, "steps": steps}
                    found[key] = _measure(scorer, reference, torch.cat(drawn)) | about | common
                    args.out.write_text(json.dumps(found))
                    print(key, found[key], file=sys.stderr, flush=True)


def _samplers(names: list[str], guidance: list[list[str]]) -> dict[str, dict[str, Any]]:
    """Return the arguments of `ls.sample` for each sampler."""
    guided = {
        f"context, scale {scale}, temperature {temperature}": {
            "stepper": ContextGuidance(float(scale), float(temperature))
        }
        for scale, temperature in guidance
    }
    return {name: {"sampler": name} for name in names} | guided


def _system(model: ls.Model) -> str:
    assert model.spec is not None
    return f"{model.spec.system}, joint" if isinstance(model.process, SphericalDiffusion) else model.spec.system


def _train_ngrams() -> torch.Tensor:
    text = torch.as_tensor(ls.open_corpus("text8").train[:TRAIN_CHARACTERS].astype("int64"))
    return extract_ngrams(text[None], ORDER).flatten(0, 1)


def _measure(scorer: ls.Model, reference: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    divergence = ngram_divergence(extract_ngrams(tokens, ORDER).flatten(0, 1), reference, scorer.vocab_size)
    return score(scorer, tokens) | {"ngram_kl": divergence}


def _describe(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the label of the row, the system and its path."""
    system, _, path = measured["system"].partition(", ")
    sampler, _, settings = measured["sampler"].partition(", ")
    parts = [f"`{system}`", path, f"`{sampler}`", settings]
    return {"row": ", ".join(part for part in parts if part), "system": system, "path": path or None}


def _print_records(found: dict[str, dict[str, Any]]) -> None:
    records = []
    for name, measured in found.items():
        fields = ("sampler", "steps", "samples", "sampling_seeds", "commit")
        about = {key: measured[key] for key in fields if key in measured}
        about |= _describe(measured) if "system" in measured else {"row": name}
        bits = {"value": round(measured["bits"], 2), "error": round(measured["s.e."], 2)}
        records.append(about | {"metric": "scorer_bits", **bits, "unit": "bits per character"})
        records.append(about | {"metric": "entropy", "value": round(measured["entropy"], 2)})
        records.append(about | {"metric": "ngram_kl", "value": round(measured["ngram_kl"], 2), "unit": "bits"})
    print_experiment("few-steps", records, script="benchmarks/few_steps.py", data="text8", seed=0,
                     budget={"CPU minutes": 6})  # fmt: skip


if __name__ == "__main__":
    main()
