"""The protocol of papers: the part of the bound that it measures, its windows, its kind and its command line."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import error_line, read_json, train
from torch import Tensor
from toy_languages import enumerate_sequences, generator, random_joint, skewed_chain, sticky_chain
from toy_models import System

import logosphere as ls
from logosphere.cli import main
from logosphere.data.corpus import Examples
from logosphere.data.languages import Language, Oracle
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import ByteTokenizer, WithEOS
from logosphere.data.wrapping import find_wrapping, wrap_windows
from logosphere.errors import UserError
from logosphere.evaluation.protocols import apply_protocol
from logosphere.evaluation.report import Report

DRAWS = 200


def masked_rate(language: Language, fraction: float) -> float:
    """Σ over subsets of masks P(subset) Σ_{masked i} H(x_i | visible) / fraction: the exact rate at a masked fraction.

    By enumeration of the language, independently of any process.
    """
    sequences, p = enumerate_sequences(language)
    length, total = language.length, 0.0
    for bits in range(1, 2**length):
        masked = torch.tensor([bits >> i & 1 for i in range(length)], dtype=torch.bool)
        count = int(masked.sum())
        chance = fraction**count * (1 - fraction) ** (length - count)
        for i in masked.nonzero().flatten().tolist():
            total += chance * conditional_entropy(sequences, p, ~masked, i) / fraction
    return total


def conditional_entropy(sequences: Tensor, p: Tensor, visible: Tensor, i: int) -> float:
    """H(x_i | x_visible) by enumeration."""
    joint: dict[tuple[int, ...], dict[int, float]] = {}
    for row, weight in zip(sequences.tolist(), p.tolist(), strict=True):
        seen = tuple(row[j] for j in visible.nonzero().flatten().tolist())
        joint.setdefault(seen, {}).setdefault(row[i], 0.0)
        joint[seen][row[i]] += weight
    return -sum(
        weight * math.log(weight / sum(values.values()))
        for values in joint.values()
        for weight in values.values()
        if weight > 0
    )


def integral(language: Language, low: float, high: float, points: int = 12) -> float:
    """∫ of the exact rate of a linear schedule, by Gauss and Legendre: the rate is a polynomial, so this is exact."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    times = low + (high - low) * (nodes + 1) / 2
    return (high - low) / 2 * sum(w * masked_rate(language, float(t)) for t, w in zip(times, weights, strict=True))


def measure(system: System, language: Language, first: float | None, count: int = 400) -> tuple[float, float, str]:
    """The mean over sequences of the paper's value with the oracle (None: of the full bound), its error and kind."""
    model = system.model(language)
    oracle = Oracle(model, language)
    if first is not None:
        model = apply_protocol(model, "paper", first)
    tokens = language.sample(count, generator(1))
    total = model.nelbo(tokens, generator(2), denoiser=oracle, draws=DRAWS).total.double()
    return float(total.mean()), float(total.std() / count**0.5), model.process.kind


@pytest.mark.parametrize("first", [0.3, 1e-3])
def test_the_paper_value_lacks_exactly_the_time_before_the_first(first: float) -> None:
    """(1 - ε) · paper = ∫_ε^1 and the missing part is ∫_0^ε, both of an exact integral by enumeration."""
    language = skewed_chain(2, 3)
    whole = integral(language, 0.0, 1.0)
    assert whole == pytest.approx(float(language.entropy()), abs=1e-9)
    for options in ({}, {"exact_count": False}, {"time_conditional": True}):
        value, error, kind = measure(System("mdlm", options), language, first)
        expected = integral(language, first, 1.0)
        assert expected < whole and whole - expected == pytest.approx(integral(language, 0.0, first), abs=1e-9)
        assert abs((1 - first) * value - expected) < 4 * error and kind == "surrogate"


def test_a_large_cut_is_visible() -> None:
    """With ε = 0.5 the mean over the later half is above the entropy, and the integral over it below."""
    language = sticky_chain(2, 3)
    value, error, _ = measure(System("mdlm"), language, 0.5)
    assert value - 4 * error > float(language.entropy())
    assert value / 2 + 4 * error < float(language.entropy())


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd-absorb"])
def test_both_protocols_agree_for_small_cuts(name: str) -> None:
    language = random_joint()
    options = {"schedule": "linear"} if name == "udlm" else {}
    paper, error, kind = measure(System(name, options), language, 1e-5, count=2000)
    full, full_error, full_kind = measure(System(name, options), language, None, count=2000)
    assert abs(paper - full) < 4 * (error**2 + full_error**2) ** 0.5
    assert (kind, full_kind) == ("surrogate", "bound")


def test_terms_outside_of_the_time_are_left_out() -> None:
    """A schedule that leaves signal at t = 1 has a prior term, which the papers do not report."""
    language = skewed_chain(3, 4)
    model = System("mdlm", {"schedule": "log-linear", "all_masked": True}).model(language)
    tokens, oracle = language.sample(16, generator(0)), Oracle(model, language)
    full = model.nelbo(tokens, generator(1), denoiser=oracle)
    paper = apply_protocol(model, "paper").nelbo(tokens, generator(1), denoiser=oracle)
    assert float(full.prior.min()) > 0 and not paper.prior.any() and not paper.recon.any()
    assert model.process.kind == "bound" and float(model.nelbo(tokens, generator(1), denoiser=oracle).prior.min()) > 0


