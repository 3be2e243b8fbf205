"""The process of the pretend device: reads jobs from stdin, one JSON object per line, and replies with one line each.

python pretend_server.py LIBRARY
"""

import ctypes
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO


def serve(library: str, replies: TextIO) -> None:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # before torch
    import pretend_device
    import torch

    torch.set_num_threads(1)
    pretend_device.activate()
    import pretend_checks
    import pretend_jobs

    jobs: dict[str, Any] = {**pretend_checks.CHECKS, **pretend_jobs.JOBS, "die": lambda: os._exit(3)}
    for line in sys.stdin:
        case = json.loads(line)
        started = time.process_time()
        try:
            reply = {"report": jobs[case["job"]](**case["arguments"])}
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply | {"seconds": time.process_time() - started}), file=replies, flush=True)


if __name__ == "__main__":
    # Commands print to stdout, which must not mix with the replies.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.argv[1], replies)
