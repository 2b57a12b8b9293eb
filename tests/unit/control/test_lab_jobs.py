"""The Lab's line of jobs, and what a job computes."""

from __future__ import annotations

import time
from array import array
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.control.lab import Job, Lab, LabRules
from core.control.lab_run import OBJECTIVES, Found, Task, Tried, pieces, run, undominated
from core.control.replay import FleetShape
from core.control.window import Seen
from core.errors import BadRequest, NotFound, Overloaded
from core.tunables import Tunables

LIVE = Tunables().changed({"admission.mode": "off"})
TRACE = Path(__file__).parents[3] / "core" / "simulation" / "data" / "mixed.jsonl"
SHAPE = FleetShape(
    prefill=3, decode=0, both=0, profile="tiny-emulated", cache_tokens=200_000, batch_max=64,
    can_fetch=False, prefill_cost=(0.0, 2e-5, 1e-10), tbt_cost=(0.01, 1e-4, 1e-8),
)  # fmt: skip


def wall() -> datetime:
    return datetime.now(UTC)


def task(**more) -> Task:
    given = {
        "method": "simulate", "live": LIVE, "requests": 60, "shape": SHAPE, "trace": TRACE,
        "points": (
            Tried(label="live", tunables=LIVE, params={}, live=True),
            Tried(
                label="rr",
                tunables=LIVE.changed({"policy": "round_robin"}),
                params={"policy": "round_robin"},
            ),
        ),
    }  # fmt: skip
    return Task(**{**given, **more})


def job(name: str, what: Task | None = None) -> Job:
    what = what or task()
    return Job(
        id=name, task=what, method=what.method, source="shipped", author="op", reason="why",
        base=1, created_at=wall(), total=what.runs,
    )  # fmt: skip


def sleeper(_pipe, _task) -> None:
    time.sleep(600)


def dies(_pipe, _task) -> None:
    raise SystemExit(3)


def until(done, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def point(label: str, ttft: float, hit: float, **more) -> Found:
    figures = {"ttft_mean_s": ttft, "hit": hit, "tbt_p99_ms": None, **more}
    return Found(label=label, live=label == "live", policy="p", params={}, figures=figures)


def test_a_job_runs_in_a_process_of_its_own_and_gives_figures() -> None:
    lab = Lab(LabRules(), wall=wall)
    made = lab.submit(job("one", task(seeds=2)))
    until(lambda: made.state in ("done", "failed"))
    assert made.state == "done", made.error
    assert made.done == made.total == 4
    assert made.task is None
    assert made.result is not None and made.result.requests == 60
    live, rr = made.result.points
    assert live.live and rr.policy == "round_robin"
    assert len(live.ttft_curve_s) == 200 and live.tbt_curve_s == []
    assert live.figures["tbt_p99_ms"] is None  # nobody decodes in this fleet
    assert live.figures["hit"] > rr.figures["hit"]
    assert made.result.best in ("live", "rr")
    lab.close()


def seen(i: int) -> Seen:
    keys = array("Q", [1000 + k for k in range(4)] + [10_000 * i + k for k in range(4)])
    return Seen(0.5 * i, 512, 8, 64, keys, f"s{i % 5}", "t", 0)


def test_recorded_requests_reach_the_process_in_pieces() -> None:
    recorded = tuple(seen(i) for i in range(120))
    what = task(seen=recorded, trace=None)
    assert [len(items) for _, items in pieces(what)] == [50, 50, 20]
    lab = Lab(LabRules(), wall=wall)
    made = lab.submit(job("recorded", what))
    until(lambda: made.state in ("done", "failed"))
    assert made.state == "done", made.error
    assert made.result is not None and made.result.requests == 120
    assert made.result.points[0].figures["hit"] > 0  # all share their first blocks
    lab.close()


def test_cancelling_ends_the_process_and_the_next_one_runs() -> None:
    lab = Lab(LabRules(), wall=wall, target=sleeper)
    first, second, third = (lab.submit(job(n)) for n in ("a", "b", "c"))
    until(lambda: first.state == "running")
    assert second.state == "waiting"
    lab.cancel("b")
    assert second.state == "cancelled"
    lab.cancel("a")
    until(lambda: first.state == "cancelled" and third.state == "running")
    lab.close()
    assert third.state == "cancelled"
    lab.cancel("a")  # over: forgotten
    with pytest.raises(NotFound):
        lab.job("a")


def test_a_process_that_dies_or_takes_too_long_is_a_failed_job() -> None:
    lab = Lab(LabRules(), wall=wall, target=dies)
    made = lab.submit(job("dies"))
    until(lambda: made.state == "failed")
    assert "without a result" in made.error
    slow = Lab(LabRules(time_max_s=0.2), wall=wall, target=sleeper)
    made = slow.submit(job("slow"))
    until(lambda: made.state == "failed")
    assert "longest allowed" in made.error


def test_the_line_is_bounded_and_old_jobs_make_room() -> None:
    lab = Lab(LabRules(jobs_max=2), wall=wall, target=sleeper)
    lab.submit(job("a"))
    lab.submit(job("b"))
    with pytest.raises(Overloaded):
        lab.submit(job("c"))
    lab.cancel("b")
    lab.submit(job("c"))
    assert {j.id for j in lab.jobs()} == {"a", "c"}
    lab.close()


def test_the_front_leaves_out_objectives_that_some_point_lacks() -> None:
    points = [point("live", 1.0, 0.5), point("b", 0.5, 0.4), point("c", 1.2, 0.4)]
    assert undominated(points, OBJECTIVES["simulate"]) == [True, True, False]
    assert undominated([point("x", 1, 1)], {"absent": 1}) == [False]


def test_who_serves_few_requests_fast_is_not_the_best() -> None:
    from core.control.lab_run import _best

    points = [
        point("live", 1.0, 0.5, good_share=0.97),
        point("shed", 0.1, 0.5, good_share=0.4),
        point("good", 0.9, 0.5, good_share=0.965),
    ]
    assert _best(points) == "good"


def test_nothing_to_weigh_is_said() -> None:
    with pytest.raises(BadRequest, match="no decision is recorded"):
        run(task(method="rescore"))
    with pytest.raises(BadRequest, match="which fleet"):
        run(task(shape=None))
