"""Attacks through files: pipes and devices in place of them, links out of a folder, bombs in archives, bad folders."""

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import numpy as np
from safetensors.numpy import save_file

from attacks import attack
from logosphere import UserError, build, load
from logosphere.checkpoints.files import open_checkpoint
from logosphere.data.archives import read_members, read_npz
from logosphere.data.catalogue import CATALOGUE, RemoteFile
from logosphere.data.corpora import open_corpus
from logosphere.data.download import fetch
from logosphere.data.tokenizer_registry import SubwordTokenizer, load_tokenizer
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.evaluation.report import Report
from logosphere.runs.config import read_config_file
from logosphere.runs.evaluate import read_record
from logosphere.runs.metrics import read_metrics
from logosphere.runs.run import Run, latest_or_pretrained, usable_runs
from logosphere.studio.library import Library
from logosphere.training.checkpoint import newest
from logosphere.untrusted import read_regular

PATIENCE = 20
"""Seconds after which an attack counts as a hang; generous, because the machine may be busy."""
MEMORY = 400 << 20
"""Bytes that reading a hostile file may add to the largest use of memory so far."""
KINDS = ("pipe", "device", "folder", "random")
READERS: dict[str, Callable[[Path], object]] = {
    "recipe.json": lambda path: Run(path.parent, trained=False),
    "tokenizer.json": load_tokenizer,
    "subwords.json": SubwordTokenizer.from_file,
    "metrics.jsonl": read_metrics,
    "model.safetensors": lambda path: load(path.parent),
    "record.json": lambda path: read_record(path.parent),
    "report.json": Report.load,
    "config.yaml": read_config_file,
    "data.txt": lambda path: open_corpus(str(path)),
    "data.csv": lambda path: open_corpus(str(path)),
    "data.jsonl": lambda path: open_corpus(str(path)),
    "data.txt.gz": lambda path: open_corpus(str(path)),
    "data.txt.xz": lambda path: open_corpus(str(path)),
    "lines.txt": lambda path: open_corpus(f"lines:{path}"),
    "labelled.csv": lambda path: open_corpus(f"labelled:{path}"),
    "pairs.jsonl": lambda path: open_corpus(f"pairs:{path}"),
    "signals.npz": lambda path: open_corpus(f"promoters:{path}"),
    "weights.gguf": open_checkpoint,
}
"""Files that a stranger can put somewhere, and what reads them."""


class Hang(BaseException):
    """An attack has taken too long; no handler of the package may take it for a fault of a file."""


@contextmanager
def deadline(seconds: int = PATIENCE) -> Iterator[None]:
    """Raise Hang inside this block when it takes too long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer after {seconds} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refuse(call: Callable[[], object]) -> str:
    """The sentence with which a call is refused; raises where it is not, or where it hangs."""
    with deadline():
        try:
            result = call()
        except UserError as problem:
            return str(problem)
    raise AssertionError(f"it was accepted: {result!r}"[:200])


@contextmanager
def limited_memory(extra: int = MEMORY) -> Iterator[None]:
    """Fail if the largest use of memory grows by more inside this block."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown <= extra, f"it took {grown / 1e6:.0f} MB"


@dataclass(frozen=True)
class FileWorld:
    """A folder, and a small model in it."""

    folder: Path
    model: Path

    def empty(self, name: str = "attack") -> Path:
        """A new folder in place of the one of the attack before."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def copy(self, name: str = "attack") -> Path:
        """A copy of the model in place of the one of the attack before."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.model, path)
        return path


@contextmanager
def open_world(folder: Path) -> Iterator[FileWorld]:
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder / "data-home")}):
        model = build("mdlm", vocab_size=27, length=8, width=8, depth=1, heads=1)
        model.tokenizer = text8_tokenizer()
        model.save(folder / "model")
        yield FileWorld(folder, folder / "model")


