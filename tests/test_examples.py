"""Examples: separate sequences with labels, sources and signals, from files and published datasets."""

import contextlib
import csv
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_models import SMALL

import logosphere as ls
from logosphere import UserError
from logosphere.data.archives import read_members, read_npz
from logosphere.data.batches import ExampleSampler, eval_batches, sequential_batches, train_batches
from logosphere.data.catalogue import DATASETS
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Examples, count_scored_tokens, count_tokens, take_first_tokens
from logosphere.data.datasets import INTEGER_DATASETS, SYNTHETIC
from logosphere.data.published import RECORD_DATASETS, normalise_bases, parse_fasta
from logosphere.data.published_integers import CIFAR10_RECORD_BYTES, parse_cifar10
from logosphere.data.tokenizer_registry import tokenizer_from_description
from logosphere.data.tokenizers import CharacterTokenizer, IntegerTokenizer, WithEOS
from logosphere.evaluation.sample_metrics import find_metrics, measure_samples
from logosphere.evaluation.texts import Reference, Texts
from logosphere.types import NO_TOKEN


def make_examples(n: int = 30) -> Examples:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 5, 1 + i % 7) for i in range(n)]
    sources = [rng.integers(0, 4, 1 + i % 3) for i in range(n)]
    return Examples(rows, eos=5, labels=np.arange(n) % 3, label_count=3, sources=sources, source_size=4)


def write_pairs(path: Path, n: int = 40) -> None:
    rows = [
        {"source": f"name[{'abc'[i % 3]}]", "target": f"the {'abc'[i % 3]} is open" + "!" * (i % 4)} for i in range(n)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_every_dataset_is_listed_with_its_content() -> None:
    assert set(DATASETS) == {*RECORD_DATASETS, *INTEGER_DATASETS, SYNTHETIC}


def test_short_sequences_are_counted_with_one_eos() -> None:
    batch = next(sequential_batches(make_examples(), length=8, batch=30))
    assert batch.tokens.shape == (30, 8)
    assert torch.equal((batch.tokens != 5).sum(1) + 1, batch.token_count)
    assert bool(batch.valid.all()) and not bool(batch.known.any())
    assert torch.equal(batch.condition.labels, torch.arange(30) % 3)
    assert ((batch.condition.source != NO_TOKEN).sum(1) == 1 + torch.arange(30) % 3).all()


def test_full_length_sequence_has_no_eos() -> None:
    whole = Examples([np.zeros(4, dtype=np.int64)], eos=5)
    assert next(sequential_batches(whole, length=4, batch=1)).token_count.tolist() == [4]


def test_too_long_sequences_are_skipped_not_cut() -> None:
    examples = make_examples()
    kept = examples.filter_by_length(3)
    assert len(kept) == sum(len(row) <= 3 for row in examples.sequences)
    assert all(len(row) <= 3 for row in kept.sequences)
    assert [int(label) for label in kept.labels] == [i % 3 for i in range(30) if 1 + i % 7 <= 3]
    with pytest.raises(UserError, match="larger --length"):
        examples.filter_by_length(0)
    with pytest.raises(UserError, match="--length 4"):
        Examples([np.zeros(4, dtype=np.int64)]).filter_by_length(5)


def test_example_sampler_depends_on_seed_and_sample_only() -> None:
    picks = ExampleSampler(make_examples(), length=8, batch=6, seed=3)
    first, again = picks.at(4), ExampleSampler(make_examples(), length=8, batch=6, seed=3).at(4)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.ids, torch.arange(24, 30))
    assert not torch.equal(first.tokens, picks.at(5).tokens)
    wide = ExampleSampler(make_examples(), length=8, batch=12, seed=3).at(2)  # samples 24 … 35
    assert torch.equal(wide.tokens[:6], first.tokens)


