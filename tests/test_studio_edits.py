"""Edits in the studio: words of any tokenizer, commands that reproduce edited texts, and prompts that stay."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from cli_helpers import error_line
from starlette.testclient import TestClient

from logosphere.cli import main
from logosphere.data.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    IntegerTokenizer,
    Tokenizer,
    WithEOS,
    encode_hold,
    text8_tokenizer,
)
from logosphere.errors import UserError
from logosphere.pretrained import PREFIX
from logosphere.runs.run import Run
from logosphere.studio.app import create_app
from logosphere.studio.edits import Edit, EditRequest, edit_text
from logosphere.studio.library import Library

TOKEN, HOST = "secret", "127.0.0.1:8000"
STORIES = f"{PREFIX}stories"


def apply(row: list[int], edit: Edit) -> list[int]:
    return [*row[: edit.at], *edit.tokens, *row[edit.at + edit.removed :]]


ROOM = (-1,) * 16
"""Open positions behind a text."""

TOKENIZERS: list[Tokenizer] = [text8_tokenizer(), ByteTokenizer(), WithEOS(ByteTokenizer()), Run(STORIES).tokenizer]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: f"{tokenizer.name}-{tokenizer.size}")
def test_what_is_typed_replaces_the_word_at_a_token(tokenizer: Tokenizer) -> None:
    """At every token of a word the whole word is replaced, and nothing else changes."""
    words = "once there was a dog named tim and his cat".split()
    row = tokenizer.encode(" ".join(words)).tolist()
    seen = set()
    for at in range(len(row)):
        edit = edit_text(EditRequest((*row, *ROOM), at, "elephant"), tokenizer)
        if not edit.word.strip():
            continue  # the place between two words
        place = len(tokenizer.decode(row[: at + 1]).split()) - 1
        assert edit.word == words[place] and edit.at <= at < edit.at + edit.removed
        expected = [*words[:place], "elephant", *words[place + 1 :]]
        assert tokenizer.decode(apply(row, edit)) == " ".join(expected)
        assert edit.symbols == [tokenizer.symbol(token) for token in edit.tokens]
        seen.add(place)
    assert seen == set(range(len(words)))


def test_a_text_typed_into_a_text_of_word_pieces_is_tokenised_like_any_other() -> None:
    """ " big dog" has the pieces that it has in any text, rather than one for each letter."""
    tokenizer = TOKENIZERS[3]
    row = tokenizer.encode("Once there was a cat, named Tim.").tolist()
    at = [tokenizer.symbol(token) for token in row].index(" cat")
    edit = edit_text(EditRequest(tuple(row), at, "big dog"), tokenizer)
    assert edit.symbols == [" big", " dog"]
    assert apply(row, edit) == tokenizer.encode("Once there was a big dog, named Tim.").tolist()


def test_characters_of_several_bytes_are_replaced_whole() -> None:
    tokenizer = ByteTokenizer()
    row = tokenizer.encode("né mañana yes").tolist()
    for at, text in ((1, "über mañana yes"), (2, "über mañana yes"), (6, "né über yes"), (7, "né über yes")):
        assert tokenizer.decode(apply(row, edit_text(EditRequest(tuple(row), at, "über"), tokenizer))) == text


def test_a_word_typed_between_words_or_at_the_end_is_inserted() -> None:
    letters, pieces = text8_tokenizer(), TOKENIZERS[3]
    row = letters.encode("a cat sat").tolist()
    assert letters.decode(apply(row, edit_text(EditRequest((*row, *ROOM), 1, "big"), letters))) == "a big cat sat"
    assert isinstance(pieces, WithEOS)
    row = [*pieces.encode("The dog, ran.").tolist(), pieces.eos, pieces.eos]
    ends = len(row) - 2
    assert pieces.decode(apply(row, edit_text(EditRequest((*row, *ROOM), ends, "He sat."), pieces))) == (
        "The dog, ran. He sat."
    )
    comma = [pieces.symbol(token) for token in row].index(",")
    assert pieces.decode(apply(row, edit_text(EditRequest(tuple(row), comma, "who"), pieces))) == "The dog who ran."


def test_open_positions_are_filled_before_the_rest_moves() -> None:
    letters = text8_tokenizer()
    row = [-1, -1, -1, -1, *letters.encode("cat").tolist()]
    edit = edit_text(EditRequest(tuple(row), 1, "of"), letters)
    assert (edit.at, edit.removed) == (1, 2) and letters.decode(apply(row, edit)[1:3]) == "of"
    assert edit_text(EditRequest(tuple(row), 1, "often"), letters).removed == 3


def test_texts_without_spaces_are_edited_token_by_token() -> None:
    letters = CharacterTokenizer("ACGT")
    row = tuple(letters.encode("ACGT" * 30).tolist())
    assert edit_text(EditRequest(row, 50, "TT"), letters) == Edit(50, 1, "G", [3, 3], ["T", "T"])
    assert edit_text(EditRequest((3, 12, 5), 1, "7"), IntegerTokenizer(16)) == Edit(1, 1, "12", [7], ["7"])


def test_text_that_cannot_be_tokenised_or_does_not_fit_is_refused() -> None:
    letters = text8_tokenizer()
    row = tuple(letters.encode("a cat sat").tolist())
    with pytest.raises(UserError, match="'X'"):
        edit_text(EditRequest(row, 2, "X"), letters)
    with pytest.raises(UserError, match="do not fit"):
        edit_text(EditRequest(row, 7, "sitting"), letters)
    for content in ([], {"tokens": [1]}, {"tokens": [99], "at": 0}, {"tokens": [1], "at": 1}, {"tokens": [], "at": 0}):
        with pytest.raises(UserError):
            EditRequest.parse(content, 27)
    assert EditRequest.parse({"tokens": [-1, 3], "at": 1, "text": "a"}, 27) == EditRequest((-1, 3), 1, "a")


# ---- in the studio -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("edits"))
        with TestClient(create_app(Library([STORIES]), TOKEN, 8000), base_url=f"http://{HOST}") as client:
            yield client


def generate(client: TestClient, **content: object) -> dict[str, dict]:
    """The first event (begun), the last moment, and the last event (done)."""
    stream = client.post(f"/{TOKEN}/generate", json={"system": 0, "steps": 4, "seed": 5} | content).text
    parts = [part.split("\n") for part in stream.strip().split("\n\n")]
    return {name.removeprefix("event: "): json.loads(data.removeprefix("data: ")) for name, data in parts}


def run_command(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)["samples"][0]


END = TOKENIZERS[3].size - 1
HELD = {
    "nothing": {},
    "a prompt": {"prompt": " Once upon"},
    "a prompt that begins with a dash": {"prompt": '- It\'s "$HOME"'},
    "a gap that is no gap": {"prompt": "see [12] and [..] so"},
    "words": {"holds": [{"at": 3, "text": " big dog"}]},
    "pieces that are spelled differently": {"holds": [{"at": 3 + i, "text": c} for i, c in enumerate("friend")]},
    "brackets": {"holds": [{"at": 5, "text": "a [3] b"}]},
    "half of a letter and an end": {"holds": [{"at": 2, "token": 200}, {"at": 30, "token": END}], "prompt": "One"},
    "precise settings": {"temperature": 0.123456789, "top_p": 0.987654321, "prompt": "One"},
}


@pytest.mark.parametrize("content", HELD.values(), ids=HELD)
def test_the_copied_command_gives_the_same_text(
    client: TestClient, content: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    found = generate(client, **content)
    sample = run_command(found["begun"]["command"], capsys)
    assert sample["text"] == found["done"]["texts"][0] and sample["tokens"] == found["moment"]["tokens"][0]


def test_an_edited_text_is_generated_again_by_its_command(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word is replaced, the text is generated again around it, and the command gives that text."""
    row = generate(client, prompt="Once there was a dog")["moment"]["tokens"][0]
    edit = client.post(f"/{TOKEN}/edit/0", json={"tokens": row, "at": 8, "text": "purple elephants"}).json()
    assert edit["tokens"] and client.post(f"/{TOKEN}/edit/0", json={"tokens": row, "at": 8}).json()["tokens"] == []
    holds = [{"at": edit["at"] + i, "token": token} for i, token in enumerate(edit["tokens"])]
    found = generate(client, prompt="Once there was a dog", holds=holds)
    again = found["moment"]["tokens"][0]
    assert again[edit["at"] :][: len(holds)] == edit["tokens"] and again != row
    sample = run_command(found["begun"]["command"], capsys)
    assert sample["tokens"] == again and sample["text"] == found["done"]["texts"][0]


