"""Soak test, many trainings in one process: python tools/soak.py --minutes 60 [--log soak.jsonl].

Each cycle opens a corpus, trains a small system in a new folder, evaluates it and samples from it. Memory and open
files are recorded after each cycle, with --log also in a file. After a warm-up neither may grow.
"""

import argparse
import ctypes
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tiny_run import RECIPE, TEXT

from logosphere.data.batches import eval_batches
from logosphere.data.corpora import open_corpus
from logosphere.evaluation.report import evaluate
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.sampling.generate import generate

LIBC = ctypes.CDLL(None)
"""Opened once, because each opening creates a class."""
SYSTEMS = ("mdlm", "rdlm", "ar", "gaussian-ce", "udlm")


def measure_resident() -> int:
    """Return the resident memory in kilobytes, after malloc has released free pages (glibc only)."""
    gc.collect()
    if (trim := getattr(LIBC, "malloc_trim", None)) is not None:
        trim(0)
    return read_process_status("VmRSS")


def read_process_status(name: str) -> int:
    """Return a number of /proc/self/status; VmRSS = RssAnon (anonymous pages) + RssFile (libraries)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


class _Malloc(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "parts", "fast", "maps", "mapped", "_", "__", "used")] + [
        (name, ctypes.c_size_t) for name in ("free", "top")
    ]


def measure_allocated() -> tuple[int, int]:
    """Return the number of blocks allocated by Python and the kilobytes allocated by malloc."""
    if (mallinfo := getattr(LIBC, "mallinfo2", None)) is None:
        return sys.getallocatedblocks(), 0
    mallinfo.restype = _Malloc
    info = mallinfo()
    return sys.getallocatedblocks(), (info.used + info.mapped) >> 10


def count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_cycle(place: Path, number: int, systems: tuple[str, ...] = SYSTEMS) -> tuple[int, int]:
    """Run one cycle; return the resident kilobytes and the number of open files after it."""
    text = place / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    corpus = open_corpus(str(text), "characters", cache=place / "cache")
    recipe = replace(RECIPE, system=systems[number % len(systems)], data=str(text))
    run = create_run(recipe, corpus, place / "run")
    with run.lock():
        list(run_training(run, corpus))
    model = Run(run.path).model()
    evaluate(model, eval_batches(corpus.test, recipe.length, 4), rng=0)
    generate(model, n=4, steps=4)
    shutil.rmtree(run.path)
    return measure_resident(), count_open_files()


def find_growth(marks: list[tuple[int, int]], slack: int = 4096) -> list[str]:
    """Return what grows from the second third of the cycles to the last."""
    third = len(marks) // 3
    warm, late = marks[third : 2 * third], marks[2 * third :]
    found = []
    if min(memory for memory, _ in late) - min(memory for memory, _ in warm) > slack:
        found.append("memory grows")
    if min(files for _, files in late) > min(files for _, files in warm):
        found.append("the number of open files grows")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--log", type=Path, help="file for one line of JSON a cycle")
    args = parser.parse_args()
    marks: list[tuple[int, int]] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")  # tables are kept there too
        while len(marks) < 3 or time.monotonic() - started < 60 * args.minutes:  # three cycles make the thirds
            memory, files = run_cycle(Path(folder), len(marks))
            marks.append((memory, files))
            if args.log:
                minutes = round((time.monotonic() - started) / 60, 3)
                blocks, malloc = measure_allocated()
                line = {"minutes": minutes, "memory": memory, "files": files, "blocks": blocks, "malloc": malloc}
                parts = {
                    "own": read_process_status("RssAnon"),
                    "libraries": read_process_status("RssFile"),
                    "threads": read_process_status("Threads"),
                }
                with args.log.open("a") as log:
                    log.write(json.dumps(line | parts) + "\n")
    thirds = [marks[len(marks) * part // 3 :][: len(marks) // 3] for part in range(3)]
    figures = {
        "cycles": len(marks),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "cpu_seconds": round(time.process_time()),
        "least_kilobytes_of_each_third": [min(memory for memory, _ in part) for part in thirds],
        "most_kilobytes_of_each_third": [max(memory for memory, _ in part) for part in thirds],
        "open_files": sorted({files for _, files in marks}),
        "grows": find_growth(marks),
    }
    print(json.dumps(figures))
