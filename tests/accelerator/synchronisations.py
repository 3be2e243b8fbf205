"""Print how often one training step of each system waits for the device, as a table in Markdown.

PYTHONPATH=. python tests/accelerator/synchronisations.py [SYSTEM …] [--places]
"""

import sys
import tempfile
from pathlib import Path

from pretend_client import Device, library

import logosphere as ls


def main(argv: list[str]) -> None:
    systems = [name for name in argv if not name.startswith("--")] or list(ls.systems())
    with tempfile.TemporaryDirectory() as folder:
        device = Device(library(), Path(folder))
        try:
            print("| system | waits | of which | blocking copies to the device | asynchronous |\n|---|---|---|---|---|")
            for system in systems:
                report = device.run("synchronise", system=system, preset="default")
                waits, uploads = report["waits"], report["uploads"]
                parts = ", ".join(f"{count} {name}" for name, count in sorted(waits.items()))
                row = [system, sum(waits.values()), parts, uploads.get("blocking", 0), uploads.get("asynchronous", 0)]
                print("| " + " | ".join(map(str, row)) + " |", flush=True)
                if "--places" in argv:
                    print("\n".join(f"    {count} {place}" for place, count in sorted(report["places"].items())))
        finally:
            device.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
