"""Several processes within a test: forked, so that torch is not imported again, and connected through gloo."""

import json
import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from logosphere.parallel.launch import _free_port
from logosphere.parallel.process_group import ProcessGroup, init_distributed


@contextmanager
def join_by_file(rank: int, size: int, folder: Path) -> Iterator[ProcessGroup]:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=size)
    yield ProcessGroup(rank, size)
    dist.destroy_process_group()


def join_by_environment(rank: int, size: int, folder: Path) -> AbstractContextManager[ProcessGroup]:
    """A process group configured by the environment variables that torchrun sets."""
    port = int((folder / "port").read_text())
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return init_distributed()


def run_in_processes(
    size: int, work: Callable[[ProcessGroup], Any], folder: Path, join: Callable[..., Any] = join_by_file
) -> list[Any]:
    """Run `work` in `size` processes and return the result of each, passed through JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "port").write_text(str(_free_port()))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_run_rank, args=(rank, size, work, folder, join)) for rank in range(size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads of the forking process are idle
        for process in processes:
            process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    problems = [path.read_text() for path in sorted(folder.glob("problem-*"))]
    assert not problems, problems[0]
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(size)]


def _run_rank(
    rank: int, size: int, work: Callable[[ProcessGroup], Any], folder: Path, join: Callable[..., Any]
) -> None:
    torch.set_num_threads(1)
    try:
        with join(rank, size, folder) as group:
            (folder / f"result-{rank}").write_text(json.dumps(work(group)))
    except BaseException:
        (folder / f"problem-{rank}").write_text(traceback.format_exc())
        sys.exit(1)
