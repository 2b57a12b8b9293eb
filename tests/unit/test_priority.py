"""Giving way: niceness, policy, and the weight of a session of one's own."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.priority import interrupt_nobody

SAID = """
import json, os
from pathlib import Path
from core.priority import give_way
def group():  # none where the kernel knows none, or the session is that of the very first process
    where = Path("/proc/self/autogroup")
    return (where.read_text().split() or [None])[-1] if where.exists() else None
def now():
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "group": group(),
    }
before = now()
give_way(7)
print(json.dumps([before, now()]))
"""


def giving_way(*, leads):
    out = subprocess.run(
        [sys.executable, "-c", SAID], start_new_session=leads, check=True, capture_output=True,
        timeout=30, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return json.loads(out.stdout)


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_that_gives_way_is_nicer_and_interrupts_nobody(leads):
    before, after = giving_way(leads=leads)
    assert after["nice"] == min(before["nice"] + 7, 19)
    assert after["cores"] == (before["cores"][1:] or before["cores"])
    if before["policy"] is not None:
        assert after["policy"] == os.SCHED_BATCH


@pytest.mark.skipif(
    not os.access("/proc/self/autogroup", os.W_OK), reason="the kernel has no autogroups"
)
def test_only_the_leader_of_a_session_makes_it_lighter():
    before, after = giving_way(leads=True)
    assert (before["group"], after["group"]) == ("0", str(after["nice"]))
    before, after = giving_way(leads=False)
    assert before["group"] == after["group"]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no such policy")
def test_a_thread_that_interrupts_nobody_leaves_the_others_as_they_are():
    def policy():
        return os.sched_getscheduler(threading.get_native_id())

    with ThreadPoolExecutor(1, initializer=interrupt_nobody) as pool:
        assert pool.submit(policy).result(10) == os.SCHED_BATCH
    assert policy() != os.SCHED_BATCH
