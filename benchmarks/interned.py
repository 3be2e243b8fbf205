"""The one step in the memory of a long soak: Python's table of interned strings doubles, once.

    python benchmarks/interned.py

After a few cycles of tools/soak.py, strings are interned and forgotten, as names of files and folders are that come and
go. What malloc has given out is watched: it grows by one doubling of the table, and then no more.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import soak

CYCLES, STRINGS, EVERY, NOTED = 15, 1_500_000, 500, 64
"""How many of each; a change of more than `NOTED` kilobytes is told."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGOSPHERE_CACHE"] = str(Path(folder) / "cache")
        for number in range(CYCLES):
            soak.run_cycle(Path(folder), number)
        _, last = soak.allocated()
        print(f"after {CYCLES} cycles: {last:,} kB given out", flush=True)
        for number in range(STRINGS):
            sys.intern(f"name {number}")
            if number % EVERY == 0 and abs((now := soak.allocated()[1]) - last) > NOTED:
                print(f"after {number:,} strings: {now - last:+,} kB", flush=True)
                last = now
        print(f"after {STRINGS:,} strings: {soak.allocated()[1] - last:+,} kB more")


if __name__ == "__main__":
    main()
