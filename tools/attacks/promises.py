"""Attacks on the promises of docs/security.md one by one: requests of two meanings, bombs, every character."""

import gzip
import io
import json
import lzma
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attacks import attack
from attacks.files import deadline, limited_memory
from attacks.server import TOKEN, ServerWorld, read_status
from attacks.server import open_world as open_server
from logosphere import UserError
from logosphere.data.archives import read_members, read_npz
from logosphere.data.corpora import open_corpus
from logosphere.terminal import neutralise

CANARY = "root:x:0:0"


@dataclass(frozen=True)
class PromiseWorld:
    """A running studio, and an empty folder."""

    server: ServerWorld
    folder: Path


@contextmanager
def open_world(folder: Path) -> Iterator[PromiseWorld]:
    (folder / "server").mkdir()
    with open_server(folder / "server") as server:
        yield PromiseWorld(server, folder)


# ---- "The studio answers its own page only" -------------------------------------------------------------------------

HOST = "Host: 127.0.0.1:%d\r\n"
END = "Connection: close\r\n\r\n"
REQUESTS = (
    f"GET http://evil.example/{TOKEN}/ HTTP/1.1\r\nHost: evil.example\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: evil.example\r\n{HOST}{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}Host: evil.example\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: 127.0.0.1:%d@evil.example\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: evil.example#127.0.0.1:%d\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: 127.0.0.1.evil.example:%d\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: 2130706433:%d\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nHost: [::ffff:7f00:1]:%d\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.1\r\nX-Forwarded-Host: 127.0.0.1:%d\r\nHost: evil.example\r\n{END}",
    f"GET /{TOKEN}/ HTTP/1.0\r\n\r\n",
    f"GET /{TOKEN}/ HTTP/1.1\r\n{END}",
    f"GET /{TOKEN}/systems HTTP/1.1\r\n{HOST}Origin: http://evil.example\r\nOrigin: http://127.0.0.1:%d\r\n{END}",
    f"POST /{TOKEN}/generate HTTP/1.1\r\n{HOST}Content-Type: text/plain\r\nOrigin: null\r\n{END}",
    f"TRACE /{TOKEN}/ HTTP/1.1\r\n{HOST}{END}",
    f"CONNECT 127.0.0.1:22 HTTP/1.1\r\n{HOST}{END}",
    f"PUT /{TOKEN}/static/x HTTP/1.1\r\n{HOST}Content-Length: 1\r\n{END}x",
    f"DELETE /{TOKEN}/reports/0 HTTP/1.1\r\n{HOST}{END}",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}X: a\r\n b\r\nHost : evil\r\n{END}",
    f"GET\t/{TOKEN}/ HTTP/1.1\r\n{HOST}{END}" + "\0",
)  # fmt: skip


@attack(*REQUESTS)
def ask_in_two_ways(content: str, world: PromiseWorld) -> None:
    """The host or the origin of a request can be read in two ways, or its method is none of the page."""
    port = world.server.port
    answer = world.server.ask(content.replace("%d", str(port)).encode())
    status = read_status(answer)
    assert status != 200 and not 300 <= status < 400 and status < 500, answer[:200]
    assert b"evil.example" not in answer and TOKEN.encode() not in answer
    world.server.check_alive()


SMUGGLED = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /{token}/systems HTTP/1.1\r\nHost: x\r\n\r\n",
    "Content-Length: 3\r\nContent-Length: 60\r\n\r\n{{}}\r\nGET /{token}/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
    "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n" + "1;" + "a" * 100_000 + "\r\nx\r\n0\r\n\r\n",
    "Content-Length: +5\r\n\r\nhello", "Content-Length: 0x5\r\n\r\nhello", "Content-Length: -1\r\n\r\nhello",
    "Content-Length: 99999999999999999999\r\n\r\nhello",
    "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}",
    "Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n",
)  # fmt: skip


@attack(*SMUGGLED)
def smuggle(rest: str, world: PromiseWorld) -> None:
    """A body has two lengths, or none: what follows it must not be taken for a request, nor be waited for."""
    port = world.server.port
    head = f"POST /{TOKEN}/generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    answer = world.server.ask((head + rest.format(token=TOKEN)).encode())
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]
    assert all(status < 200 or 400 <= status < 500 for status in statuses), statuses
    world.server.check_alive()


PATHS = (
    "static/../../recipe.json", "static/..%2f..%2frecipe.json", "static/%2e%2e/%2e%2e/etc/passwd", "static//etc/passwd",
    "static/....//....//etc/passwd", "static/..\\..\\x", "static/%00index.html", "static/index.html%00.js",
    "reports/../x", "reports/-1", "reports/0x0", "reports/1e0", "reports/%30%30", "reports/٣", "curves/²",
    "watch/99999999", "time/0/../1", "static/C:%5Cwindows%5Cwin.ini", "static/file:%2f%2f%2fetc%2fpasswd", "static/CON",
    "%2e%2e/",
)  # fmt: skip


@attack(*PATHS)
def walk_paths(path: str, world: PromiseWorld) -> None:
    """A path of a request leads to a file, or a number is none of the page's."""
    port = world.server.port
    request = f"GET /{TOKEN}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{END}"
    answer = world.server.ask(request.encode())
    assert 400 <= read_status(answer) < 500 and CANARY.encode() not in answer, answer[:120]
    world.server.check_alive()


