"""Giving way: niceness, policy, and the weight of a session of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAID = """
import json, os
from pathlib import Path
from core.priority import give_way
def now():
    group = Path("/proc/self/autogroup")
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None,
        "group": group.read_text().split()[-1] if group.exists() else None,
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