def test_edits_are_checked(client: TestClient) -> None:
    for content in ({"tokens": [1], "at": 3}, {"tokens": [10**6], "at": 0}, "word"):
        answer = client.post(f"/{TOKEN}/edit/0", json=content)
        assert answer.status_code == 400 and answer.json()["sentence"]
    assert client.post(f"/{TOKEN}/edit/7", json={"tokens": [1], "at": 0}).status_code == 404


def test_held_tokens_never_overwrite_a_prompt(client: TestClient) -> None:
    """Tokens that were held before a prompt was typed are released where the prompt is, and kept behind it."""
    tokenizer = TOKENIZERS[3]
    prompt = tokenizer.encode("Once upon a time").tolist()
    holds = [{"at": at, "token": 700 + at} for at in (0, 2, len(prompt), len(prompt) + 3)]
    found = generate(client, prompt="Once upon a time", holds=holds)
    row = found["moment"]["tokens"][0]
    assert row[: len(prompt)] == prompt and found["begun"]["prompt"] == len(prompt)
    assert found["begun"]["released"] == [0, 2]
    assert [row[at] for at in (len(prompt), len(prompt) + 3)] == [700 + len(prompt), 703 + len(prompt)]


# ---- --hold --------------------------------------------------------------------------------------------------


def test_held_tokens_are_read_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", STORIES, "-n", "2", "--steps", "2", "--hold", "0:68,303 9:1700", "--json"]) == 0
    for sample in json.loads(capsys.readouterr().out)["samples"]:
        assert [sample["tokens"][at] for at in (0, 1, 9)] == [68, 303, 1700]
    assert "--prompt" in error_line(capsys, ["sample", STORIES, "--hold", "0:1", "--prompt", "a"])