@attack(100, 5000, 100_000)
def send_many_headers(count: int, world: PromiseWorld) -> None:
    """A request has thousands of headers."""
    lines = "".join(f"X-{number}: {number}\r\n" for number in range(count))
    content = f"GET /guess/ HTTP/1.1\r\nHost: 127.0.0.1:{world.server.port}\r\n{lines}{END}".encode()
    with limited_memory():
        assert read_status(world.server.ask(content)) in (0, *range(400, 500))
    world.server.check_alive()


# ---- "Folders of others are data" -----------------------------------------------------------------------------------


def write_zip(path: Path, name: str) -> Path:
    """An archive with 600 MB of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as file:
        for _ in range(600):
            file.write(bytes(1 << 20))
    return path


def write_xz_header(path: Path) -> Path:
    """An xz file whose header asks for a dictionary of 4 GB, the largest that the format allows."""
    small = lzma.compress(b"abc\n" * 9, lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}])
    changed = bytearray(small)
    changed[small.index(b"\x21\x01") + 2] = 40
    end = 12 + 4 * small[12]  # of the header of the block, whose checksum follows
    changed[end : end + 4] = zlib.crc32(changed[12:end]).to_bytes(4, "little")
    path.write_bytes(bytes(changed))
    return path


BOMBS: dict[str, Callable[[Path], object]] = {
    "many members": lambda folder: make_members(folder, 60_000),
    "equal names": lambda folder: make_equal_names(folder),
    "member of zeros": lambda folder: read_members(write_zip(folder / "a.zip", "a.txt"), ["b.txt"]),
    "dictionary of xz": lambda folder: open_corpus(str(write_xz_header(folder / "a.txt.xz"))),
    "field of a table": lambda folder: open_text(folder / "a.csv", 'text\n"' + "a" * (8 << 20)),
    "quotes": lambda folder: open_text(folder / "a.csv", "text\n" + '"' * 100_001),
    "nested lines": lambda folder: open_text(folder / "a.jsonl", '{"text": ' + "[" * 100_000 + "\n"),
    "long number": lambda folder: open_text(folder / "a.jsonl", '{"text": ' + "9" * 100_000 + "}\n"),
    "many columns": lambda folder: open_text(folder / "a.csv", ",".join(map(str, range(300_000))) + "\n"),
    "equal columns": lambda folder: open_text(folder / "a.csv", "text,text,text\na,b,c\n" * 50),
    "nulls": lambda folder: open_text(folder / "a.csv", "text\n\0\0\0\n" * 50),
    "two streams": lambda folder: open_bytes(folder / "a.txt.gz", gzip.compress(b"the cat\n" * 99) + b"garbage"),
    "cut stream": lambda folder: open_bytes(folder / "a.txt.gz", gzip.compress(b"the cat\n" * 9999)[:-20]),
    "fake parquet": lambda folder: open_bytes(folder / "a.parquet", b"PAR1" + bytes(60) + b"\xff\xff\xff\x7fPAR1"),
}  # fmt: skip


def make_members(folder: Path, count: int) -> object:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.txt", b"")
    return read_members(folder / "a.zip", ["0.txt"])


def make_equal_names(folder: Path) -> object:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.txt", b"first")
        archive.writestr("b.txt", b"second")
    (folder / "a.zip").write_bytes(content.getvalue().replace(b"b.txt", b"a.txt"))
    return read_members(folder / "a.zip", ["a.txt"])


def open_text(path: Path, text: str) -> object:
    path.write_text(text)
    return open_corpus(str(path))


def open_bytes(path: Path, content: bytes) -> object:
    path.write_bytes(content)
    return open_corpus(str(path))


@attack(*BOMBS)
def open_bomb(name: str, world: PromiseWorld) -> None:
    """A text, table or archive of a stranger is a bomb, or is damaged: a sentence, or a text, in little memory."""
    folder = world.folder / f"bomb-{len(list(world.folder.iterdir()))}"
    folder.mkdir()
    with limited_memory(), deadline(60):
        try:
            BOMBS[name](folder)
        except UserError as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 2000


@attack("<f8", "<U1000000", "|V1000000", "<c16", ">i8")
def announce_type(kind: str, world: PromiseWorld) -> None:
    """An array has a type whose elements have megabytes."""
    path = world.folder / "types.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": True, "shape": (1 << 20, 1 << 10)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sequences.npy", header.getvalue() + bytes(64))
    with limited_memory(), deadline(30):
        try:
            read_npz(path, ["sequences"])
        except (UserError, ValueError):
            return
    raise AssertionError("it was read")


# ---- "A terminal shows text and does nothing else" ------------------------------------------------------------------


DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


@attack(*range(0, 0x110000, 0x11000))
def show_every_character(start: int, world: PromiseWorld) -> None:
    """Some character of Unicode controls the terminal: none of a control category may be left, and no other be lost."""
    for number in range(start, start + 0x11000):
        character = chr(number)
        shown = neutralise(f"a{character}b")
        kind = unicodedata.category(character)
        assert character in "\n\t" or kind not in ("Cc", "Cs") or character not in shown, hex(number)
        assert unicodedata.bidirectional(character) not in DIRECTIONS or character not in shown, hex(number)
        assert kind not in ("Lu", "Ll", "Lo", "Nd", "So", "Sm") or shown == f"a{character}b", hex(number)
        json.dumps(shown).encode("utf-8", "strict" if kind != "Cs" else "replace")
