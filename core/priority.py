"""Who goes first where several of our processes share a machine's cores: whoever decides.

A niceness alone does not do it on Linux. Kernels with autogroups (`sched_autogroup_enabled`, the
default of most distributions) weigh sessions against each other, not processes, and a niceness
counts within its session only: see sched(7). A process that wakes up interrupts one of equal or
greater weight that runs, unless its policy is SCHED_BATCH. And where a thread that is to decide
wakes up, a core that nobody is busy on is worth more than any weight.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICENESS = 10
"""Of whoever only reads, or computes what nobody waits for: about a tenth of the weight."""
_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(niceness: int = NICENESS, *, leave_core: bool = True) -> None:
    """Let other processes go first from now on, those of other sessions as well.

    leave_core: use all cores but the first of those at hand; one interpreter fills no two.

    Takes no right and cannot be taken back without one. Threads and children that are started
    afterwards inherit it. What a system does not know is left out; the weight of a session is
    changed by its leader alone, since whoever else is in it would be slowed down with us.
    """
    os.nice(niceness)
    interrupt_nobody()
    if leave_core:
        _leave_core()
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))


def interrupt_nobody() -> None:
    """Let the calling thread wait, when it wakes up, for whoever runs to come to an end of itself.

    For threads beside the one that decides: what they do is not urgent, but due.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _leave_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        ours = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, ours[1:] or ours)