def test_bits_are_counted_per_real_token() -> None:
    examples = Examples([np.array([0, 1])] * 8, eos=2)
    model = ls.build("mdlm", vocab_size=3, length=16, tied=False, **SMALL)
    report = ls.evaluate(model, sequential_batches(examples, 16, 8), draws=2, rng=0)
    assert report.tokens == 8 * 3  # two tokens and EOS
    assert report.bits == pytest.approx(16 / 3 * np.log2(3), rel=1e-3)  # an untrained network is uniform over 16 tokens


def test_a_corpus_of_pairs_trains_from_its_file(tmp_path: Path) -> None:
    write_pairs(tmp_path / "menu.jsonl")
    corpus = open_corpus(f"pairs:{tmp_path / 'menu.jsonl'}")
    assert corpus.conditions == {"source": corpus.tokenizer.size, "source_length": 7}
    batch = train_batches(corpus.train, 24, 4, seed=0).at(0)
    text = corpus.tokenizer.decode(batch.tokens[0].numpy())
    source = corpus.tokenizer.decode([i for i in batch.condition.source[0].tolist() if i != NO_TOKEN])
    assert text.startswith(f"the {source[5]} is open")
    model = ls.build("mdlm", vocab_size=corpus.tokenizer.size, length=24, **SMALL, **corpus.conditions)
    batches, optim = map(train_batches(corpus.train, 24, 8, 0).at, range(80)), ls.OptimizerConfig(lr=1e-2, warmup=5)
    losses = [progress.loss for progress in ls.fit(model, batches, steps=80, optim=optim)]
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


def test_labels_are_named_and_shared_by_the_splits(tmp_path: Path) -> None:
    rows = io.StringIO()
    table = csv.writer(rows)
    table.writerow(["text", "label"])
    table.writerows([f"word {i}", "spam" if i % 2 else "ham"] for i in range(60))
    (tmp_path / "mail.csv").write_text(rows.getvalue())
    corpus = open_corpus(f"labelled:{tmp_path / 'mail.csv'}")
    assert corpus.labels == ("ham", "spam") and corpus.conditions == {"labels": 2}
    assert count_tokens(corpus.train) == corpus.characters["train"]
    total = [len(list(eval_batches(part, 10, 1))) for part in (corpus.train, corpus.valid, corpus.test)]
    assert sum(total) == 60


def test_data_hash_identifies_the_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    first = open_corpus(f"lines:{path}").sha256
    assert open_corpus(f"lines:{path}").sha256 == first
    path.write_text("one\ntwo\nthree\nfive\n")
    assert open_corpus(f"lines:{path}").sha256 != first


def test_eos_and_integer_tokenizers_round_trip() -> None:
    ended = tokenizer_from_description(WithEOS(CharacterTokenizer("abc")).describe())
    assert isinstance(ended, WithEOS) and ended.size == 4
    assert ended.decode([0, 1, 3, 2]) == "ab" and ended.symbol(3) == "␃"
    levels = tokenizer_from_description(IntegerTokenizer(256).describe())
    assert levels.decode(levels.encode("0 12 255")) == "0 12 255" and levels.unit == "dimension"
    with pytest.raises(UserError, match="0 to 255"):
        levels.encode("256")
    assert IntegerTokenizer(10).encode("0 09").tolist() == [0, 0, 9]  # digits, the format of sudokus
    assert WithEOS(IntegerTokenizer(128)).decode([60, 64, 128, 3]) == "60 64"
    with pytest.raises(ValueError):
        tokenizer_from_description({"kind": "levels", "name": "levels", "size": "many"})


def cifar_file(labels: list[int], seed: int) -> tuple[bytes, np.ndarray]:
    planes = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    rows = [bytes([label]) + image.tobytes() for label, image in zip(labels, planes, strict=True)]
    return b"".join(rows), planes


