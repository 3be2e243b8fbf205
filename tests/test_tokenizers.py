"""Tokenizers: round trips, saving and loading, and errors for text that cannot be encoded."""

import json
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logosphere.data.text8 import text8_filter
from logosphere.data.tokenizer_limits import LimitedCalls, TokenizerFailure
from logosphere.data.tokenizer_registry import (
    SubwordTokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_description,
)
from logosphere.data.tokenizers import (
    TEXT8_ALPHABET,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WithEOS,
    merge_alphabet,
    text8_tokenizer,
)
from logosphere.errors import UserError

WORDS = ["the cat sat on the mat\n", "the dog sat on the log\n", "naïve façade, 漢字 and 🙂"] * 5
BPE = SubwordTokenizer.train_bpe(WORDS, 300)
TOKENIZERS: list[Tokenizer] = [
    text8_tokenizer(),
    CharacterTokenizer("äb\n"),
    ByteTokenizer(),
    BPE,
    SubwordTokenizer.train_wordpiece(WORDS, 100),
]
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.text(TEXT8_ALPHABET))
def test_text8_round_trip(text: str) -> None:
    assert text8_tokenizer().decode(text8_tokenizer().encode(text)) == text


@given(st.text(st.characters(), min_size=1))
def test_characters_round_trip_over_any_alphabet(text: str) -> None:
    tokenizer = CharacterTokenizer(merge_alphabet(text))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text) and tokenizer.size == len(set(text))


@given(any_text)
def test_bytes_and_bpe_round_trip_for_any_text(text: str) -> None:
    for tokenizer in (ByteTokenizer(), BPE):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64 and ids.ndim == 1
        assert tokenizer.decode(ids) == text
    assert len(ByteTokenizer().encode(text)) == len(text.encode())


def test_text8_puts_the_space_first() -> None:
    assert text8_tokenizer().encode(" az").tolist() == [0, 1, 26]
    assert text8_tokenizer().size == 27 and text8_tokenizer().name == "text8" and text8_tokenizer().unit == "character"


@pytest.mark.parametrize("character", ["É", "🙂", "{", "\ud800"])
def test_a_character_outside_the_alphabet_is_named_with_its_position(character: str) -> None:
    with pytest.raises(UserError, match="position 2 .*--tokenizer byte") as caught:
        text8_tokenizer().encode("ab" + character + "É")
    assert repr(character) in str(caught.value)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE, CharacterTokenizer("a?1 ")])
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="position 1 is (half|not in)"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.name)
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer) -> None:
    for number in (-1, tokenizer.size):
        with pytest.raises(ValueError, match="must lie in"):
            tokenizer.decode([number])
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.name)
def test_every_symbol_is_printable(tokenizer: Tokenizer) -> None:
    assert all(tokenizer.symbol(number).isprintable() for number in range(tokenizer.size))


def test_symbols_of_line_breaks_and_broken_bytes() -> None:
    assert CharacterTokenizer("a\n").symbol(1) == "⏎"
    assert ByteTokenizer().symbol(ord("\n")) == "⏎"
    assert ByteTokenizer().symbol(0xFF) == "�"
    assert ByteTokenizer().symbol(ord("x")) == "x"


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.name)
def test_a_saved_tokenizer_loads_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizer(tokenizer, path)
    loaded = load_tokenizer(path)
    assert loaded.describe() == tokenizer.describe()
    assert (loaded.fingerprint, loaded.size, loaded.name) == (
        tokenizer.fingerprint,
        tokenizer.size,
        tokenizer.name,
    )
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


def test_fingerprints_of_tokenizers_differ() -> None:
    assert len({tokenizer.fingerprint for tokenizer in TOKENIZERS}) == len(TOKENIZERS)
    assert text8_tokenizer().fingerprint != CharacterTokenizer(TEXT8_ALPHABET).fingerprint
    assert text8_tokenizer().fingerprint != CharacterTokenizer(TEXT8_ALPHABET[::-1], "text8").fingerprint


def test_training_is_deterministic() -> None:
    assert SubwordTokenizer.train_bpe(WORDS, 300).fingerprint == BPE.fingerprint
    assert 256 < BPE.size <= 300


def test_wordpiece_respects_the_vocabulary_size() -> None:
    tokenizer = SubwordTokenizer.train_wordpiece(["".join(map(chr, range(0x4E00, 0x4F00)))], 64)
    assert tokenizer.size <= 64
    assert tokenizer.encode("zzz").tolist() == tokenizer.encode("[UNK]").tolist()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": "other"}', '{"kind": "bytes"}', "\x00"])
