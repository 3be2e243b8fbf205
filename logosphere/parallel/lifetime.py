"""The processes of a group end when the process that started them has ended, also if that was killed.

A launcher that is killed cannot forward a signal. On Linux the kernel sends one in its place, from the first lines of
a process on, before torch is loaded; a training saves then, as after any SIGTERM. Elsewhere a training asks between
steps.
"""

import os
import signal
import sys

LAUNCHER = "LOGOSPHERE_LAUNCHER"
"""The variable with the id of the process that has started a group."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when the one that started it ends."""


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a training: a closed terminal sends SIGHUP, unless `nohup` has it ignored."""
    found = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    return found if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [*found, hangup]


def has_launcher() -> bool:
    """Was this process started by `launch`, which reports how it ends?"""
    return LAUNCHER in os.environ


def launcher_died() -> bool:
    """Has the process that started this one ended?

    Windows cannot tell: the id of a parent stays after its end, and may be that of the starter of a virtual
    environment instead.
    """
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and os.name != "nt" and os.getppid() != int(launcher)


def end_with_launcher() -> None:
    """Let this process end when its launcher does; at once if that has ended already."""
    if not has_launcher():
        return
    if sys.platform == "linux":
        import ctypes  # only here, since single processes need no system call

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if launcher_died():  # before the call above, so that no signal will come
        sys.exit(1)
