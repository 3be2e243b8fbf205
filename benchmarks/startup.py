"""Start, end and input of the command line: what they cost above the libraries that they need.

    LOGOSPHERE_DATA=FOLDER python benchmarks/startup.py [rounds]     # text8.zip in FOLDER for the rows of text8

Processes: `logosphere sample pretrained:NAME` from its start to its text and from there to its end, against a process
that imports torch and ends at once. CPU seconds include system time. Text is complete when the command prints its
closing line, so the child reports its own CPU seconds there. Both kinds of process alternate.
Input: text8 into the token cache against plain numpy (unzip, hash, map the bytes, write, hash), and subwords by
`encode_batch` against `encode_batch_fast` in the chunks of the token cache.
"""

import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import measure_paired_ratio, print_table

from logosphere.data.corpora import CHUNK, HELD_OUT, open_corpus
from logosphere.data.text8 import open_pydoc
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.pretrained import list_pretrained

IMPORT = "import os, torch; os._exit(0)"
SAMPLE = """
import os, sys, time
import logosphere.__main__ as program
from logosphere.cli import main

def timed():
    code = main()
    sys.stdout.flush()
    print(f"TEXT {time.process_time()} {time.time()}", file=sys.stderr, flush=True)
    return code

program.main = timed
program.run()
"""


def run_process(*command: str) -> tuple[float, float, str]:
    """Run Python; return its CPU seconds, the time of its end, and its standard error."""
    # Bytecode is cached as in an installation; the warm-up writes it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, env=environment)
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended, done.stderr


def measure_sample(name: str) -> dict[str, float]:
    """Return the seconds of one sampling process: CPU and wall to the text, CPU and wall from there to the end."""
    begun = time.time()
    cpu, ended, errors = run_process("-c", SAMPLE, "sample", f"pretrained:{name}")
    line = next(line for line in errors.splitlines() if line.startswith("TEXT "))
    text_cpu, text_time = (float(word) for word in line.split()[1:])
    return {"text": text_cpu, "text wall": text_time - begun, "end": cpu - text_cpu, "end wall": ended - text_time}


def measure_import() -> dict[str, float]:
    begun = time.time()
    cpu, ended, _ = run_process("-c", IMPORT)
    return {"text": cpu, "text wall": ended - begun}


def measure_starts(rounds: int) -> dict[str, dict[str, float]]:
    """Return medians and quartiles of the CPU seconds to the text above those of an import of torch, and medians."""
    names = list_pretrained()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    imports: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    measure_import(), [measure_sample(name) for name in names]
    for _ in range(rounds):
        for name in names:
            imports[name].append(measure_import())
            found[name].append(measure_sample(name))
    rows = {}
    for name in names:
        pairs = list(zip(found[name], imports[name], strict=True))
        above = [ours["text"] - bare["text"] for ours, bare in pairs]
        quartiles = statistics.quantiles(above, n=4)
        rows[name] = {
            "above torch": statistics.median(above),
            "quartile 1": quartiles[0],
            "quartile 3": quartiles[2],
            "wall above": statistics.median(ours["text wall"] - bare["text wall"] for ours, bare in pairs),
            "import torch": statistics.median(bare["text"] for _, bare in pairs),
            "end": statistics.median(ours["end"] for ours, _ in pairs),
            "end wall": statistics.median(ours["end wall"] for ours, _ in pairs),
        }
    return rows


def cache_text8() -> None:
    with tempfile.TemporaryDirectory() as folder:
        open_corpus("text8", cache=Path(folder))


def map_text8() -> None:
    """Do with numpy what the token cache needs: unzip, check the hash, map, write and hash three splits."""
    table = np.full(256, 255, np.uint8)
    table[np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)] = np.arange(27)
    with zipfile.ZipFile(Path(os.environ["LOGOSPHERE_DATA"], "text8.zip")) as archive:
        raw = archive.read("text8")
    hashlib.md5(raw, usedforsecurity=False).hexdigest()
    ids = table[np.frombuffer(raw, np.uint8)]
    held_out = len(ids) * HELD_OUT // 100
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(np.split(ids, [len(ids) - 2 * held_out, len(ids) - held_out])):
            with Path(folder, str(number)).open("wb") as file:
                file.write(part.data)
                file.flush()
                os.fsync(file.fileno())
            hashlib.sha256(part.data).hexdigest()


def subword_pair(
    train: Callable[[list[str], int], SubwordTokenizer],
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that encode the same text by the token cache's way and by `encode_batch`."""
    text = "".join(open_pydoc().texts["train"]())
    tokenizer, chunk = train([text], 8000), (text * (CHUNK // len(text) + 1))[:CHUNK]
    model = tokenizer._model
    assert tokenizer.encode_chunk(chunk).tolist() == model.encode_batch([chunk], add_special_tokens=False)[0].ids
    return lambda: tokenizer.encode_chunk(chunk), lambda: np.array(
        model.encode_batch([chunk], add_special_tokens=False)[0].ids
    )


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print_table("sample pretrained:NAME, CPU seconds to the text and from the text to the end", measure_starts(rounds))
    inputs = {}
    if Path(os.environ.get("LOGOSPHERE_DATA", ""), "text8.zip").is_file():
        inputs["text8 / numpy"] = measure_paired_ratio(cache_text8, map_text8, rounds, warmup=1)
    inputs["bpe / encode_batch"] = measure_paired_ratio(*subword_pair(SubwordTokenizer.train_bpe), rounds, warmup=1)
    inputs["wordpiece / encode_batch"] = measure_paired_ratio(
        *subword_pair(SubwordTokenizer.train_wordpiece), rounds, warmup=1
    )
    print_table("input, ratios of CPU seconds", inputs)
