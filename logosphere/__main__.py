"""python -m logosphere"""

import os
import sys

from logosphere.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # One of several processes exits without cleanup: its output and files are complete, and destroying the process
        # group while other processes still run sometimes aborts (a thread of gloo that is not joined).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
