"""Reports: bits with error and kind, independent of batching; comparisons of compatible reports only."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_fixtures import REPORT
from toy_languages import generator, skewed_chain
from toy_models import random_network

import logosphere as ls
from logosphere.data.batches import windows
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.evaluation.leaderboard import compare
from logosphere.evaluation.likelihood import Estimate, concatenate, ratio_with_error
from logosphere.evaluation.report import Report, evaluate
from logosphere.types import Batch

LANGUAGE = skewed_chain(5, 6)
TEXT = LANGUAGE.sample(64, generator(1)).flatten().numpy().astype(np.uint16)


def evaluate_system(name: str = "mdlm", batch: int = 16, **how) -> Report:
    return evaluate(random_network(name, LANGUAGE), windows(TEXT, 6, batch), rng=7, **how)


def test_bits_and_error_match_the_ratio_estimator() -> None:
    """R = Σ total / Σ count, and the error of a ratio by its residuals, all by hand."""
    model = random_network("mdlm", LANGUAGE)
    tokens, known = torch.from_numpy(TEXT.astype(np.int64)).view(-1, 6), torch.zeros(64, 6).bool()
    known[:20, :3] = True
    report = evaluate(model, [Batch.of(tokens, known)], rng=7, draws=2, units_per_token=4.0)
    nats, count = np.array(report.nats), (~known).sum(1).numpy()
    rate = nats.sum() / count.sum()
    error = math.sqrt(((nats - rate * count) ** 2).sum() * 64 / 63) / count.sum()
    assert report.bits == pytest.approx(rate / math.log(2) / 4)
    assert report.error == pytest.approx(error / math.log(2) / 4)
    assert report.recon + report.diffusion + report.prior == pytest.approx(report.bits)
    assert (report.tokens, report.sequences, report.length) == (count.sum(), 64, 6)


def test_error_matches_the_spread_of_repeated_measurements() -> None:
    """200 samples of 100 pairs: the spread of their ratios matches the error of one sample within 10 per cent."""
    rng = generator(2)
    count = torch.randint(1, 9, (200, 100), generator=rng)
    values = (2 * count + torch.randn(200, 100, generator=rng)).double()
    estimates = torch.tensor([ratio_with_error(v, c) for v, c in zip(values, count, strict=True)]).double()
    assert float(estimates[:, 1].mean()) == pytest.approx(float(estimates[:, 0].std()), rel=0.15)


def test_one_sequence_has_no_error() -> None:
    assert math.isnan(ratio_with_error(torch.tensor([3.0]), torch.tensor([2]))[1])


@pytest.mark.parametrize("kind, sign", [("exact", "= 1.5"), ("bound", "≤ 1.5"), ("surrogate", "~ 1.5")])
def test_report_shows_its_kind(kind, sign: str) -> None:
    report = replace(REPORT, kind=kind)
    assert str(report).startswith(sign) and kind in str(report) and "± 0.0100 bits per character" in str(report)
    assert sign in str(compare([report]))


@pytest.mark.parametrize(
    ("system", "options", "path"),
    [
        ("rdlm-heat", {"path": "any-order"}, "any-order"),
        ("rdlm-heat", {}, "joint"),
        ("rdlm", {}, "joint"),
        ("mdlm", {}, ""),
    ],
)
def test_report_names_its_path(system: str, options: dict[str, str], path: str) -> None:
    model = ls.build(system, vocab_size=3, length=4, width=8, depth=1, heads=2, **options)
    report = evaluate(model, [torch.zeros(2, 4, dtype=torch.long)], rng=0)
    assert report.path == model.process.path_name == path
    assert (f"{report.kind}, {path} path" in str(report)) == bool(path)


def test_older_reports_have_no_path(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    replace(REPORT, path="joint").save(file)
    assert Report.load(file).path == "joint"
    content = json.loads(file.read_text())
    del content["path"]
    file.write_text(json.dumps(content))
    assert Report.load(file) == REPORT


def test_sums_are_kept_in_float64() -> None:
    """A million float32 terms would lose three digits."""
    parts = [Estimate(*[torch.full((100_000,), 0.1).double()] * 3, torch.ones(100_000).long(), "bound")] * 10
    assert concatenate(parts).per_token()[0] == pytest.approx(3 * float(torch.tensor(0.1)), rel=1e-12)
    report = evaluate_system()
    assert report.bits == pytest.approx(sum(report.nats) / report.tokens / math.log(2), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ls.systems())
def test_numbers_do_not_depend_on_the_batch_size(name: str) -> None:
    large, small, odd = (evaluate_system(name, batch, draws=2) for batch in (16, 4, 7))
    for cut in (small, odd):
        assert cut.nats == pytest.approx(large.nats, rel=1e-6, abs=1e-5)
    assert small.bits == pytest.approx(large.bits, abs=1e-6)


def test_data_hash_depends_on_the_tokens_only() -> None:
    """The same sequences in other batches have the same hash and can be compared; other tokens have another hash."""
    assert evaluate_system(batch=16).data_sha256 == evaluate_system(batch=5).data_sha256
    other = evaluate(random_network("mdlm", LANGUAGE), windows(TEXT[::-1].copy(), 6, 16), rng=7)
    assert other.data_sha256 != evaluate_system().data_sha256


def test_numbers_depend_on_the_seed() -> None:
    model = random_network("mdlm", LANGUAGE)
    by_int, again, by_generator, same = (
        evaluate(model, windows(TEXT, 6, 16), rng=rng).nats for rng in (7, 7, generator(3), generator(3))
    )
    assert by_int == again != by_generator == same


def test_an_oracle_reports_the_entropy() -> None:
    model = ls.build("ar", vocab_size=5, length=6, denoiser=None)
    report = evaluate(model, [LANGUAGE.sample(2000, generator(4))], denoiser=Oracle(model, LANGUAGE), rng=1)
    assert report.kind == "exact"
    assert abs(report.bits - LANGUAGE.entropy() / 6 / math.log(2)) < 3 * report.error


def test_evaluation_leaves_the_model_as_it_was() -> None:
    model = random_network("mdlm", LANGUAGE, dropout=0.5).train()
    one = evaluate(model, windows(TEXT, 6, 16), rng=7)
    assert model.training and one.nats == evaluate(model, windows(TEXT, 6, 16), rng=7).nats


def test_watch_is_called_for_every_batch() -> None:
    seen: list[Estimate] = []
    report = evaluate_system(watch=seen.append)
    assert torch.cat([part.total for part in seen]).tolist() == report.nats


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"batches": []}])
def test_invalid_evaluation_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        evaluate(random_network("mdlm", LANGUAGE), **{"batches": windows(TEXT, 6, 4)} | wrong)


def test_report_round_trips(tmp_path: Path) -> None:
    report = evaluate_system()
    report.save(tmp_path / "eval" / "report.json")
    assert Report.load(tmp_path / "eval" / "report.json") == report
    assert json.loads((tmp_path / "eval" / "report.json").read_text())["kind"] == "bound"


def test_undefined_error_is_saved_as_null(tmp_path: Path) -> None:
    """JSON has no NaN."""
    replace(REPORT, error=math.nan).save(tmp_path / "report.json")
    content = (tmp_path / "report.json").read_text()
    assert "NaN" not in content and json.loads(content)["error"] is None
    assert math.isnan(Report.load(tmp_path / "report.json").error)
    replace(REPORT, nats=[1.0, math.nan, 3.0]).save(tmp_path / "report.json")
    assert math.isnan(Report.load(tmp_path / "report.json").nats[1])


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"name": 1}'])
def test_invalid_report_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(UserError, match="not a report"):
        Report.load(tmp_path / "report.json")


def reports(*nats: torch.Tensor) -> list[Report]:
    """Reports over the same sequences of 6 tokens."""
    made = []
    for name, values in zip("abc", nats, strict=False):
        bits, error = (
            value / math.log(2) for value in ratio_with_error(values.double(), torch.full((len(values),), 6))
        )
        counts = [6] * len(values)
        made.append(replace(REPORT, name=name, bits=bits, error=error, nats=values.tolist(), counts=counts))
    return made


def test_paired_error_removes_shared_variance() -> None:
    rng = generator(5)
    hard = 10 + 3 * torch.randn(500, generator=rng)
    better, worse = hard, hard + 0.2 + 0.1 * torch.randn(500, generator=rng)
    comparison = compare(reports(worse, better))
    best, row = comparison.rows
    assert [best.report.name, row.report.name] == ["b", "a"] and best.difference == 0
    by_hand = (worse - better).double() / 6 / math.log(2)
    assert row.difference == pytest.approx(float(by_hand.mean()), rel=1e-6)
    assert row.error == pytest.approx(float(by_hand.std()) / 500**0.5, rel=1e-5)
    assert row.error < 0.1 * math.hypot(best.report.error, row.report.error)
    assert row.z > 10 and "+0.0" in str(comparison)


def test_paired_error_keeps_independent_variance() -> None:
    one, other = 10 + torch.randn(2, 500, generator=generator(6))
    row = compare(reports(one, other)).rows[1]
    assert row.error == pytest.approx(math.hypot(*[report.error for report in reports(one, other)]), rel=0.1)


def test_autoregressive_evaluation_refuses_known_suffixes() -> None:
    """A left-to-right model cannot condition on a known suffix, so its -log p of the prefix would not be exact."""
    known = torch.zeros(4, 6, dtype=torch.bool)
    known[:, -1] = True
    with pytest.raises(UserError, match="left to right"):
        evaluate(random_network("ar", LANGUAGE), [Batch.of(LANGUAGE.sample(4, generator(1)), known)], rng=7)


def test_texts_of_unequal_length_are_paired_per_token() -> None:
    """Differences of bits are Σ(nats - other)/Σ count, whose error excludes the variance of the lengths."""
    rng = generator(7)
    counts = torch.randint(10, 60, (4000,), generator=rng)
    better = 2.0 * counts + torch.randn(4000, generator=rng)
    worse = better + 0.1 * counts + 0.5 * torch.randn(4000, generator=rng)
    made = []
    for name, values in (("a", better), ("b", worse)):
        bits, error = (value / math.log(2) for value in ratio_with_error(values.double(), counts))
        made.append(replace(REPORT, name=name, bits=bits, error=error, nats=values.tolist(), counts=counts.tolist()))
    row = compare(made).rows[1]
    assert row.difference == pytest.approx(made[1].bits - made[0].bits, rel=1e-6)
    mean = 34.5  # of the lengths
    assert row.error == pytest.approx(0.5 / mean / 4000**0.5 / math.log(2), rel=0.1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"unit": "token"}, "unit"),
        ({"tokenizer": "ee"}, "tokenizer"),
        ({"length": 12}, "length"),
        ({"data_sha256": "11"}, "text"),
        ({"data": "d test"}, "text"),
        ({"kind": "surrogate"}, "surrogate"),
    ],
)
def test_incompatible_reports_are_not_compared(change: dict, message: str) -> None:
    for pair in ([REPORT, replace(REPORT, **change)], [replace(REPORT, **change), REPORT]):
        with pytest.raises(UserError, match=message):
            compare(pair)


def test_an_exact_number_may_be_compared_with_bounds() -> None:
    rows = compare([REPORT, replace(REPORT, name="b", kind="exact", bits=1.2, nats=[0.8, 1.6, 2.4])]).rows
    assert [row.report.name for row in rows] == ["b", "a"]
    with pytest.raises(UserError, match="nothing"):
        compare([])
