"""What a Lab job computes, in a process of its own: many configurations on the same requests.

Every point is a whole configuration. `rescore` makes recorded decisions again
(`core.control.preview`); `simulate` plays requests on a simulated fleet (`core.simulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from core.control.preview import preview
from core.control.replay import FleetShape, scenario, workload
from core.control.window import Seen
from core.errors import BadRequest, ConductorError
from core.ports import StoredDecision
from core.priority import give_way
from core.simulation.compare import Compared, mean_summary, reduce_run
from core.simulation.runner import run_scenario
from core.simulation.traces import read_trace
from core.simulation.workload import Workload, prepare
from core.tunables import Tunables

Told = Callable[[int], None]
"""Called with the number of runs that are done."""
OBJECTIVES: dict[str, dict[str, int]] = {
    "simulate": {
        "ttft_mean_s": 1, "ttft_p99_s": 1, "tbt_p99_ms": 1, "hit": -1, "imbalance": 1,
        "good_share": -1,
    },
    "rescore": {"ttft_mean_s": 1, "ttft_p90_s": 1, "hit": -1, "imbalance": 1},
}  # fmt: skip
"""Figure -> 1 where less is better, -1 where more is."""
PIECE = 50
"""Items of a message to the process: about a millisecond to pack."""
GOOD_SLACK = 0.01
"""Shares of requests served within their limits that count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One configuration of a job."""

    label: str
    tunables: Tunables
    params: Mapping[str, Any]
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that the process needs; picklable."""

    method: Literal["rescore", "simulate"]
    points: tuple[Tried, ...]
    live: Tunables
    requests: int
    shape: FleetShape | None = None
    decisions: Sequence[StoredDecision] = ()
    """For rescore, oldest first."""
    seen: Sequence[Seen] = ()
    """Recorded requests for simulate, in order of arrival; empty plays `trace`."""
    trace: Path | None = None
    load: float = 1.0
    seeds: int = 1

    @property
    def runs(self) -> int:
        """Runs in all; each is one step of progress."""
        return len(self.points) * (self.seeds if self.method == "simulate" else 1)


