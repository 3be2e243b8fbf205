"""The process of the pretend device: reads cases from its input, one a line as JSON, and answers each with a line.

python pretend_server.py LIBRARY
"""

import ctypes
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO


def serve(library: str, answers: TextIO) -> None:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # before torch
    import pretend_device
    import torch

    torch.set_num_threads(1)
    pretend_device.activate()
    import pretend_jobs
    import pretend_laws

    jobs: dict[str, Any] = {**pretend_laws.LAWS, **pretend_jobs.JOBS, "die": lambda: os._exit(3)}
    for line in sys.stdin:
        case = json.loads(line)
        started = time.process_time()
        try:
            answer = {"report": jobs[case["job"]](**case["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer | {"seconds": time.process_time() - started}), file=answers, flush=True)


if __name__ == "__main__":
    # Commands print: what they say must not get between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.argv[1], answers)
