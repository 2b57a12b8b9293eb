"""Who goes first where several of our processes share a machine's cores: whoever decides.

A niceness alone does not do it on Linux. Kernels with autogroups (`sched_autogroup_enabled`, the
default of most distributions) weigh sessions against each other, not processes, and a niceness
counts within its session only: see sched(7). And a process that wakes up interrupts one of equal
or greater weight that runs, unless its policy is SCHED_BATCH.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICENESS = 10
"""Of whoever only reads, or computes what nobody waits for: about a tenth of the weight."""
_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(niceness: int = NICENESS) -> None:
    """Let other processes go first from now on, those of other sessions as well.

    Takes no right and cannot be taken back without one. Threads and children that are started
    afterwards inherit it. What a system does not know is left out; the weight of a session is
    changed by its leader alone, since whoever else is in it would be slowed down with us.
    """
    os.nice(niceness)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
