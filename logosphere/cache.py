"""Where things are kept that can be made again: $LOGOSPHERE_CACHE, or .cache/logosphere in the home folder."""

import os
from pathlib import Path


def cache_folder() -> Path:
    return Path(os.environ.get("LOGOSPHERE_CACHE") or "~/.cache/logosphere").expanduser()
