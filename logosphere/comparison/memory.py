"""Results that are made once: a file with a key, read again when the key is the same."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logosphere.atomic import write_json


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def remembered(path: Path, key: object, make: Callable[[], Any]) -> Any:
    """What `make` returned when it was last called with this key; it must be plain data."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    try:
        content = json.loads(path.read_bytes())
        if content["key"] == name:
            return content["result"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not made yet, or for another key: it is made now
    result = make()
    write_json(path, {"key": name, "result": result})
    return result
