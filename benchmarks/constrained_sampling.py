"""Sampling in a language: its CPU time as a ratio to unconstrained sampling, and the error of its look-ahead.

The cost is that of the bundled model of stories with its 2,048 pieces, with and without a constraint in one run. The
error is the total variation distance from p(x | language) for a Markov chain, whose exact posterior is the network.
"""

import itertools
import re
from functools import partial
from typing import Any

import torch
from harness import measure_paired_ratio, print_table
from records import find_commit, print_experiment

import logosphere as ls

MODEL, BATCH, STEPS, ROUNDS = "pretrained:stories", 8, 16, 5
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,7}$"},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "rain"]}, "minItems": 1, "maxItems": 3},
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,11}$"},
        "weight": {"type": "number"},
        "happy": {"type": "boolean"},
    },
    "required": ["name", "age", "likes", "city", "weight", "happy"],
}
LANGUAGES: dict[str, dict[str, Any]] = {
    "regular expression, letters and commas": {"match": "[A-Za-z ,.]*"},
    "regular expression, a sentence": {"match": r"[A-Z][a-z]+( [a-z]+){3,20}\."},
    "JSON schema, six properties": {"json_schema": PERSON},
    "regular expression, 50 to 150 characters": {"match": ".{50,150}"},
}
LETTERS, CHAIN_MATCH, CHAIN_LENGTH, SAMPLES = "abc", "a*(b|ca)*", 4, 2000


def measure_cost() -> None:
    model = ls.load(MODEL)
    rows, records = {}, []
    for name, language in LANGUAGES.items():
        constraint = ls.constrain(model, **language)
        generate = partial(ls.generate, model, n=BATCH, steps=STEPS, rng=0, sampler="ancestral")
        measured = measure_paired_ratio(partial(generate, constraint=constraint), generate, ROUNDS, warmup=1)
        rows[name] = {"states": constraint.automaton.states} | measured
        common = {"row": name, "system": "mdlm"}
        records += [
            common | {"metric": "states", "value": constraint.automaton.states},
            common | {"metric": "ratio", "value": round(measured["ratio"], 2)},
            common
            | {
                "metric": "quartiles",
                "low": round(measured["ratio_quartile_1"], 2),
                "high": round(measured["ratio_quartile_3"], 2),
            },
        ]
    print_table(f"constrained / unconstrained, {MODEL}, {BATCH} texts, {STEPS} steps", rows)
    print_experiment(
        "constrained-sampling", records, script="benchmarks/constrained_sampling.py", samples=BATCH, steps=STEPS,
        seed=0, commit=find_commit(),
    )  # fmt: skip


def measure_look_ahead() -> None:
    transition = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    chain = ls.languages.markov(transition, torch.tensor([0.5, 0.3, 0.2]), CHAIN_LENGTH)
    sequences = torch.tensor(list(itertools.product(range(len(LETTERS)), repeat=CHAIN_LENGTH)))
    matched = [bool(re.fullmatch(CHAIN_MATCH, "".join(LETTERS[x] for x in row))) for row in sequences.tolist()]
    p = chain.log_prob(sequences).exp() * torch.tensor(matched)
    records, rows = [], {}
    for system, steps in (("mdlm", 64), ("udlm", 64), ("ar", CHAIN_LENGTH)):
        model = ls.build(system, vocab_size=len(LETTERS), length=CHAIN_LENGTH, denoiser=None)
        model.tokenizer = ls.make_tokenizer("characters", [LETTERS])
        constraint, oracle = ls.constrain(model, match=CHAIN_MATCH), ls.languages.oracle(model, chain)
        found = {}
        for particles in (1, 4, 16):
            drawn = ls.sample(
                model, SAMPLES, steps, 0, oracle, sampler="ancestral", constraint=constraint, particles=particles
            )
            index = (drawn * len(LETTERS) ** torch.arange(CHAIN_LENGTH - 1, -1, -1)).sum(1)
            share = torch.bincount(index, minlength=len(p)) / SAMPLES
            found[f"{particles} particles"] = float((share - p / p.sum()).abs().sum() / 2)
            records.append(
                {"row": f"`{system}`", "system": system, "metric": f"{particles}_particles", "steps": steps}
                | {"value": round(found[f"{particles} particles"], 3)}
            )
        rows[system] = found
    print_table(f"total variation distance from p(x | language), {SAMPLES} samples", rows)
    print_experiment(
        "constrained-look-ahead", records, script="benchmarks/constrained_sampling.py", samples=SAMPLES, seed=0,
        commit=find_commit(),
    )  # fmt: skip


if __name__ == "__main__":
    measure_cost()
    measure_look_ahead()