def test_cifar_pixels_are_read_in_the_official_layout() -> None:
    content, planes = cifar_file([3, 9], seed=1)
    pixels, labels = parse_cifar10(content, "x")
    assert labels.tolist() == [3, 9] and pixels.shape == (2, 3072)
    image = pixels.reshape(2, 32, 32, 3)
    assert (image[1, 5, 7] == planes[1, :, 5, 7]).all()
    with pytest.raises(UserError, match="32 × 32"):
        parse_cifar10(content[:-1], "x")
    with pytest.raises(UserError, match="label 10"):
        parse_cifar10(bytes([10]) + bytes(CIFAR10_RECORD_BYTES - 1), "x")


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_cifar_is_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    files = {f"cifar-10-batches-bin/{name}.bin": cifar_file([1] * 20, seed)[0]
             for seed, name in enumerate(["data_batch_1", "test_batch"])}  # fmt: skip
    write_archive(tmp_path / "cifar-10-binary-part.tar.xz", files)
    corpus = open_corpus("cifar10")
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (18, 2, 20)
    assert corpus.tokenizer.size == 256 and corpus.conditions == {"labels": 10}
    with pytest.raises(UserError, match="--length 3072"):
        corpus.train.filter_by_length(128)


def test_published_sets_are_read_from_their_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "e2e-dataset.zip", "w") as archive:
        for name in ("trainset", "devset", "testset_w_refs"):
            archive.writestr(f"e2e-dataset/{name}.csv", 'mr,ref\n"name[Cocum], eatType[pub]",Cocum  is a pub.\n' * 1)
    solved = "953168742862734951417952836746893125281645397395271468138529674574386219629417583"
    song = {split: [[[60, 64, 67, 72], [60, 72]]] * 2 for split in ("train", "valid", "test")}
    write_archive(
        tmp_path / "music_sudoku.tar.xz",
        {
            "x/sudoku17_solved.csv": f"{'0' * 80}3,{solved}\n".encode() * 40,
            "x/jsb-chorales-quarter.json": json.dumps(song).encode(),
        },
    )
    e2e = open_corpus("e2e")
    assert e2e.tokenizer.decode(e2e.train.sequences[0]) == "Cocum is a pub."
    sudoku = open_corpus("sudoku")
    assert sudoku.train.sequences[0].tolist() == [int(c) - 1 for c in solved]
    assert sudoku.train.sources[0].tolist() == [0] * 80 + [3]
    assert (len(sudoku.train), len(sudoku.valid), len(sudoku.test)) == (36, 2, 2)
    chorales = open_corpus("chorales")
    assert chorales.train.sequences[0].tolist() == [60, 64, 67, 72, 60, 72, 0, 0]


