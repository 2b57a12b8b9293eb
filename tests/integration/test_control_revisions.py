"""Revisions of a running scheduler: under load, two operators, rollback, schedule, restart."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from control_world import WHY, Load, apply, call, controlled, flushed
from gateway_world import Engine, engines, until

from core import wire
from core.ports import DecisionQuery

INVALID = [
    ({"linear.alpha": 1.5}, "linear.alpha", "0..1"),
    ({"slo.ttft_s": 0}, "slo.ttft_s", "0.001..3600"),
    ({"breaker.consecutive_failures": 2.5}, "breaker.consecutive_failures", "whole number"),
    ({"policy": "nonsense"}, "policy", "unknown policy"),
    ({"fetch.enabled": "yes"}, "fetch.enabled", "true"),
]


@pytest.fixture(scope="module")
def four():
    with engines(*(Engine(name) for name in "abcd")) as made:
        yield made


async def test_a_hundred_changes_under_load(four, tmp_path):
    """80 valid ones, each live at once and whole; 20 invalid ones change nothing."""
    async with controlled(four, tmp_path) as w:
        first = w.service.conductor.revision
        made = {first: "min_ttft"}
        load = Load(w, rate=20, shared=128, output=3)
        async with load.running():
            await until(lambda: load.sent > 5)
            for n in range(100):
                live = w.service.conductor.revision
                if n % 5 == 4:
                    changes, field, bound = INVALID[n // 5 % len(INVALID)]
                    error = await apply(w, changes, status=422)
                    assert error.param == field and bound in error.message
                    assert w.service.conductor.revision == live
                    continue
                policy = ("linear", "least_loaded", "multiplicative")[n % 3]
                revision = await apply(w, {"policy": policy, "linear.alpha": n / 100})
                assert revision.base == live and revision.revision == live + 1
                made[revision.revision] = policy
        await w.settled()
        assert not load.failures and load.sent > 20
        assert w.service.conductor.revision == first + 80
        assert w.service.conductor.tunables.linear.alpha == 0.98
        await flushed(w)
        rows = w.service.store.decisions(DecisionQuery(), limit=1000).rows
        assert len(rows) >= load.sent and all(r.decision.placed for r in rows)
        for r in rows:
            assert made[r.decision.revision] == r.decision.policy, "a mixture of two revisions"
        assert len({r.decision.revision for r in rows}) > 5
        stored = [r.number for r in w.service.store.revisions(limit=200)]
        assert stored == sorted(made, reverse=True)
        changed = w.service.store.events(kind="tunables.changed", limit=1000)
        assert len(changed) == 80


async def test_of_two_operators_with_one_base_one_hears_why(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        base = w.service.conductor.revision
        bodies = [{"changes": {"linear.alpha": a}, **WHY} for a in (0.2, 0.3)]
        headers = {"If-Match": f'"{base}"'}
        url = f"{w.url}/admin/v1/revisions"
        answers = await asyncio.gather(
            *(w.client.post(url, json=body, headers=headers) for body in bodies)
        )
        assert sorted(a.status for a in answers) == [201, 409]
        won = next(a for a in answers if a.status == 201)
        lost = next(a for a in answers if a.status == 409)
        assert won.headers["etag"] == f'"{base + 1}"'
        error = wire.StaleBody.model_validate_json(await lost.read()).error
        revision = wire.FullRevision.model_validate_json(await won.read())
        assert (error.param, error.base, error.live) == ("base", base, base + 1)
        assert error.theirs == revision.changes
        assert {**error.yours, **error.theirs}.keys() == {"linear.alpha"}
        assert error.yours != error.theirs
        error = await call(w, "POST", "/revisions", bodies[0], status=422)
        assert error.param == "base"


async def test_list_one_diff_and_rollback(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        start = w.service.conductor.revision
        one = await apply(w, {"policy": "linear", "alpha": 0.9})
        two = await apply(w, {"linear.beta": 0.2})
        listed = await call(w, "GET", "/revisions", kind=wire.RevisionList)
        assert [r.revision for r in listed.revisions] == [two.revision, one.revision, start]
        shown = await call(w, "GET", f"/revisions/{one.revision}")
        assert shown == one and shown.values["linear.alpha"] == 0.9
        path = f"/revisions/{start}/diff?to={two.revision}"
        diff = await call(w, "GET", path, kind=wire.RevisionDiff)
        assert diff.changes == {
            "policy": ["min_ttft", "linear"],
            "linear.alpha": [0.5, 0.9],
            "linear.beta": [0.5, 0.2],
        }
        back = await call(w, "POST", "/revisions/rollback", WHY, status=201)
        assert (back.kind, back.detail["restores"]) == ("rollback", one.revision)
        assert w.service.conductor.tunables.linear.beta == 0.5
        body = {**WHY, "to": start}
        back = await call(w, "POST", "/revisions/rollback", body, status=201)
        assert w.service.conductor.policy.name == "min_ttft"
        error = await call(w, "POST", "/revisions/rollback", {**WHY, "to": 999}, status=404)
        assert error.param == "revision"


async def test_revisions_survive_a_restart(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        made = await apply(w, {"policy": "linear", "alpha": 0.33})
        later = datetime.now(UTC) + timedelta(hours=1)
        body = {"changes": {"linear.beta": 0.8}, "at": later.isoformat(), **WHY}
        await call(w, "POST", "/scheduled", body, kind=wire.ScheduledView, status=201)
        canary = {"changes": {"linear.alpha": 0.6}, "share": 0.5, **WHY}
        await call(w, "POST", "/canary/start", canary, kind=wire.CanaryView, status=201)
        await w.service.control.stop()
        await flushed(w)
        ended = w.service.store.events(kind="canary.stopped")
        assert [e.data["reason"] for e in ended] == ["the service was stopped"]
    async with controlled(four, tmp_path) as w:
        assert w.service.conductor.revision == made.revision
        guard = w.service.control.guard
        assert (guard.state, guard.good) == ("watching", made.base), "its time is not over yet"
        left_s = guard.until_s - w.service.clock.now()
        assert 0 < left_s < w.service.conductor.tunables.guard.time_s
        assert w.service.conductor.tunables.linear.alpha == 0.33
        waiting = await call(w, "GET", "/scheduled", kind=wire.ScheduledList)
        assert [s.changes for s in waiting.items] == [{"linear.beta": 0.8}]
        back = await call(w, "POST", "/revisions/rollback", WHY, status=201)
        assert back.revision == made.revision + 2, "the canary's number is not used again"
        assert w.service.conductor.tunables.linear.alpha == 0.5
        bad = await apply(w, {"linear.alpha": 0.6})
    with sqlite3.connect(tmp_path / "records.db") as database:  # of a release with other bounds
        sql = "UPDATE revisions SET \"values\" = replace(\"values\", '0.6', '7.0') WHERE number = ?"
        assert database.execute(sql, (bad.revision,)).rowcount == 1
    async with controlled(four, tmp_path) as w:
        assert w.service.conductor.revision == bad.revision
        assert w.service.conductor.tunables.linear.alpha == 0.5, "the one before holds"
        made = await apply(w, {"linear.alpha": 0.4})
        assert made.revision == bad.revision + 1
        back = {"to": bad.revision, **WHY}
        error = await call(w, "POST", "/revisions/rollback", back, status=422)
        assert "linear.alpha" in error.message


async def test_no_database_no_change(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        await apply(w, {"linear.alpha": 0.4})
        before = w.service.conductor.revision
        away = tmp_path / "away"
        away.mkdir()
        files = sorted(tmp_path.glob("records.db*"))
        for file in files:
            shutil.move(file, away / file.name)
        (tmp_path / "records.db").mkdir()
        error = await apply(w, {"linear.alpha": 0.6}, status=503)
        assert error.code == "store_unavailable"
        assert w.service.conductor.revision == before
        assert (await w.complete("still served", max_tokens=2)).status == 200
        (tmp_path / "records.db").rmdir()
        for file in files:
            shutil.move(away / file.name, file)
        made = await apply(w, {"linear.alpha": 0.6})
        assert made.revision == before + 1


async def test_a_change_waits_for_its_time_and_ends_by_itself(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        live = w.service.conductor
        before, now = live.revision, datetime.now(UTC)
        body = {
            "changes": {"linear.beta": 0.8},
            "at": (now + timedelta(seconds=5)).isoformat(),
            "until": (now + timedelta(seconds=7)).isoformat(),
            **WHY,
        }
        asked = await call(w, "POST", "/scheduled", body, kind=wire.ScheduledView, status=201)
        assert asked.state == "pending" and live.tunables.linear.beta == 0.5
        await until(lambda: live.revision == before + 2, deadline_s=60.0)
        assert live.tunables.linear.beta == 0.5
        listed = await call(w, "GET", "/revisions", kind=wire.RevisionList)
        ended, begun = listed.revisions[:2]
        assert (ended.kind, begun.kind) == ("expiry", "scheduled")
        assert begun.changes["linear.beta"] == [0.5, 0.8] == ended.changes["linear.beta"][::-1]
        every = await call(w, "GET", "/scheduled?all=true", kind=wire.ScheduledList)
        assert {(s.action, s.state) for s in every.items} == {("apply", "done"), ("revert", "done")}


async def test_a_waiting_change_can_be_called_off(four, tmp_path):
    async with controlled(four, tmp_path) as w:
        due = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
        body = {"changes": {"linear.beta": 0.8}, "at": due, **WHY}
        asked = await call(w, "POST", "/scheduled", body, kind=wire.ScheduledView, status=201)
        path = f"/scheduled/{asked.id}/cancel"
        ended = await call(w, "POST", path, WHY, kind=wire.ScheduledView)
        assert ended.state == "cancelled"
        assert (await call(w, "POST", path, WHY, status=404)).param == "id"
        past = {**body, "at": "2020-01-01T00:00:00Z"}
        assert (await call(w, "POST", "/scheduled", past, status=422)).param == "at"
        naive = {**body, "at": "2099-01-01T00:00:00"}
        assert (await call(w, "POST", "/scheduled", naive, status=422)).param == "at"
