"""Units of bits come from the text: characters and bytes per token; one text ranks runs with different tokenizers."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import error_line, read_json, train
from text_fixtures import PROSE, write_file

import logosphere as ls
from logosphere.cli import main
from logosphere.data.batches import eval_batches
from logosphere.data.corpora import open_corpus
from logosphere.errors import UserError
from logosphere.evaluation.baselines import TokenFrequencies
from logosphere.evaluation.leaderboard import compare
from logosphere.evaluation.report import Report
from logosphere.runs.diagnosis import explain_poor_bound

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.fixture
def text() -> str:
    """A file whose characters take more bytes than one in places."""
    return str(write_file(Path("prose.txt"), PROSE.replace("e", "é") * 3))


def report_of(text: str, tokenizer: str, **how) -> Report:
    corpus = open_corpus(text, tokenizer)
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=corpus.tokenizer.size, length=8, width=16, depth=1, heads=2)
    batches = ls.windows(corpus.test, length=8, batch=8, limit=16)
    return ls.evaluate(model, batches, draws=2, rng=0, **(how or {"corpus": corpus}))


def test_bits_per_character_are_those_of_the_text(text: str) -> None:
    """From the sizes of the text alone: bits per token × tokens = bits per character × characters."""
    corpus = open_corpus(text, "bpe:300")
    per_token, per_character = (report_of(text, "bpe:300", corpus=corpus, unit=u) for u in ("token", "character"))
    tokens, characters = len(corpus.test), corpus.characters["test"]
    assert per_token.bits * tokens == pytest.approx(per_character.bits * characters)
    assert per_token.bits > 1.2 * per_character.bits
    assert per_token.in_units()["character"] == pytest.approx((per_character.bits, per_character.error))
    assert per_character.in_units()["byte"][0] == pytest.approx(per_token.bits * tokens / corpus.bytes["test"])
    assert f"{per_character.bits:.4f} ± {per_character.error:.4f} per character" in str(per_token)


def test_characters_without_a_text_are_refused(text: str) -> None:
    for unit in ("character", "byte"):
        with pytest.raises(UserError, match=f"unit='{unit}' needs the number of {unit}s per token: pass corpus="):
            report_of(text, "bpe:300", unit=unit)
    with pytest.raises(UserError, match="unit must be token, character, byte or dimension, not 'words'"):
        report_of(text, "bpe:300", unit="words")
    assert report_of(text, "bpe:300", unit="word", units_per_token=0.5).unit == "word"
    assert report_of(text, "bpe:300", unit="token").in_units().keys() == {"token"}
    assert report_of(text, "characters", unit="character", units_per_token=1.0).unit == "character"
    assert report_of(text, "characters").unit == "character" and report_of(text, "byte").unit == "byte"


def test_baselines_are_those_of_the_tokens(text: str) -> None:
    """Blind guessing is log₂ V. Frequencies are those of the training text, one added, on the tokens measured."""
    corpus = open_corpus(text, "characters")
    report = report_of(text, "characters")
    counts = np.bincount(corpus.train, minlength=corpus.tokenizer.size) + 1
    bits = -np.log2(counts / counts.sum())
    rows = np.concatenate([b.tokens.numpy() for b in ls.windows(corpus.test, length=8, batch=8, limit=16)])
    assert report.blind == pytest.approx(math.log2(corpus.tokenizer.size))
    assert report.frequencies == pytest.approx(bits[rows].mean())
    assert "blind guessing" in report.baselines and "letter frequencies" in report.baselines


def test_frequencies_leave_out_padding() -> None:
    lines = write_file(Path("lines.txt"), "\n".join("ab" * (1 + i % 3) for i in range(60)) + "\n")
    corpus = open_corpus(f"lines:{lines}", "characters")
    counter = TokenFrequencies(corpus)
    batches = list(counter.watched(eval_batches(corpus.test, 10, 4, None)))
    assert counter.tokens == sum(int(batch.token_count.sum()) for batch in batches)
    assert counter.tokens < sum(batch.tokens.numel() for batch in batches)


def test_commands_print_bits_per_character_beside_bits_per_token(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--data", text, "--tokenizer", "bpe:300") == 0
    out = capsys.readouterr()
    assert "per character" in out.out and "per character" in out.err and "blind guessing" in out.out
    assert main(["evaluate", "run", "--sequences", "8", "--draws", "1"]) == 0
    assert "per character" in (printed := capsys.readouterr().out) and "token frequencies" in printed
    assert main(["evaluate", "run", "--sequences", "8", "--draws", "1", "--json"]) == 0
    summary = read_json(capsys)
    assert summary["per_unit"].keys() == {"token", "character", "byte"} and summary["frequencies"] < summary["blind"]
    values = [line for line in ls.Run("run").metrics() if "val/bpt" in line]
    assert values and all(line["val/bpc"] < line["val/bpt"] for line in values)
    assert main(["export", "run", "--per", "character", "--sequences", "8"]) == 0
    assert "bits per token of 16 random sequences" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", "run", "--sequences", "8"]) == 0
    assert "per character" in (printed := capsys.readouterr().out) and "blind guessing" in printed


def test_different_tokenizers_are_ranked_by_bits_per_byte(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one text: the bits per byte of a run are its nats over the bytes of the text that all runs read."""
    for name, tokenizer, length in (("bpe", "bpe:300", "16"), ("bytes", "byte", "32")):
        assert train("--data", text, "--tokenizer", tokenizer, "--length", length, out=name) == 0
    capsys.readouterr()
    assert main(["compare", "bpe", "bytes", "--sequences", "8", "--json"]) == 0
    rows = {row["name"]: row for row in read_json(capsys)["rows"]}
    assert all(row["unit"] == "byte" and row["text_sha256"] == rows["bpe"]["text_sha256"] for row in rows.values())
    sizes = {name: row["tokens"] * row["units"]["byte"] for name, row in rows.items()}
    assert sizes["bpe"] == pytest.approx(sizes["bytes"], rel=0.15)  # up to a sequence at the end
    worse, best = sorted(rows.values(), key=lambda row: -row["bits"])
    assert worse["above_best"] == pytest.approx(worse["bits"] - best["bits"])
    assert worse["above_best_error"] == pytest.approx(math.hypot(worse["error"], best["error"]))
    assert main(["compare", "bpe", "bytes", "--sequences", "8"]) == 0
    assert "bits per byte" in capsys.readouterr().out
    assert "one tokenizer" in error_line(capsys, ["compare", "bpe", "bytes", "--report", "out.html"])
    write_file(Path("other.txt"), PROSE[::-1])
    assert train("--data", "other.txt", "--tokenizer", "byte", out="other") == 0
    assert "differ in text" in error_line(capsys, ["compare", "bpe", "other"])