@dataclass(slots=True, kw_only=True)
class Found:
    """One point's figures; curves only where requests were simulated."""

    label: str
    live: bool
    policy: str
    params: dict[str, Any]
    figures: dict[str, float | None]
    pareto: bool = False
    ttft_curve_s: list[float] = field(default_factory=list)
    tbt_curve_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a job gives back."""

    requests: int
    points: list[Found]
    best: str
    notes: list[str]


def pieces(task: Task) -> Iterator[tuple[str, Sequence[Any]]]:
    """What of a task goes to its process in pieces: (field, a few of its items).

    A sender holds the interpreter while it packs a message, and the event loop with it; so
    messages are small.
    """
    for name in ("decisions", "seen"):
        items = getattr(task, name)
        for i in range(0, len(items), PIECE):
            yield name, items[i : i + PIECE]


def serve(pipe: Any, task: Task) -> None:
    """The process: is given what `pieces` made, up to a None; sends ("done", n) as runs end, then
    ("result", Result) or ("failed", text)."""
    give_way()
    try:
        given: dict[str, list[Any]] = {"decisions": [], "seen": []}
        while (piece := pipe.recv()) is not None:
            given[piece[0]] += piece[1]
        task = replace(task, decisions=given["decisions"], seen=given["seen"])
        result = run(task, told=lambda done: pipe.send(("done", done)))
        pipe.send(("result", result))
    except ConductorError as error:
        pipe.send(("failed", error.message))
    except (BrokenPipeError, EOFError):
        return  # whoever asked is gone
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def run(task: Task, *, told: Told = lambda _done: None) -> Result:
    """Compute a task. ConductorError says what does not fit."""
    points, used, notes = (_rescored if task.method == "rescore" else _simulated)(task, told)
    for found, front in zip(
        points, undominated(points, OBJECTIVES[task.method]), strict=True
    ):  # fmt: skip
        found.pareto = front
    return Result(requests=used, points=points, best=_best(points), notes=notes)


def _best(points: Sequence[Found]) -> str:
    """Label of the point that serves most requests within their limits, and of those within
    `GOOD_SLACK` of it the one with the least mean TTFT.

    Not simply the least TTFT: who refuses requests, or lets decoding starve, serves others sooner.
    """
    most = max((p.figures.get("good_share") or 0.0 for p in points), default=0.0)
    good = [p for p in points if (p.figures.get("good_share") or 0.0) >= most - GOOD_SLACK]
    known = [(t, p.label) for p in good if (t := p.figures.get("ttft_mean_s")) is not None]
    return min(known)[1] if known else ""


def undominated(points: Sequence[Found], objectives: Mapping[str, int]) -> list[bool]:
    """Whether no other point is as good in every objective and better in one.

    Objectives that some point does not have are left out.
    """
    names = [n for n in objectives if all(p.figures.get(n) is not None for p in points)]
    if not names:
        return [False] * len(points)
    costs = np.array([[objectives[n] * float(p.figures[n] or 0.0) for n in names] for p in points])
    return [
        not ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any() for cost in costs
    ]  # fmt: skip


def _rescored(task: Task, told: Told) -> tuple[list[Found], int, list[str]]:
    if not task.decisions:
        raise BadRequest("source: no decision is recorded yet", field="source")
    points, notes, used = [], set[str](), 0
    for i, tried in enumerate(task.points, start=1):
        report = preview(task.decisions, task.live, tried.tunables)
        used = report.decisions
        notes |= set(report.assumptions)
        f = report.after
        figures = {
            "ttft_mean_s": f.ttft_mean_s,
            "ttft_p90_s": f.ttft_p90_s,
            "tbt_mean_ms": None if f.tbt_mean_s is None else f.tbt_mean_s * 1e3,
            "hit": f.hit,
            "imbalance": f.imbalance,
            "moved": report.moved / report.decisions if report.decisions else None,
        }
        points.append(_found(tried, figures))
        told(i)
    return points, used, sorted(notes)


def _simulated(task: Task, told: Told) -> tuple[list[Found], int, list[str]]:
    if task.shape is None:
        raise BadRequest("fleet: no node is registered; say which fleet to simulate", field="fleet")
    load, points, done = _workload(task), [], 0
    for tried in task.points:
        base = replace(scenario(task.shape, tried.tunables), load=task.load)
        runs: list[Compared] = []
        for seed in range(task.seeds):
            runs.append(reduce_run(run_scenario(replace(base, seed=seed), load)))
            done += 1
            told(done)
        mean = mean_summary([r.summary for r in runs])
        found = _found(tried, _figures(mean, decoded=bool(runs[0].tbt_curve)))
        found.ttft_curve_s, found.tbt_curve_s = runs[0].ttft_curve, runs[0].tbt_curve
        points.append(found)
    notes = ["caches start empty in every run", "all nodes have the same cost and capacity"]
    return points, len(load), notes


def _workload(task: Task) -> Workload:
    if task.seen:
        return workload(task.seen)
    assert task.trace is not None, "a simulation has recorded requests or a trace"
    return prepare(read_trace(task.trace, limit=task.requests))


def _figures(s: Mapping[str, Any], *, decoded: bool) -> dict[str, float | None]:
    """Of a simulated run, flat; None for what the run has no sample of."""
    ttft = s["ttft_s"] if s["served"] else {}
    return {
        "ttft_mean_s": ttft.get("mean"),
        "ttft_p50_s": ttft.get("p50"),
        "ttft_p99_s": ttft.get("p99"),
        "tbt_p99_ms": s["tbt_ms"]["p99"] if decoded else None,
        "queue_mean_s": s["queue_s"]["mean"],
        "hit": s["hit_ratio"],
        "imbalance": s["imbalance"],
        "utilisation": s["utilisation"],
        "goodput_rps": s["goodput_rps"],
        "good_share": s["good_share"],
        "rejected": float(s["rejected"]),
    }


def _found(tried: Tried, figures: dict[str, float | None]) -> Found:
    return Found(
        label=tried.label,
        live=tried.live,
        policy=tried.tunables.policy,
        params=dict(tried.params),
        figures=figures,
    )
