"""Large corpora: pseudo-random permutations without a list, sharded tokens, and corpora larger than memory."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_helpers import metrics_without_times, stop_after
from scipy import stats
from tiny_run import RECIPE

from logosphere.data.batches import Crops, Epochs, Permutation, train_batches, windows
from logosphere.data.corpus import Corpus
from logosphere.data.token_cache import DamagedCache, build_token_cache, open_tokens, verify_hashes, with_checksum
from logosphere.data.token_shards import MAX_MAPPED, ShardedTokens
from logosphere.data.tokenizers import ByteTokenizer
from logosphere.errors import UserError
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_a_permutation_is_a_bijection(size: int) -> None:
    indices = torch.arange(size)
    shuffled = Permutation(size, key=7)(indices)
    assert torch.equal(shuffled.sort().values, indices)
    assert torch.equal(Permutation(size, key=7)(indices[size // 2 :]), shuffled[size // 2 :])
    if size > 5:
        assert not torch.equal(shuffled, Permutation(size, key=8)(indices))


@pytest.mark.slow
def test_all_orders_are_equally_likely() -> None:
    """Chi-square over the 24 orders of four items for 6,000 keys."""
    orders = [tuple(Permutation(4, key)(torch.arange(4)).tolist()) for key in range(6000)]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-3


def test_permutations_of_very_large_sizes() -> None:
    indices = torch.randint(1 << 50, (4000,), generator=torch.Generator().manual_seed(0))
    permuted = Permutation(1 << 50, key=1)(indices)
    assert len(permuted.unique()) == len(indices.unique()) and int(permuted.max()) < 1 << 50
    assert abs(float(permuted.double().mean()) / 2**49 - 1) < 0.05
    for size in (0, -1, 1 << 61):
        with pytest.raises(UserError, match="shuffle"):
            Permutation(size, key=0)


def test_every_window_occurs_once_per_epoch() -> None:
    tokens = np.arange(10 * 7 + 3)
    epochs = Epochs(tokens, length=7, batch=4, seed=3)
    first = torch.cat([epochs.at(step).tokens for step in range(5)])[:, 0] // 7
    assert sorted(first[:10].tolist()) == sorted(first[10:].tolist()) == list(range(10))
    assert first[:10].tolist() != first[10:].tolist()
    whole, part = epochs.at(2), epochs.at(2, slice(1, 3))
    assert torch.equal(whole.tokens[1:3], part.tokens) and torch.equal(whole.global_index[1:3], part.global_index)
    with pytest.raises(UserError, match="crops or epochs"):
        train_batches(tokens, 7, 4, 0, "random")


def test_a_run_resumes_within_an_epoch(corpus: Corpus, tmp_path: Path) -> None:
    recipe = replace(RECIPE, order="epochs", steps=6, validations=1)
    uninterrupted, resumed = (create_run(recipe, corpus, tmp_path / name) for name in ("straight", "broken"))
    list(run_training(uninterrupted, corpus))
    for steps in (3, 99):
        list(run_training(Run(resumed.path), corpus, stop_after(steps)))
    assert metrics_without_times(uninterrupted) == metrics_without_times(resumed)


LARGE = """
import json, resource, sys
from pathlib import Path
import numpy as np
from logosphere.data import corpora
from logosphere.data.batches import Crops, Epochs, windows
from logosphere.data.token_cache import build_token_cache, open_tokens
place = Path(sys.argv[1])
corpora.build_token_cache = lambda *given: build_token_cache(*given, shard=1 << 22)
small = corpora.open_corpus(str(place / "text.txt"), "byte")  # loads every module before the limit is set
used = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20),) * 2)
for attempt in (lambda: bytearray(64 << 20), lambda: np.memmap(place / "huge-file", mode="r")):
    try:
        attempt()
        sys.exit("the limit does not hold")
    except (MemoryError, OSError):
        pass
