"""CPU time of sampling in a language, as a ratio to unconstrained sampling in the same run.

A schema with an automaton of about 200 states and the 2,048 pieces of the bundled model of stories, and smaller and
larger languages; the same model, sampler and steps with and without.
"""

from functools import partial
from typing import Any

from harness import measure_paired_ratio, print_table
from records import find_commit, print_experiment

import logosphere as ls

MODEL, BATCH, STEPS, ROUNDS = "pretrained:stories", 8, 16, 5
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,11}$"},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "books", "rain"]}, "minItems": 1, "maxItems": 3},
        "story": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "likes", "story"],
}
LANGUAGES: dict[str, dict[str, Any]] = {
    "regex, one class": {"match": "[A-Za-z ,.]*"},
    "regex, a sentence": {"match": r"[A-Z][a-z]+( [a-z]+){3,20}\."},
    "JSON schema": {"json_schema": PERSON},
    "regex, 150 characters": {"match": ".{50,150}"},
}


def main() -> None:
    model = ls.load(MODEL)
    rows, records = {}, []
    for name, language in LANGUAGES.items():
        constraint = ls.constrain(model, **language)
        generate = partial(ls.generate, model, n=BATCH, steps=STEPS, rng=0, sampler="ancestral")
        ratio = measure_paired_ratio(partial(generate, constraint=constraint), generate, ROUNDS, warmup=1)
        size = {"states": constraint.automaton.states, "groups": constraint.automaton.members.shape[1]}
        rows[name] = size | ratio
        records.append({"language": name} | size | ratio)
    print_table(f"constrained / unconstrained, {MODEL}, {BATCH} texts, {STEPS} steps", rows)
    print_experiment("constrained sampling", records, model=MODEL, batch=BATCH, steps=STEPS, commit=find_commit())


if __name__ == "__main__":
    main()