def test_reports_of_other_texts_are_not_ranked_by_bytes(text: str) -> None:
    first, second = (replace(report_of(text, "byte"), text_sha256=sha) for sha in ("a", "b"))
    with pytest.raises(UserError, match="differ in text"):
        compare([first, second])


def test_older_reports_have_no_units(text: str) -> None:
    report = report_of(text, "byte")
    report.save("new.json")
    content = json.loads(Path("new.json").read_text())
    for name in ("units", "blind", "frequencies", "text_sha256"):
        content.pop(name)
    Path("old.json").write_text(json.dumps(content))
    assert Report.load("new.json") == report
    old = Report.load("old.json")
    assert old.baselines == "" and not old.worse_than_blind and old.in_units() == {"byte": (old.bits, old.error)}


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--tokenizer", "bpe:300"], "too few steps"),
        (["--data", "lines:short.txt", "--tokenizer", "byte", "--length", "32"], "texts fill only"),
        (["--system", "rdlm", "--preset", "paper"], "the preset 'paper' is meant for much longer trainings"),
    ],
)
def test_a_bound_worse_than_blind_guessing_is_explained(
    text: str, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the run and the report alone, whatever made the bound poor."""
    write_file(Path("short.txt"), "abcdefg\nabcde\n" * 100)
    data = [] if "--data" in options else ["--data", text]
    assert train(*data, *options, steps=2) == 0
    run = ls.Run("run")
    report = Report.load("run/eval/valid.json")
    assert explain_poor_bound(replace(report, bits=0.5 * report.blind), run) == ""
    poor = replace(report, bits=2 * report.blind, error=0.0)
    sentence = explain_poor_bound(poor, run)
    assert f"worse than blind guessing ({report.blind:.4f} bits per {report.unit})" in sentence and reason in sentence
    assert f"worse than blind guessing, {report.blind:.4f}" in str(poor)
    assert "--options" in explain_poor_bound(poor, run, ("path=joint",))
    assert "another text" in explain_poor_bound(replace(poor, data="elsewhere test"), run)
