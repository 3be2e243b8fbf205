"""Streamed datasets: training while reading, held-out rows, stopping and resuming."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from distributed_helpers import run_in_processes
from run_helpers import metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE

from logosphere.cli import main
from logosphere.data import streaming
from logosphere.data.batches import train_batches
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus, count_tokens, describe_size
from logosphere.data.streaming import StreamBatches
from logosphere.errors import UserError
from logosphere.parallel.process_group import ProcessGroup
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run

WORDS = "the cat sat on a mat and the dog lay by the log".split()


def row(number: int) -> str:
    return " ".join(WORDS[(number * k) % len(WORDS)] for k in range(1, 2 + number % 9))


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A dataset of two files in a folder, loaded by the `datasets` library."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(streaming, "HELD_OUT_CHARACTERS", 200)
    folder = tmp_path / "rows" / "data"
    folder.mkdir(parents=True)
    for part in range(2):
        lines = [json.dumps({"text": row(number)}) for number in range(150 * part, 150 * part + 150)]
        (folder / f"train-{part:05d}-of-00002.jsonl").write_text("\n".join(lines) + "\n")
    yield f"stream:{folder.parent}"


def test_held_out_rows_are_not_trained_on(dataset: str) -> None:
    corpus = open_corpus(dataset)
    held_out = [corpus.tokenizer.decode(part) for part in (corpus.valid, corpus.test)]
    train = "".join(text["text"] + "\n\n" for text in corpus.train.open())
    rows = [row(number) for number in range(300)]
    assert "\n\n".join(rows) + "\n\n" == "\n\n".join([*held_out, train])
    assert all(200 <= len(text) < 300 for text in held_out) and corpus.characters["valid"] == len(held_out[0])
    assert (
        describe_size(corpus.train) == "streamed" and count_tokens(corpus.train) == 0 and corpus.valid.dtype == np.uint8
    )
    assert open_corpus(dataset).sha256 == corpus.sha256
    batches = train_batches(corpus.train, 16, 4, seed=0)
    assert isinstance(batches, StreamBatches)
    whole = train.encode()
    read = b"".join(bytes(batches.at(step).tokens.flatten().tolist()) for step in range(2 * len(whole) // 64))
    assert read == (whole + whole)[: len(read)], "the stream restarts after its end"
    with pytest.raises(UserError, match="is of step"):
        batches.at(1)


@pytest.mark.slow
def test_stream_training_resumes_exactly(dataset: str, tmp_path: Path) -> None:
    """Bit-identical, beyond the end of the stream and with another number of processes."""
    recipe = replace(RECIPE, data=dataset, steps=90, batch=8, length=12, validations=3)
    corpus = open_corpus(dataset, "byte")
    uninterrupted, broken, shared = (
        create_run(recipe, corpus, tmp_path / name) for name in ("alone", "broken", "shared")
    )
    list(run_training(uninterrupted, corpus))
    for steps in (7, 75, 200):
        list(run_training(Run(broken.path), open_corpus(dataset, "byte"), stop_after(steps)))
    assert metrics_without_times(uninterrupted) == metrics_without_times(broken) and tensor_bytes(
        uninterrupted.path / "ema.safetensors"
    ) == tensor_bytes(broken.path / "ema.safetensors")
    saved = json.loads(next(broken.state.glob("step-*/state.json")).read_bytes())
    assert saved["position"]["samples"] == 90 * 8 and len(saved["position"]["waiting"]) < 8 * 12 + 100

    def work(group: ProcessGroup) -> int:
        stop = stop_after(5) if group.rank == 1 else (lambda: False)
        return len(list(run_training(Run(shared.path), open_corpus(dataset, "byte"), stop, group)))

    run_in_processes(2, work, tmp_path / "team")
    list(run_training(Run(shared.path), corpus, stop_after(10)))
    losses = [[line["train/loss"] for line in run.metrics() if "train/loss" in line] for run in (uninterrupted, shared)]
    assert len(losses[1]) > 10 and losses[1] == pytest.approx(losses[0][: len(losses[1])], rel=1e-5)


def test_stream_position_restores_the_same_batch(dataset: str) -> None:
    corpus = open_corpus(dataset, "byte")
    batches, again = train_batches(corpus.train, 16, 4, seed=0), train_batches(corpus.train, 16, 4, seed=0)
    taken = [batches.at(step).tokens.tolist() for step in range(4)]
    again.seek(json.loads(json.dumps(batches.position(3))))
    assert again.at(3).tokens.tolist() == taken[3] and again.at(4).tokens.tolist() == batches.at(4).tokens.tolist()
    with pytest.raises(UserError, match="has no position of the stream"):
        again.seek(None)


def test_streams_on_the_command_line(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--length", "12", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
    argv = ["train", "--data", dataset, "--tokenizer", "bpe:300", "--steps", "3", "--validations", "1", *size]
    run = str(tmp_path / "run")
    assert main([*argv, "--out", run, "--json"]) == 0
    assert "streamed" in capsys.readouterr().err
    assert main(["train", "--out", run, "--resume"]) == 0
    assert main(["evaluate", run, "--sequences", "2"]) == 0
    capsys.readouterr()
    for message, command in {
        "is a stream; use valid or test": ["evaluate", run, "--split", "train"],
        "names no dataset": ["train", "--data", "stream:"],
        "cannot be streamed": ["train", "--data", f"stream:{tmp_path / 'nowhere'}"],
        "less text than one batch": [*argv, "--batch", "4096", "--out", f"{run}-2"],
    }.items():
        assert main(command) == 1
        assert message in (error := capsys.readouterr().err) and "Traceback" not in error, error


def test_invalid_stream_datasets_are_refused(tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(dataset.removeprefix("stream:")) / "data"
    (folder / "validation-00000-of-00001.jsonl").write_text(json.dumps({"text": "its own"}) + "\n")
    corpus = open_corpus(dataset)
    assert corpus.tokenizer.decode(corpus.valid) == "its own"
    monkeypatch.setattr(streaming, "HELD_OUT_CHARACTERS", 1 << 20)
    with pytest.raises(UserError, match="less text than one batch"):
        train_batches(open_corpus(dataset).train, 16, 4, seed=0).at(0)
    (folder / "validation-00000-of-00001.jsonl").write_text(json.dumps({"words": "no text"}) + "\n")
    with pytest.raises(UserError, match="broke off .*continue with --resume"):
        open_corpus(dataset)


class Rows:
    """Rows as the dataset library streams them, with a position."""

    def __init__(self, column: str, start: int = 0):
        self.column, self.start = column, start

    def __iter__(self) -> Iterator[dict[str, object]]:
        while self.start < 300:
            self.start += 1
            yield {"id": self.start, self.column: row(self.start - 1), "none": None}

    def skip(self, count: int) -> "Rows":
        return Rows(self.column, count)

    def state_dict(self) -> dict[str, int]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["start"]


def test_streams_read_the_column_that_is_named_or_looks_like_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HELD_OUT_CHARACTERS", 200)

    def open_with(named: str, **options: object) -> Corpus:
        library = ModuleType("datasets")
        library.__dict__["load_dataset"] = lambda name, config, streaming: {"train": Restarted(named)}
        monkeypatch.setitem(sys.modules, "datasets", library)
        return open_corpus("stream:owner/name", "byte", **options)  # type: ignore[arg-type]

    remarks: list[str] = []
    expected, found = open_with("text"), open_with("body", notify=remarks.append)
    assert (expected.column, found.column) == ("text", "body") and len(remarks) == 1 and "'body'" in remarks[0]
    assert expected.sha256 == found.sha256 == open_with("body", column="body").sha256
    first, second = (train_batches(corpus.train, 16, 4, seed=0) for corpus in (expected, found))
    assert isinstance(second, StreamBatches)
    assert [first.at(step).tokens.tolist() for step in range(9)] == [
        second.at(step).tokens.tolist() for step in range(9)
    ]
    again = train_batches(found.train, 16, 4, seed=0)
    again.seek(json.loads(json.dumps(second.position(9))))
    assert again.at(9).tokens.tolist() == second.at(9).tokens.tolist()
    with pytest.raises(UserError, match="no column 'text', only id, body, none"):
        open_with("body", column="text")


class Restarted(Rows):
    """A table that is read from its beginning by every reader."""

    def __iter__(self) -> Iterator[dict[str, object]]:
        return iter(Rows(self.column))