@pytest.mark.parametrize(
    "text, message",
    [("5", "'5' is not"), ("0:1,x", "is not"), ("3:1,2", "position 4"), ("0:27", "0 to 26"), ("0:1,2,3,4", "Every")],
)
def test_wrong_held_tokens_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode_hold(text, text8_tokenizer(), 4)


def test_held_tokens_become_positions() -> None:
    given = encode_hold("1:5,6 3:7", text8_tokenizer(), 6)
    assert given.tokens.tolist() == [0, 5, 6, 7, 0, 0] and given.known.tolist() == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]


# ---- words ---------------------------------------------------------------------------------------------------


def test_holding_a_token_has_one_word() -> None:
    """Page, command line and documents say hold, held and release; they do not pin, lock or fix tokens."""
    root = Path(__file__).parent.parent
    pages = [*root.glob("logosphere/studio/static/*"), *root.glob("docs/*.md"), root / "README.md"]
    pages.remove(root / "docs/LOG.md")  # a record of earlier versions
    pages += [*root.glob("logosphere/studio/*.py"), root / "logosphere/cli/arguments.py"]
    other = re.compile(
        r"\b(un)?pin(s|ned|ning)?\b|\bunlock|\block(s|ed) (token|position)|\block extends", re.IGNORECASE
    )
    for page in pages:
        found = [line for line in page.read_text(encoding="utf-8").splitlines() if other.search(line)]
        assert not found, (page, found)
