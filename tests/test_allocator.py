"""Memory that the command line keeps: page faults of repeated allocations, and who may change the setting."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from logosphere import allocator

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

ALLOCATE = """
import json, resource, sys
from logosphere.allocator import resident_bytes

def allocate():
    bytearray(64 << 20)  # the heap grows here
    before, faults = resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        array = bytearray(64 << 20)
        del array
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(json.dumps({"faults": faults, "kept": resident_bytes() >> 20}))
    return 0
"""
COMMAND_LINE = """
import logosphere.__main__ as program
program.main = allocate
sys.argv = ["logosphere", {command!r}]
program.run()
"""
PAGES = 8 * (64 << 20) // os.sysconf("SC_PAGE_SIZE")


def has_small_pages() -> bool:
    """Whether the kernel uses large pages only where a program asks for them."""
    try:
        return "[always]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return True


def measure(code: str, **variables: str) -> dict[str, int]:
    """Page faults of eight allocations of 64 MB, and the resident memory in MB when all are freed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE + code], capture_output=True, text=True, env=clean | variables, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@glibc
def test_the_command_line_keeps_freed_memory() -> None:
    found = measure(COMMAND_LINE.format(command="train"))
    assert found["faults"] < PAGES // 100 and found["kept"] > 64


@glibc
def test_importing_the_package_changes_nothing() -> None:
    found = measure("import logosphere, logosphere.cli, logosphere.__main__\nallocate()")
    assert found["kept"] < 64 and (found["faults"] >= PAGES or not has_small_pages())


@glibc
def test_the_studio_keeps_nothing() -> None:
    assert measure(COMMAND_LINE.format(command="studio"))["kept"] < 64


@glibc
@pytest.mark.parametrize(
    "variable", [{"MALLOC_MMAP_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=65536"}]
)
def test_variables_of_the_user_take_precedence(variable: dict[str, str]) -> None:
    assert measure(COMMAND_LINE.format(command="train"), **variable)["kept"] < 64


@glibc
def test_memory_is_released_when_it_is_scarce() -> None:
    code = """
import logosphere
from logosphere import allocator
assert not allocator.release_if_scarce()  # nothing is kept yet
assert logosphere.keep_freed_memory()
bytearray(64 << 20)
assert not allocator.release_if_scarce() and resident_bytes() > 64 << 20
allocator._limit = 32 << 20
assert allocator.release_if_scarce() and resident_bytes() < 64 << 20
assert not allocator.release_if_scarce()
allocate()
"""
    found = measure(code)
    assert found["kept"] < 64 and (found["faults"] >= PAGES or not has_small_pages())


@glibc
def test_a_peak_of_memory_is_measured_without_what_was_kept() -> None:
    code = """
from logosphere import allocator
allocator.keep_freed_memory()
bytearray(64 << 20)
allocator.trim()
assert resident_bytes() < 64 << 20
allocate()
"""
    assert measure(code)["kept"] > 64, "the setting stays"


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    assert not allocator.keep_freed_memory() and not allocator.release_if_scarce()
    allocator.release_freed_memory()
    allocator.trim()


def test_available_memory_respects_a_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = allocator.available_bytes()
    assert machine > 1 << 20
    monkeypatch.setattr(allocator, "_group_bytes", lambda: [machine // 10])
    assert allocator.available_bytes() == machine // 10