def test_exact_likelihoods_and_chains_keep_their_kind() -> None:
    language = skewed_chain(2, 4)
    ar, chain = System("ar").model(language), System("d3pm-absorbing").model(language)
    assert apply_protocol(ar, "paper") is ar
    assert apply_protocol(chain, "paper").process.kind == "bound"


def test_gidd_leaves_out_both_ends() -> None:
    model = apply_protocol(System("gidd").model(skewed_chain(2, 4)), "paper")
    times = model.process.times
    assert (times.low, times.high, model.process.kind) == (1e-4, 1 - 1e-4, "surrogate")


def test_other_systems_are_refused() -> None:
    model = ls.build("plaid", vocab_size=3, length=4, width=8, depth=1, heads=1)
    with pytest.raises(UserError, match="'plaid' has no evaluation in the protocol of masked diffusion"):
        apply_protocol(model, "paper")
    with pytest.raises(UserError, match="protocol must be one of full, paper, not 'papers'"):
        apply_protocol(model, "papers")


# ---- windows ---------------------------------------------------------------------------------------------------


def test_windows_are_cut_into_pieces_between_bos_and_eos() -> None:
    examples = Examples([np.array([1, 2, 3]), np.array([4]), np.array([5, 6])], eos=9)
    rows = wrap_windows(examples, find_wrapping(WithEOS(ByteTokenizer())), 5)
    eos = 256
    joined = [1, 2, 3, eos, 4, eos, 5, 6, eos]
    assert rows.tolist() == [[eos, *joined[i : i + 3], eos] for i in (0, 3, 6)]
    row = np.arange(8, dtype=np.uint16)
    assert wrap_windows(row, find_wrapping(WithEOS(ByteTokenizer())), 5).tolist() == [
        [256, 0, 1, 2, 256],
        [256, 3, 4, 5, 256],
    ]  # the remainder is dropped


def test_windows_need_room() -> None:
    row = np.arange(10)
    with pytest.raises(UserError, match="at least 3, not 2"):
        wrap_windows(row, find_wrapping(WithEOS(ByteTokenizer())), 2)
    with pytest.raises(UserError, match="fewer than a window of 30"):
        wrap_windows(row, find_wrapping(WithEOS(ByteTokenizer())), 32)


@pytest.mark.parametrize("special", [["<|endoftext|>"], ["[CLS]", "[SEP]"], ["<s>", "</s>"], ["[UNK]"]])
def test_bos_and_eos_of_published_vocabularies(special: list[str]) -> None:
    from tokenizers import Tokenizer as Model
    from tokenizers import models

    names = ["a", *special]
    tokenizer = SubwordTokenizer(Model(models.WordLevel({name: i for i, name in enumerate(names)}, "a")), "words")
    found = find_wrapping(tokenizer)
    assert found == (None if special == ["[UNK]"] else (1, len(special)))
    assert find_wrapping(ByteTokenizer()) is None


# ---- reports and the command line ------------------------------------------------------------------------------


def test_the_report_names_the_protocol_and_the_perplexity(tmp_path: Path) -> None:
    language = skewed_chain(3, 4)
    model = System("mdlm").model(language)
    report = ls.evaluate(
        model, language.sample(64, generator(0)), rng=0, denoiser=Oracle(model, language), protocol="paper"
    )
    assert report.protocol == "paper" and report.kind == "surrogate"
    nats = sum(report.nats) / sum(report.counts)
    assert report.perplexity[0] == pytest.approx(math.exp(nats))
    assert report.perplexity[1] == pytest.approx(math.exp(nats) * report.error * math.log(2))
    assert str(report).startswith("~") and "≤" not in str(report) and "perplexity ~" in str(report)
    assert "paper protocol" in str(report)
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").protocol == "paper"
    older = {key: value for key, value in vars(report).items() if key != "protocol"}
    assert Report.from_dict(older | {"other_paths": []}).protocol == "full"


def test_the_command_line(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    (workplace / "words.txt").write_text("\n".join(f"{'ab' * (i % 6)} {i}" for i in range(200)))
    assert train("--data", "lines:words.txt", steps=2) == 0
    capsys.readouterr()
    command = ["evaluate", "run", "--sequences", "6", "--json"]
    assert main([*command, "--protocol", "paper"]) == 0
    paper = read_json(capsys)
    assert main(command) == 0
    full = read_json(capsys)
    assert (paper["protocol"], paper["kind"], paper["draws"]) == ("paper", "surrogate", 1)
    assert (full["protocol"], full["kind"], full["draws"]) == ("full", "bound", 4)
    assert paper["tokens"] == 6 * 16  # every position of a window, BOS and EOS among them
    assert paper["unit"] == "token" and paper["perplexity"] > 1 and paper["perplexity_error"] > 0
    names = {path.name for path in Path("run/eval").glob("words-test*.json")}
    assert names == {"words-test.json", "words-test-protocol=paper.json"}
    message = error_line(capsys, [*command, "--protocol", "paper", "--per", "byte"])
    assert "--per must be token, not byte" in message
    message = error_line(capsys, [*command, "--protocol", "paper", "--order", "entropy"])
    assert "An order of positions has no protocol" in message