large = corpora.open_corpus(str(place / "large.txt"), "byte")  # 64 MB of text, 60 MB of addresses
row = open_tokens(place / "huge")["train"]  # 4 GB of tokens
tokens = sum(int(Order(row, 64, 8, 0).at(step).tokens.sum()) for Order in (Crops, Epochs) for step in range(50))
seen = sum(len(batch) for batch in windows(large.train, 64, 8, limit=64))
print(json.dumps([len(large.train), len(row), tokens, seen]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit needs Linux")
def test_corpora_larger_than_memory(corpus: Corpus, tmp_path: Path) -> None:
    """Corpora are tokenised, opened, sampled and read with less address space than they have bytes."""
    (tmp_path / "large.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * (64 * 20_972))
    huge = tmp_path / "huge"
    huge.mkdir()
    meta = json.loads((corpus.folder / "meta.json").read_text())
    for split in meta["splits"]:
        meta["splits"][split]["tokens"] = 1 << 32
        meta["splits"][split]["shards"] = [{"tokens": 1 << 23, "sha256": ""}] * (1 << 9)
        for number in range(1 << 9):
            _create_sparse_file(huge / f"{split}-{number:05d}.tokens", 1 << 23)
    _create_sparse_file(tmp_path / "huge-file", 1 << 27)
    (huge / "meta.json").write_text(json.dumps(with_checksum(meta)))
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [pytest.approx(0.9 * 64 * 20_972 * 50, rel=0.01), 1 << 32, 0, 64]


def _create_sparse_file(path: Path, size: int) -> None:
    """Create a sparse file of this many bytes."""
    with path.open("wb") as file:
        file.truncate(size)


# ---- shards -----------------------------------------------------------------------------------------------------


def test_sharded_tokens_equal_unsharded_tokens(tmp_path: Path) -> None:
    """Indices, slices of slices, and batches of every kind."""
    text = "".join(chr(97 + i * i % 26) for i in range(1000))
    pieces = [("train", text[:333]), ("train", text[333:]), ("valid", "abc"), ("test", "xyz" * 7)]
    build_token_cache(tmp_path / "many", pieces, ByteTokenizer(), "x", "0", shard=7)
    build_token_cache(tmp_path / "one", pieces, ByteTokenizer(), "x", "0")
    many, one = open_tokens(tmp_path / "many")["train"], open_tokens(tmp_path / "one")["train"]
    assert isinstance(many, ShardedTokens) and isinstance(one, np.memmap)
    assert len(list((tmp_path / "many").glob("train-*"))) == 143 and len(many) == len(one) == 1000
    assert len(list((tmp_path / "many").glob("test-*"))) == 3, "no empty file at the end"
    assert many.dtype == one.dtype and np.array_equal(np.asarray(many), one)
    part, same = many[100:900][5:], one[100:900][5:]
    assert np.array_equal(np.asarray(part), same) and len(many[5:3]) == 0
    for kind in (Crops, Epochs):
        for row, expected in ((many, one), (part, same)):
            assert torch.equal(kind(row, 11, 4, 3).at(2).tokens, kind(expected, 11, 4, 3).at(2).tokens)
    batches = zip(windows(many, 30, 8), windows(one, 30, 8), strict=True)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in batches)
    assert len(many._files.mapped) <= MAX_MAPPED
    for indices in (np.array([1000]), np.array([-1])):
        with pytest.raises(IndexError):
            many[indices]
    with pytest.raises(IndexError):
        many[::2]


def test_damaged_shards_and_metadata_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    build_token_cache(
        folder, [("train", "abcdefgh" * 5), ("valid", "abc"), ("test", "xyz")], ByteTokenizer(), "x", "0", shard=16
    )
    verify_hashes(folder)
    shard, meta = folder / "train-00001.tokens", folder / "meta.json"
    intact, index = shard.read_bytes(), meta.read_text()
    shard.write_bytes(b"x" + intact[1:])
    open_tokens(folder)
    with pytest.raises(DamagedCache, match="train-00001.tokens has changed"):
        verify_hashes(folder)
    shard.write_bytes(intact[:-1])
    with pytest.raises(DamagedCache, match="16 bytes"):
        open_tokens(folder)
    shard.write_bytes(intact)
    meta.write_text(index.replace('"name": "x"', '"name": "y"'))
    with pytest.raises(DamagedCache, match="meta.json has changed"):
        open_tokens(folder)