def test_a_damaged_or_foreign_file_is_a_user_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match="saved tokenizer"):
        load_tokenizer(path)
    with pytest.raises(UserError, match="not a readable tokenizer.json"):
        SubwordTokenizer.from_file(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "no such"},
        {"alphabet": ""},
        {"alphabet": "aa"},
        {"alphabet": 3},
        {"version": 2},
        {"name": None},
    ],
)
def test_a_file_with_a_wrong_field_is_a_user_error(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizer(CharacterTokenizer("ab"), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="saved tokenizer"):
        load_tokenizer(path)


def test_a_published_tokenizer_is_read_without_its_truncation(tmp_path: Path) -> None:
    description = json.loads(BPE.describe()["json"])
    description["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(description))
    loaded = SubwordTokenizer.from_file(path)
    assert loaded.name == "mine"
    assert loaded.decode(loaded.encode(WORDS[0] * 9)) == WORDS[0] * 9


@pytest.mark.parametrize("size", [0, 255, 10**7])
def test_an_invalid_vocabulary_size_is_a_user_error(size: int) -> None:
    with pytest.raises(UserError, match="bpe:8000"):
        SubwordTokenizer.train_bpe(WORDS, size)


def test_invalid_descriptions_are_refused() -> None:
    with pytest.raises(ValueError, match="not the description"):
        tokenizer_from_description({})


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizer(text8_tokenizer(), path)

    def fail(source: str, target: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        save_tokenizer(ByteTokenizer(), path)
    assert load_tokenizer(path).fingerprint == text8_tokenizer().fingerprint
    assert len(list(tmp_path.iterdir())) == 1


@given(any_text)
@settings(max_examples=200)
def test_the_filter_leaves_only_letters_and_single_spaces(text: str) -> None:
    clean = text8_filter(text)
    assert set(clean) <= set(TEXT8_ALPHABET)
    assert "  " not in clean
    assert text8_filter(clean) == clean


def test_the_filter_spells_out_digits_and_drops_accents() -> None:
    assert text8_filter("In 2024, Café-Bar!") == "in two zero two four caf bar "
    assert text8_filter("4K \u212a É") == " four k "


@given(st.text(), st.text(TEXT8_ALPHABET))
def test_long_texts_have_the_same_ids(text: str, letters: str) -> None:
    """`encode_chunk` may return other integers than `encode`, but the same numbers."""
    everything = CharacterTokenizer(merge_alphabet(text + letters + "a"))
    for tokenizer, chunk in [
        (everything, text),
        (everything, letters),
        (text8_tokenizer(), letters),
        (WithEOS(text8_tokenizer()), letters),
        (ByteTokenizer(), letters),
    ]:
        assert tokenizer.encode_chunk(chunk).tolist() == tokenizer.encode(chunk).tolist()


@pytest.mark.parametrize("train", [SubwordTokenizer.train_bpe, SubwordTokenizer.train_wordpiece])
def test_long_texts_have_the_same_subwords(train) -> None:
    text = "the cat sat on the mat ,  and 12 dogs\n\n barked: 漢字 " * 200
    tokenizer = train([text], 300)
    ids = tokenizer.encode_chunk(text)
    assert len(ids) > 1000 and ids.tolist() == tokenizer.encode(text).tolist()


def test_characters_outside_the_alphabet_are_named_in_long_texts() -> None:
    for text in ("abcD", "abc漢"):
        with pytest.raises(UserError, match="at position 3"):
            text8_tokenizer().encode_chunk(text)


@given(st.text(), st.text())
def test_alphabets_are_merged(text: str, other: str) -> None:
    assert merge_alphabet(text, merge_alphabet(other)) == "".join(sorted(set(text) | set(other)))


def _with_pattern(pattern: str, place: str) -> SubwordTokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    model = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "a" * 60 + "!": 2}, "[UNK]"))
    if place == "encode":
        model.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    else:
        model.decoder = decoders.Replace(Regex(pattern), "b")
    return SubwordTokenizer.from_json(model.to_str(), "hostile")


@pytest.mark.parametrize("place", ["encode", "decode"])
def test_a_panic_of_the_library_is_a_user_error(place: str) -> None:
    tokenizer = _with_pattern("(a+)+$", place)
    with pytest.raises(UserError, match=f"cannot {place}"):
        tokenizer.encode("a" * 60 + "!") if place == "encode" else tokenizer.decode([2])


def test_work_of_a_tokenizer_is_given_up_after_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logosphere.data.tokenizer_limits.SECONDS", 0.05)
    calls, ended = LimitedCalls(), threading.Event()
    with pytest.raises(TokenizerFailure, match="more than"):
        calls(lambda: ended.wait(60), 1)
    with pytest.raises(TokenizerFailure, match="still busy"):
        calls(lambda: 1, 1)
    ended.set()
    monkeypatch.setattr("logosphere.data.tokenizer_limits.SECONDS", 60.0)
    end, found = time.monotonic() + 60, 0
    while not found and time.monotonic() < end:
        try:
            found = calls(lambda: 2, 1)
        except TokenizerFailure:
            time.sleep(0.01)
    assert found == 2 and pickle.loads(pickle.dumps(calls))(lambda: 3, 1) == 3
