"""Targets of fuzzing: every kind of file that Logosphere reads, prompts, and the command line."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from fuzzing import Target
from tiny_run import RECIPE, TEXT

import logosphere as ls
from logosphere.cli import main
from logosphere.data.archives import read_members
from logosphere.data.corpora import open_corpus
from logosphere.data.promoters import load_signal_promoters
from logosphere.data.text8 import read_text8
from logosphere.data.token_cache import META, DamagedCache, open_tokens, with_checksum
from logosphere.data.tokenizer_registry import load_tokenizer
from logosphere.data.tokenizers import ByteTokenizer, encode_infill, encode_prompt, text8_tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.io import read_tensors
from logosphere.runs.config import TrainConfig, config_from_dict, read_config_file
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run


def make_targets(place: Path) -> list[Target]:
    """Return all targets; they work in a folder with one small run."""
    (place / "text.txt").write_text(TEXT)
    corpus = open_corpus(str(place / "text.txt"), "characters")
    run = create_run(replace(RECIPE, steps=2, validations=1, data=str(place / "text.txt")), corpus, place / "run")
    list(run_training(run, corpus))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["evaluate", str(run.path), "--sequences", "2"])
    return [
        _make_recipe_target(place, run),
        *_make_weight_targets(place, run),
        _make_model_target(place, run),
        _make_run_file_target(place, run),
        *_make_corpus_targets(place),
        _make_index_target(place, corpus.folder or place),
        _make_archive_target(place),
        _make_prompt_target(),
        _make_command_target(place, run),
    ]


def _read_from_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """Return a function that writes its input to a file, reads the file and checks that it has not changed."""

    def run(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(path)
        finally:
            assert path.read_bytes() == content, "the input was changed"

    return run


def _make_recipe_target(place: Path, run: Run) -> Target:
    def read(path: Path) -> None:
        read_config_file(path).system_options()

    small = {"length": 8, "network": {"width": 16}, "optim": {"lr": 0.1}, "options": ["timesteps=5", "start=mask"]}
    seeds = [yaml.safe_dump(small).encode(), json.dumps(asdict(RECIPE)).encode()]
    words = [f"{name}: ".encode() for name in TrainConfig.__dataclass_fields__] + [
        b"&a ",
        b"*a",
        b"!!python/name:os.system",
    ]
    return Target("recipes", _read_from_file(place / "recipe.yaml", read), seeds, words, guarded=run.path)


def _make_weight_targets(place: Path, run: Run) -> list[Target]:
    """Headers of safetensors files, and a checkpoint that a training is resumed from."""
    checkpoint = next(run.state.glob("step-*"))
    words = [b'"dtype":"F64"', b'"shape":[', b'"data_offsets":[0,', b"__metadata__", b"9" * 19, b"BF16"]
    seeds = [(checkpoint / name).read_bytes() for name in ("optimizer.safetensors",)]
    copy = place / "resumed"
    shutil.copytree(run.path, copy)
    corpus = open_corpus(str(place / "text.txt"), "characters")
    broken = next((copy / "state").glob("step-*")) / "model.safetensors"
    valid = broken.read_bytes()

    def resume(content: bytes) -> None:
        """Only the header is mutated; the tensors stay, because a changed tensor passes few checks."""
        size = min(len(valid), 8 + int.from_bytes(valid[:8], "little"))
        broken.unlink()  # a hard link of the run folder, which must not change, has the same content
        broken.write_bytes(content + valid[size:])
        next(run_training(Run(copy), corpus))

    header = valid[: 8 + int.from_bytes(valid[:8], "little")]
    return [
        Target("tensors", _read_from_file(place / "any.safetensors", read_tensors), seeds, words, guarded=run.path),
        Target("resuming", resume, [header], words, guarded=run.path),
    ]


def _make_model_target(place: Path, run: Run) -> Target:
    folder = place / "model"
    shutil.copytree(run.path, folder)

    def read(content: bytes) -> None:
        (folder / "recipe.json").write_bytes(content)
        model = ls.load(folder)
        config_from_dict(Run(folder).content["recipe"], "here")
        ls.sample(model, n=1, steps=2)

    words = [name.encode() for name in ls.systems()] + [b'"options": {', b'"width": ', b'"block": ']
    return Target("models", read, [(folder / "recipe.json").read_bytes()], words, guarded=run.path)


def _make_run_file_target(place: Path, run: Run) -> Target:
    """Small files of a run; the first byte of the input selects the file."""
    folder, corpus = place / "plain", open_corpus(str(place / "text.txt"), "characters")
    shutil.copytree(run.path, folder)
    checkpoint = next((folder / "state").glob("step-*"))

    def resume(path: Path) -> None:
        next(run_training(Run(folder), corpus))

    readers: list[tuple[Path, Callable[[Path], object]]] = [
        (checkpoint / "state.json", resume),
        (folder / "state" / "latest.json", resume),
        (folder / "metrics.jsonl", lambda path: Run(folder).metrics()),
        (folder / "tokenizer.json", load_tokenizer),
        (next((folder / "eval").glob("*.json")), Report.load),
    ]
    valid = [path.read_bytes() for path, _ in readers]

    def read(content: bytes) -> None:
        which = (content[0] if content else 0) % len(readers)
        path, reader = readers[which]
        path.write_bytes(content[1:])
        try:
            reader(path)
        finally:
            path.write_bytes(valid[which])

    seeds = [bytes([number]) + content for number, content in enumerate(valid)]
    return Target(
        "run files", read, seeds, [b'"step": ', b'"kind": ', b'"position": {}', b'"characters"'], guarded=run.path
    )


def _make_corpus_targets(place: Path) -> list[Target]:
    line = json.dumps({"text": "Grüße aus dem Wald, sagte der Igel. " * 3}) + "\n"
    pairs = "source\ttarget\n" + "".join(f"wer{number} ist da\tich bin {number}\n" for number in range(9))
    cache = place / "cache"

    def open_with(prefix: str) -> Callable[[Path], object]:
        return lambda path: open_corpus(f"{prefix}{path}", "byte", cache=cache, notify=lambda remark: None)

    return [
        Target(
            "text",
            _read_from_file(place / "a.txt", open_with("")),
            [("Grüße aus dem Wald. " * 9).encode()],
            [b"\xef\xbb\xbf"],
        ),
        Target(
            "json lines",
            _read_from_file(place / "a.jsonl", open_with("")),
            [line.encode() * 4],
            [b'{"text": "', b"\\ud800"],
        ),
        Target(
            "tables",
            _read_from_file(place / "a.csv", open_with("")),
            [b"id,body\n" + b'1,"one two, three"\n' * 9],
            [b'"', b",", b"\r\n", b"text", b"\0"],
        ),
        Target(
            "pairs", _read_from_file(place / "a.tsv", open_with("pairs:")), [pairs.encode()], [b"\t", b"\r\n", b"\t\t"]
        ),
    ]


def _make_index_target(place: Path, tokens: Path) -> Target:
    folder = place / "tokens"
    shutil.copytree(tokens, folder)

    def read(content: bytes) -> None:
        """JSON input gets a valid checksum, so that later checks are reached too."""
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            content = json.dumps(with_checksum(json.loads(content))).encode()
        (folder / META).write_bytes(content)
        with contextlib.suppress(DamagedCache):  # a damaged cache is rebuilt
            rows = open_tokens(folder)
            assert len(rows["train"]) > 0

    words = [b'"shards": [', b'"tokens": ', b'"sha256": ']
    return Target("indexes", read, [(folder / META).read_bytes()], words, guarded=tokens)


def _make_archive_target(place: Path) -> Target:
    """Archives of published data sets; the first byte of the input selects one. Nothing may be unpacked to disk."""
    text, folder = TEXT.encode(), place / "archives"
    folder.mkdir()
    md5 = hashlib.md5(text).hexdigest()
    packed: list[bytes] = []
    modes: tuple[Literal["w:gz"], Literal["w:xz"]] = ("w:gz", "w:xz")
    for mode in modes:
        with tarfile.open(fileobj=(tar := io.BytesIO()), mode=mode) as archive:
            for name in ("set/text8", "../../escape"):
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
        packed.append(tar.getvalue())
    with zipfile.ZipFile(zipped := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("../escape", text)
        bundle.writestr("text8", text)
    bases = np.tile(np.array([[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.1]]), (3, 4, 1))
    np.savez_compressed(arrays := io.BytesIO(), sequences=bases, chromosomes=np.array(["chr1", "chr8", "chr10"]))
    readers: list[tuple[str, bytes, Callable[[Path], object]]] = [
        ("a.tar.gz", packed[0], lambda path: read_members(path, ["text8"])),
        ("a.tar.xz", packed[1], lambda path: read_members(path, ["text8"])),
        ("a.zip", zipped.getvalue(), lambda path: read_members(path, ["text8"])),
        ("text8.zip", zipped.getvalue(), lambda path: list(read_text8(path, len(text), md5))),
        ("a.npz", arrays.getvalue(), load_signal_promoters),
    ]

    def read(content: bytes) -> None:
        name, _, reader = readers[(content[0] if content else 0) % len(readers)]
        (folder / name).write_bytes(content[1:])
        reader(folder / name)
        assert not [*folder.rglob("escape"), *place.glob("escape"), *place.parent.glob("escape")], (
            "a member was unpacked"
        )

    seeds = [bytes([number]) + content for number, (_, content, _) in enumerate(readers)]
    return Target("archives", read, seeds, [b"PK\x01\x02", b"PK\x03\x04", b"\xff\xff\xff\xff", b"ustar", b"/"])


def _make_prompt_target() -> Target:
    def read(content: bytes) -> None:
        text, length = content[1:].decode("utf-8", "surrogateescape"), (content[0] if content else 0) % 24 + 1
        for tokenizer in (text8_tokenizer(), ByteTokenizer()):
            for reader in (encode_prompt, encode_infill):
                with contextlib.suppress(UserError):
                    reader(text, tokenizer, length)

    seeds = [b"\x08the cat", b"\x14the [....] of [3]", b"\x10a[2]b[1]"]
    return Target("prompts", read, seeds, [b"[....]", b"[12]", b"[999999]", b"[", b"]", b"[0]"])


def _make_command_target(place: Path, run: Run) -> Target:
    """Arguments separated by zero bytes. Commands that train get an invalid argument, and numbers stay small."""
    work, invalid = place / "work", {"train": "--steps=0", "compare": "--systems=nothing"}
    work.mkdir()
    long_commands = ("studio", "bench", "train-remasker", "train-classifier", "export")

    def read(content: bytes) -> None:
        words = [word.decode("utf-8", "surrogateescape") for word in content.split(b"\x00")]
        words = [re.sub(r"[0-9]{3,}", "99", word) for word in words]
        first = words[0]
        words += [invalid[first]] if first in invalid else ["--nonsense"] if first in long_commands else []
        stderr, here = io.StringIO(), os.getcwd()
        os.chdir(work)
        try:
            with contextlib.redirect_stderr(stderr):
                code = main(words)
        finally:
            os.chdir(here)
        assert code in (0, 1, 2), code
        assert "Traceback" not in stderr.getvalue() and "should not happen" not in stderr.getvalue(), stderr.getvalue()[
            -500:
        ]
        if code and not stderr.getvalue().strip() and len(words) > 1:
            raise AssertionError("failed without a message")

    folder = str(run.path).encode()
    seeds = [
        b"sample\x00" + folder + b"\x00-n\x001\x00--steps\x002",
        b"sample\x00" + folder + b"\x00--infill\x00the [..] of\x00--steps\x002\x00--json",
        b"plot\x00" + folder, b"systems", b"samplers", b"data\x00list",
        b"launch\x00slurm\x00--nodes\x002\x00--\x00text8\x00--out\x00a",
        b"train\x00demo\x00--dry-run\x00--json",
    ]  # fmt: skip
    options = [
        "-n",
        "--json",
        "--seed",
        "--nproc=1",
        "--temperature",
        "--top-p",
        "--sampler",
        "--length",
        "--grid",
        "nan",
    ]
    options += [
        "--weights",
        "--label",
        "--source",
        "--guidance",
        "--classifier",
        "--strength",
        "--data",
        "--optim.lr",
        "--network.width",
        "--batch",
    ]
    words = [
        b"\x00" + word.encode() + b"\x00" for word in [*options, "", "-1", "0", "text8", "lines:", "stream:", "hf:"]
    ]
    return Target("command line", read, seeds, words, b"\x00", run.state)
