"""Judges for a comparison: one of its own, trained on text that no system has seen, or one from elsewhere."""

from dataclasses import replace
from pathlib import Path

from logosphere.comparison.entrants import Budget, Entrant
from logosphere.comparison.fairness import opened
from logosphere.comparison.memory import digest
from logosphere.data.corpus import Corpus
from logosphere.data.splits import split_off
from logosphere.errors import UserError
from logosphere.evaluation.scorers import ModelScorer, Scorer, load_hub_scorer, load_smollm2
from logosphere.recipes.recipe import Recipe

HELD_BACK = 10
"""One part in so many of the judge's text on which it is validated."""


def judge_corpus(corpus: Corpus) -> Corpus:
    """The validation split as a text of its own: systems train on the other one and are measured on the test split."""
    train, valid = split_off(corpus.valid, HELD_BACK)
    return replace(corpus, name=f"{corpus.name} (validation split)", train=train, valid=valid)


def judge_entrant(common: Recipe, budget: Budget, corpus: Corpus, folder: Path) -> Entrant:
    """An autoregressive model with the network and the budget of the systems."""
    recipe = replace(common, system="ar", options=(), task="unconditional", begin=None)
    return Entrant("judge", budget.applied(recipe, corpus), folder)


def summoned(name: str, own: Path) -> Scorer:
    """A judge by its name: 'train' is the comparison's own, then smollm2, hf:NAME, or the folder of an ar run."""
    if name == "smollm2":
        return load_smollm2()
    if name.startswith("hf:"):
        return load_hub_scorer(name.removeprefix("hf:"))
    folder = own if name == "train" else Path(name)
    if name == "train" and not folder.exists():
        raise UserError("A judge is trained together with systems; name them with --systems, or name a judge's folder.")
    run = opened(folder)
    label = "ar" if name == "train" else folder.name
    trained_on = str(run.content["corpus"]["name"])
    return ModelScorer(run.model(), run.tokenizer, label, trained_on, digest(run.weights_file()))
