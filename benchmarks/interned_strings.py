"""The single increase of memory during a long soak test: Python's table of interned strings doubles once.

    python benchmarks/interned_strings.py

After a few cycles of tools/soak.py, strings are interned and released, like the names of temporary files and folders.
The memory allocated by malloc grows by one doubling of the table and then stays constant.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import soak

CYCLES, STRINGS = 15, 1_500_000
INTERVAL, THRESHOLD = 500, 64
"""Strings between two checks, and the kilobytes of a change that is printed."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")
        for number in range(CYCLES):
            soak.run_cycle(Path(folder), number)
        _, last = soak.measure_allocated()
        print(f"after {CYCLES} cycles: {last:,} kB allocated", flush=True)
        for number in range(STRINGS):
            sys.intern(f"name {number}")
            if number % INTERVAL == 0 and abs((now := soak.measure_allocated()[1]) - last) > THRESHOLD:
                print(f"after {number:,} strings: {now - last:+,} kB", flush=True)
                last = now
        print(f"after {STRINGS:,} strings: {soak.measure_allocated()[1] - last:+,} kB more")


if __name__ == "__main__":
    main()
