"""Records of measurements, in the format of benchmarks/results/ (its README.md has the fields)."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def find_commit() -> str | None:
    """Return the commit of the measured code; `+changes` marks uncommitted changes, None an unpacked archive."""
    root = Path(__file__).parent.parent
    try:
        command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
        return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def print_experiment(name: str, records: list[dict[str, Any]], **common: Any) -> None:
    """Print an experiment with today's date, one record a line."""
    common |= {"date": datetime.now(UTC).date().isoformat()}
    rows = ",\n      ".join(json.dumps(record, ensure_ascii=False) for record in records)
    shared = json.dumps(common, ensure_ascii=False)
    print(f'    {{"name": {json.dumps(name)},\n     "common": {shared},\n     "records": [\n      {rows}]}}')