@pytest.mark.filterwarnings("ignore:The texts of .* differ from those")
def test_story_paragraphs_are_split_contiguously(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    lines = {}
    for name, letter in {"first10k_lines": "a", "smallGPT": "b"}.items():
        lines[f"x/tinystories_{name}.txt"] = "".join(f"{letter * i}\n\n<|endoftext|>\n" for i in range(1, 41)).encode()
    write_archive(tmp_path / "tinystories.tar.xz", lines)
    corpus = open_corpus("tinystories")
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [72, 4, 4]
    texts = [corpus.tokenizer.decode(row) for row in corpus.valid.sequences]
    assert texts == ["a" * 37, "a" * 38, "b" * 37, "b" * 38]


def test_archive_member_paths_are_not_used_on_disk(tmp_path: Path) -> None:
    write_archive(tmp_path / "evil.tar.xz", {"../../escape.txt": b"x", "good/wanted.txt": b"y"})
    assert read_members(tmp_path / "evil.tar.xz", ["wanted.txt"]) == {"wanted.txt": b"y"}
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar.xz"]


@pytest.mark.filterwarnings("ignore:The texts of .* differ from those")
def test_damaged_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib, lzma, zipfile, tarfile and numpy raise a dozen kinds of exceptions for damaged archives."""
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    write_archive(tmp_path / "music_sudoku.tar.xz", {"x/sudoku17_solved.csv": b"12,34\n" * 40})
    with pytest.raises(UserError, match="sudoku are not as published"):
        open_corpus("sudoku")
    write_archive(tmp_path / "music_sudoku.tar.xz", {"x/jsb-chorales-quarter.json": b"[[[60]]]"})
    with pytest.raises(UserError, match="chorales are not as published"):
        open_corpus("chorales")
    images = {split: np.zeros((20, 98), np.uint8) for split in ("train", "valid", "test")}
    np.savez_compressed(tmp_path / "binarized_mnist.npz", **images)
    assert len(open_corpus("mnist-binary").train) == 20
    with pytest.raises(ValueError, match="more than any"):  # before decompression
        read_npz(tmp_path / "binarized_mnist.npz", ["train"], largest=1000)
    for name, source in (("binarized_mnist.npz", "mnist-binary"), ("music_sudoku.tar.xz", "chorales")):
        whole = (tmp_path / name).read_bytes()
        for place in range(0, len(whole), 7):
            (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            with contextlib.suppress(UserError):
                open_corpus(source)


def test_dataset_vocabulary_is_trained_once(tmp_path: Path) -> None:
    """WordPiece training is not deterministic, and the dataset must have the same tokens when opened again."""
    (tmp_path / "s.txt").write_text("the cat sat on the mat\nand the dog sat\non the log by the fog\n" * 30)
    first, second = (open_corpus(f"lines:{tmp_path / 's.txt'}", "wordpiece:70", tmp_path / "cache") for _ in range(2))
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint and first.sha256 == second.sha256
    (make_examples,) = (tmp_path / "cache" / "tokenizers").iterdir()
    make_examples.write_text("damaged")
    assert open_corpus(f"lines:{tmp_path / 's.txt'}", "wordpiece:70", tmp_path / "cache").tokenizer.size > 9


def test_only_newlines_separate_texts(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("one\x0ctwo\u2028three\nfour\r\nfive\n" * 20, newline="")
    (tmp_path / "t.jsonl").write_text('{"text": "a\u2028b", "label": "x"}\n{"text": "cde", "label": "y"}\n' * 20)
    corpus = open_corpus(f"lines:{tmp_path / 'l.txt'}")
    texts = {corpus.tokenizer.decode(row) for row in corpus.train.sequences}
    assert texts == {"one\x0ctwo\u2028three", "four", "five"}
    labelled = open_corpus(f"labelled:{tmp_path / 't.jsonl'}")
    assert "a\u2028b" in {labelled.tokenizer.decode(row) for row in labelled.train.sequences}


def test_given_tokenizer_decides_whether_texts_have_eos(tmp_path: Path) -> None:
    """Texts of equal length get EOS if the tokenizer has one."""
    (tmp_path / "a.txt").write_text("ab\nabc\nc\n" * 20)
    (tmp_path / "b.txt").write_text("abc\n" * 60)
    tokenizer = open_corpus(f"lines:{tmp_path / 'a.txt'}").tokenizer
    other = open_corpus(f"lines:{tmp_path / 'b.txt'}", tokenizer)
    assert isinstance(other.tokenizer, WithEOS) and other.test.eos == tokenizer.eos
    for source in ("promoters:", "lines:"):
        with pytest.raises(UserError, match="is missing"):
            open_corpus(source)


def test_rows_of_a_table_are_separate_sequences(tmp_path: Path) -> None:
    """lines: reads the column of text of a table, one sequence for each row, and never its commas and braces."""
    texts = [f"it was good\nfor {'a ' * (number % 4)}while" for number in range(60)]
    lines = [json.dumps({"stars": number % 5, "review": text, "empty": ""}) for number, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("stars", "review"), *((number % 5, text) for number, text in enumerate(texts))])
    notices: list[str] = []
    for name in ("a.jsonl", "a.csv"):
        corpus = open_corpus(f"lines:{tmp_path / name}", notify=notices.append)
        assert corpus.column == "review" and "column 'review'" in notices.pop()
        found = {corpus.tokenizer.decode(row) for row in corpus.train.sequences}
        assert found == {" ".join(text.split()) for text in texts}
    assert open_corpus(f"lines:{tmp_path / 'a.csv'}", column="review").sha256 == corpus.sha256
    with pytest.raises(UserError, match="has no column 'remark'"):
        open_corpus(f"lines:{tmp_path / 'a.csv'}", column="remark")
    with pytest.raises(UserError, match="There is no file"):
        open_corpus(f"lines:{tmp_path / 'none.csv'}")


def test_eos_counts_in_bits_per_character(tmp_path: Path) -> None:
    """The bound covers tokens and EOS, so bits per character must count both."""
    (tmp_path / "a.txt").write_text("ab\nabc\nc\n" * 40)
    corpus = open_corpus(f"lines:{tmp_path / 'a.txt'}")
    counted = sum(int(batch.scored_tokens.sum()) for batch in eval_batches(corpus.test, 4, 16))
    assert count_scored_tokens(corpus.test, 4) == counted == count_tokens(corpus.test) + len(corpus.test)
    tight = sum(int(batch.scored_tokens.sum()) for batch in eval_batches(corpus.test, 3, 16))  # abc has no room for EOS
    assert count_scored_tokens(corpus.test, 3) == tight < counted
    reference = Reference(
        corpus.tokenizer,
        take_first_tokens(corpus.train, 10**6),
        Texts.from_tokens(corpus.test.padded_rows(4), corpus.tokenizer),
    )
    assert reference.words == {"ab", "abc", "c"}
    kl = measure_samples(reference.real, reference, find_metrics(["ngram-kl"]))["ngram-kl"].value
    assert 0 <= kl < 0.2  # the same distribution: almost 0


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "rows"),
        ('{"text": "a"}\n' * 4, "no field 'label'"),
        ("{broken", "cannot be read as a table"),
        ('{"text": ["a"], "label": 1}\n' * 4, "no field 'text'"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        open_corpus(f"labelled:{tmp_path / 't.jsonl'}")


def test_missing_datasets_and_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="LOGOSPHERE_DATA"):
        open_corpus("captions")
    with pytest.raises(UserError, match="There is no file"):
        open_corpus(f"lines:{tmp_path / 'none.txt'}")
    (tmp_path / "x.bin").write_bytes(b"\xff")
    with pytest.raises(UserError, match="jsonl"):
        open_corpus(f"pairs:{tmp_path / 'x.bin'}")


def test_equal_length_sequences_have_no_eos(tmp_path: Path) -> None:
    path = tmp_path / "dna.txt"
    path.write_text("\n".join(["ACGT", "GGCA", "TTTT", "ACCA"] * 6))
    corpus = open_corpus(f"lines:{path}")
    assert corpus.tokenizer.size == 4 and corpus.train.eos is None
    assert open_corpus(f"lines:{path}", corpus.tokenizer).sha256 == corpus.sha256


@pytest.mark.filterwarnings("ignore:The texts of .* differ from those")
def test_enhancers_are_read_from_fasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGOSPHERE_DATA", str(tmp_path))
    content = "".join(f">{i}\nacgt\r\nACG{'ACGT'[i % 4]}\n" for i in range(40)).encode()
    names = ("ienhancer_train_nonenhancers.fa", "ienhancer_train_enhancers.fa")
    write_archive(tmp_path / "dna.tar.xz", {f"dna/{name}": content for name in names})
    corpus = open_corpus("enhancers")
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (72, 4, 4)
    assert corpus.conditions == {"labels": 2} and corpus.tokenizer.decode(corpus.valid.sequences[0]) == "ACGTACGA"
    with pytest.raises(UserError, match="'N'"):
        parse_fasta(">1\nACGN\n")


def test_dna_with_unknown_bases_is_refused() -> None:
    assert normalise_bases("acgt\n") == "ACGT"
    with pytest.raises(UserError, match="'N'"):
        normalise_bases("ACGN")
