"""First predictions: the bound of a network before training is that of a uniform guess, log₂ V bits per token."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_run import RECIPE

import logosphere as ls
from logosphere.data.corpora import open_corpus
from logosphere.runs.create import build_model
from logosphere.types import Batch

PATHS = ("joint", "any-order")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "vocab_size", [27, *(pytest.param(size, marks=pytest.mark.slow) for size in (256, 1024, 8192))]
)
@pytest.mark.parametrize("system", ["rdlm", "rdlm-heat"])
def test_a_fresh_network_of_the_sphere_guesses_uniformly(system: str, vocab_size: int, path: str) -> None:
    """Within 3 per cent and three standard errors, for vocabularies of every size."""
    model = ls.build(system, vocab_size=vocab_size, length=8, width=32, depth=1, heads=2, path=path)
    tokens = torch.randint(vocab_size, (32, 8), generator=torch.Generator().manual_seed(0))
    report = ls.evaluate(model, [tokens], draws=4, rng=0)
    assert report.path == path
    assert report.bits <= 1.03 * math.log2(vocab_size) + 3 * report.error


@pytest.mark.parametrize("system", ["rdlm", "mdlm", "ar"])
def test_a_fresh_network_expects_the_padding_of_short_texts(system: str, tmp_path: Path) -> None:
    """Padding fills three quarters of the length here. Bits are counted per token of the text, so a uniform
    prediction of padding, too, would cost four times log₂ V a token."""
    file = tmp_path / "short.txt"
    letters = "abcdefghijklmnopqrstuvwxyz"
    file.write_text("\n".join(letters[i % 20 : i % 20 + 5 + i % 3] for i in range(200)) + "\n")
    corpus = open_corpus(f"lines:{file}", "byte")
    config = replace(RECIPE, system=system, data=f"lines:{file}", tokenizer="byte", length=28)
    model = build_model(config, corpus)
    rows = corpus.train.padded_rows(28)[:32]
    counts = (rows == corpus.tokenizer.eos).float().argmax(1) + 1
    batch = replace(Batch.of(rows), token_count=counts)
    report = ls.evaluate(model, [batch], draws=4, rng=0)
    assert 28 * 32 / report.tokens > 3
    share = 1 - (int(counts.sum()) - len(counts)) / rows.numel()
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    guess = math.log2(model.vocab_size) + entropy * rows.numel() / report.tokens
    assert report.bits <= 1.1 * guess + 3 * report.error
