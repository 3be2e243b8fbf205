"""Client of the pretend device: compiles guard.cpp, starts the server process, and sends it jobs."""

import hashlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = HERE / "guard.cpp"
TIMEOUT = 500.0
"""Seconds to wait for the report of a job."""


def library() -> Path:
    """The compiled guard.cpp; skips the test where it cannot be compiled."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this build of torch has a CUDA of its own, which the pretend device would clash with")
    if not sys.platform.startswith("linux"):
        pytest.skip(f"the pretend device is made for Linux, not {sys.platform}")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++) to make the pretend device with")
    torch_home = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {torch_home} {compiler}".encode())
    made = ROOT / ".cache" / "accelerator" / f"guard-{key.hexdigest()[:16]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:  # several test processes may compile at once
            draft = Path(folder) / made.name
            links = [f"-L{torch_home / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
            links += [f"-Wl,-rpath,{torch_home / 'lib'}"]
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
            argv = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", abi, f"-I{torch_home / 'include'}"]
            done = subprocess.run(
                [*argv, str(SOURCE), "-o", str(draft), *links], capture_output=True, text=True, timeout=300
            )
            if done.returncode != 0:
                raise RuntimeError(f"{compiler} cannot compile {SOURCE.name}:\n{done.stderr[-4000:]}")
            os.replace(draft, made)
    return made


class Device:
    """The process of the pretend device; it is started at the first job, and again if it has died."""

    def __init__(self, library: Path, folder: Path):
        self.library, self.folder = library, folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, job: str, **arguments: Any) -> dict[str, Any]:
        """The report of a job; fails the test if the job raised or the process died."""
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        with selectors.DefaultSelector() as ready, suppress(BrokenPipeError):
            line = ""
            process.stdin.write(json.dumps({"job": job, "arguments": arguments}) + "\n")
            process.stdin.flush()
            ready.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if ready.select(TIMEOUT) else ""
        if not line:
            self.stop()
            stderr = (self.folder / "stderr.txt").read_text(errors="replace")[-4000:]
            pytest.fail(f"the process of the pretend device ended or did not reply:\n{stderr}", pytrace=False)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            pytest.fail(f"on the pretend device:\n{reply['error']}", pytrace=False)
        report: dict[str, Any] = reply["report"] or {}
        return report

    def _start(self) -> "subprocess.Popen[str]":
        if self.process is None:
            environment = os.environ | {
                "OMP_NUM_THREADS": "1", "LOGOSPHERE_CACHE": str(self.folder / "cache"), "LOGOSPHERE_DATA": "",
                "PYTHONPATH": str(ROOT),
            }  # fmt: skip
            with (self.folder / "stderr.txt").open("w") as log:
                self.process = subprocess.Popen(
                    [sys.executable, str(HERE / "pretend_server.py"), str(self.library)], cwd=self.folder,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                )  # fmt: skip
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
