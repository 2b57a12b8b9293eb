"""A bad change under real traffic is rolled back by the guard, with its evidence."""

from __future__ import annotations

import asyncio

from control_world import Load, apply, call, controlled, flushed
from gateway_world import Engine, engines, until

from core import wire
from core.tunables import Tunables

SPEED = 0.02
"""About 0.17 s a prompt of this test: one node serves 6 a second, four of them 24."""
GOOD = {
    "policy": "linear",
    "linear.alpha": 0.3,
    "linear.beta": 0.7,
    "load.horizon_s": 1.0,
    "admission.mode": "off",
    "slo.ttft_s": 1.5,
    "guard.objective": 0.9,
    "guard.slow_burn": 3.0,
    "guard.fast_burn": 5.0,
    "guard.sample_min": 20,
    "guard.time_s": 120.0,
    "hotspot.enabled": False,  # it spreads the hot prefix before the guard has anything to do
}


def fleet():
    more = ("--profile", "tiny-emulated", "--speed", str(SPEED))
    return engines(*(Engine(name, *more) for name in "abcd"))


async def test_a_bad_change_is_rolled_back_by_itself(tmp_path):
    """beta 0: nothing speaks for idle nodes any more, and a new hot prefix stays on one."""
    start = Tunables().changed(GOOD)
    with fleet() as made:
        async with controlled(made, tmp_path, tunables=start, speed=SPEED) as w:
            plane, first = w.service.control, w.service.conductor.revision
            load = Load(w, rate=9, shared=256, tail=480, output=1, hot=1, seed=3)
            async with load.running():
                await until(
                    lambda: plane.guard.overall.window(w.service.clock.now(), 60).total > 20
                )
                bad = await apply(w, {"linear.alpha": 1.0, "linear.beta": 0.0})
                await load.one(2)  # one node holds the new prefix before others ask for it
                load.hot = 2
                await until(lambda: plane.rollbacks == 1, deadline_s=90)
                restored = w.service.conductor.revision
                await asyncio.sleep(0)
            assert restored == bad.revision + 1 and not load.failures
            assert w.service.conductor.tunables == start
            guard = await call(w, "GET", "/guard", kind=wire.GuardView)
            assert (guard.state, guard.good, guard.rollbacks) == ("resting", restored, 1)
            shown = await call(w, "GET", f"/revisions/{restored}")
            assert (shown.kind, shown.author, shown.base) == ("guard", "conductor", bad.revision)
            assert shown.detail["restores"] == first
            evidence = shown.detail["evidence"]
            assert evidence["rule"] in ("fast", "slow")
            assert evidence["suspects_rate"] >= evidence["limit"] > evidence["before_rate"]
            await flushed(w)
            audit = [e.kind for e in w.service.store.events(limit=50) if "." in e.kind]
            told = [k for k in audit if k in ("guard.rolled_back", "tunables.changed")]
            assert told == ["guard.rolled_back", "tunables.changed"], "newest first"
            event = w.service.store.events(kind="guard.rolled_back")[0]
            assert event.data["evidence"] == evidence and event.data["rolled_back"] == bad.revision
