"""Zero-shot sets: the rules that detokenise them, their files, and the evaluation of a run on them."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import error_line, read_json, train

from logosphere.cli import main
from logosphere.data.corpora import open_corpus
from logosphere.data.detokenize import (
    detokenize_lambada,
    detokenize_lm1b,
    detokenize_papers,
    detokenize_ptb,
    detokenize_wikitext,
    keep_text,
)
from logosphere.data.tokenizers import ByteTokenizer, WithEOS
from logosphere.data.zero_shot import ZERO_SHOT, open_zero_shot, split_source
from logosphere.errors import UserError


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("It cost 1 @,@ 000 , or 2 @.@ 5 a well @-@ known sum . \n", "It cost 1,000, or 2.5 a well-known sum.\n"),
        (" = = Early years = = \n", " == Early years ==\n"),
        ('He said " no way " and ( quietly ) left ; then [ sic ] he slept . \n',
         'He said "no way" and (quietly) left; then [sic] he slept.\n'),
        ("the king 's men at 5 ° C", "the king's men at 5°C"),
        ("plain text", "plain text"),
    ],
)  # fmt: skip
def test_wikitext_is_written_as_running_text(given: str, written: str) -> None:
    assert detokenize_wikitext(given) == written


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("the company 's shares did n't rise N N", "the company's shares didn't rise 1 N"),
        ("it rose N % to $ N million in N and N", "it rose 1 % to $1 million in 1 and N"),
        ("the <unk> traders ' view of 1\\/2", "the ? traders' view of 1/2"),
    ],
)
def test_ptb_is_written_as_running_text(given: str, written: str) -> None:
    assert detokenize_ptb(given) == written


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("She 'll go , won 't she ?", "She'll go, won't she?"),
        ('He said : " it costs $ 5 ! " and left .', 'He said: "it costs $5!" and left.'),
        ("see http : / / a.org / b ( now ) today .", "see http://a.org/b (now) today."),
    ],
)
def test_lm1b_is_written_as_running_text(given: str, written: str) -> None:
    assert detokenize_lm1b(given) == written


def test_other_sets() -> None:
    assert detokenize_lambada("“ no , ” he said ") == '\n" no , " he said'
    assert detokenize_papers("a rate of 1 @,@ 000 , i.e. $ 5") == "a rate of 1,000, i.e. $5"
    assert keep_text(" as it , is") == " as it , is"


def test_files_of_every_format_give_the_same_tokens(tmp_path: Path) -> None:
    rows = ["the <unk> company 's plan", "", "it is n't N yet"]
    (tmp_path / "ptb.txt").write_text("\n".join(f" {row} " if row else row for row in rows) + "\n")
    (tmp_path / "ptb.jsonl").write_text("\n".join(json.dumps({"sentence": f" {row} "}) for row in rows))
    (tmp_path / "ptb.csv").write_text("id,sentence\n" + "".join(f"{i}, {row} \n" for i, row in enumerate(rows)))
    tokenizer = WithEOS(ByteTokenizer())
    expected: list[int] = []
    for text in (" the ? company's plan ", " it isn't 1 yet "):
        expected += [*text.encode(), tokenizer.eos]
    for name in ("ptb.txt", "ptb.jsonl", "ptb.csv"):
        corpus = open_corpus(f"zero-shot:ptb={tmp_path / name}", tokenizer)
        assert np.asarray(corpus.test).tolist() == expected and not len(corpus.train)
        assert corpus.characters["test"] == len(expected) - 2 and corpus.name == "zero-shot:ptb"
    (tmp_path / "folder").mkdir()
    for i, row in enumerate((rows[0], rows[2])):
        (tmp_path / "folder" / f"{i}.txt").write_text(f" {row} \n")
    assert np.asarray(open_zero_shot(f"zero-shot:ptb={tmp_path / 'folder'}", tokenizer).test).tolist() == expected


def test_lines_of_wikitext_keep_their_ends_as_rows_of_the_hub_do(tmp_path: Path) -> None:
    rows = [" = = Early years = = \n", "\n", " Some words , and 1 @,@ 000 more . \n"]
    (tmp_path / "wiki.txt").write_text("".join(rows))
    (tmp_path / "wiki.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    texts = []
    for name in ("wiki.txt", "wiki.jsonl"):
        corpus = open_zero_shot(f"zero-shot:wikitext={tmp_path / name}", WithEOS(ByteTokenizer()))
        row = np.asarray(corpus.test)
        texts.append(bytes(row[row < 256].tolist()).decode())
        assert int((row == 256).sum()) == 2
    assert texts == [" == Early years ==\n Some words, and 1,000 more.\n"] * 2


@pytest.mark.parametrize("name", sorted(ZERO_SHOT))
def test_every_set_reads_its_own_column(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({ZERO_SHOT[name].column: "some text", "other": "no"}))
    corpus = open_zero_shot(f"zero-shot:{name}={path}", ByteTokenizer())
    assert bytes(np.asarray(corpus.test).tolist()).decode().strip() == "some text"


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no zero-shot set 'wikitex'. Did you mean 'wikitext'"):
        split_source("zero-shot:wikitex")
    with pytest.raises(UserError, match="There is no file or folder"):
        open_zero_shot(f"zero-shot:ptb={tmp_path / 'none.txt'}", ByteTokenizer())
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(UserError, match="has no documents"):
        open_zero_shot(f"zero-shot:ptb={tmp_path / 'blank.txt'}", ByteTokenizer())
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}')
    with pytest.raises(UserError, match="sentence"):
        open_zero_shot(f"zero-shot:ptb={tmp_path / 'rows.jsonl'}", ByteTokenizer())


def test_a_run_is_measured_beside_published_figures(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    assert train("--tokenizer", "byte", steps=2) == 0
    Path("wiki.txt").write_text("".join(f" = Part {i} = \n\n Some words , and more .\n" for i in range(40)))
    source = "zero-shot:wikitext=wiki.txt"
    command = ["evaluate", "run", "--data", source, "--sequences", "8"]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = read_json(capsys)
    assert found["published"]["mdlm"] == 32.8 and "Sahoo" in found["published"]["source"]
    assert found["kind"] == "bound" and found["data"] == "zero-shot:wikitext test" and found["frequencies"] is None
    assert main(command) == 0
    assert "published: mdlm ~ 32.8, ar = 25.8" in capsys.readouterr().out
    message = error_line(capsys, ["train", "--data", source, "--out", "other", "--steps", "1"])
    assert "train on another text" in message and not Path("other").exists()
