"""python -m logosphere"""

import os
import sys

from logosphere.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # One of several processes leaves at once: all it had to say is said and saved, and taking down what is left of
        # the process group while others are still at work now and then aborts (a thread of gloo that is not joined).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
