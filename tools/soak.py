"""Many trainings in one process: python tools/soak.py --minutes 60 [--log marks.jsonl].

Cycles of train, evaluate and sample, in one process, over several systems, with new folders and a corpus opened anew.
Memory and open files are noted after each cycle, in a line of the log if one is asked for: once warm, neither may grow.
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
"""Opened once: to look for it starts a program, and opening it makes a class, each time."""
SYSTEMS = ("mdlm", "rdlm", "ar", "gaussian-ce", "udlm")


def resident_kilobytes() -> int:
    """Kilobytes of memory in use, without those that malloc keeps for later where it can be asked to give them back."""
    gc.collect()
    if (trim := getattr(LIBC, "malloc_trim", None)) is not None:
        trim(0)
    return process_status("VmRSS")


def process_status(name: str) -> int:
    """A number that the kernel knows of this process; VmRSS = RssAnon (its own pages) + RssFile (libraries)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


class _Malloc(ctypes.Structure):
    """What glibc's mallinfo2 answers with."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "parts", "fast", "maps", "mapped", "_", "__", "used")] + [
        (name, ctypes.c_size_t) for name in ("free", "top")
    ]


def allocated() -> tuple[int, int]:
    """Blocks that Python holds and kilobytes that malloc has given out: what lives, however it lies in pages."""
    if (ask := getattr(LIBC, "mallinfo2", None)) is None:
        return sys.getallocatedblocks(), 0
    ask.restype = _Malloc
    told = ask()
    return sys.getallocatedblocks(), (told.used + told.mapped) >> 10


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_cycle(place: Path, number: int, systems: tuple[str, ...] = SYSTEMS) -> tuple[int, int]:
    """One cycle; kilobytes and open files after it."""
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
    return resident_kilobytes(), open_files()


def find_growth(marks: list[tuple[int, int]], slack: int = 4096) -> list[str]:
    """What grows from the second third of the cycles to the last, if anything."""
    third = len(marks) // 3
    warm, late = marks[third : 2 * third], marks[2 * third :]
    found = []
    if min(memory for memory, _ in late) - min(memory for memory, _ in warm) > slack:
        found.append("memory adds up")
    if min(files for _, files in late) > min(files for _, files in warm):
        found.append("open files add up")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--log", type=Path, help="a file for one line of JSON a cycle, written as it goes")
    chosen = parser.parse_args()
    marks: list[tuple[int, int]] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")  # tables are kept there too
        while time.monotonic() - begun < 60 * chosen.minutes:
            memory, files = run_cycle(Path(folder), len(marks))
            marks.append((memory, files))
            if chosen.log:
                minutes = round((time.monotonic() - begun) / 60, 3)
                blocks, given = allocated()
                line = {"minutes": minutes, "memory": memory, "files": files, "blocks": blocks, "malloc": given}
                parts = {
                    "own": process_status("RssAnon"),
                    "libraries": process_status("RssFile"),
                    "threads": process_status("Threads"),
                }
                with chosen.log.open("a") as log:
                    log.write(json.dumps(line | parts) + "\n")
    thirds = [marks[len(marks) * part // 3 :][: len(marks) // 3] for part in range(3)]
    figures = {
        "cycles": len(marks),
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "cpu_seconds": round(time.process_time()),
        "least_kilobytes_of_each_third": [min(memory for memory, _ in part) for part in thirds],
        "most_kilobytes_of_each_third": [max(memory for memory, _ in part) for part in thirds],
        "open_files": sorted({files for _, files in marks}),
        "grows": find_growth(marks),
    }
    print(json.dumps(figures))
