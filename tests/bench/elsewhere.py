"""Clients and engines have machines of their own: here they give way to what is measured.

python -m tests.bench.elsewhere COMMAND ...     (run by the benchmarks)
"""

from __future__ import annotations

import os
import sys

from core.priority import give_way

COMMAND = (sys.executable, "-m", "tests.bench.elsewhere")
NICENESS = 19


def be_elsewhere() -> None:
    """Take only the processor time that nobody else wants; in a session of our own."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    give_way(NICENESS)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    be_elsewhere()
    os.execvp(sys.argv[1], sys.argv[1:])
