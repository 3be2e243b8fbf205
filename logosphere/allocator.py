"""Memory that the process keeps: settings of malloc for programs that allocate large arrays again and again.

glibc maps every array above 32 MiB anew and returns it to the kernel when it is freed; the kernel then clears each page
at its next first use. A training step with a large vocabulary spends up to two thirds of its time on this. With
`keep_freed_memory` arrays of all sizes come from the heap, and the heap is not shrunk (mallopt(3): M_MMAP_MAX = 0,
M_TRIM_THRESHOLD at its maximum). Arrays of different sizes then leave gaps, so peak memory can grow;
`release_if_scarce` restores the usual settings once half of the memory of the machine is in use.

The command line does this, `import logosphere` does not. A program calls `logosphere.keep_freed_memory()`. Variables of
the user (MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_, …, or glibc.malloc in GLIBC_TUNABLES) take precedence. Other C
libraries are left alone.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
LARGEST = 2**31 - 1
"""mallopt takes an int."""
MAPPED_FROM = 32 << 20
"""The largest M_MMAP_THRESHOLD that glibc accepts, which its own adjustment reaches when arrays are that large."""
DEFAULT_MMAP_MAX = 65_536
SCARCE = 0.5
"""Fraction of the available memory from which on freed memory is returned to the kernel again."""

_limit: int | None = None
"""Resident bytes at which kept memory is released; None while the settings are the usual ones."""


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version, library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # another library, or a system without dlopen(NULL)
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library


def _is_set_by_user() -> bool:
    variables = any(name.startswith("MALLOC_") and name.endswith("_") for name in os.environ)
    return variables or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")


def keep_freed_memory() -> bool:
    """Let malloc keep freed arrays for the next ones of this process; whether the settings were changed.

    Nothing happens where the C library is not glibc or where the user has set variables of malloc.
    """
    global _limit
    library = _glibc()
    if library is None or _is_set_by_user():
        return False
    if not (library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, LARGEST)):
        return False
    _limit = int(SCARCE * available_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return True


def release_freed_memory() -> None:
    """Return free memory to the kernel, now and from now on; undoes `keep_freed_memory`."""
    global _limit
    library = _glibc()
    if library is None or _limit is None:
        return
    _limit = None
    library.mallopt(M_MMAP_MAX, DEFAULT_MMAP_MAX)
    # glibc no longer adjusts these by itself after the first call of mallopt.
    library.mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
    library.mallopt(M_TRIM_THRESHOLD, 2 * MAPPED_FROM)
    library.malloc_trim(0)


def release_if_scarce() -> bool:
    """Undo `keep_freed_memory` if this process uses half of the memory that was available; whether it did."""
    if _limit is None or resident_bytes() < _limit:
        return False
    release_freed_memory()
    return True


def trim() -> None:
    """Return what is free now to the kernel where it is kept, so that the peak measured next is not an earlier one."""
    library = _glibc()
    if library is not None and _limit is not None:
        library.malloc_trim(0)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes() -> int:
    """Memory that this process may still use: that of the machine, or of its control group if that is less."""
    found = [_meminfo_bytes(), *_group_bytes()]
    return min((value for value in found if value is not None), default=LARGEST)


def _meminfo_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) * 1024
    except (OSError, ValueError, StopIteration):
        return None


def _group_bytes() -> list[int]:
    """What is left of the limits of control groups, version 2 and version 1."""
    left = []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        folder = Path("/sys/fs/cgroup")
        try:
            left.append(int((folder / limit).read_text("ascii")) - int((folder / used).read_text("ascii")))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return left