def put(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "random":
            path.symlink_to("/dev/urandom")
        case "folder":
            path.mkdir()


# ---- special files --------------------------------------------------------------------------------------------------


@attack(*[(name, kind) for name in READERS for kind in KINDS if (name, kind) not in (("data.txt", "folder"),)])
def replace_by_special_file(variant: tuple[str, str], world: FileWorld) -> None:
    """A pipe, a device or a folder in place of a file: it must be refused at once, with little memory."""
    name, kind = variant
    folder = world.copy()
    put(folder / name, kind)
    with limited_memory():
        refuse(lambda: READERS[name](folder / name))


@attack("recipe.json", "tokenizer.json", "metrics.jsonl", "record.json")
def link_out_of_folder(name: str, world: FileWorld) -> None:
    """A file of a folder is a link to a private file, which an error could quote."""
    folder = world.copy()
    secret = world.folder / "secret"
    secret.write_text('{"password": "hunter2"}\n')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    assert "hunter2" not in refuse(lambda: READERS[name](folder / name))


@attack("recipe.json", "tokenizer.json", "model.safetensors")
def link_within_cache(name: str, world: FileWorld) -> None:
    """The hub's cache keeps files as links to ../../blobs; these must still be followed."""
    cache = world.empty()
    snapshot = cache / "snapshots" / "abc"
    shutil.copytree(world.model, snapshot)
    (cache / "blobs").mkdir()
    (snapshot / name).rename(cache / "blobs" / "1234")
    (snapshot / name).symlink_to("../../blobs/1234")
    assert load(snapshot).tokenizer is not None


@attack(0, 1, 1000)
def exceed_size(more: int, world: FileWorld) -> None:
    """A file is larger than the limit of its kind."""
    path = world.empty() / "file"
    path.write_bytes(b"a" * (100 + more))
    if more:
        assert "at most 100" in refuse(lambda: read_regular(path, 100))
    else:
        assert len(read_regular(path, 100)) == 100


@attack("recipe.json", "tokenizer.json", "report.json", "config.yaml")
def nest_deeply(name: str, world: FileWorld) -> None:
    """JSON of a hundred thousand brackets."""
    folder = world.copy()
    (folder / name).write_text("[" * 100_000)
    refuse(lambda: READERS[name](folder / name))


# ---- bombs in archives ----------------------------------------------------------------------------------------------


def write_long_name(path: Path, kind: bytes, size: int) -> None:
    """A compressed archive with a name of `size` bytes."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = kind, size
    block = bytes(1 << 20)
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size // len(block)):
            file.write(block)
        file.write(tarfile.TarInfo("file.txt").tobuf(tarfile.GNU_FORMAT) + bytes(1024))


@attack(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
def expand_name(kind: bytes, world: FileWorld) -> None:
    """The name of a member has hundreds of megabytes, of which a compressed archive shows next to none."""
    path = world.empty() / "archive.tar.gz"
    write_long_name(path, kind, 1 << 26)
    with limited_memory(48 << 20):
        assert "name of a member" in refuse(lambda: read_members(path, ["file.txt"]))


@attack("tar", "zip")
def expand_member(kind: str, world: FileWorld) -> None:
    """A member says that it has 2 GB."""
    path = world.empty() / ("archive.zip" if kind == "zip" else "archive.tar")
    if kind == "tar":
        entry = tarfile.TarInfo("file.txt")
        entry.size = 2 << 30
        path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("file.txt", b"abc")
        content = path.read_bytes()
        place = content.rindex(b"PK\x01\x02") + 24
        path.write_bytes(content[:place] + (2 << 30).to_bytes(4, "little") + content[place + 4 :])
    with limited_memory():
        assert "more than any" in refuse(lambda: read_members(path, ["file.txt"]))


@attack("../../escape.txt", "/logosphere-attack/escape.txt", "a/../../escape.txt")
def escape_archive(name: str, world: FileWorld) -> None:
    """A member has a path out of the archive; nothing may be written anywhere."""
    path = world.empty() / "archive.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    before = sorted(world.folder.rglob("*"))
    read_members(path, ["escape.txt"])
    assert sorted(world.folder.rglob("*")) == before and not Path("/logosphere-attack/escape.txt").exists()


@attack(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE)
def hide_link_in_archive(kind: bytes, world: FileWorld) -> None:
    """A member is a link to a private file, or a device."""
    path = world.empty() / "archive.tar"
    entry = tarfile.TarInfo("file.txt")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(path, "w") as archive:
        archive.addfile(entry)
    refuse(lambda: read_members(path, ["file.txt"]))


@attack(10**9, 10**12)
def announce_large_array(count: int, world: FileWorld) -> None:
    """An array of a few bytes announces billions of numbers."""
    path, header = world.empty() / "signals.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (count,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sequences.npy", header.getvalue() + b"abc")
        archive.writestr("chromosomes.npy", header.getvalue() + b"abc")
    with limited_memory():
        refuse(lambda: open_corpus(f"promoters:{path}"))


@attack("object", "truncated")
def hide_pickle(kind: str, world: FileWorld) -> None:
    """An array of objects is a pickle, which can run code."""
    path = world.empty() / "signals.npz"
    np.savez(path, sequences=np.array([print, len], dtype=object), chromosomes=np.array(["a", "b"]))
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    with contextlib.suppress(ValueError, zipfile.BadZipFile):
        read_npz(path, ["sequences"])
        raise AssertionError("a pickle was read")


# ---- bad folders among good ones ------------------------------------------------------------------------------------

BAD_FOLDERS: dict[str, Callable[[Path], object]] = {
    "no recipe": lambda folder: (folder / "recipe.json").unlink(),
    "half a recipe": lambda folder: (folder / "recipe.json").write_text('{"format": "logosphere-mo'),
    "another recipe": lambda folder: (folder / "recipe.json").write_text('{"format": "other"}'),
    "a list": lambda folder: (folder / "recipe.json").write_text("[]"),
    "a newer recipe": lambda folder: edit_recipe(folder, version=99),
    "a word for the model": lambda folder: edit_recipe(folder, model="mdlm"),
    "a word for options": lambda folder: edit_recipe(
        folder, model={"system": "mdlm", "vocab_size": 27, "length": 8, "options": "width"}
    ),
    "a list for the recipe": lambda folder: edit_recipe(folder, recipe=[]),
    "a number for the corpus": lambda folder: edit_recipe(folder, corpus=5),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "half a tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"format": '),
    "a pipe as recipe": lambda folder: put(folder / "recipe.json", "pipe"),
    "a pipe as tokenizer": lambda folder: put(folder / "tokenizer.json", "pipe"),
    "a device as recipe": lambda folder: put(folder / "recipe.json", "device"),
    "a device as metrics": lambda folder: put(folder / "metrics.jsonl", "device"),
    "a pipe as metrics": lambda folder: put(folder / "metrics.jsonl", "pipe"),
    "a file as state": lambda folder: (folder / "state").write_text("state"),
    "a binary recipe": lambda folder: (folder / "recipe.json").write_bytes(bytes(range(256))),
}


def edit_recipe(folder: Path, **changes: object) -> None:
    """Change entries of the recipe of a folder."""
    content = json.loads((folder / "recipe.json").read_bytes())
    (folder / "recipe.json").write_text(json.dumps(content | changes))


@contextmanager
def runs_with(world: FileWorld, damage: Callable[[Path], object]) -> Iterator[Path]:
    """A folder runs/ with a good model and, written later, a damaged one; it is the current folder."""
    home = world.empty()
    shutil.copytree(world.model, home / "runs" / "good")
    shutil.copytree(world.model, home / "runs" / "zbad")
    os.utime(home / "runs" / "good" / "model.safetensors", (1, 1))
    damage(home / "runs" / "zbad")
    with contextlib.chdir(home):
        yield home


@attack(*BAD_FOLDERS)
def disable_studio(name: str, world: FileWorld) -> None:
    """One bad folder in runs/: the studio must offer the others, and name this one unless it can be offered."""
    with runs_with(world, BAD_FOLDERS[name]), deadline():
        offered = Library()
        names = [model["name"] for model in offered.describe()]
        assert "runs/good" in names
        listed = name == "no recipe" or "runs/zbad" in names or "runs/zbad" in offered.unreadable
        assert listed, "the bad folder is not named"


@attack(*BAD_FOLDERS)
def disable_named_studio(name: str, world: FileWorld) -> None:
    """One bad folder among those that are named for the studio."""
    with runs_with(world, BAD_FOLDERS[name]), deadline():
        offered = Library(["runs/zbad", "runs/good"])
        assert "runs/good" in [model["name"] for model in offered.describe()]


@attack(*BAD_FOLDERS)
def disable_sample(name: str, world: FileWorld) -> None:
    """The newest folder of runs/ is bad: the next one is sampled, and the bad one named."""
    remarks: list[str] = []
    with runs_with(world, BAD_FOLDERS[name]), deadline():
        chosen = latest_or_pretrained(notify=remarks.append)
        assert chosen.name == "good" or not remarks
        assert chosen.name == "good" or Run(chosen, trained=False).tokenizer.size == 27
        found = [path.name for path in usable_runs(trained=False)]
        assert "good" in found


METRICS = (
    '{"step": NaN}', '{"step": "five", "val/bpc": 1}', '{"step": 1, "train/bpc": NaN}', '{"step": 1, "val/bpc": "x"}',
    '{"step": 1, "val/bpc": null, "val/kind": "bound"}', '{"step": -5, "train/bpc": 1}', '{"step": true}', "[1]", "5",
    '{"step": 1, "val/bpc": Infinity, "val/kind": "bound"}', '{"step": 1, "val/bpc": 1, "val/kind": 7}', "\x00\xff",
    '{"step": 1, "val/bpc": 1, "val/kind": "<b>"}', '{"step": 1e300}', '{"step": 99999999999999999999999}', "{",
    '{"step": 1, "tokens": "many", "cpu_seconds": []}', '{"step": 1, "tokens": 5}', '{"step": 1, "val/bpc": [1]}',
    '{"step": 1, "train/bpc": {"a": 1}}', "[" * 100_000, '{"step": 1, "val/error": "x", "val/kind": "bound"}',
)  # fmt: skip


@attack(*METRICS)
def corrupt_metrics(line: str, world: FileWorld) -> None:
    """A line of metrics.jsonl holds NaN, words or structures in place of numbers."""
    with deadline():
        folder = world.copy()
        (folder / "metrics.jsonl").write_text(f'{{"step": 1, "train/bpc": 2.5}}\n{line}\n{{"step": 3, "val/bpc": 2}}\n')
        run = Run(folder, trained=False)
        assert (1.0, 2.5) in run.bits("train") and (3.0, 2.0) in run.bits("val")
        assert all(np.isfinite(value) for part in ("train", "val") for point in run.bits(part) for value in point)
        _ = run.trainings
        offered = Library([str(folder)])
        json.dumps([offered.describe(), offered.models[0].training_curves()], allow_nan=False)


# ---- pointers and downloads -----------------------------------------------------------------------------------------


@attack("", "[]", "5", "null", '{"checkpoint": 5}', '{"checkpoint": "../../etc"}', '{"checkpoint": "step-9"}', "\x00")
def damage_pointer(text: str, world: FileWorld) -> None:
    """latest.json is damaged: nothing is taken for saved, and no folder elsewhere is opened."""
    state = world.empty()
    (state / "latest.json").write_text(text)
    assert newest(state) is None


@attack("shared", "unlocked")
def change_download(kind: str, world: FileWorld) -> None:
    """Another process keeps the part of a download open, and writes into it after it was verified."""
    folder, content = world.empty(), b"right" * 100
    part = folder / "file.bin.part"
    part.write_bytes(content if kind == "shared" else content[:5])
    file = RemoteFile("file.bin", len(content), ("http://127.0.0.1:9/none",), hashlib.sha256(content).hexdigest())
    with part.open("r+b") as held:
        if kind == "unlocked":
            held.seek(0, os.SEEK_END)
            refuse(lambda: fetch(file, folder / "file.bin"))
            assert not (folder / "file.bin").exists()
            return
        fetch(file, folder / "file.bin")
        held.write(b"wrong" * 100)
    assert (folder / "file.bin").read_bytes() == content


@attack(*sorted(CATALOGUE))
def begin_with_plain_address(name: str, world: FileWorld) -> None:
    """The first address of a download is not encrypted, so that others see and can change what is fetched."""
    for file in CATALOGUE[name].files:
        assert file.urls[0].startswith("https://"), file.urls[0]
        assert file.sha256 or all(url.startswith("https://") for url in file.urls), "an unverified file over http"


@attack(errno.EMFILE, errno.EIO)
def fail_reading(number: int, world: FileWorld) -> None:
    """The system refuses to open a recipe."""
    folder = world.copy()
    with patch("logosphere.untrusted.os.open", side_effect=OSError(number, os.strerror(number))):
        refuse(lambda: Run(folder, trained=False))


@attack("/", "..", ".", "nothing", "recipe.json", "pretrained:../..", "box:../x", "pretrained:", "\x00")
def name_odd_folder(name: str, world: FileWorld) -> None:
    """The folder of a model is no such folder."""
    with contextlib.chdir(world.copy()):
        if name != ".":
            refuse(lambda: load(name))
        else:
            assert load(name).vocab_size == 27


@attack(b"", b"\x00" * 8, b"\xff" * 64, (1 << 40).to_bytes(8, "little"), b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
def forge_header(content: bytes, world: FileWorld) -> None:
    """The header of the weights is none, or announces more than there is."""
    folder = world.copy()
    (folder / "model.safetensors").write_bytes(content)
    with limited_memory():
        refuse(lambda: load(folder))


@attack(1 << 33, 1 << 40)
def announce_large_tensor(size: int, world: FileWorld) -> None:
    """The header of the weights announces a tensor of many gigabytes."""
    folder = world.copy()
    save_file({"a": np.zeros(2, dtype=np.float32)}, folder / "model.safetensors")
    header = json.dumps({"a": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    with limited_memory():
        refuse(lambda: load(folder))
