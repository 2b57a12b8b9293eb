"""How the requests of a stretch of time fared: by tenant, model and nodes, and one by one.

Both read at most the newest so many decisions of the stretch, along the index by time, so that a
busy day costs no more than a busy minute; the answer says how far back it reaches.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, and_, case, func, select

from core.domain import OutcomeKind
from core.errors import BadRequest
from core.ports import RequestShare, RequestShares, Timing, Timings
from storage.models import decisions, outcomes
from storage.types import from_micros, to_micros

LIMIT_MAX = 200_000
GROUPS_MAX = 2_000
_KEYS = ("tenant", "model", "prefill_node", "decode_node")


def shares(connection: Connection, start: datetime, end: datetime, limit: int) -> RequestShares:
    """The newest `limit` decisions of [start, end), grouped; the largest groups first."""
    newest = _newest(start, end, limit, "status", "prompt_tokens", "match_tokens", *_KEYS)
    covered = connection.execute(select(func.count(), func.min(newest.c.at_us))).one()
    ended = outcomes.c.decision_id.is_not(None)
    missed = outcomes.c.slo_missed
    sums = {
        "decisions": func.count(),
        "rejected": _count(newest.c.status.is_not(None)),
        "finished": _count(ended),
        "failed": _count(and_(ended, outcomes.c.kind.not_in(_NOT_FAILED))),
        "aborted": _count(outcomes.c.kind == OutcomeKind.CLIENT_ABORT.value),
        "ttft_missed": _count(missed.in_(("ttft", "ttft+tbt"))),
        "tbt_missed": _count(missed.in_(("tbt", "ttft+tbt"))),
        "slo_missed": _count(missed != ""),
        "prompt_tokens": func.sum(newest.c.prompt_tokens),
        "match_tokens": func.sum(newest.c.match_tokens),
    }
    keys = [newest.c[name] for name in _KEYS]
    statement = (
        select(*keys, *(column.label(name) for name, column in sums.items()))
        .select_from(_with_outcomes(newest))
        .group_by(*keys)
        .order_by(func.count().desc(), *keys)
        .limit(GROUPS_MAX)
    )
    groups = [
        RequestShare(
            tenant=row["tenant"],
            model=row["model"],
            prefill_node=row["prefill_node"] or "",
            decode_node=row["decode_node"] or "",
            **{name: int(row[name] or 0) for name in sums},
        )
        for row in connection.execute(statement).mappings()
    ]
    return RequestShares(
        groups=tuple(groups), decisions=int(covered[0]), covered_from=_time(covered[1])
    )


def timings(connection: Connection, start: datetime, end: datetime, limit: int) -> Timings:
    """The newest requests with an outcome among the newest `limit` decisions, newest first."""
    names = ("predicted_ttft_s", "predicted_tbt_s", "ttft_slo_s", "tbt_slo_s", "prefill_node")
    newest = _newest(start, end, limit, "status", *names)
    statement = (
        select(
            newest.c.at_us,
            *(newest.c[name] for name in names),
            outcomes.c.ttft_s,
            outcomes.c.tbt_s,
        )
        .select_from(newest.join(outcomes, _same(newest)))
        .where(outcomes.c.ttft_s.is_not(None))
        .order_by(newest.c.at_us.desc())
    )
    found = [
        Timing(at=from_micros(row["at_us"]), **{k: v for k, v in row.items() if k != "at_us"})
        for row in connection.execute(statement).mappings()
    ]
    oldest = connection.scalar(select(func.min(newest.c.at_us)))
    return Timings(requests=tuple(found), covered_from=_time(oldest))


_NOT_FAILED = (OutcomeKind.OK.value, OutcomeKind.CLIENT_ABORT.value)


def _newest(start: datetime, end: datetime, limit: int, *names: str) -> FromClause:
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"must be in 1..{LIMIT_MAX}", field="limit")
    d = decisions.c
    chosen = [d.id, d.at_us, *(d[name] for name in names)]
    return (
        select(*chosen)
        .where(d.at_us >= to_micros(start), d.at_us < to_micros(end))
        .order_by(d.at_us.desc())
        .limit(limit)
        .subquery("newest")
    )


def _with_outcomes(newest: FromClause) -> FromClause:
    return newest.outerjoin(outcomes, _same(newest))


def _same(newest: FromClause) -> ColumnElement[bool]:
    o = outcomes.c
    return and_(o.decided_us == newest.c.at_us, o.decision_id == newest.c.id)


def _count(condition: ColumnElement[bool]) -> Any:
    return func.sum(case((condition, 1), else_=0))


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
