"""Clients and engines have machines of their own: here they give way to what is measured.

python -m tests.bench.elsewhere [--like-console] COMMAND ...     (run by the benchmarks)
"""

from __future__ import annotations

import os
import sys

from core.priority import give_way

COMMAND = (sys.executable, "-m", "tests.bench.elsewhere")
LIKE_CONSOLE = (*COMMAND, "--like-console")
"""For the one browser that a page's time is taken in: it competes with the console as an equal."""
NICENESS = 19


def be_elsewhere() -> None:
    """Take only the processor time that nobody else wants; in a session of our own."""
    _lead()
    give_way(NICENESS, leave_core=False)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _lead() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()


if __name__ == "__main__":
    command = sys.argv[1:]
    if command[0] == LIKE_CONSOLE[-1]:
        command = command[1:]
        _lead()
        give_way(leave_core=False)
    else:
        be_elsewhere()
    os.execvp(command[0], command)
