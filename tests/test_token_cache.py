"""Token caches: built once, reused while intact, and rebuilt when damaged."""

import json
import os
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from text_fixtures import PROSE, decode_splits, unfinished_files

from logosphere.data import corpora
from logosphere.data.corpora import open_corpus
from logosphere.data.token_cache import SPLITS, DamagedCache, build_token_cache, open_tokens, verify_hashes
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import ByteTokenizer, CharacterTokenizer


def forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(corpora, "build_token_cache", fail)


def test_a_second_open_reads_the_cache(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_corpus(str(prose), "bpe:300")
    forbid_building(monkeypatch)
    monkeypatch.setattr(corpora, "_compute_stats", None)
    monkeypatch.setattr(SubwordTokenizer, "train_bpe", None)
    second = open_corpus(str(prose), "bpe:300")
    assert np.array_equal(first.train, second.train)
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint


def test_a_touched_file_is_not_tokenised_again(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_corpus(str(prose))
    os.utime(prose, (1, 1))
    forbid_building(monkeypatch)
    assert open_corpus(str(prose)).folder == first.folder


def test_a_changed_file_is_tokenised_again(prose: Path) -> None:
    before = open_corpus(str(prose))
    prose.write_text(PROSE.replace("quick", "brave"))
    after = open_corpus(str(prose))
    assert "brave" in decode_splits(after)[0] and "quick" in decode_splits(before)[0]
    assert after.sha256 != before.sha256


def cut_tokens(folder: Path) -> None:
    os.truncate(folder / "valid-00000.tokens", 3)


def remove_tokens(folder: Path) -> None:
    (folder / "train-00000.tokens").unlink()


def damage_meta(folder: Path) -> None:
    (folder / "meta.json").write_text("{")


def damage_vocabulary(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"vocabulary": {}}))


@pytest.mark.parametrize("damage", [cut_tokens, remove_tokens, damage_meta])
def test_a_damaged_cache_is_rebuilt_with_a_note(prose: Path, own_cache: Path, damage: Callable[[Path], None]) -> None:
    folder = open_corpus(str(prose)).folder
    damage(folder)
    with pytest.raises(DamagedCache):
        open_tokens(folder)
    stages: list[str] = []
    corpus = open_corpus(str(prose), report=lambda stage, done, total: stages.append(stage))
    assert "".join(decode_splits(corpus)) == PROSE
    assert "rebuilding a damaged cache" in stages
    assert unfinished_files(own_cache) == []


def test_a_damaged_survey_or_vocabulary_is_rebuilt(prose: Path, own_cache: Path) -> None:
    folder = open_corpus(str(prose)).folder
    damage_vocabulary(folder)
    for survey in (own_cache / "surveys").iterdir():
        survey.write_text("[]")
    assert "".join(decode_splits(open_corpus(str(prose)))) == PROSE


def test_verify_hashes_detects_a_single_changed_token(prose: Path) -> None:
    folder = open_corpus(str(prose)).folder
    tokens = bytearray((folder / "train-00000.tokens").read_bytes())
    tokens[7] ^= 1
    (folder / "train-00000.tokens").write_bytes(tokens)
    open_tokens(folder)
    with pytest.raises(DamagedCache, match="train-00000.tokens"):
        verify_hashes(folder)


def test_an_interrupted_build_leaves_no_files(prose: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "tokenising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_corpus(str(prose), report=interrupt)
    assert list((own_cache / "tokens").iterdir()) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_build_killed_while_installing_is_cleaned_up(tmp_path: Path, after: bool) -> None:
    """The process is killed before a finished folder is renamed, or after a damaged one was moved aside."""
    folder, pieces = tmp_path / "tokens" / "one", [("train", "aaa"), ("valid", "bb"), ("test", "cc")]
    folder.mkdir(parents=True)
    damage_meta(folder)

    def die(source: Path, target: Path) -> None:
        if after == (Path(target) != folder):
            if after:
                os.rename(source, target)
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename(source, target)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if (child := os.fork()) == 0:
            os.replace = die
            build_token_cache(folder, pieces, ByteTokenizer(), "x", "0")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    build_token_cache(folder, pieces, ByteTokenizer(), "x", "0")
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


@pytest.mark.parametrize("damaged", [False, True])
def test_concurrent_builds_all_succeed(tmp_path: Path, damaged: bool) -> None:
    folder = tmp_path / "tokens" / "one"
    if damaged:
        folder.mkdir(parents=True)
        damage_meta(folder)
    barrier = Barrier(4)

    def wait(done: int) -> None:
        barrier.wait(20)

    def run(_: int) -> list[int]:
        build_token_cache(folder, [("train", "aaa"), ("valid", "bb"), ("test", "cc")], ByteTokenizer(), "x", "0", wait)
        return [int(number) for number in open_tokens(folder)["train"]]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4))) == [[97, 97, 97]] * 4
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


@pytest.mark.parametrize(("size", "dtype"), [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)])
def test_tokens_have_the_smallest_sufficient_dtype(tmp_path: Path, size: int, dtype: type[np.unsignedinteger]) -> None:
    alphabet = "".join(map(chr, range(0x10000, 0x10000 + size)))
    build_token_cache(
        tmp_path / "t", [(split, alphabet[-2:]) for split in SPLITS], CharacterTokenizer(alphabet), "x", "0"
    )
    for ids in open_tokens(tmp_path / "t").values():
        assert ids.dtype == dtype and ids.tolist() == [size - 2, size - 1]
