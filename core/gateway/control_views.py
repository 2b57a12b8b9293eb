"""From the control plane's values to the admin API's schemas. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from core import wire
from core.control.canary import Side
from core.control.plane import ControlPlane
from core.control.preview import Report
from core.control.replay import Replayed
from core.control.revisions import Revision, StaleBase, values
from core.control.shadow import Expected
from core.control.trials import CanaryRun, ShadowRun
from core.gateway.errors import error_type
from core.ports import ScheduledRecord

_MOVES = 50


def revision_view(r: Revision) -> wire.FullRevision:
    """One revision."""
    return wire.FullRevision(
        revision=r.number,
        base=r.base,
        at=r.at,
        author=r.author,
        reason=r.reason,
        kind=r.kind.value,
        changes=pairs(r.changes),
        values=values(r.tunables),
        detail=dict(r.detail),
    )


def stale_body(error: StaleBase, request_id: str) -> wire.StaleBody:
    """A 409 with both diffs."""
    return wire.StaleBody(
        error=wire.StaleDetail(
            message=error.message,
            type=error_type(409),
            param=error.field,
            code=error.code,
            request_id=request_id,
            base=error.base,
            live=error.live,
            yours=pairs(error.yours),
            theirs=pairs(error.theirs),
        )
    )


def scheduled_view(s: ScheduledRecord) -> wire.ScheduledView:
    """A waiting change."""
    names = wire.ScheduledView.model_fields
    return wire.ScheduledView(**{name: getattr(s, name) for name in names})


def preview_view(live: int, report: Report, replayed: Replayed | None) -> wire.PreviewView:
    """A preview."""
    return wire.PreviewView(
        revision=live,
        replay=None if replayed is None else wire.ReplayView(**dataclasses.asdict(replayed)),
        **dataclasses.asdict(report),
    )


def shadow_view(run: ShadowRun | None) -> wire.ShadowView:
    """The shadow that runs, or ran last."""
    if run is None:
        return wire.ShadowView(running=False)
    tally, budget = run.tally, run.budget
    nodes = len(set(tally.live.work_s) | set(tally.candidate.work_s))
    return wire.ShadowView(
        running=not run.ended,
        ended=run.ended,
        base=run.base,
        changes=pairs(run.changes),
        started_at=run.started_at,
        author=run.author,
        reason=run.reason,
        scored=tally.scored,
        shed=budget.shed,
        agreement=tally.agreed / tally.scored if tally.scored else None,
        live=_expected(tally.live, nodes),
        candidate=_expected(tally.candidate, nodes),
        moves=[
            wire.MoveView(source=a, target=b, count=n)
            for (a, b), n in tally.moves.most_common(_MOVES)
        ],
        cost_share=budget.share,
        failures=dict(run.failures),
    )


def canary_view(run: CanaryRun | None) -> wire.CanaryView:
    """The canary that runs, or ran last."""
    if run is None:
        return wire.CanaryView(running=False)
    r = run.revision
    return wire.CanaryView(
        running=not run.ended,
        ended=run.ended,
        revision=r.number,
        base=r.base,
        share=run.tally.share,
        changes=pairs(r.changes),
        started_at=run.started_at,
        author=run.author,
        reason=run.reason,
        live=_side(run.tally.live),
        candidate=_side(run.tally.candidate),
        measures=[wire.ComparedView(**dataclasses.asdict(c)) for c in run.tally.compare()],
    )


def guard_view(plane: ControlPlane, now: float) -> wire.GuardView:
    """What the guard sees and does."""
    guard, rules = plane.guard, plane.conductor.tunables.guard
    waits = guard.state.value in ("watching", "resting")
    return wire.GuardView(
        enabled=rules.enabled,
        state=guard.state.value,
        live=plane.book.live.number,
        good=guard.good,
        ends_in_s=max(guard.until_s - now, 0.0) if waits else None,
        burn=guard.burns(now, rules),
        suspects=guard.suspects.window(now, rules.time_s).total if waits else 0,
        objective=rules.objective,
        evidence={} if guard.evidence is None else guard.evidence.facts(),
        rollbacks=plane.rollbacks,
    )


def pairs(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Path -> [old, new]."""
    return {path: list(pair) for path, pair in changes.items()}


def _expected(e: Expected, nodes: int) -> wire.ExpectedView:
    return wire.ExpectedView(
        placed=e.placed,
        refused=e.refused,
        ttft_mean_s=e.ttft_s / e.placed if e.placed else None,
        tbt_mean_s=e.tbt_s / e.placed if e.placed else None,
        hit=e.hit,
        imbalance=e.imbalance(nodes),
    )


def _side(side: Side) -> wire.SideView:
    total = side.total()
    return wire.SideView(**{name: getattr(total, name) for name in wire.SideView.model_fields})
