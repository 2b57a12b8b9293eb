"""Periodic jobs: they run, one failure ends nothing, and what they did can be read."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from core.clock import ManualClock, SystemClock
from core.errors import StoreError
from core.jobs import Jobs


async def until(true, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def one(jobs: Jobs):
    (state,) = jobs.states()
    return state


async def test_a_job_runs_again_and_again_and_says_so():
    runs = []
    jobs = Jobs(SystemClock())
    jobs.add("early", lambda: runs.append(1), every_s=0.02, what="counts")
    async with jobs:
        await until(lambda: len(runs) >= 3)
        state = one(jobs)
        assert (state.name, state.what, state.kind) == ("early", "counts", "job")
        assert state.runs >= 3 and state.failures == 0 and state.last_error == ""
        assert state.last_s >= 0 and state.last_at <= datetime.now(UTC)
        assert state.next_at is not None
    seen = len(runs)
    await asyncio.sleep(0.06)
    assert len(runs) == seen


async def test_a_failure_is_counted_and_the_next_run_comes(caplog):
    outcomes = iter([StoreError("away"), ValueError("odd"), None])
    ended = asyncio.Event()

    async def work():
        error = next(outcomes, None)
        if error is not None:
            raise error
        ended.set()

    async with Jobs(SystemClock()) as jobs:
        jobs.add("late", work, every_s=0.02, what="fails twice")
        await until(lambda: one(jobs).failures == 2)
        assert one(jobs).last_error_at is not None
        await until(ended.is_set)
        await until(lambda: one(jobs).last_error == "")
        assert one(jobs).failures == 2
    assert "job late: StoreError: away" in caplog.text and "job late failed" in caplog.text


async def test_one_run_at_a_time():
    inside, most, turns = 0, 0, 0

    async def work():
        nonlocal inside, most, turns
        inside, most, turns = inside + 1, max(most, inside + 1), turns + 1
        await asyncio.sleep(0.05)
        inside -= 1

    async with Jobs(SystemClock()) as jobs:
        jobs.add("slow", work, every_s=0.01, what="takes longer than its period")
        await until(lambda: turns >= 3)
    assert most == 1


async def test_a_period_can_change_and_overdue_jobs_are_woken():
    period, runs, clock = [3600.0], [], ManualClock()
    async with Jobs(clock) as jobs:
        jobs.add("paced", lambda: runs.append(1), every_s=lambda: period[0], what="x")
        jobs.add("asleep", lambda: runs.append(2), every_s=3600.0, what="x")
        # The wall clock may have been set back: the monotonic one says it is time.
        clock.advance(3 * 3600.0 + 1)
        jobs.hurry(clock.now())
        await until(lambda: sorted(runs) == [1, 2])
        period[0] = 0.02
        jobs.hurry(clock.now())
        await until(lambda: runs.count(1) >= 3)
        assert runs.count(2) == 1
        assert jobs.states()[0].next_at > datetime.now(UTC) + timedelta(minutes=50)


async def test_loops_note_their_rounds_and_jobs_can_be_dropped():
    clock = ManualClock()
    jobs = Jobs(clock)
    loop = jobs.loop("beat", every_s=0.25, what="beats")
    with loop.round():
        clock.advance(0.5)
    with pytest.raises(ValueError), loop.round():
        raise ValueError("no")
    state = one(jobs)
    assert (state.kind, state.runs, state.failures, state.last_error) == (
        "loop", 2, 1, "ValueError: no",
    )  # fmt: skip
    loop.note(0.1)
    assert (one(jobs).last_error, one(jobs).last_s, one(jobs).next_at) == ("", 0.1, None)
    with pytest.raises(ValueError, match="already"):
        jobs.add("beat", int, every_s=1, what="")
    with pytest.raises(ValueError, match="no period"):
        jobs.add("never", int, every_s=0, what="")
    jobs.drop("beat")
    assert jobs.states() == []
