"""Start and end of the command line: what each command imports, and what runs before the process ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = ["sample", "pretrained:ar", "-n", "1", "--steps", "2"]
HEAVY = {"torch._dynamo", "torch._inductor", "sympy", "networkx", "datasets", "pyarrow", "tensorboard", "PIL", "scipy"}
"""Libraries that cost 0.1 s or more to import and that no text needs."""
SERVER = {"uvicorn", "starlette", "fastapi", "logosphere.studio"}


def run_python(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]


def imported_by(statement: str) -> set[str]:
    """The modules that are loaded after a statement in a new process."""
    code = f"import json, sys\n{statement}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(argv: list[str]) -> str:
    return f"from logosphere.cli import main; assert main({argv!r}) == 0"


def test_the_package_imports_no_library() -> None:
    loaded = imported_by("import logosphere")
    assert not loaded & {"torch", "numpy", "yaml", "tyro", "rich", "tokenizers", "huggingface_hub", "safetensors"}
    assert len([name for name in loaded if name.startswith("logosphere")]) < 12


def test_the_list_of_commands_needs_no_parser() -> None:
    assert not imported_by(command(["--help"])) & {"torch", "numpy", "yaml", "tyro", "rich"}


@pytest.mark.parametrize("argv", [["sample", "--help"], ["train", "--help"]], ids=lambda argv: argv[0])
def test_help_on_a_command_needs_the_parser_only(argv: list[str]) -> None:
    loaded = imported_by(command(argv))
    assert "tyro" in loaded
    assert not loaded & {"torch", "tokenizers", "huggingface_hub", "safetensors", *SERVER}


def test_the_list_of_corpora_needs_no_torch() -> None:
    assert not imported_by(command(["data", "list"])) & {"torch", "tokenizers", "huggingface_hub", *HEAVY, *SERVER}


def test_sampling_imports_what_it_needs() -> None:
    loaded = imported_by(command(SAMPLE))
    assert {"torch", "safetensors", "logosphere.sampling.loop"} <= loaded
    assert not loaded & (HEAVY | SERVER)
    assert not loaded & {"tokenizers", "huggingface_hub"}, "this checkpoint reads characters and is bundled"
    for part in ("report", "evaluation", "data.corpora", "training.fit", "runs.compare", "runs.train", "cli.train"):
        assert f"logosphere.{part}" not in loaded


def test_sampling_imports_no_part_of_torch_that_torch_does_not() -> None:
    own = {name for name in imported_by(command(SAMPLE)) - imported_by("import torch") if name.startswith("torch.")}
    assert len(own) < 20, sorted(own)


# ---- The end of the process ------------------------------------------------------------------------------------

PROGRAM = """
import atexit, os, sys, threading, time
import logosphere.__main__ as program

class Witness:
    def __del__(self):
        sys.stdout.write("destroyed\\n")

witness = Witness()
witness.cycle = witness  # so that only the end of the interpreter destroys it

def finish():
    time.sleep(0.2)
    print("thread")

def main():
    atexit.register(print, "handler")
    threading.Thread(target=finish).start()
    print("text")
    return 3

def exit_at_once(code, exit=os._exit):
    print("at-once", flush=True)
    exit(code)

os._exit = exit_at_once
program.main = main
sys.argv = ["logosphere", "sample"]
"""


def test_the_process_ends_without_destroying_the_interpreter() -> None:
    done = run_python(PROGRAM + "program.run()")
    assert (done.returncode, done.stdout.split()) == (3, ["text", "thread", "handler", "at-once"]), done.stderr


@pytest.mark.parametrize(
    "caller",
    [
        "import cProfile; cProfile.run('program.run()')",  # a profiler prints its table afterwards
        "sys.setprofile(lambda *event: None); program.run()",
        "def call():\n    program.run()\ncall()",
    ],
)
def test_callers_of_the_command_line_run_on(caller: str) -> None:
    done = run_python(PROGRAM + caller)
    words = set(done.stdout.split())
    assert {"text", "thread", "handler"} <= words and "at-once" not in words, done.stdout
    assert done.returncode == 3 or "cProfile" in caller  # which catches the exit


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    code = PROGRAM.replace("return 3", "return 0") + "program.run()"
    with open("/dev/full", "w") as full:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, env=environment, timeout=120
        )
    assert done.returncode == 120 and b"No space left" in done.stderr


def test_the_module_and_the_console_script_end_alike(tmp_path: Path) -> None:
    for start in (["-m", "logosphere"], ["-c", "from logosphere.__main__ import run; run()"]):
        for argv, code in ((["--version"], 0), (["nonsense"], 2)):
            done = subprocess.run([sys.executable, *start, *argv], cwd=tmp_path, capture_output=True, timeout=120)
            assert done.returncode == code and (done.stdout if code == 0 else done.stderr).strip()
