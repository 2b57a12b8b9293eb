"""Admin routes of migration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query

from core import wire
from core.gateway.moves.acts import cancel_move, start_move
from core.gateway.moves.move import Move, MoveState
from core.identity.principal import author

if TYPE_CHECKING:
    from core.gateway.service import Service

Name = Annotated[str, Path(max_length=64)]


def migration_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(tags=["migration"])

    @router.get("/migrations")
    async def migrations(
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> wire.MigrationList:
        """What is planned, running and done."""
        return listing(service, limit)

    @router.post("/migrations", status_code=202)
    async def start(asked: wire.MigrationAsk) -> wire.MigrationView:
        """Copy a prefix to a node now, whatever the planner thinks of it."""
        who = author(asked.author)
        return view(service, await start_move(service, asked, author=who))

    @router.post("/migrations/{id}/cancel")
    async def cancel(id: Name, why: wire.MigrationCancel | None = None) -> wire.MigrationView:
        """Give up what is planned or running."""
        why = why or wire.MigrationCancel()
        who = author(why.author)
        return view(service, await cancel_move(service, id, reason=why.reason, author=who))

    return router


def listing(service: Service, limit: int) -> wire.MigrationList:
    """GET /migrations."""
    moves, now = service.moves, service.clock.now()
    live = list(moves.live.values())[::-1]
    planned = [*(m for m in live if m.state is MoveState.PLANNED), *moves.dry]
    running = [m for m in live if m.state is MoveState.RUNNING]
    counts, totals = service.counters, moves.totals
    return wire.MigrationList(
        mode=service.conductor.tunables.migration.mode,
        planned=[view(service, m) for m in planned[:limit]],
        running=[view(service, m) for m in running[:limit]],
        ended=[view(service, m) for m in list(moves.ended)[:limit]],
        held_back=moves.held_back,
        totals=wire.MigrationTotals(
            done=counts["migration.done"],
            failed=counts["migration.failed"],
            cancelled=counts["migration.cancelled"],
            forgotten=totals["forgotten"],
            moved_tokens=totals["moved_tokens"],
            moved_bytes=totals["moved_bytes"],
            computed_tokens=totals["computed_tokens"],
        ),
        looked_ago_s=None if moves.looked_s is None else now - moves.looked_s,
        look_took_s=moves.look_took_s,
        prompts_known=len(moves.recent),
        prompt_bytes=moves.recent.nbytes,
        prompt_bytes_max=moves.recent.bytes_max,
        prompts_dropped=moves.recent.dropped,
    )


def view(service: Service, move: Move) -> wire.MigrationView:
    """One move."""
    plan = move.plan
    return wire.MigrationView(
        id=move.id,
        prefix=f"{plan.key:016x}",
        tokens=plan.tokens,
        source=move.source,
        target=move.target,
        state=move.state.value,
        how=move.how,
        dry_run=move.dry_run,
        manual=move.manual,
        reason=move.reason,
        author=move.author,
        rate_per_s=plan.rate_per_s,
        copies=plan.copies,
        source_load=plan.source_load,
        mean_load=plan.mean_load,
        target_load=plan.target_load,
        predicted_s=_finite(plan.move_s),
        saved_s=plan.saved_s if math.isfinite(plan.saved_s) else 0.0,
        benefit_s=plan.benefit_s if math.isfinite(plan.benefit_s) else 0.0,
        planned_at=move.planned_at,
        started_at=move.started_at,
        ended_at=move.ended_at,
        seconds=move.seconds,
        moved_tokens=move.moved_tokens,
        moved_bytes=move.moved_bytes,
        computed_tokens=move.computed_tokens,
        target_holds_tokens=_held(service, move),
        error=move.error,
    )


def _held(service: Service, move: Move) -> int | None:
    """Tokens of the prefix that the index lists for the target now."""
    fleet, known = service.conductor.fleet, service.moves.recent
    prefix = known.find(move.plan.key, move.plan.depth_blocks)
    if prefix is None or not fleet.has(move.target):
        return None
    row = service.conductor.index.match({prefix.block_size: prefix.keys})
    return int(row[fleet.slot(move.target)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
